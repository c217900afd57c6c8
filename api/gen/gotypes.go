package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"scuda.dev/scuda/api"
)

// emitGo writes api/cuda and api/nvml.
func emitGo(spec *api.Spec, out *Output) error {
	for _, p := range []struct {
		lib         *api.Library
		pkg, result string
		fallback    string // what Unimplemented answers; "": there is none
	}{
		{spec.CUDA, "cuda", "CUresult", "CUDA_ERROR_NOT_SUPPORTED"},
		{spec.NVML, "nvml", "nvmlReturn_t", ""},
	} {
		dir := "api/" + p.pkg + "/"
		named, err := namedFunctions(out.root, p.lib)
		if err != nil {
			return err
		}
		files := map[string]func(*buffer) error{
			"zz_types_gen.go":       func(b *buffer) error { return goTypes(b, p.lib) },
			"zz_consts_gen.go":      func(b *buffer) error { return goConsts(b, p.lib) },
			"zz_ops_gen.go":         func(b *buffer) error { return goOps(b, spec, p.lib, p.result) },
			"zz_driver_gen.go":      func(b *buffer) error { return goDriver(b, p.lib, named, p.result, p.fallback) },
			"zz_layout_gen_test.go": func(b *buffer) error { return goLayouts(b, p.lib) },
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			b := &buffer{}
			b.f("package %s\n", p.pkg)
			if err := files[name](b); err != nil {
				return err
			}
			if err := out.GoFile(dir+name, b.Bytes()); err != nil {
				return err
			}
		}
	}
	return nil
}

func goTypes(b *buffer, lib *api.Library) error {
	for _, name := range slices.Sorted(maps.Keys(lib.Types)) {
		t := lib.Types[name]
		g := api.GoTypeName(name)
		switch {
		case t.Kind == "struct" && t.Underlying == name:
			goStruct(b, lib, lib.Struct(name))
		case t.Kind == "struct" || t.Kind == "enum" && t.Underlying != name || t.Kind == "handle" && t.Underlying != name:
			b.f("\ntype %s = %s\n", g, api.GoTypeName(t.Underlying))
		case t.Kind == "enum":
			base := "int32"
			if lib.UnsignedEnum(name) {
				base = "uint32"
			}
			b.f("\ntype %s %s\n", g, base)
		case t.Kind == "handle":
			b.f("\n// %s is an opaque handle.\ntype %s uint64\n", g, g)
		case t.Kind == "func" || t.Kind == "pointer":
			b.f("\ntype %s uintptr\n", g)
		default:
			b.f("\ntype %s %s\n", g, lib.GoType(t.Underlying))
		}
	}
	return nil
}

// goStruct writes a record; padding is explicit, so that the layout is the C one whatever Go's own alignment would be.
func goStruct(b *buffer, lib *api.Library, s *api.Struct) {
	b.f("\n// %s has %d bytes, aligned to %d.\n", api.GoTypeName(s.Name), s.Size, s.Align)
	if s.Union {
		b.f("type %s %s\n", api.GoTypeName(s.Name), bytesOf(s.Size, s.Align))
		return
	}
	b.f("type %s ", api.GoTypeName(s.Name))
	goFields(b, lib, s)
	b.f("\n")
}

func goFields(b *buffer, lib *api.Library, s *api.Struct) {
	b.f("struct {\n")
	if len(s.Fields) == 0 {
		b.f("Data %s\n", bytesOf(s.Size, s.Align))
	}
	at, names := 0, &fieldNames{}
	for _, f := range s.Fields {
		size, align, kind := fieldShape(lib, f)
		at = pad(b, at, f.Offset)
		b.f("%s ", names.next(f))
		for _, d := range f.Array {
			b.f("[%d]", d)
		}
		switch {
		case f.Sub != nil && (f.Sub.Union || len(f.Array) == 0 && f.Name == "" && kind == "union"):
			b.f("%s", bytesOf(size, align))
		case f.Sub != nil:
			goFields(b, lib, f.Sub)
		default:
			b.f("%s", lib.GoType(f.CType))
		}
		b.f("\n")
		n := size
		for _, d := range f.Array {
			n *= d
		}
		at += n
	}
	if at < s.Size {
		pad(b, at, s.Size)
	}
	b.f("}")
}

// pad fills the gap before offset. Gaps that Go leaves by itself are filled as well: they are then sent as zeros, never
// as old memory.
func pad(b *buffer, at, offset int) int {
	if offset > at {
		b.f("_ [%d]byte\n", offset-at)
	}
	return offset
}

func fieldShape(lib *api.Library, f api.Field) (size, align int, kind string) {
	if f.Sub != nil {
		if f.Sub.Union {
			kind = "union"
		}
		return f.Sub.Size, f.Sub.Align, kind
	}
	t, _ := lib.Lookup(f.CType)
	return t.Size, t.Align, t.Kind
}

// fieldNames gives the fields of one record their Go names; a nameless union is called U.
type fieldNames struct{ used []string }

func (n *fieldNames) next(f api.Field) string {
	name := cmp.Or(fieldName(f.Name), "U")
	for slices.Contains(n.used, name) {
		name += "_"
	}
	n.used = append(n.used, name)
	return name
}

// goLayouts writes a test that compares the Go compiler's sizes and offsets with the facts.
func goLayouts(b *buffer, lib *api.Library) error {
	b.f("\nimport (\n\"testing\"\n\"unsafe\"\n)\n\nfunc TestLayouts(t *testing.T) {\nfor _, c := range []struct {\n" +
		"what string\nhave uintptr\nwant uintptr\n}{\n")
	for _, s := range lib.Structs {
		g := api.GoTypeName(s.Name)
		b.f("{\"size of %s\", unsafe.Sizeof(*new(%s)), %d},\n", g, g, s.Size)
		if s.Union {
			continue
		}
		names := &fieldNames{}
		for _, f := range s.Fields {
			name := names.next(f)
			b.f("{\"%s.%s\", unsafe.Offsetof(new(%s).%s), %d},\n", g, name, g, name, f.Offset)
		}
	}
	b.f("} {\nif c.have != c.want {\nt.Errorf(\"%%s is %%d, want %%d\", c.what, c.have, c.want)\n}\n}\n}\n")
	return nil
}

func fieldName(c string) string { return api.GoName(strings.TrimLeft(c, "_")) }

func bytesOf(size, align int) string {
	switch {
	case align >= 8:
		return fmt.Sprintf("[%d]uint64", size/8)
	case align == 4:
		return fmt.Sprintf("[%d]uint32", size/4)
	}
	return fmt.Sprintf("[%d]byte", size)
}

// camel is the Go form of words joined by low lines.
func camel(key string) string {
	name := ""
	for word := range strings.SplitSeq(key, "_") {
		name += api.GoName(word)
	}
	return name
}

func goConsts(b *buffer, lib *api.Library) error {
	seen := map[string]int64{}
	for _, tag := range slices.Sorted(maps.Keys(lib.Enums)) {
		values := lib.Enums[tag]
		typ := api.GoTypeName(lib.EnumTypedef(tag))
		if typ == "" {
			typ = "int64"
		}
		names := slices.SortedFunc(maps.Keys(values), func(a, c string) int {
			return cmp.Or(cmp.Compare(values[a], values[c]), strings.Compare(a, c))
		})
		b.f("\n// Values of %s.\nconst (\n", typ)
		for _, n := range names {
			if _, twice := seen[n]; twice {
				return fmt.Errorf("constant %s stands in two enums", n)
			}
			seen[n] = values[n]
			b.f("%s %s = %d\n", n, typ, values[n])
		}
		b.f(")\n")
	}
	if len(lib.Parts) == 0 {
		return nil
	}
	b.f("\n// Part is something that functions do not support though they work otherwise.\ntype Part uint8\n\n" +
		"// The parts of api/cuda.semantics.\nconst (\n")
	for i, p := range lib.Parts {
		b.f("Part%s", camel(p.Key))
		if i == 0 {
			b.f(" Part = iota")
		}
		b.f(" // %s\n", p.Text)
	}
	b.f(")\n\n// String is what is not supported, in words.\nfunc (p Part) String() string { return parts[p] }\n\n" +
		"var parts = [...]string{\n")
	for _, p := range lib.Parts {
		b.f("%q,\n", p.Text)
	}
	b.f("}\n")
	return nil
}

func goOps(b *buffer, spec *api.Spec, lib *api.Library, result string) error {
	b.f("\nimport \"strconv\"\n")
	b.f("\n// Digest names the description that this program was built from; both sides of a session compare it.\n"+
		"const Digest = \"%x\"\n", spec.Digest)
	b.f(
		"\n// Kind is the type of a handle, of a number that names an object, or of a structure for which clients have a " +
			"token.\ntype Kind uint8\n\n// Kinds of handles, behind them of numbers, and behind those of tokens.\nconst (\n" +
			"KindNone Kind = iota\n")
	kinds := slices.Concat(lib.Handles, lib.Objects, lib.Tokens)
	for _, h := range kinds {
		b.f("%s // %s\n", kindName(h), h)
	}
	b.f("kindEnd\n)\n")
	b.f("\nvar kindNames = [...]string{\"none\"")
	for _, h := range kinds {
		b.f(", %q", h)
	}
	b.f(
		"}\n\n// String is the C name of the handle type.\nfunc (k Kind) String() string {\nif int(k) < len(kindNames) {\n" +
			"return kindNames[k]\n}\nreturn \"Kind(\" + strconv.Itoa(int(k)) + \")\"\n}\n")
	b.f("\n// Kinds is the number of kinds; every Kind is below it.\nconst Kinds = int(kindEnd)\n")

	b.f("\n// Operation numbers, also of the functions that do not travel: drivers are called by them.\nconst (\n")
	top := uint16(0)
	for _, fn := range numbered(lib) {
		b.f("Op%s uint16 = %d\n", api.GoName(fn.Name), fn.Number())
		top = max(top, fn.Number())
	}
	b.f(")\n\n// Ops is above every operation number.\nconst Ops = %d\n\nvar opNames = [...]string{\n", top+1)
	for _, fn := range numbered(lib) {
		b.f("Op%s: %q,\n", api.GoName(fn.Name), fn.Name)
	}
	b.f("}\n\n// OpName is the C function of an operation.\nfunc OpName(op uint16) string {\n" +
		"if int(op) < len(opNames) && opNames[op] != \"\" {\nreturn opNames[op]\n}\n" +
		"return \"operation \" + strconv.Itoa(int(op))\n}\n")

	tag := ""
	for t := range lib.Enums {
		if lib.EnumTypedef(t) == result {
			tag = t
		}
	}
	g := api.GoTypeName(result)
	b.f("\nvar resultNames = map[%s]string{\n", g)
	byValue := map[int64]string{}
	for _, n := range slices.Sorted(maps.Keys(lib.Enums[tag])) {
		v := lib.Enums[tag][n]
		if byValue[v] == "" {
			byValue[v] = n
		}
	}
	for _, v := range slices.Sorted(maps.Keys(byValue)) {
		b.f("%s: %q,\n", byValue[v], byValue[v])
	}
	b.f(
		"}\n\n// ResultName is the C name of a status.\nfunc ResultName(r %s) string {\nif n, ok := resultNames[r]; ok {\n"+
			"return n\n}\nreturn \"%s \" + strconv.Itoa(int(r))\n}\n", g, result)
	b.f("\n// Error makes a status usable as an error.\nfunc (r %s) Error() string { return ResultName(r) }\n", g)
	return nil
}

// numbered lists the functions that have an operation or can be called on a driver.
func numbered(lib *api.Library) []*api.Func {
	return slices.DeleteFunc(slices.Clone(lib.Funcs), func(fn *api.Func) bool {
		return fn.PTSZ || fn.NoProto && fn.Op == 0
	})
}

func kindName(handle string) string {
	n := strings.TrimPrefix(strings.TrimPrefix(handle, "CU"), "nvml")
	return "Kind" + api.GoTypeName(n)
}

// goDriver writes the interface with the functions that Go code calls by name.
func goDriver(b *buffer, lib *api.Library, fns []*api.Func, result, fallback string) error {
	b.f("\nimport \"unsafe\"\n")
	b.f("\n// Driver has the functions of the library that the server calls by name. Pointers are to memory that " +
		"holds no Go pointers.\ntype Driver interface {\n")
	for _, fn := range fns {
		b.f("%s(%s) %s\n", api.GoName(fn.Name), goParams(fn, true), goResult(lib, fn))
	}
	b.f("}\n")
	if fallback == "" {
		return nil
	}
	b.f("\n// Unimplemented answers %s to everything. Embed it to implement a part of Driver.\n"+
		"type Unimplemented struct{}\n\nvar _ Driver = Unimplemented{}\n", fallback)
	for _, fn := range fns {
		if fn.Ret != result {
			return fmt.Errorf("%s gives no %s", fn.Name, result)
		}
		b.f("\n// %s is not implemented.\nfunc (Unimplemented) %s(%s) %s { return %s }\n", api.GoName(fn.Name),
			api.GoName(fn.Name), goParams(fn, false), goResult(lib, fn), fallback)
	}
	return nil
}

// Methods lists the functions that are methods of Driver.
func Methods(lib *api.Library) []*api.Func {
	var out []*api.Func
	for _, fn := range lib.Funcs {
		if !fn.PTSZ && !fn.NoProto {
			out = append(out, fn)
		}
	}
	return out
}

func goResult(lib *api.Library, fn *api.Func) string { return lib.GoParam(fn.Ret) }

func goParams(fn *api.Func, named bool) string {
	var out []string
	for _, p := range fn.Params {
		name := "_"
		if named {
			name = goParamName(p.Name)
		}
		out = append(out, name+" "+p.GoType)
	}
	return strings.Join(out, ", ")
}

// goParamName avoids Go's keywords and the names that generated code uses itself.
func goParamName(c string) string {
	switch c {
	case "func", "type", "map", "range", "select", "var", "len", "copy", "unsafe", "r", "d":
		return c + "_"
	}
	return c
}
