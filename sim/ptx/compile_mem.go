package ptx

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"
)

func init() {
	maps.Copy(handlers, map[string]handler{
		"ld": hLoad, "ldu": hLoad, "st": hStore, "atom": hAtom, "red": hAtom, "cp": hCopy,
		"membar": hNothing, "fence": hNothing, "prefetch": hNothing, "prefetchu": hNothing, "pmevent": hNothing,
		"griddepcontrol": hNothing, "setmaxnreg": hNothing, "discard": hNothing, "applypriority": hNothing,
		"createpolicy": hPolicy,
	})
}

// hNothing is for what has no effect here: memory is coherent and caches are not modelled.
func hNothing(i *ins) error {
	i.mods = nil
	i.emit(func(*warp, uint32) {})
	return nil
}

// hPolicy makes a cache policy, which nothing looks at.
func hPolicy(i *ins) error {
	i.mods = nil
	if len(i.s.args) == 0 {
		return i.errorf("a destination is needed")
	}
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	i.emit(opMove(d, i.constant(0)))
	return nil
}

// dropHints removes ordering scopes and cache hints; strong tells whether the access is ordered with those of other
// threads.
func (i *ins) dropHints() (strong bool) {
	kept := i.mods[:0:0]
	hint := false
	for _, m := range i.mods {
		switch m {
		case ".volatile", ".relaxed", ".acquire", ".release", ".acq_rel", ".mmio":
			strong = true
		case ".weak", ".sys", ".gpu", ".cta", ".cluster", ".ca", ".cg", ".cs", ".lu", ".cv", ".wb", ".wt", ".nc", ".noftz",
			".unified":
		default:
			if strings.HasPrefix(m, ".L1::") || strings.HasPrefix(m, ".L2::") {
				hint = hint || m == ".L2::cache_hint"
				continue
			}
			kept = append(kept, m)
		}
	}
	i.mods = kept
	if n := len(i.s.args); hint && n > 0 {
		// The policy is the last operand.
		i.s.args = i.s.args[:n-1]
	}
	return strong
}

func (i *ins) space() (memSpace, bool) {
	switch i.oneOf(".global", ".const", ".shared", ".shared::cta", ".shared::cluster", ".local", ".param", ".param::entry",
		".param::func") {
	case "":
		return msGeneric, true
	case ".global", ".const":
		return msGlobal, true
	case ".shared", ".shared::cta", ".shared::cluster":
		return msShared, true
	case ".local":
		return msLocal, true
	}
	if i.fn.entry {
		return msKernelParam, true
	}
	return msCallParam, true
}

// address is an address operand: (register + off) & cut.
type address struct {
	space memSpace
	base  int
	off   uint64
	cut   uint64
	// fixed addresses of kernel parameters are the same for all threads
	fixed bool
}

func (i *ins) address(o *operand, sp memSpace) (address, error) {
	a := address{space: sp, off: o.val, cut: math.MaxUint64}
	if o.kind != oAddr && o.kind != oElement {
		return a, errAt(o.pos, "%s: an address in brackets is needed", i.name())
	}
	if len(o.list) != 0 {
		return a, i.unsupported(": an address of several parts")
	}
	if o.name == "" {
		a.base, a.off = i.constant(o.val), 0
		return a, nil
	}
	sym, err := i.lookup(o)
	if err != nil {
		return a, err
	}
	if sym.kind == symRegister && sym.reg != tPred {
		if sym.reg.bits() <= 32 {
			a.cut = math.MaxUint32
		}
		a.base = i.read(sym)
		return a, nil
	}
	if sym.kind != symVariable {
		return a, errAt(o.pos, "%s: %s is no address", i.name(), o.name)
	}
	v := sym.v
	want := map[varSpace]memSpace{vsGlobal: msGlobal, vsConst: msGlobal, vsShared: msShared, vsLocal: msLocal,
		vsParam: msCallParam}[v.space]
	if v.kernelParam {
		want = msKernelParam
	}
	if sp == msGeneric || v.space == vsParam && (sp == msKernelParam || sp == msCallParam) {
		a.space = want
	} else if sp != want {
		return a, errAt(o.pos, "%s: %s is in another state space", i.name(), o.name)
	}
	off := o.offset(v)
	if v.space == vsParam && off > v.size {
		return a, errAt(o.pos, "%s: %s has %d bytes", i.name(), o.name, v.size)
	}
	a.base, a.off = i.addressOf(v, off), 0
	a.fixed = v.kernelParam
	return a, nil
}

// target is the address of what an instruction changes. Constant variables may be changed by their addresses, which are
// global ones, but no instruction that does so may name them or their state space.
func (i *ins) target(o *operand, sp memSpace) (address, error) {
	sym := i.s.scope.lookup(o.name)
	if slices.Contains(i.s.mods, ".const") || sym != nil && sym.kind == symVariable && sym.v.space == vsConst {
		return address{}, errAt(o.pos, "%s: constant memory cannot be written", i.name())
	}
	return i.address(o, sp)
}

// elements resolves the registers of a vector or of a single operand.
func (i *ins) elements(o *operand, get func(*operand) (int, error)) ([]int, error) {
	list := []operand{*o}
	if o.kind == oVec {
		list = o.list
	}
	regs := make([]int, len(list))
	for k := range list {
		var err error
		if regs[k], err = get(&list[k]); err != nil {
			return nil, err
		}
	}
	return regs, nil
}

// vector reads .v2, .v4 or .v8 and checks it against an operand.
func (i *ins) vector(o *operand) (int, error) {
	n := 1
	if v := i.oneOf(".v2", ".v4", ".v8"); v != "" {
		n = int(v[2] - '0')
	}
	if n == 1 && o.kind == oVec && len(o.list) == 1 {
		return 1, nil
	}
	if n > 1 != (o.kind == oVec) || n > 1 && len(o.list) != n {
		return 0, errAt(o.pos, "%s: the operand is no vector of %d", i.name(), n)
	}
	return n, nil
}

func hLoad(i *ins) error {
	strong := i.dropHints()
	sp, _ := i.space()
	if err := i.args(2); err != nil {
		return err
	}
	n, err := i.vector(&i.s.args[0])
	if err != nil {
		return err
	}
	t := i.typ()
	size := t.bytes()
	if size == 0 || size > 8 || size*n > 32 || t.packed() {
		return i.unsupported("")
	}
	dst, err := i.elements(&i.s.args[0], i.dst)
	if err != nil {
		return err
	}
	a, err := i.address(&i.s.args[1], sp)
	if err != nil {
		return err
	}
	ext := 0
	if t.signed() && size < 8 {
		ext = 64 - 8*size
	}
	total := size * n
	switch {
	case a.fixed:
		i.emitMem(func(w *warp, m uint32) {
			b := w.at(a.space, lane(m), w.regs[a.base], total, false)
			if b == nil {
				return
			}
			for k, d := range dst {
				v := uint64(int64(readInt(b[k*size:], size)<<ext) >> ext)
				r := w.r(d)
				for q := m; q != 0; q &= q - 1 {
					r[lane(q)] = v
				}
			}
		})
	case n == 1 && size == 4 && ext == 0 && !strong && (a.space == msGlobal || a.space == msShared):
		i.emitMem(load32(dst[0], a))
	default:
		i.emitMem(func(w *warp, m uint32) {
			base := w.r(a.base)
			for ; m != 0; m &= m - 1 {
				l := lane(m)
				b := w.at(a.space, l, (base[l]+a.off)&a.cut, total, false)
				if b == nil {
					return
				}
				if strong && n == 1 {
					w.regs[dst[0]+l] = uint64(int64(loadStrong(b, size)<<ext) >> ext)
					continue
				}
				for k, d := range dst {
					v := readInt(b[k*size:], size)
					if ext != 0 {
						v = uint64(int64(v<<ext) >> ext)
					}
					w.regs[d+l] = v
				}
			}
		})
	}
	return nil
}

// load32 is the most frequent load: one word from global or shared memory.
func load32(d int, a address) execFn {
	return func(w *warp, m uint32) {
		d, base := w.r(d), w.r(a.base)
		wk := w.blk.wk
		mem, start := wk.bytes, wk.start
		if a.space == msShared {
			mem, start = w.blk.shared, w.blk.base
		}
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			addr := (base[l] + a.off) & a.cut
			off := addr - start
			if addr&3 == 0 && off < uint64(len(mem)) && uint64(len(mem))-off >= 4 {
				d[l] = uint64(binary.LittleEndian.Uint32(mem[off:]))
				continue
			}
			b := w.at(a.space, l, addr, 4, false)
			if b == nil {
				return
			}
			d[l] = uint64(binary.LittleEndian.Uint32(b))
			if a.space == msGlobal {
				mem, start = wk.bytes, wk.start
			}
		}
	}
}

func hStore(i *ins) error {
	strong := i.dropHints()
	signals := i.take(".async")
	sp, _ := i.space()
	var bar address
	if signals {
		if !i.take(".mbarrier::complete_tx::bytes") || sp != msGeneric && sp != msShared {
			return i.unsupported("")
		}
		if err := i.args(3); err != nil {
			return err
		}
		var err error
		if bar, err = i.address(&i.s.args[2], sp); err != nil {
			return err
		}
	} else if err := i.args(2); err != nil {
		return err
	}
	if sp == msKernelParam {
		sp = msCallParam // kernels cannot write their own parameters
	}
	n, err := i.vector(&i.s.args[1])
	if err != nil {
		return err
	}
	t := i.typ()
	size := t.bytes()
	if size == 0 || size > 8 || size*n > 32 || t.packed() {
		return i.unsupported("")
	}
	src, err := i.elements(&i.s.args[1], func(o *operand) (int, error) { return i.src(o, t) })
	if err != nil {
		return err
	}
	a, err := i.target(&i.s.args[0], sp)
	if err != nil {
		return err
	}
	if a.space == msKernelParam {
		return i.errorf("kernel parameters cannot be written")
	}
	total := size * n
	i.emitMem(func(w *warp, m uint32) {
		base := w.r(a.base)
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			b := w.at(a.space, l, (base[l]+a.off)&a.cut, total, true)
			if b == nil {
				return
			}
			if strong && n == 1 {
				storeStrong(b, size, w.regs[src[0]+l])
				continue
			}
			for k, s := range src {
				writeInt(b[k*size:], size, w.regs[s+l])
			}
			if signals {
				bar.eachBarrier(w, 1<<l, func(_ int, b mbarrier) mbarrier { return b.add(0, 0, -int64(total)) })
			}
		}
	})
	return nil
}

// atomicOp returns the function of an atomic operation on values that are cut to its type.
func atomicOp(op string, t typ) func(old, x, y uint64) uint64 {
	e := extend(t)
	less := func(a, b uint64) bool {
		if t.signed() {
			return int64(e(a)) < int64(e(b))
		}
		return e(a) < e(b)
	}
	switch op {
	case ".and":
		return func(old, x, _ uint64) uint64 { return old & x }
	case ".or":
		return func(old, x, _ uint64) uint64 { return old | x }
	case ".xor":
		return func(old, x, _ uint64) uint64 { return old ^ x }
	case ".exch":
		return func(_, x, _ uint64) uint64 { return x }
	case ".cas":
		return func(old, x, y uint64) uint64 {
			if e(old) == e(x) {
				return y
			}
			return old
		}
	case ".inc":
		return func(old, x, _ uint64) uint64 {
			if e(old) >= e(x) {
				return 0
			}
			return old + 1
		}
	case ".dec":
		return func(old, x, _ uint64) uint64 {
			if e(old) == 0 || e(old) > e(x) {
				return x
			}
			return old - 1
		}
	case ".min", ".max":
		if !t.isInt() {
			return nil
		}
		return func(old, x, _ uint64) uint64 {
			if less(x, old) == (op == ".min") {
				return x
			}
			return old
		}
	case ".add":
		switch {
		case t.isInt():
			return func(old, x, _ uint64) uint64 { return old + x }
		case t == tF32:
			return func(old, x, _ uint64) uint64 { return put32(f32(old) + f32(x)) }
		case t == tF64:
			return func(old, x, _ uint64) uint64 { return math.Float64bits(f64(old) + f64(x)) }
		case t.half():
			f := refine{}.small(t, func(a, b, _ float64) uint64 { return sumSmall(a, b, fmtNames[t], rn) })
			return func(old, x, _ uint64) uint64 { return f(old, x, 0) }
		}
	}
	return nil
}

func hAtom(i *ins) error {
	i.dropHints()
	sp, _ := i.space()
	op := i.oneOf(".and", ".or", ".xor", ".exch", ".cas", ".inc", ".dec", ".min", ".max", ".add")
	t := i.typ()
	f := atomicOp(op, t)
	size := t.bytes()
	n := 1
	if op == ".cas" {
		n = 2
	}
	args := i.s.args
	d := 0
	if i.s.op == "atom" {
		if err := i.args(n + 2); err != nil {
			return err
		}
		var err error
		if d, err = i.dst(&args[0]); err != nil {
			return err
		}
		args = args[1:]
	} else {
		if err := i.args(n + 1); err != nil {
			return err
		}
		d = i.discard()
	}
	if f == nil || size < 2 || size > 8 || size == 2 && op != ".cas" && op != ".exch" && !t.half() ||
		sp != msGeneric && sp != msGlobal && sp != msShared {
		return i.unsupported("")
	}
	a, err := i.target(&args[0], sp)
	if err != nil {
		return err
	}
	x, err := i.src(&args[1], t)
	if err != nil {
		return err
	}
	y := x
	if n == 2 {
		if y, err = i.src(&args[2], t); err != nil {
			return err
		}
	}
	i.emitMem(func(w *warp, m uint32) {
		base, d, x, y := w.r(a.base), w.r(d), w.r(x), w.r(y)
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			addr := (base[l] + a.off) & a.cut
			b := w.at(a.space, l, addr, size, true)
			if b == nil {
				return
			}
			if a.space == msGlobal || a.space == msGeneric && addr < SharedWindow {
				d[l] = update(b, size, x[l], y[l], f)
				continue
			}
			// Only this goroutine uses the block's own memory.
			old := readInt(b, size)
			writeInt(b, size, f(old, x[l], y[l]))
			d[l] = old
		}
	})
	return nil
}

// hCopy is cp.async as plain copies that are complete at once.
func hCopy(i *ins) error {
	if !i.take(".async") {
		return i.unsupported("")
	}
	if i.take(".bulk") {
		return hBulk(i)
	}
	if i.take(".mbarrier") {
		if !i.take(".arrive") {
			return i.unsupported("")
		}
		return hCopyArrive(i)
	}
	if i.oneOf(".commit_group", ".wait_group", ".wait_all") != "" {
		return hNothing(i)
	}
	i.dropHints()
	if !i.take(".shared") && !i.take(".shared::cta") || !i.take(".global") || len(i.s.args) < 3 ||
		i.s.args[2].kind != oInt {
		return i.unsupported("")
	}
	size := int(i.s.args[2].val)
	if size != 4 && size != 8 && size != 16 || len(i.s.args) > 4 {
		return i.unsupported("")
	}
	to, err := i.address(&i.s.args[0], msShared)
	if err != nil {
		return err
	}
	from, err := i.address(&i.s.args[1], msGlobal)
	if err != nil {
		return err
	}
	count := i.constant(uint64(size))
	if len(i.s.args) == 4 {
		if count, err = i.src(&i.s.args[3], tU32); err != nil {
			return err
		}
	}
	i.emitMem(func(w *warp, m uint32) {
		d, s, c := w.r(to.base), w.r(from.base), w.r(count)
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			dst := w.at(msShared, l, (d[l]+to.off)&to.cut, size, true)
			if dst == nil {
				return
			}
			n := min(int(uint32(c[l])), size)
			clear(dst)
			if n == 0 {
				continue
			}
			src := w.at(msGlobal, l, (s[l]+from.off)&from.cut, size, false)
			if src == nil {
				return
			}
			copy(dst, src[:n])
		}
	})
	return nil
}
