package roomstest

import (
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// below says which rooms each room may name.
var below = map[string][]string{
	"base":  nil,
	"uvm":   {"base"},
	"calls": {"base", "uvm"},
	"nvml":  {"base"},
}

// roomOf gives the room of a file by its path in shim/front; "" for what is no part of the two driver libraries. Of the
// generated files the encodings of single calls belong to the base, as the ring does; the exported functions and the
// tables name all calls.
func roomOf(file string) string {
	switch dir := path.Dir(file); dir {
	case "base", "uvm", "calls", "nvml":
		return dir
	case "nvml/gen":
		return "nvml"
	case "gen":
		switch strings.TrimSuffix(path.Base(file), path.Ext(file)) {
		case "calls_gen", "wire_gen", "cuda_gen", "structs_gen", "connect_gen":
			return "base"
		}
		return "calls"
	}
	return ""
}

func check(t *testing.T, file, what, other string) {
	t.Helper()
	if from, to := roomOf(file), roomOf(other); from != to && !slices.Contains(below[from], to) {
		t.Errorf("%s, of the room %s, names %s of %s: register a callback (struct scuda_callbacks), or move one of the two",
			file, from, what, other)
	}
}

// TestSymbols: no object of the build names a function or a variable of a room that its own may not name.
func TestSymbols(t *testing.T) {
	objects := t.TempDir()
	build := exec.Command("sh", "-euc", `shim=$(pwd); . ./compat.sh; . ./rooms.sh; flags="$flags -O0 -g0"
for name in base uvm calls gen nvml nvml/gen; do room "$name" "$1/$name"; done`, "sh", objects)
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	defined := map[string]string{}
	named := map[string][]string{}
	err := filepath.WalkDir(objects, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := elf.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		symbols, err := f.Symbols()
		file := strings.TrimSuffix(filepath.ToSlash(name[len(objects)+1:]), ".o") + ".c"
		for _, s := range symbols {
			switch {
			case elf.ST_BIND(s.Info) == elf.STB_LOCAL:
			case s.Section == elf.SHN_UNDEF:
				named[file] = append(named[file], s.Name)
			default:
				defined[s.Name] = file
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(named) < 50 || len(defined) < 1000 {
		t.Fatalf("%d objects, %d symbols", len(named), len(defined))
	}
	for file, symbols := range named {
		for _, s := range symbols {
			if other, ok := defined[s]; ok {
				check(t, file, s, other)
			}
		}
	}
}

// TestIncludes: the same for headers, and every C file lies in a room, or in a folder of its own that another library
// or a test is made of.
func TestIncludes(t *testing.T) {
	include := regexp.MustCompile(`(?m)^#include "([^"]+)"`)
	files := 0
	err := fs.WalkDir(os.DirFS(".."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || (path.Ext(name) != ".c" && path.Ext(name) != ".h") {
			return err
		}
		if roomOf(name) == "" {
			if dir := path.Dir(name); dir != "interpose" && path.Base(dir) != "testdata" {
				t.Errorf("%s lies in no room", name)
			}
			return nil
		}
		files++
		text, err := os.ReadFile(filepath.Join("..", name))
		for _, m := range include.FindAllStringSubmatch(string(text), -1) {
			if roomOf(m[1]) == "" {
				t.Errorf("%s includes %q: name a header by its room", name, m[1])
				continue
			}
			check(t, name, "the header", m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 80 {
		t.Errorf("%d files", files)
	}
}
