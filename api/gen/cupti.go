package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"scuda.dev/scuda/api"
)

// What is known of CUPTI, NVIDIA's profiling interface, stands in four tables of api/facts. From them come constants
// and records in C (shim/cupti) and in Go (package api/cupti), and the functions that libcupti.so.12 and .13 export.

// cuptiRecord is a structure of CUPTI's.
type cuptiRecord struct {
	name, since string
	size        int
	fields      []cuptiField
}

type cuptiField struct {
	name         string
	offset, size int
}

// cuptiFamily are the sizes of a kind of record by its generations, of which each adds fields behind the one before.
type cuptiFamily struct {
	name        string
	generations [][2]int // number and bytes
}

type cuptiFacts struct {
	records   []cuptiRecord
	families  []cuptiFamily
	enums     [][3]string // enumeration, name, value
	callbacks []cuptiCallback
	functions []string
}

// cuptiCallback is a function that tools can be called back for.
type cuptiCallback struct {
	runtime bool
	id      int
	name    string
}

// rows gives the lines of a table of api/facts, and the comments where those are wanted too.
func rows(root, file string, columns int) ([][]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "api/facts", file))
	if err != nil {
		return nil, err
	}
	var out [][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if f := strings.Split(line, "\t"); len(f) == columns || columns == 0 {
			out = append(out, f)
			continue
		}
		return nil, fmt.Errorf("api/facts/%s: %q has not %d columns", file, line, columns)
	}
	return out, nil
}

func readCUPTI(root string) (*cuptiFacts, error) {
	facts := &cuptiFacts{}
	lines, err := rows(root, "cupti-records.tsv", 0)
	if err != nil {
		return nil, err
	}
	for _, l := range lines {
		if len(l) == 2 {
			family, err := parseFamily(l)
			if err != nil {
				return nil, err
			}
			facts.families = append(facts.families, family)
			continue
		}
		record, err := parseRecord(l)
		if err != nil {
			return nil, err
		}
		facts.records = append(facts.records, record)
	}
	if lines, err = rows(root, "cupti-enums.tsv", 3); err != nil {
		return nil, err
	}
	for _, l := range lines {
		facts.enums = append(facts.enums, [3]string(l))
	}
	if lines, err = rows(root, "cupti-cbids.tsv", 4); err != nil {
		return nil, err
	}
	for _, l := range lines {
		id, err := strconv.Atoi(l[1])
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(l[2], " ")
		facts.callbacks = append(facts.callbacks, cuptiCallback{l[0] == "runtime", id, name})
	}
	if lines, err = rows(root, "cupti-functions.tsv", 2); err != nil {
		return nil, err
	}
	for _, l := range lines {
		facts.functions = append(facts.functions, l[0])
	}
	return facts, nil
}

func parseFamily(line []string) (cuptiFamily, error) {
	f := cuptiFamily{name: line[0]}
	last := [2]int{}
	for w := range strings.FieldsSeq(line[1]) {
		var g [2]int
		if n, err := fmt.Sscanf(w, "%d:%d(", &g[0], &g[1]); n != 2 || err != nil || g[0] <= last[0] || g[1] < last[1] {
			return f, fmt.Errorf("api/facts/cupti-records.tsv: %q is no later generation of %s", w, line[0])
		}
		f.generations, last = append(f.generations, g), g
	}
	return f, nil
}

// parseRecord reads a structure and sees that its fields follow each other within its size.
func parseRecord(line []string) (cuptiRecord, error) {
	bad := func(what string) error { return fmt.Errorf("api/facts/cupti-records.tsv: %s: %s", line[0], what) }
	if len(line) != 4 {
		return cuptiRecord{}, bad("not four columns")
	}
	r := cuptiRecord{name: line[0], since: line[2]}
	var err error
	if r.size, err = strconv.Atoi(line[1]); err != nil || r.size%8 != 0 {
		return r, bad("its size is no multiple of 8")
	}
	end := 0
	for w := range strings.FieldsSeq(line[3]) {
		name, place, _ := strings.Cut(w, "@")
		f := cuptiField{name: name}
		if n, err := fmt.Sscanf(place, "%d:%d", &f.offset, &f.size); n != 2 || err != nil || f.offset < end {
			return r, bad("field " + w)
		}
		end = f.offset + f.size
		r.fields = append(r.fields, f)
	}
	if end > r.size {
		return r, bad("its fields are longer than it is")
	}
	return r, nil
}

// emitCUPTI writes what is generated of CUPTI.
func emitCUPTI(spec *api.Spec, out *Output) error {
	facts, err := readCUPTI(out.root)
	if err != nil {
		return err
	}
	for _, emit := range []func(*api.Spec, *Output) error{
		facts.goPackage, facts.header, facts.names, facts.exports, facts.versions,
	} {
		if err := emit(spec, out); err != nil {
			return err
		}
	}
	return nil
}

// goPackage writes package api/cupti.
func (c *cuptiFacts) goPackage(_ *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("package cupti\n")
	last := ""
	for _, e := range c.enums {
		if e[0] != last {
			if last != "" {
				b.f(")\n")
			}
			b.f("\n// Values of %s.\nconst (\n", e[0])
			last = e[0]
		}
		b.f("%s = %s\n", e[1], e[2])
	}
	b.f(")\n\n// Records are the structures, each in its newest form.\nvar Records = []Record{\n")
	for _, r := range c.records {
		b.f("{%q, %d, []Field{", r.name, r.size)
		for _, f := range r.fields {
			b.f("{%q, %d, %d}, ", f.name, f.offset, f.size)
		}
		b.f("}},\n")
	}
	b.f("}\n\n// Families are the kinds of records that grew.\nvar Families = []Family{\n")
	for _, f := range c.families {
		b.f("{%q, []Generation{", f.name)
		for _, g := range f.generations {
			b.f("{%d, %d}, ", g[0], g[1])
		}
		b.f("}},\n")
	}
	b.f("}\n\n// Working are the callback ids of the driver's functions that give a GPU kernels, copies or memsets.\n" +
		"var Working = []uint32{\n")
	for _, k := range c.callbacks {
		if !k.runtime && bringsWork.MatchString(k.name) {
			b.f("%d, // %s\n", k.id, k.name)
		}
	}
	b.f("}\n")
	return out.GoFile("api/cupti/zz_cupti_gen.go", b.Bytes())
}

var bringsWork = regexp.MustCompile("^cu(Launch|Memcpy|Memset|GraphLaunch)")

// cType is the type of a field of so many bytes; what is no number is bytes.
func (f cuptiField) cType() (name, array string) {
	switch f.size {
	case 1, 2, 4, 8:
		if f.offset%f.size == 0 {
			return fmt.Sprintf("uint%d_t", 8*f.size), ""
		}
	}
	return "uint8_t", fmt.Sprintf("[%d]", f.size)
}

// header writes constants and structures with assertions about their layout.
func (c *cuptiFacts) header(_ *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("#ifndef SCUDA_CUPTI_GEN_H\n#define SCUDA_CUPTI_GEN_H\n#include <stddef.h>\n#include <stdint.h>\n\nenum {\n")
	for _, e := range c.enums {
		b.f("  %s = %s,\n", e[1], e[2])
	}
	most := [2]int{}
	for _, k := range c.callbacks {
		n := &most[domain(k.runtime)]
		*n = max(*n, k.id+1)
	}
	b.f("};\nenum { CUPTI_DRIVER_IDS = %d, CUPTI_RUNTIME_IDS = %d, CUPTI_FUNCTIONS = %d };\n", most[0], most[1],
		len(c.functions))
	b.f("\n/* callback ids of functions of the driver */\nenum {\n")
	for _, k := range c.callbacks {
		if !k.runtime {
			b.f("  CBID_%s = %d,\n", k.name, k.id)
		}
	}
	b.f("};\n")
	for _, r := range c.records {
		b.f("\nstruct %s {\n", r.name)
		for _, f := range r.fields {
			name, array := f.cType()
			b.f("  %s %s%s;\n", name, f.name, array)
		}
		b.f("} __attribute__((aligned(8)));\n_Static_assert(sizeof(struct %s) == %d, \"%s\");\n", r.name, r.size, r.name)
		for _, f := range r.fields {
			b.f("_Static_assert(offsetof(struct %s, %s) == %d, \"%s.%s\");\n", r.name, f.name, f.offset, r.name, f.name)
		}
	}
	b.f("#endif\n")
	return out.CFile("shim/cupti/gen/cupti_gen.h", b.Bytes())
}

func domain(runtime bool) int {
	if runtime {
		return 1
	}
	return 0
}

// names writes the names of callbacks and results, and the callback id of each function that the front exports.
func (c *cuptiFacts) names(spec *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("#include \"cupti.h\"\n")
	ids := map[string]int{}
	for runtime, table := range []string{"cupti_driver_names", "cupti_runtime_names"} {
		b.f("\nconst char *const %s[] = {\n", table)
		for _, k := range c.callbacks {
			if domain(k.runtime) == runtime {
				b.f("  [%d] = %q,\n", k.id, k.name)
			}
			if !k.runtime {
				ids[k.name] = k.id
			}
		}
		b.f("};\n")
	}
	for _, of := range []struct{ enum, table, size string }{
		{"CUpti_ActivityKind", "cupti_kind_names", "CUPTI_KINDS"},
		{"CUpti_ActivityAttribute", "cupti_attribute_names", "CUPTI_ACTIVITY_ATTR_COUNT"},
		{"CUpti_CallbackIdResource", "cupti_resource_names", "CUPTI_CBID_RESOURCE_SIZE"},
	} {
		b.f("\nconst char *const %s[%s] = {\n", of.table, of.size)
		for _, e := range c.enums {
			if e[0] == of.enum && !strings.HasSuffix(e[1], "_COUNT") && !strings.HasSuffix(e[1], "_SIZE") {
				b.f("  [%s] = %q,\n", e[1], e[1])
			}
		}
		b.f("};\n")
	}
	b.f("\nconst struct cupti_name cupti_results[] = {\n")
	for _, e := range c.enums {
		if e[0] == "CUptiResult" {
			b.f("  {%s, %q},\n", e[1], e[1])
		}
	}
	b.f("  {0, NULL}\n};\n\n" +
		"/* by the index that the front gives its exported functions; 0: CUPTI knows no such function */\n" +
		"const uint16_t cupti_driver_ids[] = {\n")
	known := 0
	for _, f := range spec.CUDA.Funcs {
		b.f("  %d, /* %s */\n", ids[f.Name], f.Name)
		if ids[f.Name] != 0 {
			known++
		}
	}
	b.f("};\nconst uint32_t cupti_driver_exports = %d;\n", len(spec.CUDA.Funcs))
	if 10*known < 9*len(spec.CUDA.Funcs) {
		return fmt.Errorf("CUPTI knows %d of %d functions of the driver", known, len(spec.CUDA.Funcs))
	}
	return out.CFile("shim/cupti/gen/names_gen.c", b.Bytes())
}

// exports writes the exported functions: each finds out where its call goes (shim/cupti/entry.c).
func (c *cuptiFacts) exports(_ *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("#include \"cupti.h\"\n\n")
	b.f("#define EXPORT(i, name) \\\n  extern long own_##name(long, long, long, long, long, long, long, long) " +
		"__attribute__((weak, visibility(\"hidden\"))); \\\n" +
		"  CUPTI_EXPORT long name(long a, long b, long c, long d, long e, long f, long g, long h) { \\\n" +
		"    return cupti_route(i, __builtin_return_address(0))(a, b, c, d, e, f, g, h); \\\n  }\n\n")
	for i, name := range c.functions {
		b.f("EXPORT(%d, %s)\n", i, name)
	}
	b.f("\nconst struct cupti_function cupti_functions[CUPTI_FUNCTIONS] = {\n")
	for _, name := range c.functions {
		b.f("  {%q, own_%s},\n", name, name)
	}
	b.f("};\n")
	return out.CFile("shim/cupti/gen/exports_gen.c", b.Bytes())
}

// versions writes the linker's scripts: the symbols' version is the library's name, as with NVIDIA's.
func (c *cuptiFacts) versions(_ *api.Spec, out *Output) error {
	for _, major := range []int{12, 13} {
		b := &buffer{}
		b.f("libcupti.so.%d {\n  global:\n", major)
		for _, name := range c.functions {
			b.f("    %s;\n", name)
		}
		b.f("  local: *;\n};\n")
		if err := out.CFile(fmt.Sprintf("shim/cupti/gen/libcupti%d.map", major), b.Bytes()); err != nil {
			return err
		}
	}
	if !slices.IsSorted(c.functions) {
		return fmt.Errorf("api/facts/cupti-functions.tsv is not sorted")
	}
	return nil
}
