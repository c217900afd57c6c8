package executor

import (
	"testing"

	"scuda.dev/scuda/api"
	"scuda.dev/scuda/api/trait"
	"scuda.dev/scuda/api/wire"
)

// Every operation of wire.spec has a handler, and no other number has; so have the functions with the flag server.
func TestOperationsHaveHandlers(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	left := map[uint16]bool{}
	for i, h := range wireOps {
		if h != nil {
			left[firstWire+uint16(i)] = true
		}
	}
	for _, w := range spec.Wire {
		if w.Op != 0 && w.Op != wire.OpOrder && !left[w.Op] { // execute carries order out itself
			t.Errorf("%s has no handler", w.Name)
		}
		delete(left, w.Op)
	}
	for op := range left {
		t.Errorf("operation %#x has a handler and is not in wire.spec", op)
	}
	for _, fn := range spec.CUDA.Funcs {
		if byHand := fn.Wire() && trait.Of(fn.Op).Has(trait.ByHand); byHand != (fn.Wire() && serverOps[fn.Op] != nil) {
			t.Errorf("%s: carried out by hand is %v", fn.Name, byHand)
		}
	}
}
