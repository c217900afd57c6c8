package house

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

const (
	methodsFile = "internal/house/methods.txt"
	maxMethods  = 60

	// An engine of a session asks the loop through an interface beside it, named …Loop.
	enginesFolder = "server/executor"
	maxAsked      = 10
)

// methodsOf adds the methods that a file declares to the number that each type of its folder has. A type is named by
// its folder and its name.
func methodsOf(have map[string]int, name, text string) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv == nil || len(f.Recv.List) != 1 {
			continue
		}
		if typ := receiver(f.Recv.List[0].Type); typ != "" {
			have[path.Dir(name)+"."+typ]++
		}
	}
	return nil
}

// receiver is the name of a method's type, which may be a pointer to it and may have parameters.
func receiver(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.ParenExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	}
	return ""
}

// parseMethods reads methods.txt; head is the comment at its top.
func parseMethods(text string) (head string, list map[string]int, err error) {
	list = map[string]int{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			head += line
			continue
		}
		var n int
		var name string
		if _, err := fmt.Sscan(line, &n, &name); err != nil {
			return "", nil, fmt.Errorf("%q: want METHODS FOLDER.TYPE", line)
		}
		if _, twice := list[name]; twice {
			return "", nil, fmt.Errorf("%s is listed twice", name)
		}
		list[name] = n
	}
	return head, list, nil
}

func formatMethods(head string, list map[string]int) string {
	names := slices.SortedFunc(maps.Keys(list), func(a, b string) int {
		return cmp.Or(cmp.Compare(list[b], list[a]), cmp.Compare(a, b))
	})
	for _, name := range names {
		head += fmt.Sprintf("%4d %s\n", list[name], name)
	}
	return head
}

// compareMethods says which types have more methods than they may, and where the list holds what is no longer so.
func compareMethods(list, have map[string]int) (faults []string) {
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if most := max(list[name], maxMethods); have[name] > most {
			faults = append(faults, fmt.Sprintf("%s has %d methods; %d are allowed", name, have[name], most))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		switch l, h := list[name], have[name]; {
		case l <= maxMethods:
			faults = append(faults, fmt.Sprintf("%s is listed with %d methods, which all types may have", name, l))
		case h < l:
			faults = append(faults, fmt.Sprintf("%s is listed with %d methods, but has %d: run %s",
				name, l, h, "go test ./internal/house -update"))
		}
	}
	return faults
}

// TestMethods holds hand-written types against maxMethods. What is over stands in methods.txt, whose numbers only go
// down.
func TestMethods(t *testing.T) {
	head, list, err := parseMethods(read(t, methodsFile))
	if err != nil {
		t.Fatalf("%s: %v", methodsFile, err)
	}
	have := map[string]int{}
	for _, name := range sources(t) {
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text := read(t, name)
		if generated(text) {
			continue
		}
		if err := methodsOf(have, name, text); err != nil {
			t.Fatal(err)
		}
	}
	if len(have) < 100 {
		t.Fatalf("%d types with methods were found", len(have))
	}
	if !*update {
		for _, fault := range compareMethods(list, have) {
			t.Error(fault)
		}
		return
	}
	over := map[string]int{}
	for name, n := range have {
		if n <= maxMethods {
			continue
		}
		if n > list[name] && !*accept {
			t.Errorf("%s has %d methods; %d are allowed: give some to a type of their own, or write the list with -accept",
				name, n, max(list[name], maxMethods))
			n = list[name]
		}
		over[name] = n
	}
	maps.DeleteFunc(over, func(_ string, n int) bool { return n == 0 })
	write(t, methodsFile, formatMethods(head, over))
}

// asked adds the methods of the interfaces through which the engines in a file ask the loop.
func asked(have map[string]int, name, text string) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSpec); ok && strings.HasSuffix(s.Name.Name, "Loop") {
			if i, ok := s.Type.(*ast.InterfaceType); ok {
				have[s.Name.Name] = len(i.Methods.List)
			}
		}
		return true
	})
	return nil
}

// TestEnginesAskLittle: an engine that asks the loop for more than maxAsked things is none.
func TestEnginesAskLittle(t *testing.T) {
	have := map[string]int{}
	for _, name := range sources(t) {
		if path.Dir(name) != enginesFolder || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		if err := asked(have, name, read(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	if len(have) < 6 {
		t.Errorf("%d engines were found: %v", len(have), have)
	}
	for name, n := range have {
		if n > maxAsked {
			t.Errorf("%s has %d methods; %d are allowed", name, n, maxAsked)
		}
	}
}

func TestCompareMethods(t *testing.T) {
	list := map[string]int{"a.T": 100}
	for name, c := range map[string]struct {
		have map[string]int
		want []string
	}{
		"as listed":    {map[string]int{"a.T": 100, "b.T": 60}, nil},
		"one more":     {map[string]int{"a.T": 101}, []string{"a.T has 101 methods; 100 are allowed"}},
		"new and many": {map[string]int{"a.T": 100, "b.T": 61}, []string{"b.T has 61 methods; 60 are allowed"}},
		"fewer": {map[string]int{"a.T": 99},
			[]string{"a.T is listed with 100 methods, but has 99: run go test ./internal/house -update"}},
		"gone": {nil, []string{"a.T is listed with 100 methods, but has 0: run go test ./internal/house -update"}},
	} {
		if got := compareMethods(list, c.have); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := compareMethods(map[string]int{"a.T": 60}, map[string]int{"a.T": 60}); len(got) != 1 {
		t.Errorf("an exception for what needs none: %q", got)
	}
}

func TestMethodsOf(t *testing.T) {
	const text = `package p
func f() {}
func (T) a() {}
func (t *T) b() {}
func (t (*T)) c() {}
func (g G[X]) a() {}
func (g *G[X, Y]) b() {}
`
	have := map[string]int{"a/p.T": 1}
	if err := methodsOf(have, "a/p/x.go", text); err != nil {
		t.Fatal(err)
	}
	if want := map[string]int{"a/p.T": 4, "a/p.G": 2}; !maps.Equal(have, want) {
		t.Errorf("%v, want %v", have, want)
	}
	if methodsOf(have, "a/p/y.go", "package p\nfunc (") == nil {
		t.Error("what is no Go was accepted")
	}
}

func TestParseMethods(t *testing.T) {
	const text = "# head\n 100 a.T\n  61 b.T\n"
	head, list, err := parseMethods(text)
	if err != nil || formatMethods(head, list) != text {
		t.Errorf("%v %q", err, formatMethods(head, list))
	}
	for _, wrong := range []string{"a.T 100\n", "100\n", " 100 a.T\n 61 a.T\n"} {
		if _, _, err := parseMethods(wrong); err == nil {
			t.Errorf("%q was accepted", wrong)
		}
	}
}
