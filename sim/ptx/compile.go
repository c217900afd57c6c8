package ptx

import (
	"math"
	"slices"
	"strings"
	"sync/atomic"
)

// link checks all functions of a parsed module and resolves what they and the variables refer to.
func (m *Module) link(p *parser) error {
	for _, a := range p.alias {
		target := p.top.names[a[1].text]
		if target == nil || target.kind != symFunction || !target.fn.has {
			return errAt(a[1].pos, "alias of %s, which is no function of this text", a[1].text)
		}
		if prev := p.top.names[a[0].text]; prev != nil && prev.kind == symFunction && !prev.fn.has {
			prev.fn = target.fn
		} else {
			p.top.names[a[0].text] = target
		}
	}
	for _, in := range p.inits {
		sym := p.top.names[in.name.text]
		switch {
		case sym == nil:
			return errAt(in.name.pos, "%s is not declared", in.name.text)
		case sym.kind == symFunction:
			if !sym.fn.has {
				return errAt(in.name.pos, "function %s is not defined", in.name.text)
			}
			v := funcWindow + uint64(sym.fn.index) + uint64(in.addend)
			for i := range in.size {
				in.g.Init[in.offset+uint64(i)] = byte(v >> (8 * i))
			}
		case sym.kind == symVariable && sym.v.global != nil:
			in.g.Relocs = append(in.g.Relocs, Reloc{Offset: in.offset, Size: in.size, Symbol: in.name.text, Addend: in.addend})
		default:
			return unsupportedAt(in.name.pos, "the address of %s as an initial value is not supported", in.name.text)
		}
	}
	budget := &m.lazy.budget
	budget.targets.Store(maxTargets)
	budget.visits, budget.reach = maxVisits, maxReach
	if err := m.check(budget); err != nil {
		return err
	}
	for _, e := range m.Entries {
		if m.late {
			break
		}
		if err := e.layout(); err != nil {
			return err
		}
	}
	return nil
}

// budget bounds what short texts could make large: the targets of all brx.idx, the analysis of registers, and the
// functions that kernels may call.
type budget struct {
	targets       atomic.Int64
	visits, reach int
}

const (
	maxTargets = 1 << 20
	maxReach   = 1 << 22
)

// layout finds all functions that an entry may reach and gives the shared variables they use their places. Functions
// that were left out are compiled on the way, since what they call is not known before.
func (e *Entry) layout() error {
	if e.placed {
		return nil
	}
	seen := map[*function]bool{e.fn: true}
	e.reach = []*function{e.fn}
	add := func(fn *function) {
		if !seen[fn] {
			seen[fn] = true
			e.reach = append(e.reach, fn)
		}
	}
	e.shared = map[*variable]uint32{}
	var size, dynAlign uint64 = 0, 16
	var dynamic []*variable
	everything := false
	budget := &e.module.lazy.budget
	for i := 0; i < len(e.reach); i++ { // add makes the list longer
		fn := e.reach[i]
		if err := fn.late(e.module); err != nil {
			return err
		}
		for _, callee := range fn.calls {
			add(callee)
		}
		if budget.reach < len(e.reach) {
			budget.reach = 0 // for good: to find out takes as long for each
			return errAt(e.fn.pos, "the kernels up to %s may call more than %d functions", e.Name, maxReach)
		}
		if fn.indirect && !everything {
			everything = true
			for _, f := range e.module.funcs {
				if !f.entry {
					add(f)
				}
			}
		}
		for _, v := range fn.shared {
			if _, done := e.shared[v]; done {
				continue
			}
			e.shared[v] = 0
			if v.extern {
				dynAlign = max(dynAlign, v.align)
				dynamic = append(dynamic, v)
				continue
			}
			size = alignUp(size, v.align)
			e.shared[v] = uint32(size)
			size += v.size
			if size > maxShared {
				return errAt(e.fn.pos, "the shared variables of %s are larger than %d bytes", e.Name, maxShared)
			}
		}
	}
	e.sharedSize = int(size)
	if len(dynamic) > 0 {
		size = alignUp(size, dynAlign)
	}
	e.dynOff = uint32(size)
	for _, v := range dynamic {
		e.shared[v] = e.dynOff
	}
	e.localSize = int(e.fn.local)
	budget.reach -= len(e.reach)
	e.placed = true
	return nil
}

// comp compiles one function, see alloc.go for why it does so twice.
type comp struct {
	fn     *function
	budget *budget
	consts map[initSlot]int
	trash  int

	registers []*symbol // in the order of their first use
	preds     []*symbol
	widths    []int
	acc       []access
	now       access // of the instruction that is being compiled
}

func compile(fn *function, b *budget) error {
	fn.shared, fn.calls = nil, nil
	first := &comp{fn: fn, budget: b}
	if err := first.function(); err != nil {
		return err
	}
	var entering []int32
	for _, v := range fn.sig.params {
		if v.reg != nil && v.reg.reg != tPred {
			entering = append(entering, int32(v.reg.slot-1))
		}
	}
	places, count, pressure := allocate(fn, first.acc, first.widths, entering, b)
	for k, sym := range first.registers {
		sym.slot = places[k] + 1
	}
	fn.allocated, fn.pressure = count, pressure
	fn.slots, fn.code, fn.inits, fn.shared, fn.calls = count, nil, nil, nil, nil
	second := &comp{fn: fn, budget: b}
	if err := second.function(); err != nil {
		return err
	}
	fn.stmts = nil
	return nil
}

func (c *comp) function() error {
	fn := c.fn
	c.consts, c.trash = map[initSlot]int{}, -1
	for _, list := range [][]*variable{fn.sig.rets, fn.sig.params} {
		for _, v := range list {
			if v.reg != nil {
				c.register(v.reg)
			}
		}
	}
	start := make([]int32, len(fn.stmts)+1) // where each statement's code begins
	for i := range fn.stmts {
		start[i] = int32(len(fn.code))
		s := fn.stmts[i]
		if err := c.statement(&s); err != nil {
			return err
		}
	}
	start[len(fn.stmts)] = int32(len(fn.code))
	fn.code = append(fn.code, instr{kind: kReturn, guard: -1})
	c.acc = append(c.acc, access{})
	for i := range fn.code {
		in := &fn.code[i]
		if in.kind == kBranch {
			in.target = start[in.target]
		}
		if x, ok := in.aux.(*indexInfo); ok {
			for j := range x.targets {
				x.targets[j] = start[x.targets[j]]
			}
		}
		if in.kind == kReturn {
			for _, v := range fn.sig.rets {
				if v.reg != nil && v.reg.reg != tPred {
					c.acc[i].uses = append(c.acc[i].uses, int32(v.reg.slot-1))
				}
			}
		}
	}
	return nil
}

// ins is one instruction while it is compiled.
type ins struct {
	*comp
	s    *stmt
	mods []string // not yet used
}

type handler func(i *ins) error

func (c *comp) statement(s *stmt) error {
	h := handlers[s.op]
	i := &ins{comp: c, s: s, mods: s.mods}
	if h == nil {
		return i.unsupported("")
	}
	first := len(c.fn.code)
	c.now = access{}
	if err := h(i); err != nil {
		return err
	}
	if len(i.mods) > 0 {
		return i.unsupported(": " + strings.Join(i.mods, "") + " is not known")
	}
	guard := int32(-1)
	if s.guard != "" {
		sym := s.scope.lookup(s.guard)
		if sym == nil || sym.kind != symRegister || sym.reg != tPred {
			return errAt(s.pos, "the guard %s is no predicate", s.guard)
		}
		guard = int32(c.register(sym))
	}
	for k := first; k < len(c.fn.code); k++ {
		in := &c.fn.code[k]
		in.guard, in.not, in.line = guard, s.guardNot, int32(s.pos.line)
		c.acc = append(c.acc, c.now)
	}
	return nil
}

func (i *ins) name() string { return i.s.op + strings.Join(i.s.mods, "") }

func (i *ins) unsupported(why string) error {
	return unsupportedAt(i.s.pos, "instruction %s is not supported%s", i.name(), why)
}

func (i *ins) errorf(format string, args ...any) error {
	return errAt(i.s.pos, i.name()+": "+format, args...)
}

// take removes a modifier and says whether it was there.
func (i *ins) take(mod string) bool {
	k := slices.Index(i.mods, mod)
	if k < 0 {
		return false
	}
	i.mods = slices.Concat(i.mods[:k], i.mods[k+1:])
	return true
}

// oneOf removes the first modifier that is in the list, or returns "".
func (i *ins) oneOf(list ...string) string {
	for k, m := range i.mods {
		if slices.Contains(list, m) {
			i.mods = slices.Concat(i.mods[:k], i.mods[k+1:])
			return m
		}
	}
	return ""
}

// drop removes modifiers that change nothing here.
func (i *ins) drop(list ...string) {
	for i.oneOf(list...) != "" {
	}
}

// typ removes the first type among the modifiers.
func (i *ins) typ() typ {
	for k, m := range i.mods {
		if t := typeByName[m]; t != tNone {
			i.mods = slices.Concat(i.mods[:k], i.mods[k+1:])
			return t
		}
	}
	return tNone
}

func (i *ins) args(n int) error {
	if len(i.s.args) != n {
		return i.errorf("%d operands are needed, not %d", n, len(i.s.args))
	}
	return nil
}

func (i *ins) emit(run execFn) { i.add(instr{run: run}) }

func (i *ins) emitMem(run execFn) { i.add(instr{run: run, kind: kMem}) }

func (i *ins) add(in instr) { i.fn.code = append(i.fn.code, in) }

// register returns the place of a register: a predicate's index or the offset of its lanes.
func (c *comp) register(sym *symbol) int {
	if sym.reg == tPred {
		if sym.slot == 0 {
			c.fn.preds++
			sym.slot = c.fn.preds
			c.preds = append(c.preds, sym)
		}
		return sym.slot - 1
	}
	if sym.slot == 0 {
		sym.slot = c.newSlot()/lanes + 1
		for len(c.widths) < sym.slot {
			// Registers for constants have numbers as well and are not moved.
			c.registers = append(c.registers, &symbol{})
			c.widths = append(c.widths, 0)
		}
		c.registers[sym.slot-1], c.widths[sym.slot-1] = sym, (sym.reg.bits()+31)/32
	}
	return (sym.slot - 1) * lanes
}

// read and written are register for a register that the current instruction reads, or writes.
func (c *comp) read(sym *symbol) int {
	off := c.register(sym)
	c.now.uses = append(c.now.uses, int32(sym.slot-1))
	return off
}

func (c *comp) written(sym *symbol) int {
	off := c.register(sym)
	c.now.defs = append(c.now.defs, int32(sym.slot-1))
	return off
}

func (c *comp) newSlot() int {
	c.fn.slots++
	return (c.fn.slots - 1) * lanes
}

// initial returns the register that holds a value from the start.
func (c *comp) initial(s initSlot) int {
	if off, ok := c.consts[s]; ok {
		return off
	}
	off := c.newSlot()
	c.consts[s] = off
	s.off = off
	c.fn.inits = append(c.fn.inits, s)
	return off
}

func (c *comp) constant(v uint64) int { return c.initial(initSlot{kind: initValue, val: v}) }

// discard is where results go that nobody wants.
func (c *comp) discard() int {
	if c.trash < 0 {
		c.trash = c.newSlot()
	}
	return c.trash
}

func (i *ins) lookup(o *operand) (*symbol, error) {
	sym := i.s.scope.lookup(o.name)
	if sym == nil {
		return nil, errAt(o.pos, "%s is not declared", o.name)
	}
	if o.kind == oElement && (sym.kind != symVariable || sym.v.dims != 1) {
		return nil, errAt(o.pos, "%s: %s is no array of one dimension", i.name(), o.name)
	}
	return sym, nil
}

// dst returns the register that an operand names as the destination.
func (i *ins) dst(o *operand) (int, error) {
	if o.kind == oSink {
		return i.discard(), nil
	}
	if o.kind != oName || o.comp != "" || o.val != 0 || o.neg || o.pair != nil {
		return 0, errAt(o.pos, "%s: the destination must be a register", i.name())
	}
	sym, err := i.lookup(o)
	if err != nil {
		return 0, err
	}
	if sym.kind != symRegister || sym.reg == tPred {
		return 0, errAt(o.pos, "%s: %s is no register for this result", i.name(), o.name)
	}
	return i.written(sym), nil
}

func (i *ins) predDst(o *operand) (int, error) {
	if o.kind == oSink {
		i.fn.preds++
		return i.fn.preds - 1, nil
	}
	if o.kind != oName || o.comp != "" || o.neg {
		return 0, errAt(o.pos, "%s: the destination must be a predicate", i.name())
	}
	sym, err := i.lookup(o)
	if err != nil {
		return 0, err
	}
	if sym.kind != symRegister || sym.reg != tPred {
		return 0, errAt(o.pos, "%s: %s is no predicate", i.name(), o.name)
	}
	return i.register(sym), nil
}

// pred returns the predicate that an operand reads.
func (i *ins) pred(o *operand) (predRef, error) {
	switch o.kind {
	case oInt:
		// A constant: a predicate of its own, which starts as false.
		i.fn.preds++
		return predRef{i.fn.preds - 1, o.val != 0}, nil
	case oName:
		sym, err := i.lookup(o)
		if err != nil {
			return predRef{}, err
		}
		if sym.kind == symRegister && sym.reg == tPred {
			return predRef{i.register(sym), o.neg}, nil
		}
	}
	return predRef{}, errAt(o.pos, "%s: a predicate is needed", i.name())
}

// offset is how far behind the beginning of a variable an operand lies.
func (o *operand) offset(v *variable) uint64 {
	if o.kind == oElement {
		return o.val * uint64(v.elem.bytes()*v.vector)
	}
	return o.val
}

// src returns the register that holds an operand of type t.
func (i *ins) src(o *operand, t typ) (int, error) {
	switch o.kind {
	case oInt:
		v := o.val
		switch t {
		case tF32:
			v = uint64(math.Float32bits(float32(int64(v))))
		case tF64:
			v = math.Float64bits(float64(int64(v)))
		}
		return i.constant(v), nil
	case oFloat32:
		if t == tF64 {
			return i.constant(math.Float64bits(float64(math.Float32frombits(uint32(o.val))))), nil
		}
		return i.constant(o.val), nil
	case oFloat64:
		if t.bits() == 32 {
			return i.constant(uint64(math.Float32bits(float32(math.Float64frombits(o.val))))), nil
		}
		return i.constant(o.val), nil
	case oElement:
		sym, err := i.lookup(o)
		if err != nil {
			return 0, err
		}
		return i.addressOf(sym.v, o.offset(sym.v)), nil
	case oName:
		if o.neg || o.pair != nil {
			break
		}
		if o.name[0] == '%' || o.name == "WARP_SZ" {
			if s, ok := specials[o.name+o.comp]; ok && i.s.scope.lookup(o.name) == nil {
				return i.initial(s), nil
			}
		}
		if o.comp != "" {
			return 0, unsupportedAt(o.pos, "%s%s is not supported", o.name, o.comp)
		}
		if _, changing := clocks[o.name]; changing {
			return 0, unsupportedAt(o.pos, "%s can only be read by mov", o.name)
		}
		sym, err := i.lookup(o)
		if err != nil {
			if o.name[0] == '%' {
				return 0, unsupportedAt(o.pos, "register %s is neither declared nor a special register that is supported", o.name)
			}
			return 0, err
		}
		switch sym.kind {
		case symRegister:
			if sym.reg == tPred {
				return 0, errAt(o.pos, "%s: %s is a predicate", i.name(), o.name)
			}
			if o.val != 0 {
				break
			}
			return i.read(sym), nil
		case symVariable:
			return i.addressOf(sym.v, o.val), nil
		case symFunction:
			if !sym.fn.has || sym.fn.entry {
				return 0, unsupportedAt(o.pos, "the address of %s is not supported", o.name)
			}
			return i.constant(funcWindow + uint64(sym.fn.index)), nil
		}
	}
	return 0, errAt(o.pos, "%s: this operand is not possible here", i.name())
}

// addressOf returns the register that holds the address of a variable in its own state space.
func (c *comp) addressOf(v *variable, off uint64) int {
	switch v.space {
	case vsGlobal, vsConst:
		return c.initial(initSlot{kind: initGlobal, sym: v.name, val: off})
	case vsShared:
		if !slices.Contains(c.fn.shared, v) {
			c.fn.shared = append(c.fn.shared, v)
		}
		return c.initial(initSlot{kind: initShared, v: v, val: off})
	case vsLocal:
		return c.initial(initSlot{kind: initLocal, val: v.offset + off})
	}
	return c.constant(v.offset + off)
}

// srcs resolves operands first… of the same type.
func (i *ins) srcs(t typ, first, n int) ([]int, error) {
	list := make([]int, n)
	for k := range list {
		off, err := i.src(&i.s.args[first+k], t)
		if err != nil {
			return nil, err
		}
		list[k] = off
	}
	return list, nil
}

var specials = map[string]initSlot{}

func init() {
	sp := func(name string, s special) { specials[name] = initSlot{kind: initSpecial, val: uint64(s)} }
	un := func(name string, u uniform) { specials[name] = initSlot{kind: initUniform, val: uint64(u)} }
	for k, d := range []string{".x", ".y", ".z"} {
		sp("%tid"+d, spTidX+special(k))
		sp("%ctaid"+d, spCtaidX+special(k))
		sp("%clusterid"+d, spClusterX+special(k))
		sp("%cluster_ctaid"+d, spInClusterX+special(k))
		un("%ntid"+d, unNtidX+uniform(k))
		un("%nctaid"+d, unNctaidX+uniform(k))
		un("%nclusterid"+d, unNclusterX+uniform(k))
		un("%cluster_nctaid"+d, unClusterDimX+uniform(k))
	}
	sp("%laneid", spLane)
	sp("%warpid", spWarp)
	sp("%smid", spSM)
	sp("%lanemask_eq", spLaneEq)
	sp("%lanemask_le", spLaneLe)
	sp("%lanemask_lt", spLaneLt)
	sp("%lanemask_ge", spLaneGe)
	sp("%lanemask_gt", spLaneGt)
	sp("%cluster_ctarank", spRankInCluster)
	un("%cluster_nctarank", unClusterSize)
	un("%nwarpid", unWarps)
	un("%nsmid", unSMs)
	un("%dynamic_smem_size", unDynamicShared)
	un("%total_smem_size", unTotalShared)
	specials["WARP_SZ"] = initSlot{kind: initValue, val: lanes}
	specials["%gridid"] = initSlot{kind: initValue}
}
