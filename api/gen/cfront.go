package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"scuda.dev/scuda/api"
)

// The C front is generated with the calling convention's types only: handles and device addresses are uint64_t,
// enumerations int32_t, so that it needs no CUDA header.

// emitCFront writes the generated half of shim/front.
func emitCFront(spec *api.Spec, out *Output) error {
	c := &cfront{spec: spec, lib: spec.CUDA}
	var err error
	if c.recorded, err = readRecorded(c.lib, out.root); err != nil {
		return err
	}
	if err := c.readNames(out.root); err != nil {
		return err
	}
	if err := c.header(out); err != nil {
		return err
	}
	if err := c.structs(out); err != nil {
		return err
	}
	if err := c.wireHeader(out); err != nil {
		return err
	}
	if err := c.calls(out); err != nil {
		return err
	}
	if err := c.exports(out); err != nil {
		return err
	}
	if err := c.results(out); err != nil {
		return err
	}
	if err := c.procAddress(out); err != nil {
		return err
	}
	return emitTables(spec, out)
}

type cfront struct {
	spec     *api.Spec
	lib      *api.Library
	recorded recorded
	names    map[string][]procRow
	since    map[string]int // the first version whose cuGetProcAddress gives a symbol
}

// beforeInit are the functions that work before cuInit.
var beforeInit = []string{"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetExportTable",
	"cuGetProcAddress", "cuGetProcAddress_v2",
	"cuLogsCurrent", "cuLogsDumpToFile", "cuLogsDumpToMemory", "cuLogsRegisterCallback", "cuLogsUnregisterCallback"}

// recorded is what a real driver answered to the calls of testdata/answers, as far as the front follows it.
type recorded struct {
	// before cuInit, when not CUDA_ERROR_NOT_INITIALIZED: these functions look at their arguments first
	early map[string]int
	fatal map[[2]string]bool // parameters of functions whose NULL the driver does not survive
}

func readRecorded(lib *api.Library, root string) (recorded, error) {
	out := recorded{map[string]int{}, map[[2]string]bool{}}
	text, err := os.ReadFile(filepath.Join(root, "testdata/answers/cuda.tsv"))
	if err != nil {
		return out, err
	}
	for line := range strings.Lines(string(text)) {
		w := strings.Split(strings.TrimSpace(line), "\t")
		if len(w) != 3 {
			continue
		}
		f := lib.ByName[w[0]]
		if f == nil || f.Class == api.Unsupported || f.Class == api.Missing {
			continue
		}
		if name, ok := strings.CutSuffix(w[1], "=null"); ok && w[2] == "SIGSEGV" {
			out.fatal[[2]string{f.Name, name}] = true
		}
		if n, err := strconv.Atoi(w[2]); err == nil && w[1] == "before" && n != 0 && n != 3 &&
			!slices.Contains(beforeInit, f.Name) {
			out.early[f.Name] = n
		}
	}
	return out, nil
}

func (c *cfront) base(f *api.Func) *api.Func {
	if f.Base != "" {
		return c.lib.ByName[f.Base]
	}
	return f
}

func (c *cfront) hasPerThread(name string) bool {
	return c.lib.ByName[name+"_ptsz"] != nil || c.lib.ByName[name+"_ptds"] != nil
}

// ctype gives the type that a parameter has in the calling convention.
func (c *cfront) ctype(text string) (string, error) {
	if i := strings.IndexByte(text, '['); i >= 0 { // an array parameter is a pointer
		text = strings.TrimSpace(text[:i]) + " *"
	}
	if elem, ok := strings.CutSuffix(text, "*"); ok {
		elem = strings.TrimSpace(elem)
		switch {
		case strings.HasSuffix(elem, "*"), strings.HasSuffix(elem, "*const"), strings.HasSuffix(elem, "* const"):
			return "void **", nil
		case elem == "char", elem == "const char", elem == "void", elem == "const void":
			return elem + " *", nil
		}
		t, ok := c.lib.Lookup(elem)
		if !ok {
			return "", fmt.Errorf("unknown type %q", elem)
		}
		prefix := ""
		if strings.HasPrefix(elem, "const ") {
			prefix = "const "
		}
		switch t.Kind {
		case "int", "uint", "float", "enum", "handle":
			return prefix + scalarC(t) + " *", nil
		case "pointer", "func":
			return "void **", nil
		}
		return prefix + "void *", nil
	}
	t, ok := c.lib.Lookup(text)
	if !ok {
		return "", fmt.Errorf("unknown type %q", text)
	}
	switch t.Kind {
	case "pointer", "func":
		return "void *", nil
	case "struct":
		return fmt.Sprintf("struct scuda_bytes%d", t.Size), nil
	}
	return scalarC(t), nil
}

func scalarC(t api.Type) string {
	switch t.Kind {
	case "handle":
		return "uint64_t"
	case "enum":
		return "int32_t"
	case "float":
		if t.Size == 8 {
			return "double"
		}
		return "float"
	case "uint":
		return fmt.Sprintf("uint%d_t", 8*t.Size)
	}
	return fmt.Sprintf("int%d_t", 8*t.Size)
}

// params gives "type name, type name" and "name, name" of a function.
func (c *cfront) params(f *api.Func) (decl, args string, err error) {
	if f.NoProto {
		var d, a []string
		for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
			d, a = append(d, "uint64_t "+n), append(a, n)
		}
		return strings.Join(d, ", "), strings.Join(a, ", "), nil
	}
	var d, a []string
	for _, p := range f.Params {
		t, err := c.ctype(p.CType)
		if err != nil {
			return "", "", fmt.Errorf("%s: %s: %w", f.Name, p.Name, err)
		}
		sep := " "
		if strings.HasSuffix(t, "*") {
			sep = ""
		}
		d, a = append(d, t+sep+p.Name), append(a, p.Name)
	}
	return strings.Join(d, ", "), strings.Join(a, ", "), nil
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

func orVoid(s string) string {
	if s == "" {
		return "void"
	}
	return s
}

// header writes constants, operation numbers, handle kinds, and the prototypes of what is written by hand.
func (c *cfront) header(out *Output) error {
	b := &buffer{}
	b.f("#ifndef SCUDA_CUDA_GEN_H\n#define SCUDA_CUDA_GEN_H\n#include <stdint.h>\n\n")
	b.f("#define SCUDA_DIGEST \"%x\"\n", c.spec.Digest)
	b.f("#define SCUDA_CUDA_VERSION %s\n", cudaVersion)
	b.f("#define SCUDA_EXPORT_COUNT %d\n\nenum scuda_kind {\n", len(c.lib.Funcs))
	for i, h := range c.lib.Handles {
		b.f("  KIND_%s = %d,\n", h, i+1)
	}
	b.f("};\n\n/* indices of the exported symbols */\nenum {\n")
	for i, f := range c.lib.Funcs {
		b.f("  I_%s = %d,\n", f.Name, i)
	}
	b.f("};\n\n/* operations */\nenum {\n")
	for _, f := range c.lib.Funcs {
		if f.Base == "" && f.Op != 0 {
			b.f("  OP_%s = %d,\n", f.Name, f.Op)
		}
	}
	b.f("};\n\n/* constants of the API */\n")
	constants := map[string]int64{}
	for _, enum := range c.lib.Enums {
		maps.Copy(constants, enum)
	}
	for _, name := range slices.Sorted(maps.Keys(constants)) {
		v := constants[name]
		if v >= -1<<31 && v < 1<<31 {
			b.f("#define %s (%d)\n", name, v)
		} else {
			b.f("#define %s (%#xu)\n", name, uint32(v))
		}
	}
	sizes := map[int]bool{}
	for _, f := range c.lib.Funcs {
		for _, p := range f.Params {
			if t, ok := c.lib.Lookup(p.CType); ok && t.Kind == "struct" {
				sizes[t.Size] = true
			}
		}
	}
	b.f("\n/* device attributes that say 0: they promise what programs do not have through a network */\n" +
		"#define SCUDA_ABSENT_ATTRIBUTES ")
	for i, a := range c.lib.Absent {
		if i > 0 {
			b.f(", ")
		}
		b.f("%d", a.Value)
	}
	b.f("\n\n/* structures passed by value */\n")
	for _, n := range slices.Sorted(maps.Keys(sizes)) {
		b.f("struct scuda_bytes%d { uint8_t bytes[%d]; };\n", n, n)
	}
	b.f("\n/* written by hand: calls, and hooks before (0: go on, 1: *r is the answer, 2: go on and ask for an answer) " +
		"and after success */\n")
	for _, f := range c.lib.Funcs {
		if f.Base != "" || f.NoProto {
			continue
		}
		decl, _, err := c.params(f)
		if err != nil {
			return err
		}
		form := ""
		if c.hasPerThread(f.Name) {
			form = "uint32_t ptds"
		}
		switch f.Class {
		case api.Local, api.Hand:
			b.f("int32_t scuda_hand_%s(%s);\n", f.Name, orVoid(join(decl, form)))
		case api.Async, api.Sync:
			if f.Pre {
				b.f("int scuda_pre_%s(%s);\n", f.Name, join(decl, form, "int32_t *r"))
			}
			if f.Post {
				b.f("void scuda_post_%s(%s);\n", f.Name, orVoid(decl))
			}
		}
	}
	b.f("\n/* what functions that work do not support: see scuda_refuse */\nenum scuda_part {\n")
	for _, p := range c.lib.Parts {
		b.f("  PART_%s, /* %s */\n", p.Key, p.Text)
	}
	b.f("  SCUDA_PARTS\n};\nextern const char *const scuda_parts[SCUDA_PARTS];\n")
	b.f("\n/* generated encodings; flags: SCUDA_PTDS, SCUDA_ANSWER */\n")
	for _, f := range c.lib.Funcs {
		if f.Base == "" && f.Generic && !f.NoProto {
			decl, _, err := c.params(f)
			if err != nil {
				return err
			}
			b.f("int32_t scuda_wire_%s(%s);\n", f.Name, join(decl, "uint32_t how"))
		}
	}
	b.f("#endif\n")
	return out.CFile("shim/front/gen/cuda_gen.h", b.Bytes())
}

// wireHeader writes the structures of wire.spec.
func (c *cfront) wireHeader(out *Output) error {
	b := &buffer{}
	b.f("#ifndef SCUDA_WIRE_GEN_H\n#define SCUDA_WIRE_GEN_H\n#include <stdint.h>\n\nenum {\n")
	for _, w := range c.spec.Wire {
		if w.Op != 0 {
			b.f("  OP_%s = %#x,\n", strings.ToUpper(w.Name), w.Op)
		}
	}
	b.f("};\n\n/* constants of the protocol */\nenum {\n")
	for _, k := range c.spec.Consts {
		b.f("  WIRE_%s = %#x,\n", strings.ToUpper(k.Name), k.Value)
	}
	b.f("};\n")
	for _, set := range c.spec.Sets {
		b.f("enum { /* %s */\n", cmp.Or(set.Doc, set.Name))
		for _, k := range set.Values {
			if !k.Removed {
				b.f("  WIRE_%s_%s = %d,\n", strings.ToUpper(set.Name), strings.ToUpper(k.Name), k.Value)
			}
		}
		b.f("};\n")
	}
	for _, w := range c.spec.Wire {
		b.f("\nstruct wire_%s {\n", w.Name)
		for _, f := range w.Fields {
			b.f("  %s %s", f.CType, f.Name)
			for _, d := range f.Array {
				b.f("[%d]", d)
			}
			b.f(";\n")
		}
		b.f("};\n_Static_assert(sizeof(struct wire_%s) == %d, \"layout of wire_%s\");\n", w.Name, w.Size, w.Name)
	}
	b.f("#endif\n")
	return out.CFile("shim/front/gen/wire_gen.h", b.Bytes())
}

// exports writes the exported functions, their table, and the linker's version script.
func (c *cfront) exports(out *Output) error {
	b := &buffer{}
	b.f("#include \"calls/profile.h\"\n\n#include <string.h>\n")
	for _, f := range c.lib.Funcs {
		if err := c.export(b, f); err != nil {
			return err
		}
	}
	b.f("\nconst struct scuda_export scuda_exports[SCUDA_EXPORT_COUNT] = {\n")
	for _, f := range c.lib.Funcs {
		before := "0"
		if slices.Contains(beforeInit, f.Name) {
			before = "(void *)scuda_hand_" + f.Name
		}
		older := "0"
		if base, _ := c.older(f); base != nil {
			older = "I_" + base.Name
		}
		b.f("  {%q, (void *)%s, (void *)profiled_%s, %s, %d, %s},\n", f.Name, f.Name, f.Name, before,
			c.recorded.early[f.Name], older)
	}
	b.f("};\n")
	if err := out.CFile("shim/front/gen/exports_gen.c", b.Bytes()); err != nil {
		return err
	}
	b = &buffer{}
	b.f("{\n  global:\n")
	for _, f := range c.lib.Funcs {
		b.f("    %s;\n", f.Name)
	}
	b.f("  local: *;\n};\n")
	return out.CFile("shim/front/gen/libcuda_gen.map", b.Bytes())
}

func (c *cfront) export(b *buffer, f *api.Func) error {
	decl, args, err := c.params(f)
	if err != nil {
		return err
	}
	base := c.base(f)
	form := ""
	if c.hasPerThread(base.Name) {
		form = "0"
		if f.PTSZ {
			form = "SCUDA_PTDS"
		}
	}
	// what the function does in a session: alone, and between the two ends that a profiler is told
	b.f("\nstatic inline __attribute__((always_inline)) int32_t body_%s(%s) {\n", f.Name, orVoid(decl))
	if older, since := c.older(f); older != nil {
		b.f("  if (SCUDA_UNLIKELY(scuda_boot.driver_version < %d)) return ((int32_t (*)(%s))scuda_older(I_%s))(%s);\n", since,
			orVoid(decl), f.Name, args)
	}
	b.f("  if (SCUDA_UNLIKELY(scuda_inside)) return scuda_nested();\n  scuda_inside = 1;\n")
	unused := func() {
		if args != "" {
			for a := range strings.SplitSeq(args, ", ") {
				b.f("  (void)%s;\n", a)
			}
		}
	}
	answer := "return scuda_answer(I_%s, %s);"
	if base.Flag(api.FlagTakes) || base.Flag(api.FlagTakesByHand) && base.Class != api.Hand {
		answer = "return scuda_answer(I_%s, scuda_managed_over(%s));"
	}
	if base.Flag(api.FlagTakes) {
		if err := c.takes(b, f, base, form); err != nil {
			return err
		}
	}
	switch class := base.Class; {
	case class == api.Missing, base.NoProto && class != api.Unsupported && class != api.Refused:
		unused()
		b.f("  "+answer+"\n", f.Name, "scuda_missing(I_"+f.Name+")")
	case class == api.Unsupported:
		unused()
		b.f("  "+answer+"\n", f.Name, fmt.Sprintf("scuda_unsupported(I_%s, %q)", f.Name, base.Reason))
	case class == api.Refused:
		unused()
		b.f("  "+answer+" /* %s */\n", f.Name, base.Answer, base.Reason)
	case class == api.Local, class == api.Hand:
		b.f("  "+answer+"\n", f.Name, fmt.Sprintf("scuda_hand_%s(%s)", base.Name, join(args, form)))
	default:
		flags := "0"
		if form != "" {
			flags = form
		}
		b.f("  int32_t r;\n")
		if base.Pre {
			b.f("  int pre = scuda_pre_%s(%s);\n  if (pre == 1) "+answer+"\n", base.Name,
				join(args, form, "&r"), f.Name, "r")
			flags = "(pre == 2 ? SCUDA_ANSWER : 0) | " + flags
		}
		b.f("  r = scuda_wire_%s(%s);\n", base.Name, join(args, flags))
		if base.Post {
			b.f("  if (!r) scuda_post_%s(%s);\n", base.Name, args)
		}
		b.f("  "+answer+"\n", f.Name, "r")
	}
	b.f("}\n\nSCUDA_EXPORT int32_t %s(%s) {\n", f.Name, orVoid(decl))
	if err := emitClears(b, c.lib, f); err != nil {
		return err
	}
	b.f("  if (SCUDA_UNLIKELY(!scuda_remote())) return ((int32_t (*)(%s))scuda_divert(I_%s))(%s);\n", orVoid(decl), f.Name,
		args)
	b.f("  return body_%s(%s);\n}\n", f.Name, args)
	b.f("\nstatic int32_t profiled_%s(%s) {\n", f.Name, orVoid(decl))
	params := "NULL"
	if args != "" {
		params = "&params"
		b.f("  struct { %s; } params = {%s};\n", strings.ReplaceAll(decl, ", ", "; "), args)
	}
	b.f("  struct scuda_profiled call;\n")
	b.f("  if (scuda_inside || !scuda_profile_enter(&call, I_%s, %s)) return body_%s(%s);\n", f.Name, params, f.Name, args)
	b.f("  return scuda_profile_exit(&call, body_%s(%s));\n}\n", f.Name, args)
	return nil
}

// holds are the functions whose objects keep addresses for later.
var holds = regexp.MustCompile("^cu(Graph|Tex|TensorMap)")

// takes hands the unified memory that the call names to the GPU: every word of what it was given may be an address.
func (c *cfront) takes(b *buffer, f, base *api.Func, form string) error {
	var words, lists []string
	stream := "SCUDA_LEGACY_STREAM"
	for _, p := range base.Params {
		record, structs := c.lib.Record(p)
		switch pointer := strings.HasSuffix(p.CType, "*"); {
		case p.Stream:
			stream = p.Name
		case !c.lib.NamesMemory(p):
		case p.CType == "CUdeviceptr":
			words = append(words, p.Name)
		case pointer && structs:
			lists = append(lists, fmt.Sprintf("%s, %s ? %s * (uint64_t)%d : 0", p.Name, p.Name, elements(base, p), record.Size))
		case pointer && p.CType == "CUdeviceptr *":
			lists = append(lists, fmt.Sprintf("%s, %s ? %s * (uint64_t)8 : 0", p.Name, p.Name, elements(base, p)))
		default: // void*
			words = append(words, "(uint64_t)(uintptr_t)"+p.Name)
		}
	}
	if len(words)+len(lists) == 0 {
		return fmt.Errorf("%s: takes memory, and has no address that the generator knows", f.Name)
	}
	if len(words) > 0 {
		b.f("  const uint64_t names[] = {%s};\n", strings.Join(words, ", "))
		lists = append([]string{"names, sizeof names"}, lists...)
	}
	call := func(list string) string {
		return fmt.Sprintf("scuda_managed_named(%s, %s, %s)", list, stream, cmp.Or(form, "0"))
	}
	if holds.MatchString(base.Name) {
		call = func(list string) string { return fmt.Sprintf("scuda_managed_held(%s)", list) }
	}
	b.f("  if (SCUDA_UNLIKELY(scuda_managed_some())) {\n    int32_t taken = %s;\n", call(lists[0]))
	for _, list := range lists[1:] {
		b.f("    if (!taken) taken = %s;\n", call(list))
	}
	b.f("    if (taken) return scuda_answer(I_%s, scuda_managed_over(taken));\n  }\n", f.Name)
	return nil
}

// elements is how many a pointer of the call points to: the number stands in a parameter, or there is one.
func elements(base *api.Func, p api.Param) string {
	if p.Count != "" && p.Count != "1" {
		return p.Count
	}
	for _, q := range base.Params {
		if q.CType == "size_t" && (q.Name == "count" || q.Name == "numOps") {
			return q.Name
		}
	}
	return "1"
}
