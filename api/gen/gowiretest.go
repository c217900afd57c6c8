package main

import "scuda.dev/scuda/api"

// emitWireTest writes the table of the wire's structures that TestRoundTrip goes through.
func emitWireTest(spec *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("package wire\n\nvar structures = []structure{\n")
	for _, w := range spec.Wire {
		b.f("{%q, view[%s]},\n", w.Name, wireName(w.Name))
	}
	b.f("}\n")
	return out.GoFile("api/wire/zz_structures_gen_test.go", b.Bytes())
}
