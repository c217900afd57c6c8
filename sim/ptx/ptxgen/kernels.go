package main

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"

	"scuda.dev/scuda/sim/ptx/ptxtest"
)

func word(v uint32) *ptxtest.Arg {
	return &ptxtest.Arg{Value: binary.LittleEndian.AppendUint32(nil, v)}
}

func buffer(n int) *ptxtest.Arg { return &ptxtest.Arg{Size: n} }

func floats(r *rand.Rand, n int) *ptxtest.Arg {
	a := &ptxtest.Arg{Size: 4 * n}
	for range n {
		a.In = binary.LittleEndian.AppendUint32(a.In, math.Float32bits(float32(r.NormFloat64()*10)))
	}
	return a
}

func randomBytes(r *rand.Rand, n int) *ptxtest.Arg {
	a := &ptxtest.Arg{Size: n}
	for range n {
		a.In = append(a.In, byte(r.Uint32()))
	}
	return a
}

// halves are finite 16-bit floats.
func halves(r *rand.Rand, n int) *ptxtest.Arg {
	a := randomBytes(r, 2*n)
	for i := 1; i < len(a.In); i += 2 {
		a.In[i] &= 0xbf
	}
	return a
}

// kernelBundle has a launch of every kernel of testdata/kernels whose end and result do not depend on chance: fault and
// spin are the business of other tests, and the floating-point sum gets numbers whose sum is exact in any order.
func kernelBundle(path string) (*ptxtest.Bundle, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(1, 2))
	b := &ptxtest.Bundle{Modules: []string{string(text)}}
	add := func(kernel string, grid, block [3]uint32, shared uint32, args ...*ptxtest.Arg) {
		b.Launches = append(b.Launches, &ptxtest.Launch{Name: kernel, Kernel: kernel, Grid: grid, Block: block,
			Shared: shared, Args: args})
	}
	one := func(n uint32) [3]uint32 { return [3]uint32{n, 1, 1} }
	const n = 5000
	add("vector_add", one((n+255)/256), one(256), 0, floats(r, n), floats(r, n), buffer(4*n), word(n))
	add("saxpy", one(7), one(96), 0, word(math.Float32bits(2.7)), floats(r, n), floats(r, n), word(n))
	whole := &ptxtest.Arg{Size: 4 * n}
	for range n {
		whole.In = binary.LittleEndian.AppendUint32(whole.In, math.Float32bits(float32(r.IntN(201)-100)))
	}
	add("reduce_sum", one(8), one(256), 1024, whole, buffer(4), word(n))
	add("warp_sum", one((n+127)/128), one(128), 0, randomBytes(r, 4*n), buffer(4), word(n))
	for _, edge := range []uint32{16, 33, 70} {
		g := (edge + 15) / 16
		add("matmul_tiled", [3]uint32{g, g, 1}, [3]uint32{16, 16, 1}, 0, floats(r, int(edge*edge)), floats(r, int(edge*edge)),
			buffer(int(4*edge*edge)), word(edge))
	}
	add("histogram256", one(5), one(192), 0, randomBytes(r, n), buffer(1024), word(n))
	add("half_axpy", one((n+127)/128), one(128), 0, &ptxtest.Arg{Value: []byte{0x33, 0x3d}}, halves(r, n), halves(r, n),
		word(n))
	approximate := buffer(4 * n)
	// The value is a sum of approximated terms, so units in the last place count at the size of the terms, about 1.
	approximate.Type, approximate.Ulp, approximate.Tol = "f32", 2, 2*0x1p-23
	add("math_mix", one((n+127)/128), one(128), 0, floats(r, n), approximate, word(n))
	add("struct_arg", one(1), one(64), 0, &ptxtest.Arg{Value: randomBytes(r, 528).In}, buffer(256), buffer(256),
		buffer(13))
	add("globals", one(1), one(1), 0, buffer(12))
	return b, nil
}
