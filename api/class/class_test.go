package class

import (
	"testing"

	"scuda.dev/scuda/api"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// Every operation has the class that the description says.
func TestClasses(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, fn := range spec.CUDA.Funcs {
		if got := Of(fn.Op); fn.Wire() && got.String() != fn.Group {
			t.Errorf("%s is %v, want %s", fn.Name, got, fn.Group)
		}
	}
	for op, want := range map[uint16]Class{wire.OpLaunch: Launch, wire.OpCopyH2D: Copy,
		cuda.OpCuStreamSynchronize: Synchronize,
		cuda.OpCuMemsetD8_v2:       Fill, cuda.OpCuMemAlloc_v2: Memory, wire.OpPing: Other, 0xFFFF: Other, 0: Other,
		0xEFFF: Other} {
		if got := Of(op); got != want {
			t.Errorf("operation %#x is %v, want %v", op, got, want)
		}
	}
}
