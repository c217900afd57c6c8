package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"scuda.dev/scuda/api"
)

func TestSmallHeader(t *testing.T) {
	f, err := Import("testdata/small.h", split(defaultPasses), "small")
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]string{}
	for name, fn := range f.Functions {
		var params []string
		for _, p := range fn.Params {
			params = append(params, p.Type+"|"+p.Name)
		}
		functions[name] = fn.Ret + ": " + strings.Join(params, ", ")
	}
	if d := cmp.Diff(map[string]string{
		"smallInit":      "color: ",
		"smallAlloc":     "color: old_v1 *|p",
		"smallAlloc_v2":  "color: smallptr *|p, size_t|n, const box *|b, const char **|names",
		"smallSync":      "color: ctx|",
		"smallSync_ptsz": "color: ctx|",
		"smallName":      "const char *: const uuid *|id, void **|out, unsigned int (*)(int)|sizes",
	}, functions); d != "" {
		t.Error("functions:", d)
	}
	if d := cmp.Diff(map[string]string{
		"cuuint32_t": "uint32_t", "smallptr_v2": "unsigned long long", "smallptr": "smallptr_v2", "ctx": "struct ctx_st *",
		"color":    "enum color_enum",
		"nameless": "enum nameless", "uuid": "struct uuid_st", "callback": "void (*)(ctx, color, void *)",
		"box_v1": "struct box_st",
		"box":    "box_v1", "plain_t": "struct plain_t", "old_v1": "struct old_st",
	}, f.Typedefs); d != "" {
		t.Error("typedefs:", d)
	}
	if d := cmp.Diff(map[string]map[string]int64{
		"color_enum": {"RED": 1, "GREEN": 2, "BLUE": 3, "NONE": -1, "LAST": 0x7fffffff}, "nameless": {"ALPHA": 7},
	}, f.Enums); d != "" {
		t.Error("enums:", d)
	}
	for name, want := range map[string]*[2]int{"box": {128, 8}, "plain_t": {16, 4}, "smallptr": {8, 8}, "callback": nil,
		"ctx": {8, 8}, "color": {4, 4}} {
		if d := cmp.Diff(want, f.Sizes[name]); d != "" {
			t.Errorf("size of %s: %s", name, d)
		}
	}
	var layouts []string
	for _, l := range f.Layouts {
		layouts = append(layouts, l.Record)
		if l.Record != "struct box_st" {
			continue
		}
		var got []string
		for _, x := range l.Fields {
			got = append(got, strings.Repeat(" ", x.Depth-1)+x.Decl)
		}
		want := []string{"unsigned char kind", "union box_st::(unnamed #1) res", " struct box_st::(unnamed #2) array",
			"  ctx owner", "  size_t n",
			" struct box_st::(unnamed #3) linear", "  void * p", "  float[2][3] f", " long long[8] reserved",
			"struct box_st::(unnamed #4) ", " int inner", "uuid[2] ids", "callback fn", "color c"}
		if d := cmp.Diff(want, got); d != "" {
			t.Error("fields:", d)
		}
	}
	for _, want := range []string{"struct uuid_st", "struct plain_t", "struct plain_t::(unnamed #5)", "struct old_st"} {
		if !slices.Contains(layouts, want) {
			t.Errorf("no layout of %s in %q", want, layouts)
		}
	}
}

// The header that is generated from the facts gives the facts again.
func TestRoundTrip(t *testing.T) {
	raw, err := os.ReadFile("../facts/cuda-driver-api.json")
	if err != nil {
		t.Fatal(err)
	}
	var want api.Facts
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	got, err := Import("../../shim/include/cuda.h", [][]string{nil}, "cu")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(want.Functions)) {
		w, g := want.Functions[name], got.Functions[name]
		if strings.HasSuffix(name, "_ptsz") || strings.HasSuffix(name, "_ptds") {
			for i := range g.Params { // the header names them as in the base function
				g.Params[i].Name = w.Params[i].Name
			}
		}
		if d := cmp.Diff(w, g); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if d := cmp.Diff(want.Enums, got.Enums); d != "" {
		t.Error("enums:", d)
	}
	for name := range want.Typedefs {
		if d := cmp.Diff(want.Typedefs[name], got.Typedefs[name]); d != "" {
			t.Errorf("typedef %s: %s", name, d)
		}
		if d := cmp.Diff(want.Sizes[name], got.Sizes[name]); d != "" {
			t.Errorf("size of %s: %s", name, d)
		}
	}
	// Beside the facts' functions the header has those whose prototype the description takes from another.
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	prototypes := 0
	for _, f := range spec.CUDA.Funcs {
		if !f.NoProto {
			prototypes++
		}
	}
	if len(got.Functions) != prototypes || len(got.Typedefs) != len(want.Typedefs) {
		t.Errorf("%d functions, %d typedefs", len(got.Functions), len(got.Typedefs))
	}
	type place struct {
		name          string
		depth, offset int
	}
	// Typedef'd records inside are called by their typedef in one and by their tag in the other: names and offsets count.
	places := func(f api.Facts) map[string][]place {
		out := map[string][]place{}
		for _, l := range f.Layouts {
			if !strings.HasPrefix(l.Record, "struct CU") && !strings.HasPrefix(l.Record, "union CU") ||
				strings.Contains(l.Record, "unnamed") {
				continue
			}
			for _, x := range l.Fields {
				out[l.Record] = append(out[l.Record], place{x.Decl[strings.LastIndexByte(x.Decl, ' ')+1:], x.Depth, x.Offset})
			}
		}
		return out
	}
	w, g := places(want), places(*got)
	if len(w) < 70 {
		t.Errorf("only %d records are compared", len(w))
	}
	for _, name := range slices.Sorted(maps.Keys(w)) {
		if d := cmp.Diff(w[name], g[name], cmp.AllowUnexported(place{})); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestErrors(t *testing.T) {
	if _, err := Import("testdata/none.h", [][]string{nil}, ""); err == nil {
		t.Error("a header that is not there")
	}
	bad := filepath.Join(t.TempDir(), "bad.h")
	if err := os.WriteFile(bad, []byte("typedef struct {"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Import(bad, [][]string{nil}, ""); err == nil || !strings.Contains(err.Error(), "bad.h") {
		t.Error(err)
	}
	out := filepath.Join(t.TempDir(), "facts.json")
	if err := run("testdata/small.h", out, ";", "small"); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil || !json.Valid(b) {
		t.Error(err)
	}
}
