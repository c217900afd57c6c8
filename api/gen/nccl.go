package main

import (
	"fmt"
	"slices"
	"strings"

	"scuda.dev/scuda/api"
)

// What is known of NCCL, NVIDIA's library of collectives, stands in two tables of api/facts. From them come constants
// in C (shim/nccl, driver/nccl, sim/nccl) and in Go (package api/nccl), and the functions that libnccl.so.2 exports.

// ncclFunction is a function that NCCL exports.
type ncclFunction struct {
	name, gives string
	params      []string // their types in C
}

type ncclFacts struct {
	functions []ncclFunction
	enums     [][4]string // enumeration, name, value, bytes of an element
	settings  [][3]string // name, kind, what it may be
}

func readNCCL(root string) (*ncclFacts, error) {
	facts := &ncclFacts{}
	lines, err := rows(root, "nccl-functions.tsv", 4)
	if err != nil {
		return nil, err
	}
	for _, l := range lines {
		f := ncclFunction{name: l[0], gives: l[2]}
		if l[3] != "" {
			f.params = strings.Split(l[3], ", ")
		}
		if f.cType() == "" {
			return nil, fmt.Errorf("api/facts/nccl-functions.tsv: %s gives %q; want result, text or void", f.name, f.gives)
		}
		facts.functions = append(facts.functions, f)
	}
	sorted := slices.IsSortedFunc(facts.functions, func(a, b ncclFunction) int { return strings.Compare(a.name, b.name) })
	if !sorted {
		return nil, fmt.Errorf("api/facts/nccl-functions.tsv is not sorted")
	}
	if lines, err = rows(root, "nccl-enums.tsv", 4); err != nil {
		return nil, err
	}
	for _, l := range lines {
		facts.enums = append(facts.enums, [4]string(l))
	}
	if lines, err = rows(root, "nccl-settings.tsv", 3); err != nil {
		return nil, err
	}
	for _, l := range lines {
		facts.settings = append(facts.settings, [3]string(l))
	}
	return facts, nil
}

// cType is what the function gives, in C.
func (f *ncclFunction) cType() string {
	return map[string]string{"result": "int", "text": "const char *", "void": "void"}[f.gives]
}

// emitNCCL writes what is generated of NCCL.
func emitNCCL(_ *api.Spec, out *Output) error {
	facts, err := readNCCL(out.root)
	if err != nil {
		return err
	}
	for _, emit := range []func(*Output) error{facts.goPackage, facts.header, facts.exports, facts.visible} {
		if err := emit(out); err != nil {
			return err
		}
	}
	return nil
}

// ncclGoName is a constant's name in package api/nccl.
func ncclGoName(name string) string { return strings.TrimPrefix(name, "nccl") }

// each calls f for every enumeration with its rows.
func (n *ncclFacts) each(f func(enum string, rows [][4]string)) {
	for from := 0; from < len(n.enums); {
		to := from
		for to < len(n.enums) && n.enums[to][0] == n.enums[from][0] {
			to++
		}
		f(n.enums[from][0], n.enums[from:to])
		from = to
	}
}

// goPackage writes the constants of package api/nccl.
func (n *ncclFacts) goPackage(out *Output) error {
	b := &buffer{}
	b.f("package nccl\n")
	goTypes := map[string]string{"ncclResult_t": "Result", "ncclDataType_t": "DataType", "ncclRedOp_t": "ReduceOp"}
	n.each(func(enum string, rows [][4]string) {
		b.f("\n// Values of %s.\nconst (\n", enum)
		for _, r := range rows {
			b.f("%s %s = %s\n", ncclGoName(r[1]), goTypes[enum], r[2])
		}
		b.f(")\n")
	})
	b.f("\nvar resultNames = [...]string{")
	for _, r := range n.of("ncclResult_t") {
		b.f("%s: %q, ", r[2], r[1])
	}
	b.f("}\n\n// elementBytes are by DataType.\nvar elementBytes = [...]uint64{")
	for _, r := range n.of("ncclDataType_t") {
		b.f("%s: %s, ", r[2], r[3])
	}
	b.f("}\n\n// operators is how many values ReduceOp has.\nconst operators = %d\n", len(n.of("ncclRedOp_t")))
	b.f("\n// settings are what a program's variables may be, by their names.\nvar settings = map[string]setting{\n")
	for _, s := range n.settings {
		b.f("%q: {kind: %q, may: %q},\n", s[0], s[1], s[2])
	}
	b.f("}\n")
	return out.GoFile("api/nccl/zz_nccl_gen.go", b.Bytes())
}

func (n *ncclFacts) of(enum string) (out [][4]string) {
	for _, r := range n.enums {
		if r[0] == enum {
			out = append(out, r)
		}
	}
	return out
}

// header writes the constants and the functions' numbers for C.
func (n *ncclFacts) header(out *Output) error {
	b := &buffer{}
	b.f("#ifndef SCUDA_NCCL_GEN_H\n#define SCUDA_NCCL_GEN_H\n#include <stddef.h>\n\n" +
		"typedef struct { char bytes[128]; } ncclUniqueId; /* passed by value */\n")
	n.each(func(enum string, rows [][4]string) {
		b.f("\nenum { /* %s */\n", enum)
		for _, r := range rows {
			b.f("  %s = %s,\n", r[1], r[2])
		}
		b.f("};\n")
	})
	b.f("\n#define NCCL_RESULT_NAMES \\\n ")
	for _, r := range n.of("ncclResult_t") {
		b.f(" %q,", r[1])
	}
	b.f("\n#define NCCL_ELEMENT_BYTES \\\n ")
	for _, r := range n.of("ncclDataType_t") {
		b.f(" %s,", r[3])
	}
	b.f("\n#define NCCL_SETTINGS \\\n ")
	for _, s := range n.settings {
		b.f(" %q,", s[0])
	}
	b.f("\nenum { NCCL_TYPES = %d, NCCL_OPERATORS = %d, NCCL_RESULTS = %d };\n", len(n.of("ncclDataType_t")),
		len(n.of("ncclRedOp_t")), len(n.of("ncclResult_t")))
	b.f("\nenum { /* numbers of functions */\n")
	for _, f := range n.functions {
		b.f("  NCCL_%s,\n", f.name)
	}
	b.f("  NCCL_FUNCTIONS\n};\n#endif\n")
	return out.CFile("shim/nccl/gen/nccl_gen.h", b.Bytes())
}

// exports writes the exported functions: each finds out where its call goes (shim/nccl/entry.c).
func (n *ncclFacts) exports(out *Output) error {
	b := &buffer{}
	b.f("#include \"nccl.h\"\n")
	for _, f := range n.functions {
		types, named, args := "void", "void", ""
		if len(f.params) > 0 {
			types, named = strings.Join(f.params, ", "), ""
		}
		for i, p := range f.params {
			if i > 0 {
				named, args = named+", ", args+", "
			}
			named, args = fmt.Sprintf("%s%s a%d", named, p, i), fmt.Sprintf("%sa%d", args, i)
		}
		result := f.cType()
		b.f("\nextern %s own_%s(%s) __attribute__((weak, visibility(\"hidden\")));\n", result, f.name, types)
		for second, letter := range []string{"", "p"} {
			b.f("NCCL_EXPORT %s %s%s(%s) {\n", result, letter, f.name, named)
			b.f("  nccl_fn f = nccl_route(NCCL_%s, %d, __builtin_return_address(0));\n", f.name, second)
			if f.gives == "void" { // there is nothing to refuse
				b.f("  if (f) ((void (*)(%s))f)(%s);\n  else if (own_%s) own_%s(%s);\n}\n", types, args, f.name, f.name, args)
				continue
			}
			b.f("  if (f) return ((%s (*)(%s))f)(%s);\n", result, types, args)
			b.f("  if (own_%s) return own_%s(%s);\n", f.name, f.name, args)
			if f.gives == "text" {
				b.f("  return \"\";\n}\n")
			} else {
				b.f("  return nccl_refused(NCCL_%s);\n}\n", f.name)
			}
		}
	}
	b.f("\nconst char *const nccl_names[NCCL_FUNCTIONS] = {\n")
	for _, f := range n.functions {
		b.f("  \"p%s\",\n", f.name)
	}
	b.f("};\n")
	return out.CFile("shim/nccl/gen/exports_gen.c", b.Bytes())
}

// visible writes the linker's script: NCCL's symbols have no version, so it names none.
func (n *ncclFacts) visible(out *Output) error {
	b := &buffer{}
	b.f("{\n  global:\n")
	for _, f := range n.functions {
		b.f("    %s;\n    p%s;\n", f.name, f.name)
	}
	b.f("  local: *;\n};\n")
	return out.CFile("shim/nccl/gen/libnccl.map", b.Bytes())
}
