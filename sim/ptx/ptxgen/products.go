package main

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"

	"scuda.dev/scuda/sim/ptx/ptxtest"
)

// element is a type of matrix elements: a float with so many bits of mantissa and this bias, or an integer.
type element struct {
	name       string
	bits       int
	mant, bias int
	low, high  int // of the values that are used
}

var elements = map[string]element{
	"f16": {"f16", 16, 10, 15, -5, 5}, "bf16": {"bf16", 16, 7, 127, -5, 5}, "tf32": {"tf32", 32, 23, 127, -5, 5},
	"f32": {"f32", 32, 23, 127, -99, 99},
	"f64": {"f64", 64, 52, 1023, -999, 999}, "u8": {"u8", 8, 0, 0, 0, 255}, "s8": {"s8", 8, 0, 0, -128, 127},
	"u4": {"u4", 4, 0, 0, 0, 15},
	"s4": {"s4", 4, 0, 0, -8, 7}, "b1": {"b1", 1, 0, 0, 0, 1}, "s32": {"s32", 32, 0, 0, -999, 999},
}

// encode gives the bits of a small whole number.
func (e element) encode(v int) uint64 {
	if e.bias == 0 {
		return uint64(v) & (1<<e.bits - 1)
	}
	if v == 0 {
		return 0
	}
	sign, a := uint64(0), uint64(v)
	if v < 0 {
		sign, a = 1, uint64(-v)
	}
	n := bits.Len64(a) - 1
	return sign<<(e.bits-1) | uint64(n+e.bias)<<e.mant | a<<(e.mant-n)&(1<<e.mant-1)
}

// matrix is a matrix in memory whose lines, rows or columns, begin stride elements apart.
type matrix struct {
	element
	rows, cols int
	col        bool
	values     []int
}

func (m *matrix) stride() int {
	pad := max(16, 128/m.bits)
	if m.col {
		return m.rows + pad
	}
	return m.cols + pad
}

func (m *matrix) layout() string {
	if m.col {
		return "col"
	}
	return "row"
}

func newMatrix(r *rand.Rand, t string, rows, cols int, col bool) *matrix {
	m := &matrix{element: elements[t], rows: rows, cols: cols, col: col, values: make([]int, rows*cols)}
	for i := range m.values {
		m.values[i] = m.low + r.IntN(m.high-m.low+1)
	}
	return m
}

// memory is the matrix with fill between its lines.
func (m *matrix) memory(fill byte) []byte {
	lines := m.rows
	if m.col {
		lines = m.cols
	}
	b := make([]byte, lines*m.stride()*m.bits/8)
	for i := range b {
		b[i] = fill
	}
	for row := range m.rows {
		for col := range m.cols {
			at := row*m.stride() + col
			if m.col {
				at = col*m.stride() + row
			}
			v := m.encode(m.values[row*m.cols+col])
			if m.bits < 8 {
				shift := at * m.bits % 8
				p := &b[at*m.bits/8]
				*p = *p&^byte((1<<m.bits-1)<<shift) | byte(v<<shift)
				continue
			}
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], v)
			copy(b[at*m.bits/8:], word[:m.bits/8])
		}
	}
	return b
}

// product is a·b + c with elements of type t; op is how bits are multiplied.
func product(a, b, c *matrix, t, op string, col bool) *matrix {
	d := &matrix{element: elements[t], rows: c.rows, cols: c.cols, col: col, values: make([]int, len(c.values))}
	for row := range d.rows {
		for col := range d.cols {
			sum := c.values[row*d.cols+col]
			for k := range a.cols {
				x, y := a.values[row*a.cols+k], b.values[k*b.cols+col]
				if op == ".xor.popc" {
					sum += x ^ y
				} else {
					sum += x * y
				}
			}
			d.values[row*d.cols+col] = sum
		}
	}
	return d
}

// products multiplies matrices of small whole numbers, of which every sum is exact, by wmma in all its shapes, types
// and layouts.
func products() *ptxtest.Bundle {
	r := rand.New(rand.NewPCG(7, 7))
	b := &ptxtest.Bundle{}
	big := [][3]int{{16, 16, 16}, {32, 8, 16}, {8, 32, 16}}
	for _, f := range []struct {
		in, acc string
		sizes   [][3]int
		op      string
	}{
		{"f16", "f16 f32", big, ""}, {"bf16", "f32", big, ""}, {"tf32", "f32", [][3]int{{16, 16, 8}}, ""},
		{"f64", "f64", [][3]int{{8, 8, 4}}, ""},
		{"u8", "s32", big, ""}, {"s8", "s32", big, ""}, {"u4", "s32", [][3]int{{8, 8, 32}}, ""},
		{"s4", "s32", [][3]int{{8, 8, 32}}, ""},
		{"b1", "s32", [][3]int{{8, 8, 128}}, ".xor.popc"}, {"b1", "s32", [][3]int{{8, 8, 128}}, ".and.popc"},
	} {
		b.Modules = append(b.Modules, ".version 8.0\n.target sm_90\n.address_size 64\n")
		for _, size := range f.sizes {
			for accD := range strings.FieldsSeq(f.acc) {
				for accC := range strings.FieldsSeq(f.acc) {
					for layout := range 8 {
						colA, colB, colC := layout&1 != 0, layout&2 != 0, layout&4 != 0
						if elements[f.in].bits < 8 && (colA || !colB) {
							continue
						}
						m, n, k := size[0], size[1], size[2]
						a, bb, c := newMatrix(r, f.in, m, k, colA), newMatrix(r, f.in, k, n, colB), newMatrix(r, accC, m, n, colC)
						addProduct(b, a, bb, c, product(a, bb, c, accD, f.op, !colC), f.op)
					}
				}
			}
		}
	}
	return b
}

// addProduct adds a kernel that multiplies, with its launch.
func addProduct(bundle *ptxtest.Bundle, a, b, c, d *matrix, op string) {
	shape := fmt.Sprintf("m%dn%dk%d", a.rows, b.cols, a.cols)
	name := fmt.Sprintf("wmma_%s_%s_%s_%s_%s_%s_%s%s", shape, d.name, a.name, c.name, a.layout(), b.layout(), c.layout(),
		strings.ReplaceAll(op, ".", "_"))
	var text strings.Builder
	fmt.Fprintf(&text, ".visible .entry %s(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)\n{\n", name)
	types := fmt.Sprintf("%s.%s.%s.%s", d.name, a.name, b.name, c.name)
	if a.name == "f16" {
		types = d.name + "." + c.name
	}
	var lists [4]string
	for i, m := range []*matrix{a, b, c, d} {
		n, reg := m.rows*m.cols*m.bits/32/max(m.bits, 32), "b32"
		switch {
		case i < 2 && m.name == "f16":
			n = 8
		case m.name == "f32" || m.name == "f64":
			reg = m.name
		}
		p := "abcd"[i]
		fmt.Fprintf(&text, "\t.reg .b64 %%p%c; .reg .%s %%%c<%d>; ld.param.u64 %%p%c, [%c];\n", p, reg, p, n, p, p)
		var list []string
		for k := range n {
			list = append(list, fmt.Sprintf("%%%c%d", p, k))
		}
		lists[i] = "{" + strings.Join(list, ", ") + "}"
		if i < 3 {
			fmt.Fprintf(&text, "\twmma.load.%c.sync.aligned.%s.%s.global.%s %s, [%%p%c], %d;\n", p, m.layout(), shape, m.name,
				lists[i], p, m.stride())
		}
	}
	fmt.Fprintf(&text, "\twmma.mma%s.sync.aligned.%s.%s.%s.%s %s, %s, %s, %s;\n", op, a.layout(), b.layout(), shape,
		roundingFor(a)+types, lists[3], lists[0], lists[1], lists[2])
	fmt.Fprintf(&text, "\twmma.store.d.sync.aligned.%s.%s.global.%s [%%pd], %s, %d;\n\tret;\n}\n", d.layout(), shape,
		d.name, lists[3], d.stride())
	last := len(bundle.Modules) - 1
	bundle.Modules[last] += text.String()
	const fill = 0x5a
	want := d.memory(fill)
	launch := &ptxtest.Launch{Name: name, Module: last, Kernel: name, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}
	for _, m := range []*matrix{a, b, c} {
		in := m.memory(0)
		launch.Args = append(launch.Args, &ptxtest.Arg{Size: len(in), In: in})
	}
	launch.Args = append(launch.Args, &ptxtest.Arg{Size: len(want), Fill: fill, Want: want})
	bundle.Launches = append(bundle.Launches, launch)
}

// roundingFor is the modifier that products of doubles may have.
func roundingFor(m *matrix) string {
	if m.name == "f64" {
		return "rn."
	}
	return ""
}
