package api

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// edited is the description with files in which texts are replaced (file, old, new, …); each old text has to be there.
func edited(t testing.TB, changes ...string) fs.FS {
	t.Helper()
	out := fstest.MapFS{}
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		out[path] = &fstest.MapFile{Data: text}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(changes); i += 3 {
		text := string(out[changes[i]].Data)
		if !strings.Contains(text, changes[i+1]) {
			t.Fatalf("%s has no %q", changes[i], changes[i+1])
		}
		out[changes[i]] = &fstest.MapFile{Data: []byte(strings.Replace(text, changes[i+1], changes[i+2], 1))}
	}
	return out
}

// lineOf is the number of the first line that has a text in it.
func lineOf(t testing.TB, fsys fs.FS, file, text string) int {
	t.Helper()
	all, err := fs.ReadFile(fsys, file)
	before, _, ok := strings.Cut(string(all), text)
	if err != nil || !ok {
		t.Fatalf("%s has no %q (%v)", file, text, err)
	}
	return 1 + strings.Count(before, "\n")
}

// TestUnknownWords: a word that the description does not know is an error which names file and line.
func TestUnknownWords(t *testing.T) {
	for _, c := range []struct{ file, old, new, want string }{
		{"cuda.semantics", "cuStreamQuery sync server async_errors pre", "cuStreamQuery sync server async_erors pre",
			`unknown flag "async_erors"`},
		{"cuda.semantics", "cuStreamQuery sync server", "cuStreamQuery snyc server", `unknown class "snyc"`},
		{"cuda.semantics", "cuStreamQuery sync server", "cuStreamQuery sync denied", `unknown flag "denied"`},
		{"cuda.semantics", "cuStreamQuery sync server", "cuStreamQuery sync server=yes", "takes no value"},
		{"cuda.semantics", "cuStreamSetAttribute sync select=attr", "cuStreamSetAttribute sync select=", "needs a value"},
		{"cuda.semantics", "unsupported:multicast", "unsupported:multycast", `unknown reason "multycast"`},
		{"cuda.semantics", "reason multicast", "reason unsaid TEXT\nreason multicast", "is no row's"},
		{"cuda.semantics", "group fill cuMemset", "group fill cuMemset cuMemfill", "begins with cuMemfill"},
		{"cuda.semantics", "absent multicast MULTICAST_SUPPORTED", "absent multicast MULTICAST", "no attribute"},
		{"cuda.semantics", "part graphics cuCtxCreate_v4", "part graphics cuCtxCreate_v9", "no base function"},
		{"cuda.semantics", "when CUmemLocation_v1 type CU_MEM_LOCATION_TYPE_DEVICE id",
			"when CUmemLocation_v1 kind CU_MEM_LOCATION_TYPE_DEVICE id", "is no field"},
		{"cuda.semantics", "when CUmemLocation_v1 type CU_MEM_LOCATION_TYPE_DEVICE id",
			"when CUmemLocation_v1 type CU_MEM_LOCATION_TYPE_GPU id", "no constant"},
		{"cuda.semantics", "cuMemAlloc_v2 ", "cuMemAlloc_v9 sync\ncuMemAlloc_v2 ", "no base function"},
		{"cuda.semantics", "cuMemsetD8_v2 async pre takes", "cuMemsetD8_v2 async pre", "want one of the flags takes"},
		{"cuda.semantics", "cuMemsetD8_v2 async pre takes", "cuMemsetD8_v2 async pre takes passes", "more than one"},
		{"nvml.semantics", "nvmlComputeInstanceDestroy sync denied", "nvmlComputeInstanceDestroy sync denyed",
			`unknown flag "denyed"`},
		{"wire.spec", "u64 func ", "u65 func ", "unknown type u65"},
		{"wire.spec", "reply launch_made", "reply lunch_made", "unknown reply lunch_made"},
	} {
		fsys := edited(t, c.file, c.old, c.new)
		line := lineOf(t, fsys, c.file, c.new)
		_, err := loadFrom(fsys)
		where := "api/" + c.file + ": line "
		if !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), where) {
			t.Errorf("%q: %v", c.new, err)
		} else if got := strings.TrimPrefix(err.Error(), where); !strings.HasPrefix(got, strconv.Itoa(line)+":") {
			t.Errorf("%q stands in line %d: %v", c.new, line, err)
		}
	}
}

// TestFlagsHaveReaders: each flag is some row's, and code other than its declaration reads it.
func TestFlagsHaveReaders(t *testing.T) {
	s := load(t)
	read := map[string]int{} // uses of names, by package path
	for _, pattern := range []string{"*.go", "gen/*.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if d, ok := n.(*ast.GenDecl); ok && path == "flags.go" && (d.Tok == token.CONST || d.Tok == token.VAR) {
					return false // the declarations, and who may have which
				}
				if id, ok := n.(*ast.Ident); ok {
					read[id.Name]++
				}
				return true
			})
		}
	}
	for _, lib := range []*Library{s.CUDA, s.NVML} {
		left := maps.Clone(rowFlags[lib.Soname])
		for _, fn := range lib.Funcs {
			for _, word := range fn.Flags {
				name, _, _ := strings.Cut(word, "=")
				delete(left, Flag(name))
			}
		}
		for flag := range left {
			t.Errorf("%s: no row has the flag %s", lib.Soname, flag)
		}
		for flag := range rowFlags[lib.Soname] {
			name := "Flag"
			for part := range strings.SplitSeq(string(flag), "_") {
				name += GoName(part)
			}
			if read[name] == 0 {
				t.Errorf("nothing reads the flag %s (%s)", flag, name)
			}
		}
	}
}

// TestAddressesAreDecided: many functions are given addresses of memory, and checkMemory looks at them.
func TestAddressesAreDecided(t *testing.T) {
	lib, given := load(t).CUDA, 0
	for _, f := range lib.Funcs {
		if f.Base == "" && f.Class > Refused && (f.Flag(FlagTakes) || f.Flag(FlagTakesByHand) || f.Flag(FlagPasses)) {
			given++
		}
	}
	if given < 100 {
		t.Errorf("only %d functions with addresses were found", given)
	}
}
