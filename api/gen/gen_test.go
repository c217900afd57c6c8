package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api"
)

func spec(t *testing.T) *api.Spec {
	t.Helper()
	s, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every generated file of the tree is what the generator writes now.
func TestUpToDate(t *testing.T) {
	if err := run("../..", Check); err != nil {
		t.Error(err)
	}
}

// TestNeedsNoMeasurements: the description and its generator read nothing below perf.
func TestNeedsNoMeasurements(t *testing.T) {
	for _, pattern := range []string{"../*.go", "*.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) < 5 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && !strings.HasSuffix(path, "_test.go") &&
					strings.Contains(text.Value, "perf/results") {
					t.Errorf("%s: %s", path, text.Value)
				}
				return true
			})
		}
	}
}

// TestProtocolPage: the page describes every message under its number, and no other.
func TestProtocolPage(t *testing.T) {
	page, err := os.ReadFile("../../" + protocolPage)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, set := range spec(t).Sets {
		for _, c := range set.Values {
			if set.Name == "message" && !c.Removed {
				want[fmt.Sprintf("%d %s", c.Value, strings.ToUpper(strings.ReplaceAll(c.Name, "_", " ")))] = true
			}
		}
	}
	if len(want) < 20 {
		t.Fatalf("%d messages", len(want))
	}
	rows := regexp.MustCompile(`(?m)^\| (.*?) \|`)
	names := regexp.MustCompile(`\b(\d+) ([A-Z][A-Z ]+[A-Z])\b`)
	seen := map[string]bool{}
	for _, row := range rows.FindAllStringSubmatch(string(page), -1) {
		for _, m := range names.FindAllString(row[1], -1) {
			if seen[m] = true; !want[m] {
				t.Errorf("the page has a message %q", m)
			}
		}
	}
	for name := range want {
		if !seen[name] {
			t.Errorf("the page does not have the message %q", name)
		}
	}
}

func TestCheckFindsStaleFiles(t *testing.T) {
	dir := t.TempDir()
	if err := NewOutput(dir, WriteAll).File("a/b.txt", []byte("old")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		content string
		stale   bool
	}{{"old", false}, {"new", true}} {
		out := NewOutput(dir, Check)
		if err := out.File("a/b.txt", []byte(c.content)); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); (err != nil) != c.stale {
			t.Errorf("%s: %v", c.content, err)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "a/b.txt")); string(b) != "old" {
		t.Error("check mode wrote a file")
	}
}

// A build writes what is not in the repository, and nothing else; what is in the repository is checked, and nothing
// else.
func TestBuildWritesWhatIsNotKept(t *testing.T) {
	kept, built := "docs/page.md", "shim/front/gen/calls_gen.c"
	for _, c := range []struct {
		mode  Mode
		wrote []string
		stale bool
	}{{WriteAll, []string{kept, built}, false}, {WriteBuilt, []string{built}, false}, {Check, nil, true}} {
		dir := t.TempDir()
		out := NewOutput(dir, c.mode)
		for _, path := range []string{kept, built} {
			if err := out.File(path, []byte("x")); err != nil {
				t.Fatal(err)
			}
			_, err := os.Stat(filepath.Join(dir, path))
			if there := err == nil; there != slices.Contains(c.wrote, path) {
				t.Errorf("mode %d, %s: written %v", c.mode, path, there)
			}
		}
		err := out.Close()
		if (err != nil) != c.stale || c.stale && strings.Contains(err.Error(), built) {
			t.Errorf("mode %d: %v", c.mode, err)
		}
	}
	ignored, err := os.ReadFile("../../.gitignore")
	for _, line := range []string{"/shim/front/gen/", "/shim/front/nvml/gen/", "/sim/lib/*/exports_gen.c"} {
		if err != nil || !strings.Contains(string(ignored), "\n"+line+"\n") {
			t.Errorf(".gitignore has no line %s (%v)", line, err)
		}
	}
}

// The C compiler agrees with the facts about every record of the header, in C and in C++.
func TestHeader(t *testing.T) {
	s := spec(t)
	var src bytes.Buffer
	src.WriteString("#include <cuda.h>\n#ifdef __cplusplus\n#define _Static_assert static_assert\n#endif\n")
	fields := 0
	for _, r := range s.CUDA.Structs {
		fmt.Fprintf(&src, "_Static_assert(sizeof(%s) == %d, \"size\");\n", r.Name, r.Size)
		for _, f := range r.Fields {
			if f.Name != "" {
				fields++
				fmt.Fprintf(&src, "_Static_assert(offsetof(%s, %s) == %d, \"%s.%s\");\n", r.Name, f.Name, f.Offset, r.Name, f.Name)
			}
		}
	}
	if fields < 400 {
		t.Errorf("only %d fields are compared", fields)
	}
	for _, fn := range s.CUDA.Funcs {
		if !fn.NoProto {
			fmt.Fprintf(&src, "void *p_%s = (void *)%s;\n", fn.Name, fn.Name)
		}
	}
	dir := t.TempDir()
	for _, c := range [][]string{{"gcc", "-std=c11", "a.c"},
		{"gcc", "-std=c11", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM", "b.c"}, {"g++", "-std=c++17", "c.cc"}} {
		text := src.String()
		if c[0] == "g++" || len(c) == 4 {
			// function pointers there would be renamed by the macros, or need other casts
			text, _, _ = strings.Cut(text, "void *p_")
		}
		file := filepath.Join(dir, c[len(c)-1])
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args := slices.Concat(c[1:len(c)-1],
			[]string{"-Wall", "-Wextra", "-Werror", "-I../../shim/include", "-c", file, "-o", file + ".o"})
		if out, err := exec.Command(c[0], args...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", c, err, out)
		}
	}
}
