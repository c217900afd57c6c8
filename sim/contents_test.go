package sim

import (
	"bytes"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/board"
)

// New memory holds what Config.Contents says, in the process that freed it and in the next that has its place.
func TestContents(t *testing.T) {
	const size = 1 << 20
	canary := bytes.Repeat([]byte("canary.."), size/8)
	ways := map[string]func(*machine) (uint64, func()){
		"cuMemAlloc": func(m *machine) (uint64, func()) {
			var p cuda.CUdeviceptr
			m.must(m.CuMemAlloc_v2(&p, size))
			return uint64(p), func() { m.must(m.CuMemFree_v2(p)) }
		},
		"cuMemAllocAsync": func(m *machine) (uint64, func()) {
			var p cuda.CUdeviceptr
			m.must(m.CuMemAllocAsync(&p, size, 0))
			m.must(m.CuCtxSynchronize())
			return uint64(p), func() {
				m.must(m.CuMemFreeAsync(p, 0))
				m.must(m.CuCtxSynchronize())
			}
		},
		"cuMemAllocManaged": func(m *machine) (uint64, func()) {
			var p cuda.CUdeviceptr
			m.must(m.CuMemAllocManaged(&p, size, uint32(cuda.CU_MEM_ATTACH_GLOBAL)))
			return uint64(p), func() { m.must(m.CuMemFree_v2(p)) }
		},
	}
	for _, c := range []struct {
		contents   Contents
		same, next bool // the canary is there
	}{{ContentsClear, false, false}, {ContentsProcess, true, false}, {ContentsMachine, true, true}} {
		for name, way := range ways {
			shared, file, err := board.New()
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			look := func(m *machine, want bool, where string) {
				p, free := way(m)
				defer free()
				if name == "cuMemAllocManaged" {
					want = false // the driver promises zeros
				}
				if got := bytes.Equal(bytesAt(p, size), canary); got != want {
					t.Errorf("%s, contents %d, in %s: the canary is there: %v", name, c.contents, where, got)
				}
			}
			cfg := Config{Contents: c.contents, Board: shared}
			m := open(t, cfg)
			p, free := way(m)
			copy(bytesAt(p, size), canary)
			free()
			look(m, c.same, "the same process")
			p, _ = way(m) // is there when the process ends
			copy(bytesAt(p, size), canary)
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			m = open(t, cfg)
			look(m, c.next, "the next")
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A module's variables begin as they are declared, whatever lay there before.
func TestVariablesBeginWithZeros(t *testing.T) {
	m := open(t, Config{Contents: ContentsProcess})
	const size = 4096
	const code = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .global .align 8 .b8 zeros[4096];\n" +
		".visible .global .align 8 .b8 some[4096] = {1, 2};\n"
	var p cuda.CUdeviceptr
	m.must(m.CuMemAlloc_v2(&p, 4*size))
	m.must(m.CuMemsetD8_v2(p, 0xcc, 4*size))
	m.must(m.CuMemFree_v2(p))
	var mod cuda.CUmodule
	m.must(m.CuModuleLoadData(&mod, m.image([]byte(code))))
	for name, want := range map[string][]byte{
		"zeros": make([]byte, size), "some": append([]byte{1, 2}, make([]byte, size-2)...),
	} {
		var n uint64
		m.must(m.CuModuleGetGlobal_v2(&p, &n, mod, m.name(name)))
		if !bytes.Equal(bytesAt(uint64(p), n), want) {
			t.Errorf("%q begins with something else", name)
		}
	}
}
