package house

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	sizesFile = "internal/house/sizes.txt"
	maxLines  = 600
	maxWidth  = 120 // characters; a tab is one
)

// excess is what a file has too much of: its lines, where they are more than maxLines, and how many of them are wider
// than maxWidth.
type excess struct{ lines, wide int }

// handWritten says whether a file is source that people write. Descriptions (facts, semantics) and data are not.
func handWritten(name, text string) bool {
	dir, base := path.Split(name)
	switch path.Ext(base) {
	case ".go", ".c", ".h", ".S", ".cu", ".cc", ".cpp", ".py", ".sh", ".java":
	default:
		if base != "Makefile" && dir != ".ci/" {
			return false
		}
	}
	return !generated(text)
}

func excessOf(text string) (e excess) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if utf8.RuneCountInString(strings.TrimRight(line, "\r\n")) > maxWidth {
			e.wide++
		}
	}
	if n > maxLines {
		e.lines = n
	}
	return e
}

// parseSizes reads sizes.txt; head is the comment at its top.
func parseSizes(text string) (head string, list map[string]excess, err error) {
	list = map[string]excess{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			head += line
			continue
		}
		var name string
		var e excess
		if _, err := fmt.Sscan(line, &e.lines, &e.wide, &name); err != nil {
			return "", nil, fmt.Errorf("%q: want LINES WIDE FILE", line)
		}
		if _, twice := list[name]; twice {
			return "", nil, fmt.Errorf("%s is listed twice", name)
		}
		list[name] = e
	}
	return head, list, nil
}

func formatSizes(head string, list map[string]excess) string {
	names := slices.SortedFunc(maps.Keys(list), func(a, b string) int {
		return cmp.Or(cmp.Compare(list[b].lines, list[a].lines), cmp.Compare(list[b].wide, list[a].wide), cmp.Compare(a, b))
	})
	for _, name := range names {
		head += fmt.Sprintf("%5d %4d %s\n", list[name].lines, list[name].wide, name)
	}
	return head
}

// compareSizes says where files have more than is listed, and where the list holds what is no longer so.
func compareSizes(list, have map[string]excess) (faults []string) {
	for _, name := range slices.Sorted(maps.Keys(have)) {
		l, h := list[name], have[name]
		if h.lines > max(l.lines, maxLines) {
			faults = append(faults, fmt.Sprintf("%s has %d lines; %d are allowed", name, h.lines, max(l.lines, maxLines)))
		}
		if h.wide > l.wide {
			faults = append(faults, fmt.Sprintf("%s has %d lines of more than %d characters; %d are allowed",
				name, h.wide, maxWidth, l.wide))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		l, h := list[name], have[name]
		if h.lines < l.lines || h.wide < l.wide {
			faults = append(faults, fmt.Sprintf("%s is listed with %d and %d, but has %d and %d: run %s",
				name, l.lines, l.wide, h.lines, h.wide, "go test ./internal/house -update"))
		}
	}
	return faults
}

// grown says what new lists have more of than old ones, all files together: moving code from file to file is free.
func grown(list, have map[string]excess) (faults []string) {
	sum := func(m map[string]excess) (files, over, wide int) {
		for _, e := range m {
			if e.lines > 0 {
				files++
				over += e.lines - maxLines
			}
			wide += e.wide
		}
		return files, over, wide
	}
	_, lo, lw := sum(list)
	_, ho, hw := sum(have)
	if ho > lo {
		faults = append(faults, fmt.Sprintf("long files have %d lines too many, %d more than were listed", ho, ho-lo))
	}
	if hw > lw {
		faults = append(faults, fmt.Sprintf("%d lines are too wide, %d more than were listed", hw, hw-lw))
	}
	return faults
}

// TestSizes holds hand-written files against maxLines and maxWidth. What is over stands in sizes.txt, whose numbers
// only go down.
func TestSizes(t *testing.T) {
	head, list, err := parseSizes(read(t, sizesFile))
	if err != nil {
		t.Fatalf("%s: %v", sizesFile, err)
	}
	have := map[string]excess{}
	files := 0
	for _, name := range sources(t) {
		text := read(t, name)
		if !handWritten(name, text) {
			continue
		}
		files++
		if e := excessOf(text); e != (excess{}) {
			have[name] = e
		}
	}
	if files < 500 {
		t.Fatalf("%d files were looked at", files)
	}
	if !*update {
		for _, fault := range compareSizes(list, have) {
			t.Error(fault)
		}
		return
	}
	if faults := grown(list, have); faults != nil && !*accept {
		for _, fault := range append(faults, compareSizes(list, have)...) {
			t.Error(fault)
		}
		t.Fatalf("%s is as it was: shorten what grew, or say why that has to be and write the list with -accept", sizesFile)
	}
	write(t, sizesFile, formatSizes(head, have))
}

func TestCompareSizes(t *testing.T) {
	list := map[string]excess{"a.go": {700, 3}, "b.go": {0, 2}}
	for name, c := range map[string]struct {
		have map[string]excess
		want []string
	}{
		"as listed": {map[string]excess{"a.go": {700, 3}, "b.go": {0, 2}}, nil},
		"longer": {map[string]excess{"a.go": {701, 3}, "b.go": {0, 2}},
			[]string{"a.go has 701 lines; 700 are allowed"}},
		"new and long": {map[string]excess{"a.go": {700, 3}, "b.go": {601, 2}},
			[]string{"b.go has 601 lines; 600 are allowed"}},
		"wider": {map[string]excess{"a.go": {700, 3}, "b.go": {0, 2}, "c.go": {0, 1}},
			[]string{"c.go has 1 lines of more than 120 characters; 0 are allowed"}},
		"shorter": {map[string]excess{"a.go": {0, 3}, "b.go": {0, 2}},
			[]string{"a.go is listed with 700 and 3, but has 0 and 3: run go test ./internal/house -update"}},
		"gone": {map[string]excess{"a.go": {700, 3}},
			[]string{"b.go is listed with 0 and 2, but has 0 and 0: run go test ./internal/house -update"}},
	} {
		if got := compareSizes(list, c.have); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if f := grown(list, map[string]excess{"moved.go": {700, 5}}); f != nil {
		t.Errorf("moved code counts as new: %v", f)
	}
	if f := grown(list, map[string]excess{"a.go": {702, 6}}); len(f) != 2 {
		t.Errorf("grown code: %v", f)
	}
}

func TestExcess(t *testing.T) {
	wide := strings.Repeat("ü", maxWidth)
	if e := excessOf(wide + "\n" + wide + "x\n"); e != (excess{0, 1}) {
		t.Errorf("%+v", e)
	}
	if e := excessOf(strings.Repeat("x\n", maxLines)); e != (excess{}) {
		t.Errorf("%+v", e)
	}
	if e := excessOf(strings.Repeat("x\n", maxLines+1)); e != (excess{maxLines + 1, 0}) {
		t.Errorf("%+v", e)
	}
	text := formatSizes("# head\n", map[string]excess{"a.go": {700, 3}, "b.go": {0, 2}})
	head, list, err := parseSizes(text)
	if err != nil || head != "# head\n" || len(list) != 2 || list["a.go"] != (excess{700, 3}) {
		t.Errorf("%q: %v %v %v", text, head, list, err)
	}
}
