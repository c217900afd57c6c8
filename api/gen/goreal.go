package main

import (
	"fmt"
	"strings"

	"scuda.dev/scuda/api"
)

// emitReal writes the methods of driver/real.
func emitReal(spec *api.Spec, out *Output) error {
	for _, l := range []struct {
		lib                         *api.Library
		pkg, result, recv, sym, fns string
		missing                     string
	}{
		{spec.CUDA, "cuda", "CUresult", "driver", "symCu", "cudaSymbols", "cuda.CUDA_ERROR_NOT_SUPPORTED"},
		{spec.NVML, "nvml", "nvmlReturn_t", "nvmlDriver", "symNvml", "nvmlSymbols", "nvml.NVML_ERROR_FUNCTION_NOT_FOUND"},
	} {
		b := &buffer{}
		b.f("package real\n\nimport (\n\"runtime\"\n\"unsafe\"\n\n\"scuda.dev/scuda/api/%s\"\n)\n\nconst (\n", l.pkg)
		fns := Methods(l.lib)
		for i, fn := range fns {
			b.f("sym%s = %d\n", api.GoName(fn.Name), i)
		}
		b.f(")\n\nvar %s = [...]string{\n", l.fns)
		for _, fn := range fns {
			b.f("%q,\n", fn.Name)
		}
		b.f("}\n")
		for _, fn := range fns {
			if err := realMethod(b, l.lib, fn, l.pkg, l.recv, l.result); err != nil {
				return fmt.Errorf("%s: %w", fn.Name, err)
			}
		}
		if err := out.GoFile("driver/real/zz_"+l.pkg+"_gen.go", b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func realMethod(b *buffer, lib *api.Library, fn *api.Func, pkg, recv, result string) error {
	var params, args, floats, keep []string
	blob, tensor := "", false
	for i, p := range fn.Params {
		name := fmt.Sprintf("a%d", i)
		typ := p.GoType
		star := ""
		if strings.HasPrefix(typ, "*") {
			star, typ = "*", typ[1:]
		}
		if typ[0] >= 'A' && typ[0] <= 'Z' {
			typ = pkg + "." + typ
		}
		params = append(params, name+" "+star+typ)
		t, _ := lib.Lookup(p.CType)
		switch {
		case star != "":
			args = append(args, "address("+name+")")
			keep = append(keep, name)
			if et, _ := lib.Lookup(p.Elem); i == 0 && et.Align > 16 {
				tensor = true
			}
		case typ == "unsafe.Pointer":
			args = append(args, "raw("+name+")")
			keep = append(keep, name)
		case t.Kind == "struct" && t.Size <= 8:
			args = append(args, "small("+name+")")
		case t.Kind == "struct" && t.Size == 64:
			blob = "unsafe.Pointer(&" + name + ")"
			args = append(args, "")
		case t.Kind == "struct":
			return fmt.Errorf("no way to pass %s of %d bytes by value", p.CType, t.Size)
		case t.Kind == "float":
			if t.Size != 4 {
				return fmt.Errorf("no way to pass %s", p.CType)
			}
			floats = append(floats, name)
		case t.Kind == "float" || t.Kind == "int" && t.Size < 8 || t.Kind == "enum":
			args = append(args, fmt.Sprintf("uint64(uint32(%s))", name))
		default:
			args = append(args, "uint64("+name+")")
		}
	}
	if len(args) > 16 || len(floats) > 2 || len(floats) > 0 && len(args) > 4 {
		return fmt.Errorf("too many parameters")
	}
	sym := "sym" + api.GoName(fn.Name)
	ret := pkg + "." + lib.GoParam(fn.Ret)
	list := "&words{" + strings.Join(args, ", ") + "}"
	var invoke string
	switch {
	case fn.Ret != result:
		ret = "unsafe.Pointer"
		invoke = fmt.Sprintf("pointer(d.fns[%s], %s)", sym, list)
	case blob != "":
		if len(args) < 2 || args[1] != "" {
			return fmt.Errorf("structure by value in an unexpected place")
		}
		flags := "0"
		if len(args) == 3 {
			flags = args[2]
		}
		invoke = fmt.Sprintf("d.invokeBlob64(%s, %s, %s, %s)", sym, args[0], blob, flags)
	case len(floats) > 0:
		if len(floats) == 1 {
			floats = append(floats, "0")
		}
		invoke = fmt.Sprintf("d.invokeFloat(%s, %s, %s)", sym, list, strings.Join(floats, ", "))
	case tensor:
		invoke = fmt.Sprintf("d.invokeTensor(%s, %s)", sym, list)
	default:
		invoke = fmt.Sprintf("d.invoke(%s, %s)", sym, list)
	}
	b.f("\n// %s calls %s.\nfunc (d *%s) %s(%s) %s {\n", api.GoName(fn.Name), fn.Name, recv, api.GoName(fn.Name),
		strings.Join(params, ", "), ret)
	if len(keep) == 0 {
		b.f("return %s\n}\n", invoke)
		return nil
	}
	b.f("r := %s\n", invoke)
	for _, k := range keep {
		b.f("runtime.KeepAlive(%s)\n", k)
	}
	b.f("return r\n}\n")
	return nil
}
