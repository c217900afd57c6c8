package house

import (
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const importsFile = "internal/house/imports.txt"

// row is a line of imports.txt.
type row struct {
	folder, holds string
	imports       []string // folders whose packages it may import
}

// parseRows reads imports.txt; head is the comment at its top.
func parseRows(text string) (head string, rows []row, err error) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			head += line
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		if len(f) != 3 {
			return "", nil, fmt.Errorf("%q: want FOLDER | what it holds | what it may import", line)
		}
		r := row{folder: strings.TrimSpace(f[0]), holds: strings.TrimSpace(f[1]), imports: strings.Fields(f[2])}
		if r.folder == "" || r.holds == "" {
			return "", nil, fmt.Errorf("%q: no folder, or not said what it holds", line)
		}
		rows = append(rows, r)
	}
	return head, rows, nil
}

func (r row) String() string {
	return strings.TrimRight(fmt.Sprintf("%s | %s | %s", r.folder, r.holds, strings.Join(r.imports, " ")), " ")
}

// folder is what the sources say of a folder.
type folder struct {
	imports map[string]bool // folders of the module, by files that are not tests
	comment string          // of the package
}

// folders are those that hold code: Go packages and the C libraries. Folders named testdata are no rooms.
func folders(t *testing.T, files []string) map[string]folder {
	t.Helper()
	have := map[string]folder{}
	for _, name := range files {
		dir, ext := path.Dir(name), path.Ext(name)
		if ext != ".go" && ext != ".c" && ext != ".h" || slices.Contains(strings.Split(dir, "/"), "testdata") {
			continue
		}
		f, ok := have[dir]
		if !ok {
			f.imports = map[string]bool{}
		}
		if ext == ".go" {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil,
				parser.ImportsOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if file.Doc != nil && !strings.HasSuffix(name, "_test.go") && f.comment == "" {
				f.comment = synopsis(file.Doc.Text())
			}
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if dir, own := strings.CutPrefix(imported, module+"/"); own && !strings.HasSuffix(name, "_test.go") {
					f.imports[dir] = true
				}
			}
		}
		have[dir] = f
	}
	return have
}

// synopsis is a package comment's first sentence without "Package NAME".
func synopsis(comment string) string {
	s := strings.TrimSuffix(new(doc.Package).Synopsis(comment), ".")
	for _, kind := range []string{"Package ", "Command "} {
		if rest, ok := strings.CutPrefix(s, kind); ok {
			_, s, _ = strings.Cut(rest, " ")
		}
	}
	return strings.ReplaceAll(strings.TrimPrefix(s, "is "), "|", "/")
}

// updated is what rows become: without folders that are gone, with those that are new, without imports that nobody
// uses. With accept rows allow what there is.
func updated(rows []row, have map[string]folder, accept bool) []row {
	var out []row
	listed := map[string]bool{}
	for _, r := range rows {
		f, ok := have[r.folder]
		if !ok {
			continue
		}
		listed[r.folder] = true
		if accept {
			r.imports = slices.Sorted(maps.Keys(f.imports))
		}
		r.imports = slices.DeleteFunc(slices.Clone(r.imports), func(i string) bool { return !f.imports[i] })
		out = append(out, r)
	}
	for dir, f := range have {
		if !listed[dir] {
			holds := f.comment
			if holds == "" {
				holds = "say here what it holds"
			}
			out = append(out, row{dir, holds, slices.Sorted(maps.Keys(f.imports))})
		}
	}
	slices.SortFunc(out, func(a, b row) int { return strings.Compare(a.folder, b.folder) })
	return out
}

// check says what of the rows does not hold.
func check(rows []row, have map[string]folder) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	listed := map[string]bool{}
	for i, r := range rows {
		if listed[r.folder] {
			fault("%s has two rows", r.folder)
		}
		if i > 0 && r.folder < rows[i-1].folder {
			fault("%s stands behind %s; the rows are sorted", r.folder, rows[i-1].folder)
		}
		listed[r.folder] = true
		f, ok := have[r.folder]
		if !ok {
			fault("%s has a row, but holds no code", r.folder)
			continue
		}
		for _, i := range slices.Sorted(maps.Keys(f.imports)) {
			if !slices.Contains(r.imports, i) {
				fault("%s imports %s, which its row does not allow", r.folder, i)
			}
		}
		for _, i := range r.imports {
			if !f.imports[i] {
				fault("%s may import %s, but does not", r.folder, i)
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(have)) {
		if !listed[dir] {
			fault("%s has no row", dir)
		}
	}
	return faults
}

const (
	tableBegin = "<!-- folders: begin, written by go test ./internal/house -update -->\n"
	tableEnd   = "<!-- folders: end -->\n"
)

// table puts the table of folders into the text of docs/architecture.md.
func table(text string, rows []row) (string, error) {
	before, rest, ok := strings.Cut(text, tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !ok || !ended {
		return "", fmt.Errorf("no place for the table: want %q and %q", tableBegin, tableEnd)
	}
	var b strings.Builder
	b.WriteString("| folder | holds | may import |\n|---|---|---|\n")
	for _, r := range rows {
		imports := ""
		if len(r.imports) > 0 {
			imports = "`" + strings.Join(r.imports, "` `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.folder, r.holds, imports)
	}
	return before + tableBegin + b.String() + tableEnd + after, nil
}

// TestImports holds the folders against imports.txt: each has a row, and imports what the row allows. The table of
// docs/architecture.md says the same.
func TestImports(t *testing.T) {
	head, rows, err := parseRows(read(t, importsFile))
	if err != nil {
		t.Fatalf("%s: %v", importsFile, err)
	}
	have := folders(t, sources(t))
	if *update {
		rows = updated(rows, have, *accept)
		text := head
		for _, r := range rows {
			text += r.String() + "\n"
		}
		write(t, importsFile, text)
	}
	for _, fault := range check(rows, have) {
		t.Errorf("%s: %s", importsFile, fault)
	}
	const page = "docs/architecture.md"
	text := read(t, page)
	want, err := table(text, rows)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	if *update {
		write(t, page, want)
	} else if text != want {
		t.Errorf("%s: the table of folders is not that of %s; run go test ./internal/house -update", page, importsFile)
	}
	if t.Failed() {
		t.Log("new and vanished folders: go test ./internal/house -update; a new import: write it into the folder's row")
	}
}

func TestCheckImports(t *testing.T) {
	have := map[string]folder{
		"a": {imports: map[string]bool{"b": true}},
		"b": {},
	}
	a, b := row{"a", "calls", []string{"b"}}, row{"b", "bytes", nil}
	for name, c := range map[string]struct {
		rows []row
		want string
	}{
		"right":        {[]row{a, b}, ""},
		"no row":       {[]row{a}, "b has no row"},
		"not allowed":  {[]row{{"a", "calls", nil}, b}, "a imports b, which its row does not allow"},
		"not used":     {[]row{a, {"b", "bytes", []string{"a"}}}, "b may import a, but does not"},
		"gone":         {[]row{a, b, {"c", "nothing", nil}}, "c has a row, but holds no code"},
		"twice":        {[]row{a, b, b}, "b has two rows"},
		"out of order": {[]row{b, a}, "a stands behind b; the rows are sorted"},
	} {
		if got := strings.Join(check(c.rows, have), "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for _, rows := range [][]row{nil, {a}, {a, b, {"c", "nothing", nil}}, {b, a}} {
		if faults := check(updated(rows, have, false), have); faults != nil {
			t.Errorf("%v updated: %v", rows, faults)
		}
	}
	denied := []row{{"a", "calls", nil}, b}
	if rows := updated(denied, have, false); len(check(rows, have)) != 1 {
		t.Errorf("-update allowed an import by itself: %v", rows)
	}
	if rows := updated(denied, have, true); len(check(rows, have)) != 0 {
		t.Errorf("-update -accept did not allow an import: %v", rows)
	}
}

func TestTable(t *testing.T) {
	text := "x\n" + tableBegin + "old\n" + tableEnd + "y\n"
	got, err := table(text, []row{{"a", "calls", []string{"b", "c"}}})
	want := "x\n" + tableBegin + "| folder | holds | may import |\n|---|---|---|\n| `a` | calls | `b` `c` |\n" +
		tableEnd + "y\n"
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err := table("x\n", nil); err == nil {
		t.Error("a page without a place for the table was accepted")
	}
}
