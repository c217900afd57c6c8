package main

import (
	"strings"

	"scuda.dev/scuda/api"
)

// traits are the flags from which package trait's tables are made, in both description files.
var traits = []struct {
	flag api.Flag
	name string
}{
	{api.FlagAsyncErrors, "AsyncErrors"}, {api.FlagServer, "ByHand"}, {api.FlagLaunches, "Launches"},
	{api.FlagPools, "Pools"},
	{api.FlagContextless, "Contextless"}, {api.FlagBulk, "Bulk"}, {api.FlagTransfer, "Transfer"},
}

// emitTraits writes what the server has to know of operations before it carries them out.
func emitTraits(spec *api.Spec, out *Output) error {
	b := &buffer{}
	b.f("package trait\n\n// ofFunction has the traits of a driver function's operation.\nvar ofFunction = [...]Set{\n")
	for _, fn := range spec.CUDA.Funcs {
		if set := traitSet(fn.Flag); fn.Wire() && !fn.PTSZ && set != "" {
			b.f("%d: %s, // %s\n", fn.Op, set, fn.Name)
		}
	}
	b.f("}\n\n// ofWire has the traits of an operation of wire.spec, from its first on.\nvar ofWire = [...]Set{\n")
	for _, w := range spec.Wire {
		if set := traitSet(w.Flag); w.Op != 0 && set != "" {
			b.f("%d: %s, // %s\n", w.Op-api.FirstWireOp, set, w.Name)
		}
	}
	b.f("}\n\nconst firstWire = %#x\n", api.FirstWireOp)
	return out.GoFile("api/trait/zz_trait_gen.go", b.Bytes())
}

// traitSet writes a set of traits in Go; "" for an empty one.
func traitSet(has func(api.Flag) bool) string {
	var set []string
	for _, t := range traits {
		if has(t.flag) {
			set = append(set, t.name)
		}
	}
	return strings.Join(set, " | ")
}
