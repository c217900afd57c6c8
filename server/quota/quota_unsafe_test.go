package quota

import (
	"log/slog"
	"runtime"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim"
)

const mib = 1 << 20

// words are outputs of calls by words. They do not move, as what lies on a stack may.
var words [8]uint64

// structures are inputs of such calls.
var structures struct {
	prop cuda.CUmemAllocationProp
	two  cuda.CUDA_ARRAY_DESCRIPTOR
	deep cuda.CUDA_ARRAY3D_DESCRIPTOR
}

// machine is a simulated GPU of 256 MiB of which a session may have 16.
func machine(t *testing.T) (*GPU, *int) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	s, err := sim.Open(sim.Config{MemoryBytes: 256 * mib, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	refused := new(int)
	g := New(s, Limit{16 * mib, func(wants, has uint64) { *refused++ }}, Limit{}, nil)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	g.ThreadInit()
	must(t, g.CuInit(0))
	ctx := new(cuda.CUcontext)
	must(t, g.CuDevicePrimaryCtxRetain(ctx, 0))
	must(t, g.CuCtxSetCurrent(*ctx))
	return g, refused
}

func must(t *testing.T, r cuda.CUresult) {
	t.Helper()
	if r != cuda.CUDA_SUCCESS {
		t.Fatal(r)
	}
}

// call makes a call by words, as the dispatch does.
func (g *GPU) call(op uint16, args ...uint64) cuda.CUresult {
	var w cuda.Words
	copy(w[:], args)
	return g.Call(op, &w)
}

// Each kind of memory counts, is refused where it would be too much, and is free again when it has ended.
func TestKinds(t *testing.T) {
	var (
		out  = &words[3]
		more = &words[4]
		prop = &structures.prop
		two  = &structures.two
		deep = &structures.deep
	)
	prop.Type = cuda.CU_MEM_ALLOCATION_TYPE_PINNED
	*two = cuda.CUDA_ARRAY_DESCRIPTOR{Height: 1024, Format: cuda.CU_AD_FORMAT_FLOAT, NumChannels: 1}
	*deep = cuda.CUDA_ARRAY3D_DESCRIPTOR{Height: 256, Depth: 4, Format: cuda.CU_AD_FORMAT_FLOAT, NumChannels: 1}
	prop.Location.Type = cuda.CU_MEM_LOCATION_TYPE_DEVICE
	for name, kind := range map[string]struct {
		alloc func(g *GPU, n uint64) cuda.CUresult
		free  func(g *GPU, h uint64) cuda.CUresult
	}{
		"linear": {
			func(g *GPU, n uint64) cuda.CUresult { return g.call(cuda.OpCuMemAlloc_v2, address(out), n) },
			func(g *GPU, h uint64) cuda.CUresult { return g.call(cuda.OpCuMemFree_v2, h) },
		},
		"pitch": {
			func(g *GPU, n uint64) cuda.CUresult {
				return g.call(cuda.OpCuMemAllocPitch_v2, address(out), address(more), 1024, n/1024, 4)
			},
			func(g *GPU, h uint64) cuda.CUresult { return g.call(cuda.OpCuMemFree_v2, h) },
		},
		"physical": {
			func(g *GPU, n uint64) cuda.CUresult {
				return g.call(cuda.OpCuMemCreate, address(out), n, address(prop), 0)
			},
			func(g *GPU, h uint64) cuda.CUresult { return g.call(cuda.OpCuMemRelease, h) },
		},
		"pool": {
			func(g *GPU, n uint64) cuda.CUresult { return g.call(cuda.OpCuMemAllocAsync, address(out), n, 0) },
			func(g *GPU, h uint64) cuda.CUresult {
				must(t, g.call(cuda.OpCuMemFreeAsync, h, 0))
				return g.CuCtxSynchronize()
			},
		},
		"array": {
			func(g *GPU, n uint64) cuda.CUresult {
				two.Width = n / 4 / 1024
				return g.call(cuda.OpCuArrayCreate_v2, address(out), address(two))
			},
			func(g *GPU, h uint64) cuda.CUresult { return g.call(cuda.OpCuArrayDestroy, h) },
		},
		"array of three dimensions": {
			func(g *GPU, n uint64) cuda.CUresult {
				deep.Width = n / 4 / 1024
				return g.call(cuda.OpCuArray3DCreate_v2, address(out), address(deep))
			},
			func(g *GPU, h uint64) cuda.CUresult { return g.call(cuda.OpCuArrayDestroy, h) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, refused := machine(t)
			var has []uint64
			for range 2 {
				for range 2 {
					must(t, kind.alloc(g, 6*mib))
					has = append(has, *out)
				}
				before := *refused
				for _, n := range []uint64{6 * mib, 200 * mib, 1 << 40} {
					if r := kind.alloc(g, n); r != cuda.CUDA_ERROR_OUT_OF_MEMORY {
						t.Errorf("%d more: %v", n, r)
					}
				}
				if *refused != before+3 {
					t.Errorf("%d were told", *refused-before)
				}
				free, total := &words[0], &words[1]
				must(t, g.call(cuda.OpCuMemGetInfo_v2, address(free), address(total)))
				if *total != 16*mib || *free > 4*mib || *free != 16*mib-g.Used() {
					t.Errorf("%d of %d are free, %d are used", *free, *total, g.Used())
				}
				for _, h := range has {
					must(t, kind.free(g, h))
				}
				has = nil
				if n := g.Used(); n != 0 && name != "pool" {
					t.Errorf("%d are left", n)
				}
			}
			must(t, kind.alloc(g, 14*mib)) // also what pools keep
		})
	}
}

// ledger is an account of a session beside others that have a fixed part.
type ledger struct{ has, others uint64 }

func (l *ledger) Book(has, more, limit uint64) (uint64, bool) {
	ok := has+more+l.others <= limit
	if !ok {
		more = 0
	}
	l.has = has + more
	return l.others, ok
}

func (l *ledger) Has(bytes uint64) { l.has = bytes }
func (l *ledger) Others() uint64   { return l.others }

// A session that shares its limit gets what the others leave, and tells them what it has.
func TestSharedLimit(t *testing.T) {
	g, alone := machine(t)
	refused := 0
	l := &ledger{others: 10 * mib}
	g.all, g.account = Limit{20 * mib, func(wants, has uint64) {
		if refused++; wants != 6*mib || has < 10*mib {
			t.Errorf("%d more are refused, there are %d", wants, has)
		}
	}}, l
	out, free, total := &words[3], &words[0], &words[1]
	for name, kind := range map[string]struct {
		alloc func(n uint64) cuda.CUresult
		free  func(h uint64)
	}{
		"linear": {
			func(n uint64) cuda.CUresult { return g.call(cuda.OpCuMemAlloc_v2, address(out), n) },
			func(h uint64) { must(t, g.call(cuda.OpCuMemFree_v2, h)) },
		},
		"pool": {
			func(n uint64) cuda.CUresult { return g.call(cuda.OpCuMemAllocAsync, address(out), n, 0) },
			func(h uint64) {
				must(t, g.call(cuda.OpCuMemFreeAsync, h, 0))
				must(t, g.CuCtxSynchronize())
				g.Look()
			},
		},
	} {
		before := refused
		must(t, kind.alloc(6*mib))
		h := *out
		if l.has < 6*mib || l.has != g.Used() {
			t.Errorf("%s: the others are told of %d bytes, there are %d", name, l.has, g.Used())
		}
		must(t, g.call(cuda.OpCuMemGetInfo_v2, address(free), address(total)))
		if *total != 16*mib || *free != 10*mib-l.has {
			t.Errorf("%s: %d of %d are free", name, *free, *total)
		}
		if r := kind.alloc(6 * mib); r != cuda.CUDA_ERROR_OUT_OF_MEMORY || refused != before+1 {
			t.Errorf("%s: more than the others leave: %v", name, r)
		}
		l.others = 0
		must(t, kind.alloc(6*mib))
		kind.free(*out)
		kind.free(h)
		if l.has != 0 {
			t.Errorf("%s: %d bytes are left", name, l.has)
		}
		l.others = 10 * mib
	}
	if *alone != 0 {
		t.Error("the session's own limit was reached")
	}
}

// Physical memory is there until its last handle and mapping have gone.
func TestMappings(t *testing.T) {
	g, _ := machine(t)
	prop := &cuda.CUmemAllocationProp{Type: cuda.CU_MEM_ALLOCATION_TYPE_PINNED}
	prop.Location.Type = cuda.CU_MEM_LOCATION_TYPE_DEVICE
	at, h, again := new(cuda.CUdeviceptr), new(cuda.CUmemGenericAllocationHandle), &words[2]
	must(t, g.CuMemAddressReserve(at, 64*mib, 0, 0, 0))
	must(t, g.CuMemCreate(h, 8*mib, prop, 0))
	must(t, g.CuMemMap(*at, 8*mib, 0, *h, 0))
	must(t, g.CuMemRelease(*h))
	used := func(want uint64) {
		t.Helper()
		if n := g.Used(); n != want {
			t.Errorf("%d bytes are used, not %d", n, want)
		}
	}
	used(8 * mib)
	must(t, g.call(cuda.OpCuMemRetainAllocationHandle, address(again), uint64(*at)))
	must(t, g.CuMemUnmap(*at, 8*mib))
	used(8 * mib)
	must(t, g.CuMemRelease(cuda.CUmemGenericAllocationHandle(*again)))
	used(0)
	for i := range cuda.CUdeviceptr(2) {
		must(t, g.CuMemCreate(h, 4*mib, prop, 0))
		must(t, g.CuMemMap(*at+i*4*mib, 4*mib, 0, *h, 0))
		must(t, g.CuMemRelease(*h))
	}
	used(8 * mib)
	must(t, g.CuMemUnmap(*at, 8*mib)) // both at once
	used(0)
}

// What ends with its context is free again.
func TestContextEnds(t *testing.T) {
	g, _ := machine(t)
	p, ctx := new(cuda.CUdeviceptr), new(cuda.CUcontext)
	must(t, g.CuCtxCreate_v2(ctx, 0, 0))
	must(t, g.CuMemAlloc_v2(p, 12*mib))
	must(t, g.CuCtxDestroy_v2(*ctx))
	primary, r := g.PrimaryContext(0)
	must(t, r)
	must(t, g.CuCtxSetCurrent(primary))
	must(t, g.CuMemAlloc_v2(p, 12*mib))
	must(t, g.CuDevicePrimaryCtxReset_v2(0))
	must(t, g.CuCtxSetCurrent(0))
	must(t, g.CuDevicePrimaryCtxRetain(ctx, 0))
	must(t, g.CuCtxSetCurrent(*ctx))
	must(t, g.CuMemAlloc_v2(p, 12*mib))
	must(t, g.CuDevicePrimaryCtxRelease_v2(0))
	must(t, g.CuDevicePrimaryCtxRelease_v2(0))
	if n := g.Used(); n != 0 {
		t.Errorf("%d are left", n)
	}
}

func TestArrayBytes(t *testing.T) {
	for _, c := range []struct {
		d      cuda.CUDA_ARRAY3D_DESCRIPTOR
		levels uint32
		want   uint64
	}{
		{cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 10, Format: cuda.CU_AD_FORMAT_HALF, NumChannels: 2}, 1, 40},
		{cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 8, Height: 8, Format: cuda.CU_AD_FORMAT_FLOAT, NumChannels: 1}, 3,
			4 * (64 + 16 + 4)},
		{cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 1 << 40, Height: 1 << 40, Depth: 1 << 40}, 1 << 31, 1 << 60},
		{cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 1 << 20, Height: 1 << 20, Flags: sparse}, 1, 0},
	} {
		if got := arrayBytes(c.d, c.levels); got != c.want {
			t.Errorf("%+v, %d levels: %d, not %d", c.d, c.levels, got, c.want)
		}
	}
}
