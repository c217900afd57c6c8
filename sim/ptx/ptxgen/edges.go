package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"

	"scuda.dev/scuda/sim/ptx/ptxtest"
)

// Edge values of each class, where roundings, flushing and overflows decide: every form of every template is run on all
// pairs of them.
const (
	edgeValues = 24
	edgePairs  = edgeValues * edgeValues
	edgeForms  = 60 // in a kernel
)

var edgeFloats = [edgeValues]uint64{0, 1 << 31, 0x7f800000, 0xff800000, 0x7fffffff, 0x3f800000, 0xbf800000, 0x3f7fffff,
	0x3f800001, 0x3f000000,
	1, 0x807fffff, 0x00800000, 0x80800001, 0x00ffffff, 0x7e7fffff, 0x7e800000, 0xfe800001, 0x7f7fffff, 0x20000000,
	0x1fffffff, 0xa0000001, 0x4f000000, 0x3f7ffffe}

var edgeDoubles = [edgeValues]uint64{0, 1 << 63, 0x7ff0000000000000, 0xfff0000000000000, 0xfff8000000000000,
	0x3ff0000000000000, 0xbff0000000000000,
	0x3fefffffffffffff, 0x3ff0000000000001, 1, 0x800fffffffffffff, 0x0010000000000000, 0x8010000000000001,
	0x7fefffffffffffff, 0x7fd0000000000001, 0x43e0000000000000,
	0xc1e0000000200000, 0x3810000000000000, 0x380fffffefffffff, 0xb80fffffffffffff, 0x36a0000000000001, 0x47efffffefffffff,
	0x47effffff0000000, 0x4330000000000001}

var edgeHalves = [edgeValues]uint64{0, 0x8000, 0x7c00, 0xfc00, 0x7fff, 0x3c00, 0xbc00, 0x3bff, 0x3c01, 0x3800, 1,
	0x83ff, 0x0400, 0x8401, 0x07ff, 0x7bff, 0xfbff, 0x2000, 0x1fff, 0x2001,
	0x4200, 0x6400, 0x0080, 0x3bfe}

// edges makes kernels that run every form of every template of single threads on all pairs of edge values, with each
// result.
func edges() *ptxtest.Bundle {
	r := rand.New(rand.NewPCG(3, 5))
	var values []byte
	for _, class := range []byte("rdhfe") {
		for i := range edgeValues {
			var v uint64
			switch class {
			case 'f':
				v = edgeFloats[i]
			case 'e':
				v = edgeDoubles[i]
			case 'h':
				v = edgeHalves[i]
			default:
				v = interesting(r)
			}
			values = binary.LittleEndian.AppendUint64(values, v)
		}
	}
	b := &ptxtest.Bundle{Inputs: map[string][]byte{"values": values}}
	for _, class := range []byte("rdhfeq") {
		var forms []string
		for _, template := range templates[class] {
			forms = append(forms, choices(template)...)
		}
		for first := 0; first < len(forms); first += edgeForms {
			addEdges(b, r, fmt.Sprintf("edges_%c%d", class, first), class, forms[first:min(first+edgeForms, len(forms))])
		}
		for i, template := range rare[class] {
			addEdges(b, r, fmt.Sprintf("rare_%c%d", class, i), class, choices(template))
		}
	}
	return b
}

func addEdges(b *ptxtest.Bundle, r *rand.Rand, name string, class byte, forms []string) {
	g := &generator{r: r, trace: true, pairs: true}
	g.edgeKernel(name, class, forms)
	b.Modules = append(b.Modules, ".version 8.1\n.target sm_90\n.address_size 64\n"+g.b.String())
	b.Launches = append(b.Launches, &ptxtest.Launch{Name: name, Module: len(b.Modules) - 1, Kernel: name,
		Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{edgePairs, 1, 1}, Steps: g.steps,
		Args: []*ptxtest.Arg{{Size: len(b.Inputs["values"]), Input: "values"}, {Size: len(g.steps) * edgePairs * 8}}})
}

// edgeKernel gives thread t the values t/edgeValues, t%edgeValues and a third one in registers 0, 1 and 2 of each
// class.
func (g *generator) edgeKernel(name string, class byte, forms []string) {
	g.printf(".visible .entry %s(.param .u64 in, .param .u64 trace)\n{\n", name)
	g.printf("\t.reg .b32 %%r<4>, %%t, %%me; .reg .b64 %%d<4>, %%u, %%in, %%at, %%tr; .reg .b16 %%h<4>; " +
		".reg .f32 %%f<4>; .reg .f64 %%e<4>; .reg .pred %%q<4>, %%go;\n")
	g.printf("\tld.param.u64 %%in, [in]; ld.param.u64 %%tr, [trace]; mov.u32 %%me, %%tid.x; " +
		"mad.wide.u32 %%tr, %%me, 8, %%tr;\n")
	for i, code := range []string{"div.u32 %%t, %%me, %[1]d;", "rem.u32 %%t, %%me, %[1]d;",
		"div.u32 %%t, %%me, %[1]d; mul.lo.u32 %%t, %%t, 17; mad.lo.u32 %%t, %%me, 5, %%t; rem.u32 %%t, %%t, %[1]d;"} {
		g.printf("\t"+code+" mad.wide.u32 %%at, %%t, 8, %%in;\n", edgeValues)
		for k, c := range []byte("rdhfe") {
			g.printf("\tld.global.%s %%%c%d, [%%at+%d];\n", [...]string{"b32", "b64", "b16", "f32", "f64"}[k], c, i,
				k*edgeValues*8)
		}
	}
	g.printf("\tsetp.lt.s32 %%q0, %%r0, %%r1; setp.lt.s32 %%q1, %%r1, %%r2; setp.lt.s32 %%q2, %%r2, %%r0;\n")
	for _, form := range forms {
		g.used = map[byte]int{}
		// An instruction that leaves its result open where it does not write one would give what was there before.
		if class == 'q' {
			g.printf("\tsetp.ne.u32 %%q3, %%me, %%me;\n")
		}
		code := g.expand(strings.TrimPrefix(form, "~"), fmt.Sprintf("%%%c3", class))
		g.put(class, 3, code, strings.HasPrefix(form, "~"))
	}
	g.printf("\tret;\n}\n")
}

// choices are all forms of a template.
func choices(template string) []string {
	loc := choice.FindStringSubmatchIndex(template)
	if loc == nil {
		return []string{template}
	}
	var all []string
	for c := range strings.SplitSeq(template[loc[2]:loc[3]], "|") {
		all = append(all, choices(template[:loc[0]]+c+template[loc[1]:])...)
	}
	return all
}
