package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// filledIn stands for what a message says differently each time.
const filledIn = "%s"

// troubleshooting is the page that has every message.
const troubleshooting = "docs/troubleshooting.md"

// talkers are the folders whose warnings and errors people read: the client's and the server's.
var talkers = []string{
	"config", "cmd", "shim/front", "shim/core", "shim/session", "shim/metrics", "server", "transport",
}

var (
	inC = regexp.MustCompile(
		`scuda_log\(\s*(?:SCUDA_WARN|SCUDA_ERROR|level|atomic_exchange)[^"]*((?:"(?:[^"\\]|\\.)*"\s*)+)`)
	literal     = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	conversions = regexp.MustCompile(`%[-#0-9.*]*(?:ll|l|z)?[a-zA-Z]`)
)

// A user who looks for a message that the client or the server gives finds it with its cause and what to do.
func TestMessagesAreExplained(t *testing.T) {
	text, found := plainText(read(t, troubleshooting)), 0
	for _, m := range messages(t) {
		found++
		if !strings.Contains(text, plainText(m.text)) {
			t.Errorf("%s says %q; add it to %s", m.file, m.text, troubleshooting)
		}
	}
	if found < 80 {
		t.Errorf("%d messages were found; the search is broken", found)
	}
}

// plainText is text without what tells a page's form from its words.
func plainText(s string) string {
	return strings.Join(strings.Fields(strings.NewReplacer("`", "", `\|`, "|").Replace(s)), " ")
}

type message struct{ file, text string }

// messages gives the fixed part of each warning and error: the longest one between what is filled in.
func messages(t *testing.T) (list []message) {
	for _, folder := range talkers {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			name := d.Name()
			switch {
			case err != nil:
				return err
			case d.IsDir() && (name == "testdata" || strings.HasSuffix(name, "test")):
				return filepath.SkipDir
			case strings.HasSuffix(name, ".c"):
				b, err := os.ReadFile(path)
				for _, m := range inC.FindAllStringSubmatch(string(b), -1) {
					list = append(list, message{path, fixed(joined(literal.FindAllString(m[1], -1)))})
				}
				return err
			case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
				file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
				if err != nil {
					return err
				}
				ast.Inspect(file, func(n ast.Node) bool {
					if s, ok := said(n); ok {
						list = append(list, message{path, fixed(s)})
					}
					return true
				})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return slices.DeleteFunc(list, func(m message) bool { return len(m.text) < 8 })
}

// TestRefusalsAreExplained: so does a user who cannot connect.
func TestRefusalsAreExplained(t *testing.T) {
	text, found := plainText(read(t, troubleshooting)), 0
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "transport/errors.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		kinds, ok := d.(*ast.GenDecl)
		if !ok || kinds.Tok != token.VAR || !kinds.Lparen.IsValid() {
			continue
		}
		ast.Inspect(kinds, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				found++
				if s, err := strconv.Unquote(l.Value); err != nil || !strings.Contains(text, s) {
					t.Errorf("%s is not in %s", l.Value, troubleshooting)
				}
			}
			return true
		})
	}
	if found < 10 {
		t.Errorf("%d kinds of refusals were found", found)
	}
}

// said is what a call logs as a warning or an error.
func said(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return "", false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Warn" && f.Sel.Name != "Error" {
		return "", false
	}
	return text(call.Args[0])
}

// text is the string of an expression that joins some, in the form of a format.
func text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		a, ok := text(e.X)
		b, more := text(e.Y)
		if !ok {
			a = filledIn
		}
		if !more {
			b = filledIn
		}
		return a + b, ok || more
	}
	return "", false
}

func joined(literals []string) string {
	var b strings.Builder
	for _, l := range literals {
		if s, err := strconv.Unquote(l); err == nil {
			b.WriteString(s)
		}
	}
	return b.String()
}

// fixed is the longest part of a format that says the same each time.
func fixed(format string) string {
	longest := ""
	for _, part := range conversions.Split(format, -1) {
		if part = strings.Trim(part, " ;:,."); len(part) > len(longest) {
			longest = part
		}
	}
	return longest
}
