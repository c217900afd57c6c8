package main

import (
	"fmt"
	"strings"

	"scuda.dev/scuda/api"
)

// emitReal writes what driver/real knows of each library: the functions that do not take words alone, and methods for
// those that Go code calls by name.
func emitReal(spec *api.Spec, out *Output) error {
	for _, l := range []struct {
		lib               *api.Library
		pkg, result, recv string
	}{
		{spec.CUDA, "cuda", "CUresult", "driver"},
		{spec.NVML, "nvml", "nvmlReturn_t", "nvmlDriver"},
	} {
		b := &buffer{}
		b.f("package real\n\nimport (\n\"unsafe\"\n\n\"scuda.dev/scuda/api/%s\"\n)\n", l.pkg)
		if err := realForms(b, l.lib, l.pkg, l.result); err != nil {
			return err
		}
		named, err := namedFunctions(out.root, l.lib)
		if err != nil {
			return err
		}
		for _, fn := range named {
			if err := realMethod(b, l.lib, fn, l.pkg, l.recv); err != nil {
				return fmt.Errorf("%s: %w", fn.Name, err)
			}
		}
		if err := out.GoFile("driver/real/zz_"+l.pkg+"_gen.go", b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// realForm says how the arguments of a function travel: the form is "" when each is a word.
func realForm(lib *api.Library, fn *api.Func) (string, error) {
	var floats []string
	form := ""
	for i, p := range fn.Params {
		t, _ := lib.Lookup(p.CType)
		et, _ := lib.Lookup(p.Elem)
		switch {
		case strings.HasPrefix(p.GoType, "*"):
			if i == 0 && et.Align > 16 {
				form = "{tensor: true}"
			}
		case t.Kind == "struct" && t.Size == 64 && i == 1 && len(fn.Params) <= 3:
			form = "{blob: true}"
		case t.Kind == "struct" && t.Size > 8, t.Kind == "float" && t.Size != 4:
			return "", fmt.Errorf("%s: no way to pass %s of %d bytes by value", fn.Name, p.CType, t.Size)
		case t.Kind == "float":
			floats = append(floats, fmt.Sprint(i))
		}
	}
	if len(fn.Params) > maxWords || len(floats) > 2 || len(floats) > 0 && (floats[0] == "0" || len(fn.Params) > 5) {
		return "", fmt.Errorf("%s: no way to pass its parameters", fn.Name)
	}
	if len(floats) > 0 {
		form = "{floats: [2]uint8{" + strings.Join(floats, ", ") + "}}"
	}
	return form, nil
}

func realForms(b *buffer, lib *api.Library, pkg, result string) error {
	list := &buffer{}
	for _, fn := range Methods(lib) {
		form, err := realForm(lib, fn)
		if err != nil {
			return err
		}
		if fn.Ret != result && pkg == "cuda" {
			return fmt.Errorf("%s gives no %s", fn.Name, result)
		}
		if form != "" {
			list.f("%s.Op%s: %s,\n", pkg, api.GoName(fn.Name), form)
		}
	}
	if list.Len() == 0 {
		return nil
	}
	b.f("\n// %sForms are the functions with arguments that are no words.\n"+
		"var %sForms = [%s.Ops]form{\n%s}\n", pkg, pkg, pkg, list.String())
	return nil
}

func realMethod(b *buffer, lib *api.Library, fn *api.Func, pkg, recv string) error {
	if form, err := realForm(lib, fn); err != nil || form != "" {
		return fmt.Errorf("arguments that are no words: call it with Call (%w)", err)
	}
	var params, args, keep []string
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
			keep = append(keep, "unsafe.Pointer("+name+")")
		case typ == "unsafe.Pointer":
			args = append(args, "raw("+name+")")
			keep = append(keep, name)
		case t.Kind == "struct":
			args = append(args, "small("+name+")")
		case t.Kind == "int" && t.Size < 8 || t.Kind == "enum":
			args = append(args, fmt.Sprintf("uint64(uint32(%s))", name))
		default:
			args = append(args, "uint64("+name+")")
		}
	}
	name, ret := api.GoName(fn.Name), lib.GoParam(fn.Ret)
	op, list := pkg+".Op"+name, "&words{"+strings.Join(args, ", ")+"}"
	call := fmt.Sprintf("d.invoke(%s, %s)", op, list)
	if ret == "unsafe.Pointer" {
		call, keep = fmt.Sprintf("pointer(d.fns[%s], %s)", op, list), nil
	} else {
		ret = pkg + "." + ret
	}
	if len(keep) > 0 {
		call = "keep(" + call + ", " + strings.Join(keep, ", ") + ")"
	}
	b.f("\nfunc (d *%s) %s(%s) %s {\nreturn %s\n}\n", recv, name, strings.Join(params, ", "), ret, call)
	return nil
}
