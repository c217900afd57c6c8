package trait

import (
	"testing"

	"scuda.dev/scuda/api"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// Every operation has the traits that the description says, and no other.
func TestTraits(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	flags := map[api.Flag]Set{
		api.FlagAsyncErrors: AsyncErrors, api.FlagServer: ByHand, api.FlagLaunches: Launches, api.FlagPools: Pools,
		api.FlagContextless: Contextless, api.FlagBulk: Bulk, api.FlagTransfer: Transfer,
	}
	seen := Set(0)
	check := func(name string, op uint16, has func(api.Flag) bool) {
		want := Set(0)
		for flag, trait := range flags {
			if has(flag) {
				want |= trait
			}
		}
		if got := Of(op); got != want {
			t.Errorf("%s has the traits %#x, want %#x", name, got, want)
		}
		seen |= want
	}
	for _, fn := range spec.CUDA.Funcs {
		if fn.Wire() {
			check(fn.Name, fn.Op, fn.Flag)
		}
	}
	for _, w := range spec.Wire {
		if w.Op != 0 {
			check(w.Name, w.Op, w.Flag)
		}
	}
	if seen != AsyncErrors|ByHand|Launches|Pools|Contextless|Bulk|Transfer {
		t.Errorf("only the traits %#x are anybody's", seen)
	}
	for op, want := range map[uint16]Set{
		wire.OpLaunch: Launches, wire.OpCopyH2D: Bulk | Transfer, wire.OpPing: Contextless, cuda.OpCuMemAllocAsync: Pools,
		cuda.OpCuStreamQuery: ByHand | AsyncErrors, cuda.OpCuGraphLaunch: Launches | AsyncErrors, 0: 0, 0xEFFF: 0, 0xFFFF: 0,
	} {
		if got := Of(op); got != want {
			t.Errorf("operation %#x has the traits %#x, want %#x", op, got, want)
		}
	}
}
