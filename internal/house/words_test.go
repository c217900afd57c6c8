package house

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var part = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// noName is the length of the comment or text at the start of a source; 0: there is none. By hand, as are namesOf: with
// the race detector expressions take most of a minute of processor time for all sources.
func noName(text string) int {
	within := func(start, end string) int {
		if i := strings.Index(text[len(start):], end); i >= 0 {
			return len(start) + i + len(end)
		}
		return 0
	}
	switch {
	case strings.HasPrefix(text, "//"):
		line, _, _ := strings.Cut(text, "\n")
		return len(line)
	case strings.HasPrefix(text, "/*"):
		return within("/*", "*/")
	case text[0] == '`':
		return within("`", "`")
	case text[0] == '"':
		for i := 1; i < len(text) && text[i] != '\n'; i++ {
			switch text[i] {
			case '\\':
				i++
			case '"':
				return i + 1
			}
		}
	}
	return 0
}

// namesOf are the names in a source, each once, without comments and texts.
func namesOf(text string) map[string]bool {
	names := map[string]bool{}
	letter := func(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' }
	for len(text) > 0 {
		n := noName(text)
		if n == 0 && letter(text[0]) {
			for n < len(text) && (letter(text[n]) || text[n] >= '0' && text[n] <= '9') {
				n++
			}
			names[text[:n]] = true
		}
		text = text[max(n, 1):]
	}
	return names
}

// oldWords reads the glossary's table of words that are used no longer. What has a remark in brackets, or is more than
// one word, is about things and not about names.
func oldWords(t *testing.T, glossary string) map[string]string {
	t.Helper()
	_, rest, found := strings.Cut(glossary, "\n## Old words\n")
	_, rest, table := strings.Cut(rest, "|---|---|\n")
	if !found || !table {
		t.Fatal("docs/glossary.md has no table of old words")
	}
	words := map[string]string{}
	for row := range strings.Lines(rest) {
		cells := strings.Split(row, "|")
		if len(cells) < 4 {
			break
		}
		if strings.Contains(cells[1], "(") {
			continue
		}
		for old := range strings.SplitSeq(cells[1], ",") {
			if old = strings.TrimSpace(old); !strings.Contains(old, " ") {
				words[old] = strings.TrimSpace(cells[2])
			}
		}
	}
	return words
}

// wordFaults gives the names in a source file that have an old word in them.
func wordFaults(text string, words map[string]string) (faults []string) {
	for _, n := range slices.Sorted(maps.Keys(namesOf(text))) {
		for _, p := range part.FindAllString(n, -1) {
			p = strings.ToLower(p)
			today, old := words[p]
			if !old {
				today, old = words[strings.TrimSuffix(p, "s")]
			}
			if old {
				faults = append(faults, n+" has an old word: "+today)
				break
			}
		}
	}
	return faults
}

// TestOldWords: no name in the code has a word that the glossary calls old. Where CUDA's interface has one (boxDim), it
// is in a file that is generated, or in texts.
func TestOldWords(t *testing.T) {
	words := oldWords(t, read(t, "docs/glossary.md"))
	for _, file := range sources(t) {
		switch path.Ext(file) {
		case ".go", ".c", ".h":
		default:
			continue
		}
		text := read(t, file)
		if generated(text) || strings.Contains(file, "/testdata/") {
			continue
		}
		for _, fault := range wordFaults(text, words) {
			t.Errorf("%s: %s", file, fault)
		}
	}
}

func TestWordFaults(t *testing.T) {
	words := map[string]string{"twin": "device mirror", "side": "callback"}
	for text, faults := range map[string]int{
		"x := theTwin + twins + TWIN_1":              3,
		"inside, outsideOf, beside, twine":           0,
		"// a twin\n/* a\nside */ f(\"a side\")":     0,
		"f(`a\nside`, \"a \\\" side\", 'x') // twin": 0,
		"/* open twin \"\nside 0xside":               2,
		"func (s *Side) serve(side int) { side }":    2,
	} {
		if f := wordFaults(text, words); len(f) != faults {
			t.Errorf("%q: %q, want %d", text, f, faults)
		}
	}
}
