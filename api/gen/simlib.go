package main

import (
	"fmt"
	"strings"

	"scuda.dev/scuda/api"
)

// The stand-alone simulation is a driver library with the real one's exports: each packs its arguments into words and
// calls Go, where the operation's method gets them (driver/invoke).

// maxWords is how many parameters a function may have.
const maxWords = 16

// perThread marks the operation of a function in its _ptds form, which works in the calling thread's stream without
// naming it.
const perThread = 1 << 30

// standAlone are functions with code of their own in sim/lib.
var standAlone = map[string]bool{"cuDriverGetVersion": true, "cuGetProcAddress": true, "cuGetProcAddress_v2": true,
	"cuGetErrorName": true, "cuGetErrorString": true,
	"cuGetExportTable": true, "nvmlErrorString": true, "nvmlInternalGetExportTable": true}

// emitSimLib writes the generated half of sim/lib.
func emitSimLib(spec *api.Spec, out *Output) error {
	for _, l := range []struct {
		lib             *api.Library
		exports, prefix string
		unsupported     int
	}{
		{spec.CUDA, "front", "#include \"base/base.h\"\n", 801},
		{spec.NVML, "nvml", "#include <stdint.h>\n#define SCUDA_EXPORT __attribute__((visibility(\"default\")))\n",
			3},
	} {
		c := &cfront{spec: spec, lib: l.lib}
		b := &buffer{}
		b.f("%suint64_t sim_call(int32_t function, uint64_t *words);\n", l.prefix)
		for _, f := range l.lib.Funcs {
			if err := simExport(b, c, f, l.unsupported); err != nil {
				return err
			}
		}
		if l.lib == spec.CUDA {
			b.f("\nvoid *const sim_entries[] = {\n")
			for _, f := range l.lib.Funcs {
				b.f("  (void *)%s,\n", f.Name)
			}
			b.f("};\n")
		}
		if err := out.CFile("sim/lib/"+l.exports+"/exports_gen.c", b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func simExport(b *buffer, c *cfront, f *api.Func, unsupported int) error {
	base := c.base(f)
	if f.Alias != "" {
		base = c.lib.ByName[f.Alias]
	}
	if f.Data {
		return nil
	}
	shown := f
	if f.Alias != "" {
		shown = base
	}
	decl, args, err := c.params(shown)
	if err != nil {
		return err
	}
	if standAlone[base.Name] {
		if c.lib == c.spec.CUDA {
			b.f("\nint32_t sim_%s(%s);", base.Name, orVoid(decl))
			b.f("\nSCUDA_EXPORT int32_t %s(%s) { return sim_%s(%s); }\n", f.Name, orVoid(decl), base.Name, args)
		}
		return nil
	}
	if base.NoProto {
		b.f("\nSCUDA_EXPORT int32_t %s(void) { return %d; }\n", f.Name, unsupported)
		return nil
	}
	if len(base.Params) > maxWords {
		return fmt.Errorf("%s: more than %d parameters", f.Name, maxWords)
	}
	b.f("\nSCUDA_EXPORT int32_t %s(%s) {\n  uint64_t words[%d] = {0};\n", f.Name, orVoid(decl), maxWords)
	for i, p := range base.Params {
		t, err := c.ctype(p.CType)
		if err != nil {
			return err
		}
		switch {
		case strings.HasSuffix(t, "*"):
			b.f("  words[%d] = (uint64_t)(uintptr_t)%s;\n", i, p.Name)
		case strings.HasPrefix(t, "struct") && p.Size <= 8:
			b.f("  __builtin_memcpy(&words[%d], &%s, sizeof %s);\n", i, p.Name, p.Name)
		case strings.HasPrefix(t, "struct"):
			b.f("  words[%d] = (uint64_t)(uintptr_t)&%s;\n", i, p.Name)
		case t == "float" || t == "double":
			b.f("  __builtin_memcpy(&words[%d], &%s, sizeof %s);\n", i, p.Name, p.Name)
		case p.Stream && f.PTSZ:
			b.f("  words[%d] = %s ? %s : 2; /* the per-thread stream */\n", i, p.Name, p.Name)
		default:
			b.f("  words[%d] = (uint64_t)%s;\n", i, p.Name)
		}
	}
	form := ""
	if strings.HasSuffix(f.Name, "_ptds") {
		form = fmt.Sprintf(" | %#x", perThread)
	}
	b.f("  return (int32_t)sim_call(%d%s, words);\n}\n", base.Number(), form)
	return nil
}
