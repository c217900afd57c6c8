package main

import "scuda.dev/scuda/api"

// emitOperations adds the numbers of functions that had none to the file that has them. Those that stand there stay.
func emitOperations(spec *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("# The numbers of functions' operations: library, number, name. api/gen adds functions that are new, with the " +
		"next number. A number never changes and is\n" +
		"# never given to another function. Where a function is no more, \"removed\" is written behind its name.\n")
	for _, o := range spec.Operations {
		b.f("%s\n", o)
	}
	return out.File("api/facts/operations.tsv", b.Bytes())
}
