package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
)

const (
	threads     = 64
	resultBytes = threads*16 + 64 + threads*16 // two words a thread, the shared words, each thread's own
	counts      = 6                            // registers of a class
	table       = 1024                         // input values of a class
)

// program is one generated kernel.
type program struct {
	name  string
	text  string
	steps []string // with trace
}

type generator struct {
	r       *rand.Rand
	trace   bool
	b       strings.Builder
	steps   []string
	labels  int
	depth   int
	partial bool // within a branch whose lanes %mask has
	pairs   bool // edge kernels: the operands of a class are its registers in their order
	used    map[byte]int
}

// generate makes the program with a number of a seed; the same in any run.
func generate(seed uint64, number int, trace bool) program {
	g := &generator{r: rand.New(rand.NewPCG(seed, uint64(number))), trace: trace}
	p := program{name: fmt.Sprintf("k%d", number)}
	g.printf(".visible .entry %s(.param .u64 in, .param .u64 out, .param .u64 trace)\n{\n", p.name)
	g.printf("\t.reg .b32 %%r<%d>, %%c<4>, %%me, %%t, %%mask, %%first, %%mine, %%theirs, %%mine2;\n"+
		"\t.reg .b64 %%d<%d>, %%u, %%in, %%all, %%own, %%res, %%tr, %%loc, %%acc;\n", counts, counts)
	g.printf("\t.reg .b16 %%h<%d>; .reg .f32 %%f<%d>; .reg .f64 %%e<%d>; "+
		".reg .pred %%q<%d>, %%go;\n\t.local .align 8 .b8 local[16]; .shared .align 8 .b8 slots[512];\n", counts, counts,
		counts, counts)
	g.printf("\tld.param.u64 %%in, [in]; ld.param.u64 %%res, [out]; ld.param.u64 %%tr, [trace]; mov.u32 %%me, %%tid.x;\n")
	g.printf("\tadd.u64 %%all, %%res, %d; mad.wide.u32 %%own, %%me, 16, %%res; add.u64 %%own, %%own, %d; "+
		"mad.wide.u32 %%res, %%me, 16, %%res; mad.wide.u32 %%tr, %%me, 8, %%tr;\n", threads*16, threads*16+64)
	g.printf("\tmov.u32 %%t, slots; mad.lo.u32 %%mine, %%me, 4, %%t; xor.b32 %%t, %%me, %d; shl.b32 %%theirs, %%t, 2; "+
		"mov.u32 %%t, slots; add.u32 %%theirs, %%theirs, %%t; add.u32 %%mine2, %%mine, 256;\n", 1+g.r.IntN(63))
	g.printf("\tmov.u64 %%loc, local; st.local.b64 [%%loc], 0; st.local.b64 [%%loc+8], 0;\n")
	for k, class := range []byte("rdhfe") {
		for i := range counts {
			g.printf("\tmad.lo.u32 %%t, %%me, %d, %d; and.b32 %%t, %%t, %d; mad.wide.u32 %%u, %%t, 8, %%in; ", 2*g.r.IntN(500)+1,
				g.r.IntN(table), table-1)
			from := [...]int{0, 0, 0, 1, 2}[k]*table*8 + 0
			g.printf("ld.global.%s %%%c%d, [%%u+%d];\n", [...]string{"b32", "b64", "b16", "f32", "f64"}[k], class, i, from)
		}
	}
	for i := range counts {
		g.printf("\tsetp.lt.s32 %%q%d, %%r%d, %%r%d;\n", i, i, (i+1)%counts)
	}
	for range 8 + g.r.IntN(10) {
		g.node()
	}
	g.finish()
	p.text, p.steps = g.b.String(), g.steps
	return p
}

func (g *generator) printf(format string, args ...any) { fmt.Fprintf(&g.b, format, args...) }

func pick[T any](g *generator, list []T) T { return list[g.r.IntN(len(list))] }

func (g *generator) label() string {
	g.labels++
	return fmt.Sprintf("L%d", g.labels)
}

// node adds a stretch of code: instructions, or a construct that parts the threads.
func (g *generator) node() {
	for range 1 + g.r.IntN(4) {
		g.instruction()
	}
	if g.depth == 0 && g.r.IntN(2) == 0 {
		g.wide(whole)
	}
	if g.partial && g.depth == 1 && g.r.IntN(2) == 0 {
		g.wide(partial)
	}
	if g.depth >= 3 {
		return
	}
	switch g.r.IntN(8) {
	case 0, 1:
		g.branch()
	case 2:
		g.loop()
	case 3:
		g.index()
	case 4:
		g.call()
	}
}

func (g *generator) inner(n int) {
	g.depth++
	for range 1 + g.r.IntN(n) {
		g.node()
	}
	g.depth--
}

func (g *generator) branch() {
	q, other, end := fmt.Sprintf("%%q%d", g.r.IntN(counts)), g.label(), g.label()
	was := g.partial
	if g.depth == 0 && g.r.IntN(2) == 0 {
		g.partial = true
		g.printf("\tvote.sync.ballot.b32 %%mask, %s, -1; brev.b32 %%first, %%mask; bfind.shiftamt.u32 %%first, %%first;\n", q)
	}
	g.printf("\t@!%s bra %s;\n", q, other)
	g.inner(2)
	g.partial = was
	if g.r.IntN(3) == 0 {
		g.printf("\tbra %s;\n%s:\n", end, other)
		g.inner(2)
		g.printf("%s:\n", end)
		return
	}
	g.printf("%s:\n", other)
}

func (g *generator) loop() {
	c, again, out := fmt.Sprintf("%%c%d", g.depth), g.label(), g.label()
	was := g.partial
	g.partial = false
	g.printf("\tand.b32 %s, %%r%d, 7;\n%s:\n\tsetp.eq.u32 %%go, %s, 0; @%%go bra %s; sub.u32 %s, %s, 1;\n", c,
		g.r.IntN(counts), again, c, out, c, c)
	g.depth++
	for range 1 + g.r.IntN(4) {
		g.instruction()
	}
	if g.r.IntN(3) == 0 {
		g.printf("\t@%%q%d bra %s;\n", g.r.IntN(counts), out)
	}
	g.depth--
	g.printf("\tbra %s;\n%s:\n", again, out)
	g.partial = was
}

func (g *generator) index() {
	list, end := g.label(), g.label()
	cases := []string{g.label(), g.label(), g.label(), g.label()}
	was := g.partial
	g.partial = false
	g.printf("\tand.b32 %%t, %%r%d, 3;\n%s: .branchtargets %s;\n\tbrx.idx %%t, %s;\n", g.r.IntN(counts), list,
		strings.Join(cases, ", "), list)
	g.depth++
	for _, c := range cases {
		g.printf("%s:\n", c)
		g.instruction()
		if g.r.IntN(3) > 0 {
			g.printf("\tbra %s;\n", end)
		}
	}
	g.depth--
	g.printf("%s:\n", end)
	g.partial = was
}

func (g *generator) call() {
	d := g.r.IntN(counts)
	if g.r.IntN(2) == 0 {
		g.printf("\t{ .param .b32 x, y; .param .b64 z; st.param.b32 [x], %%r%d; st.param.b64 [z], %%d%d; "+
			"call (y), mix, (x, z); ld.param.b32 %%r%d, [y]; }\n",
			g.r.IntN(counts), g.r.IntN(counts), d)
	} else {
		g.printf("\tand.b32 %%t, %%r%d, 7; call (%%r%d), depth, (%%t);\n", g.r.IntN(counts), d)
	}
	g.record('r', d, "call")
}

func (g *generator) instruction() {
	switch n := g.r.IntN(20); {
	case n == 0:
		code := strings.Replace(g.expand(pick(g, sharedWords), ""), "*", "", 1)
		if strings.HasPrefix(code, "atom") {
			reg := "%t, "
			if strings.Contains(code, "64 ") {
				reg = "%u, "
			}
			code = strings.Replace(code, "[", reg+"[", 1)
		}
		g.printf("\t%s\n", code)
	case n == 1:
		g.wide(private)
	default:
		class := pick(g, []byte("rrrrrrddddhhfffffeeeeqq"))
		g.emit(class, pick(g, templates[class]), g.r.IntN(7) == 0)
	}
}

func (g *generator) wide(list map[byte][]string) {
	var classes []byte
	for _, c := range []byte("rdq") {
		if list[c] != nil {
			classes = append(classes, c)
		}
	}
	class := pick(g, classes)
	g.emit(class, pick(g, list[class]), false)
}

func (g *generator) emit(class byte, template string, guarded bool) {
	d := g.r.IntN(counts)
	code := g.expand(strings.TrimPrefix(template, "~"), fmt.Sprintf("%%%c%d", class, d))
	guard := ""
	if guarded && strings.Count(code, ";") == 1 && !strings.HasPrefix(code, "testp") {
		guard = "@" + g.operand("N", false) + " "
	}
	g.put(class, d, guard+code, strings.HasPrefix(template, "~"))
}

// put adds an instruction with its result in register d; same makes its NaNs equal.
func (g *generator) put(class byte, d int, code string, same bool) {
	g.printf("\t%s\n", code)
	if same {
		bits := map[byte]string{'f': "0f7FFFFFFF", 'e': "0dFFF8000000000000"}[class]
		ty := map[byte]string{'f': "f32", 'e': "f64"}[class]
		g.printf("\ttestp.notanumber.%s %%go, %%%c%d; @%%go mov.%s %%%c%d, %s;\n", ty, class, d, ty, class, d, bits)
	}
	g.record(class, d, code)
}

func (g *generator) threads() int {
	if g.pairs {
		return edgePairs
	}
	return threads
}

// record stores a result for a trace.
func (g *generator) record(class byte, d int, code string) {
	if !g.trace {
		return
	}
	reg := fmt.Sprintf("%%%c%d", class, d)
	switch class {
	case 'r', 'h':
		g.printf("\tcvt.u64.u%d %%u, %s;", map[byte]int{'r': 32, 'h': 16}[class], reg)
	case 'q':
		g.printf("\tselp.u64 %%u, 1, 0, %s;", reg)
	case 'f':
		g.printf("\tmov.b32 %%t, %s; cvt.u64.u32 %%u, %%t;", reg)
	default:
		g.printf("\tmov.b64 %%u, %s;", reg)
	}
	g.printf(" st.global.u64 [%%tr+%d], %%u;\n", len(g.steps)*g.threads()*8)
	g.steps = append(g.steps, code)
}

var (
	choice = regexp.MustCompile(`<([^<>]*)>`)
	tokens = regexp.MustCompile(`\$|\b(?:RR|HH|[RLHFESPVIQNTUC])\b`)
)

func (g *generator) expand(template, dst string) string {
	for choice.MatchString(template) {
		loc := choice.FindStringSubmatchIndex(template)
		template = template[:loc[0]] + pick(g, strings.Split(template[loc[2]:loc[3]], "|")) + template[loc[1]:]
	}
	first := true
	return tokens.ReplaceAllStringFunc(template, func(tok string) string {
		if tok == "$" {
			return dst
		}
		// Not every instruction takes a constant first.
		constant := !first && !g.pairs && g.r.IntN(5) == 0
		first = false
		return g.operand(tok, constant)
	})
}

func (g *generator) operand(tok string, constant bool) string {
	reg := func(class byte) string {
		var n int
		if g.pairs {
			n = g.used[class] % 3
			g.used[class]++
		} else {
			n = g.r.IntN(counts)
		}
		return fmt.Sprintf("%%%c%d", class, n)
	}
	switch tok {
	case "R":
		if constant {
			return fmt.Sprint(int32(interesting(g.r)))
		}
		return reg('r')
	case "RR":
		return reg('r')
	case "HH":
		return reg('h')
	case "L":
		if constant {
			return fmt.Sprint(int64(interesting(g.r)))
		}
		return reg('d')
	case "H":
		if constant {
			return fmt.Sprint(int16(interesting(g.r)))
		}
		return reg('h')
	case "F":
		if constant {
			return fmt.Sprintf("0f%08X", uint32(float32Bits(g.r)))
		}
		return reg('f')
	case "E":
		if constant {
			return fmt.Sprintf("0d%016X", float64Bits(g.r))
		}
		return reg('e')
	case "S":
		if !g.pairs && g.r.IntN(3) > 0 {
			return fmt.Sprint(g.r.IntN(40))
		}
		return reg('r')
	case "P":
		if !g.pairs && g.r.IntN(3) > 0 {
			return fmt.Sprint(g.r.IntN(32))
		}
		return reg('r')
	case "V":
		return fmt.Sprint(g.r.IntN(64))
	case "C":
		return fmt.Sprint(g.r.IntN(32) | g.r.IntN(32)<<8)
	case "I":
		return fmt.Sprint(g.r.IntN(256))
	case "Q":
		return reg('q')
	case "N":
		if g.r.IntN(2) == 0 {
			return "!" + reg('q')
		}
		return reg('q')
	case "T":
		return "%t"
	}
	return "%u"
}

func (g *generator) finish() {
	for word, classes := range []string{"qrdh", "fe"} {
		g.printf("\tmov.u64 %%acc, 1;\n")
		for _, class := range []byte(classes) {
			for i := range counts {
				switch class {
				case 'q':
					g.printf("\tselp.u64 %%u, 1, 0, %%q%d;", i)
				case 'r', 'h':
					g.printf("\tcvt.u64.u%d %%u, %%%c%d;", map[byte]int{'r': 32, 'h': 16}[class], class, i)
				case 'f':
					g.printf("\tmov.b32 %%t, %%f%d; cvt.u64.u32 %%u, %%t;", i)
				default:
					g.printf("\tmov.b64 %%u, %%%c%d;", class, i)
				}
				g.printf(" mad.lo.u64 %%acc, %%acc, 0x9E3779B97F4A7C15, %%u;\n")
			}
		}
		g.printf("\tst.global.u64 [%%res+%d], %%acc;\n", 8*word)
	}
	g.printf("\tret;\n}\n")
}

// interesting gives integers of which many lie at the edges of their types.
func interesting(r *rand.Rand) uint64 {
	switch r.IntN(6) {
	case 0:
		return uint64(int64(r.IntN(65) - 32))
	case 1:
		return uint64(1)<<r.IntN(64) - uint64(r.IntN(3))
	case 2:
		return []uint64{0, 1, math.MaxUint64, 1 << 31, 1<<31 - 1, 1 << 63, 1<<63 - 1, math.MaxUint32, 0x7fff, 0x8000,
			0xffff}[r.IntN(11)]
	case 3:
		return -(uint64(1) << r.IntN(64))
	}
	return r.Uint64()
}

func float32Bits(r *rand.Rand) uint64 {
	switch r.IntN(8) {
	case 0:
		return uint64([]uint32{0, 1 << 31, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fffffff, 1, 0x807fffff,
			0x00800000, 0x7f7fffff, 0x4f000000, 0xcf000000, 0x3f000000}[r.IntN(14)])
	case 1:
		return uint64(r.Uint32() & 0x807fffff) // subnormal
	case 2:
		return uint64(math.Float32bits(float32(r.IntN(2001)-1000) / 2))
	case 3:
		return uint64(r.Uint32())
	case 4:
		return uint64(math.Float32bits(float32(r.NormFloat64() * 1e9)))
	}
	return uint64(math.Float32bits(float32(r.NormFloat64())))
}

func float64Bits(r *rand.Rand) uint64 {
	switch r.IntN(8) {
	case 0:
		return []uint64{0, 1 << 63, 0x3ff0000000000000, 0xbff0000000000000, 0x7ff0000000000000, 0xfff0000000000000,
			0xfff8000000000000, 1, 0x800fffffffffffff,
			0x0010000000000000, 0x7fefffffffffffff, 0x43e0000000000000, 0xc3e0000000000000, 0x41e0000000000000,
			0x3fe0000000000000}[r.IntN(15)]
	case 1:
		return r.Uint64() & 0x800fffffffffffff
	case 2:
		return math.Float64bits(float64(r.IntN(2001)-1000) / 2)
	case 3:
		return r.Uint64()
	case 4:
		return math.Float64bits(float64(math.Float32frombits(uint32(float32Bits(r)))))
	}
	return math.Float64bits(r.NormFloat64() * math.Ldexp(1, r.IntN(80)-40))
}

// inputs are the tables from which the programs take their first values.
func inputs(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1<<63))
	var b []byte
	for _, f := range []func(*rand.Rand) uint64{interesting, float32Bits, float64Bits} {
		for range table {
			v := f(r)
			if f64 := math.Float64frombits(v); f64 != f64 && len(b) >= 2*table*8 {
				v = 0xfff8000000000000
			}
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}
