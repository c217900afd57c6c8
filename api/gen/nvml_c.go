package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"scuda.dev/scuda/api"
)

// The NVML front is driven by tables: a description of each function for nvml_call.c, and stubs that put their
// arguments into an array of words. The server has the same table in Go (package nvmldispatch).

// nvmlOwn are the functions that shim/front/nvml/api.c defines itself.
var nvmlOwn = map[string]bool{"nvmlInit": true, "nvmlInit_v2": true, "nvmlInitWithFlags": true, "nvmlShutdown": true,
	"nvmlErrorString":  true,
	"nvmlEventSetWait": true, "nvmlEventSetWait_v2": true, "nvmlSystemEventSetWait": true, "nvmlGpmMetricsGet": true,
	"nvmlInternalGetExportTable": true}

// nvmlCallable are the hand-written functions that the server carries out.
var nvmlCallable = map[string]bool{
	"nvmlInitWithFlags": true, "nvmlEventSetWait": true, "nvmlEventSetWait_v2": true, "nvmlSystemEventSetWait": true,
}

func emitNVML(spec *api.Spec, out *Output) error {
	lib := spec.NVML
	for _, f := range lib.Funcs {
		if n := len(nvmlParams(lib, f)); n > 8 {
			return fmt.Errorf("%s has %d parameters, NVML_MAX_PARAMS is 8", f.Name, n)
		}
	}
	tables, err := nvmlTables(spec)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		name string
		text []byte
	}{
		{"shim/front/nvml/gen/nvml_gen.h", nvmlHeader(lib)},
		{"shim/front/nvml/gen/nvml_gen.c", tables},
		{"shim/front/nvml/gen/libnvidia-ml.map", nvmlVersionScript(lib)},
	} {
		if err := out.CFile(file.name, file.text); err != nil {
			return err
		}
	}
	text, err := nvmlDispatch(lib)
	if err != nil {
		return err
	}
	return out.GoFile("server/nvmldispatch/zz_nvml_gen.go", text)
}

// nvmlParams gives the parameters of f, those of its other name where it has no prototype.
func nvmlParams(lib *api.Library, f *api.Func) []api.Param {
	if f.Alias != "" {
		f = lib.ByName[f.Alias]
	}
	return f.Params
}

func nvmlHeader(lib *api.Library) []byte {
	var b bytes.Buffer
	b.WriteString("#ifndef SCUDA_NVML_GEN_H\n#define SCUDA_NVML_GEN_H\nenum {\n")
	for i, f := range lib.Funcs {
		fmt.Fprintf(&b, "  NVML_INDEX_%s = %d,\n", f.Name, i)
		if f.Op != 0 {
			fmt.Fprintf(&b, "  NVML_OP_%s = %d,\n", f.Name, f.Op)
		}
	}
	for i, handle := range lib.Handles {
		fmt.Fprintf(&b, "  NVML_KIND_%s = %d,\n", handle, i+1)
	}
	b.WriteString("};\n#endif\n")
	return b.Bytes()
}

func nvmlTables(spec *api.Spec) ([]byte, error) {
	lib := spec.NVML
	var b bytes.Buffer
	b.WriteString("#include \"nvml/nvml.h\"\n#include \"base/common.h\"\n\n")
	fmt.Fprintf(&b, "const char nvml_digest[] = \"%x\";\n\n", spec.Digest)
	list := &buffer{}
	emitPieces(list, lib)
	b.Write(list.Bytes())
	for _, f := range lib.Funcs {
		if f.Alias != "" || len(f.Params) == 0 {
			continue
		}
		fmt.Fprintf(&b, "static const struct nvml_param p_%s[] = {\n", f.Name)
		for i := range f.Params {
			p, err := nvmlParamOf(lib, f, i)
			if err != nil {
				return nil, err
			}
			b.WriteString("  " + p.c() + ",\n")
		}
		b.WriteString("};\n")
	}
	fmt.Fprintf(&b, "\nconst struct nvml_func nvml_funcs[] = {\n")
	for _, f := range lib.Funcs {
		op, class, params := f.Op, "NVML_FORWARD", "0, NULL"
		target := f
		if f.Alias != "" {
			target = lib.ByName[f.Alias]
			op = target.Op
		}
		if f.Class == api.Unsupported || f.Class == api.Missing {
			class = "NVML_UNSUPPORTED"
		}
		if len(target.Params) > 0 {
			params = fmt.Sprintf("%d, p_%s", len(target.Params), target.Name)
		} else if target.NoProto {
			params = "6, NULL" // what a pass-through call hands on
		}
		fmt.Fprintf(&b, "  {%q, %d, %s, %s},\n", f.Name, op, class, params)
	}
	b.WriteString("};\nconst uint32_t nvml_func_count = sizeof nvml_funcs / sizeof *nvml_funcs;\n\n")
	nvmlErrorNames(&b, lib)
	for i, f := range lib.Funcs {
		if !nvmlOwn[f.Name] {
			nvmlStub(&b, lib, f, i)
		}
	}
	return b.Bytes(), nil
}

// nvmlErrorNames makes the error texts of the constants' names: NVML_ERROR_NOT_SUPPORTED says "Not Supported".
func nvmlErrorNames(b *bytes.Buffer, lib *api.Library) {
	values := lib.Enums["nvmlReturn_enum"]
	b.WriteString("const char *const nvml_error_names[] = {\n")
	for name, v := range sortedByValue(values) {
		name = strings.TrimPrefix(strings.TrimPrefix(name, "NVML_"), "ERROR_")
		words := strings.Split(strings.ToLower(name), "_")
		for i, w := range words {
			if w == "gpu" || w == "irq" {
				words[i] = strings.ToUpper(w)
			} else {
				words[i] = strings.ToUpper(w[:1]) + w[1:]
			}
		}
		fmt.Fprintf(b, "  [%d] = %q,\n", v, strings.Join(words, " "))
	}
	b.WriteString("};\nconst uint32_t nvml_error_count = sizeof nvml_error_names / sizeof *nvml_error_names;\n\n")
}

func sortedByValue(values map[string]int64) func(yield func(string, int64) bool) {
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if values[a] != values[b] {
			return int(values[a] - values[b])
		}
		return strings.Compare(a, b)
	})
	return func(yield func(string, int64) bool) {
		for _, name := range names {
			if !yield(name, values[name]) {
				return
			}
		}
	}
}

func nvmlStub(b *bytes.Buffer, lib *api.Library, f *api.Func, index int) {
	params := nvmlParams(lib, f)
	if f.NoProto && f.Alias == "" {
		fmt.Fprintf(b,
			"SCUDA_EXPORT int %s(uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4, uint64_t a5) {\n"+
				"  return nvml_call(%d, (const uint64_t[]){a0, a1, a2, a3, a4, a5});\n}\n", f.Name, index)
		return
	}
	var decl, words []string
	for i, p := range params {
		switch {
		case strings.HasSuffix(strings.TrimSpace(p.CType), "*") || p.Handle != "" || p.Device:
			decl = append(decl, fmt.Sprintf("const void *a%d", i))
			words = append(words, fmt.Sprintf("(uint64_t)(uintptr_t)a%d", i))
		case p.Size == 8:
			decl = append(decl, fmt.Sprintf("uint64_t a%d", i))
			words = append(words, fmt.Sprintf("a%d", i))
		case p.Signed:
			decl = append(decl, fmt.Sprintf("int32_t a%d", i))
			words = append(words, fmt.Sprintf("(uint64_t)(int64_t)a%d", i))
		default:
			decl = append(decl, fmt.Sprintf("uint32_t a%d", i))
			words = append(words, fmt.Sprintf("a%d", i))
		}
	}
	if len(params) == 0 {
		fmt.Fprintf(b, "SCUDA_EXPORT int %s(void) { return nvml_call(%d, NULL); }\n", f.Name, index)
		return
	}
	fmt.Fprintf(b, "SCUDA_EXPORT int %s(%s) {\n  return nvml_call(%d, (const uint64_t[]){%s});\n}\n",
		f.Name, strings.Join(decl, ", "), index, strings.Join(words, ", "))
}

func nvmlVersionScript(lib *api.Library) []byte {
	var b bytes.Buffer
	b.WriteString("{\n  global:\n")
	for _, f := range lib.Funcs {
		fmt.Fprintf(&b, "    %s;\n", f.Name)
	}
	b.WriteString("  local: *;\n};\n")
	return b.Bytes()
}

// nvmlParam is a parameter as both tables have it.
type nvmlParam struct {
	dir                    string // VALUE, IN, OUT, INOUT, STR
	handle                 string
	kind                   int
	versioned, count, text bool
	fills, fresh           bool
	deletes, enum          bool
	array                  *nvmlArray
	tail                   int // offset of the count of the bytes at the structure's end, 0: none
	clears                 bool
	pieces                 string
	countArg               int
	size, elements         int
	patches                []api.Patch
	patchKinds             []int
}

// maxFilled is the number of elements of an array with the flag fills; the front and the server have the same.
const maxFilled = 128

// nvmlArray is an array that a structure points at.
type nvmlArray struct {
	pointer, count int // offsets in the structure
	size           int // bytes of an element
}

// nvmlArrayOf reads the flag array=POINTER,COUNT.
func nvmlArrayOf(lib *api.Library, f *api.Func, p api.Param) (*nvmlArray, error) {
	names, ok := f.FlagValue(api.FlagArray)
	if !ok || !p.Struct || p.Dir == api.Value {
		return nil, nil
	}
	pointer, count, _ := strings.Cut(names, ",")
	a := &nvmlArray{pointer: -1, count: -1}
	for _, field := range lib.Struct(p.Elem).Fields {
		switch field.Name {
		case pointer:
			elem, ok := lib.Lookup(strings.TrimSpace(strings.TrimSuffix(field.CType, "*")))
			if ok {
				a.pointer, a.size = field.Offset, elem.Size
			}
		case count:
			a.count = field.Offset
		}
	}
	if a.pointer < 0 || a.count < 0 {
		return nil, fmt.Errorf("%s: array=%s does not name a pointer and a count of %s", f.Name, names, p.Elem)
	}
	return a, nil
}

// nvmlTailOf reads the flag tail=COUNT: the structure's last four bytes are the first of so many.
func nvmlTailOf(lib *api.Library, f *api.Func, p api.Param) int {
	name, ok := f.FlagValue(api.FlagTail)
	if !ok || !p.Struct {
		return 0
	}
	for _, field := range lib.Struct(p.Elem).Fields {
		if field.Name == name {
			return field.Offset
		}
	}
	return 0
}

func nvmlParamOf(lib *api.Library, f *api.Func, i int) (*nvmlParam, error) {
	p := f.Params[i]
	q := &nvmlParam{size: p.Size, handle: p.Handle, elements: 1, patches: p.Patch}
	kindOf := func(handle string) int { return 1 + slices.Index(lib.Handles, handle) }
	q.kind = kindOf(p.Handle)
	for _, patch := range p.Patch {
		q.patchKinds = append(q.patchKinds, kindOf(patch.Handle))
	}
	if len(p.Patch) > 2 || slices.Contains(q.patchKinds, 0) {
		return nil, fmt.Errorf("%s: parameter %s has handles that the tables cannot describe", f.Name, p.Name)
	}
	ends := strings.HasSuffix(f.Name, "Free") || strings.HasSuffix(f.Name, "Destroy")
	switch p.Dir {
	case api.In:
		q.dir = "IN"
		q.deletes = ends && len(p.Patch) > 0
	case api.Out, api.Ret, api.New:
		q.dir = "OUT"
	case api.InOut:
		q.dir = "INOUT"
	case api.Str:
		q.dir = "STR"
	default:
		q.dir = "VALUE"
		q.deletes, q.enum = p.Handle != "" && ends, p.Enum
		return q, nil
	}
	q.text = p.Elem == "char" && p.Dir == api.Out && !f.Flag(api.FlagPadded)
	q.versioned = f.Flag(api.FlagVersioned) && p.Struct
	q.fresh, q.tail = f.Flag(api.FlagFresh) && p.Struct, nvmlTailOf(lib, f, p)
	q.pieces = pieces(lib, &p)
	var err error
	cleared, err := lib.Clears(f)
	if err != nil {
		return nil, err
	}
	q.clears = slices.ContainsFunc(cleared, func(c api.Cleared) bool { return c.Param.Name == p.Name })
	if q.pieces != "" && len(p.Patch) > 0 {
		return nil, fmt.Errorf("%s: the handles of %s could not be read where it is not written whole", f.Name, p.Name)
	}
	if q.array, err = nvmlArrayOf(lib, f, p); err != nil {
		return nil, err
	}
	if f.Flag(api.FlagBytes) && p.Count != "1" {
		q.size = 1
	}
	count, pointer := strings.CutPrefix(p.Count, "*")
	if n, err := strconv.Atoi(count); err == nil {
		q.elements = n
		return q, nil
	}
	q.count, q.elements = pointer, 0
	if q.fills = f.Flag(api.FlagFills); q.fills {
		q.elements = maxFilled
	}
	q.countArg = 1 + slices.IndexFunc(f.Params, func(c api.Param) bool { return c.Name == count })
	if q.countArg == 0 {
		return nil, fmt.Errorf("%s: parameter %s is counted by %q, which is no parameter", f.Name, p.Name, p.Count)
	}
	return q, nil
}

func (q *nvmlParam) c() string {
	var flags []string
	if q.versioned {
		flags = append(flags, "NVML_VERSIONED")
	}
	if q.count {
		flags = append(flags, "NVML_COUNT_POINTER")
	}
	if q.fills {
		flags = append(flags, "NVML_FILLS")
	}
	if q.fresh {
		flags = append(flags, "NVML_FRESH")
	}
	if q.clears {
		flags = append(flags, "NVML_CLEARS")
	}
	if flags == nil {
		flags = []string{"0"}
	}
	list := q.pieces
	if list == "" {
		list = "NULL"
	}
	patches := "{0}"
	if len(q.patches) > 0 {
		var parts []string
		for i, p := range q.patches {
			parts = append(parts, fmt.Sprintf("{%d, %d}", p.Offset, q.patchKinds[i]))
		}
		patches = strings.Join(parts, ", ")
	}
	array := "{0}"
	if q.array != nil {
		array = fmt.Sprintf("{%d, %d, %d}", q.array.pointer, q.array.count, q.array.size)
	}
	return fmt.Sprintf("{NVML_%s, %d, %s, %d, %d, %d, {%s}, %s, %d, %s}", q.dir, q.kind, strings.Join(flags, " | "),
		q.countArg, q.size, q.elements, patches, array, q.tail, list)
}

var nvmlGoDirs = map[string]string{
	"IN": "dirIn", "OUT": "dirOut", "INOUT": "dirInOut", "STR": "dirStr",
}

func (q *nvmlParam) golang() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if q.dir != "VALUE" {
		add("dir: %s", nvmlGoDirs[q.dir])
	}
	if q.kind != 0 {
		add("kind: %s", nvmlKind(q.handle))
	}
	var flags []string
	for _, f := range []struct {
		on   bool
		name string
	}{{q.versioned, "versioned"}, {q.count, "countPointer"}, {q.fills, "fills"}, {q.text, "text"},
		{q.deletes, "deletes"}, {q.enum, "enum"}} {
		if f.on {
			flags = append(flags, f.name)
		}
	}
	if flags != nil {
		add("flags: %s", strings.Join(flags, " | "))
	}
	if q.countArg != 0 {
		add("countArg: %d", q.countArg)
	}
	if q.dir != "VALUE" || q.size < 8 {
		add("size: %d", q.size)
	}
	if q.dir != "VALUE" && q.elements != 0 {
		add("count: %d", q.elements)
	}
	if len(q.patches) > 0 {
		var ps []string
		for _, p := range q.patches {
			ps = append(ps, fmt.Sprintf("{%d, %s}", p.Offset, nvmlKind(p.Handle)))
		}
		add("patches: []patch{%s}", strings.Join(ps, ", "))
	}
	if q.array != nil {
		add("array: &array{%d, %d, %d}", q.array.pointer, q.array.count, q.array.size)
	}
	if q.tail != 0 {
		add("tail: %d", q.tail)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func nvmlKind(handle string) string {
	return "nvml.Kind" + strings.TrimPrefix(api.GoTypeName(handle), "Nvml")
}

func nvmlDispatch(lib *api.Library) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("package nvmldispatch\n\nimport \"scuda.dev/scuda/api/nvml\"\n\n")
	fmt.Fprintf(&b,
		"// kinds counts the kinds of handles, none included.\nconst kinds = %d\n\nvar functions = [...]function{\n",
		len(lib.Handles)+1)
	for _, f := range lib.Funcs {
		if f.Op == 0 || f.NoProto || f.Class == api.Hand && !nvmlCallable[f.Name] {
			continue
		}
		var params []string
		for i := range f.Params {
			q, err := nvmlParamOf(lib, f, i)
			if err != nil {
				return nil, err
			}
			params = append(params, q.golang())
		}
		text := fields{fmt.Sprintf("name: %q", f.Name)}
		text.flag("denied", f.Flag(api.FlagDenied))
		text.flag("optional", f.Flag(api.FlagOptional))
		if len(params) > 0 {
			text.add("params", "[]param{"+strings.Join(params, ", ")+"}")
		}
		fmt.Fprintf(&b, "nvml.Op%s: %s,\n", api.GoName(f.Name), text)
	}
	b.WriteString("}\n")
	return b.Bytes(), nil
}
