package main

import "scuda.dev/scuda/api"

// emitClasses writes the classes by which server and client count and time calls.
func emitClasses(spec *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("package class\n\n// The classes: the groups of api/cuda.semantics.\nconst (\n")
	for i, g := range spec.CUDA.Groups {
		b.f("%s", api.GoName(g))
		if i == 0 {
			b.f(" Class = iota")
		}
		b.f("\n")
	}
	b.f("\n// Count is how many classes there are.\nCount int = iota\n)\n\nvar names = [Count]string{")
	for _, g := range spec.CUDA.Groups {
		b.f("%q, ", g)
	}
	b.f("}\n\n// ofFunction has the class of a driver function's operation.\nvar ofFunction = [...]Class{\n")
	for _, fn := range spec.CUDA.Funcs {
		if fn.Wire() && !fn.PTSZ {
			b.f("%d: %s, // %s\n", fn.Op, api.GoName(fn.Group), fn.Name)
		}
	}
	b.f("}\n\n// ofWire has the class of an operation of wire.spec, from its first on.\nvar ofWire = [...]Class{\n")
	for _, w := range spec.Wire {
		if w.Op != 0 {
			b.f("%d: %s, // %s\n", w.Op-api.FirstWireOp, api.GoName(w.Group), w.Name)
		}
	}
	b.f("}\n\nconst firstWire = %#x\n", api.FirstWireOp)
	return out.GoFile("api/class/zz_class_gen.go", b.Bytes())
}
