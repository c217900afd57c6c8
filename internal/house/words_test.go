package house

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	name   = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	part   = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)
	noName = regexp.MustCompile("(?s)" + `//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|` + "`[^`]*`") // comments and texts
)

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
	seen := map[string]bool{}
	for _, n := range name.FindAllString(noName.ReplaceAllString(text, ""), -1) {
		for _, p := range part.FindAllString(n, -1) {
			p = strings.ToLower(p)
			today, old := words[p]
			if !old {
				today, old = words[strings.TrimSuffix(p, "s")]
			}
			if old && !seen[n] {
				seen[n] = true
				faults = append(faults, n+" has an old word: "+today)
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
		"x := theTwin + twins + TWIN_1":           3,
		"inside, outsideOf, beside, twine":        0,
		"// a twin\n/* a\nside */ f(\"a side\")":  0,
		"func (s *Side) serve(side int) { side }": 2,
	} {
		if f := wordFaults(text, words); len(f) != faults {
			t.Errorf("%q: %q, want %d", text, f, faults)
		}
	}
}
