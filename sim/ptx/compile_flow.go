package ptx

import (
	"maps"
	"runtime"
	"strings"
)

func init() {
	maps.Copy(handlers, map[string]handler{
		"bra": hBra, "brx": hBrx, "call": hCall, "ret": hReturn, "exit": hReturn, "trap": hTrap, "brkpt": hTrap,
		"nanosleep": hSleep, "bar": hBarrier, "barrier": hBarrier,
	})
}

func (i *ins) label(o *operand) (int32, error) {
	if o.kind == oName && o.comp == "" && o.val == 0 {
		if sym := i.s.scope.lookup(o.name); sym != nil && sym.kind == symLabel {
			return int32(sym.label), nil
		}
	}
	return 0, errAt(o.pos, "%s: %q is no label", i.name(), o.name)
}

func hBra(i *ins) error {
	i.drop(".uni")
	if err := i.args(1); err != nil {
		return err
	}
	target, err := i.label(&i.s.args[0])
	if err != nil {
		return err
	}
	i.add(instr{kind: kBranch, target: target})
	return nil
}

func hBrx(i *ins) error {
	i.drop(".uni")
	if !i.take(".idx") {
		return i.unsupported("")
	}
	if err := i.args(2); err != nil {
		return err
	}
	idx, err := i.src(&i.s.args[0], tU32)
	if err != nil {
		return err
	}
	list, err := i.lookup(&i.s.args[1])
	if err != nil {
		return err
	}
	if list.kind != symTargets {
		return i.errorf("%s is no list of targets", i.s.args[1].name)
	}
	if i.budget.targets.Add(-int64(len(list.targets))) < 0 {
		return i.errorf("more than %d targets in all", maxTargets)
	}
	info := &indexInfo{index: idx}
	for _, name := range list.targets {
		target, err := i.label(&operand{kind: oName, name: name, pos: i.s.pos})
		if err != nil {
			return err
		}
		info.targets = append(info.targets, target)
	}
	i.add(instr{kind: kBranchIndex, aux: info})
	return nil
}

func hReturn(i *ins) error {
	i.drop(".uni")
	if err := i.args(0); err != nil {
		return err
	}
	if i.s.op == "exit" {
		i.add(instr{kind: kExit})
	} else {
		i.add(instr{kind: kReturn})
	}
	return nil
}

func hTrap(i *ins) error {
	if err := i.args(0); err != nil {
		return err
	}
	message := i.s.op
	i.emitMem(func(w *warp, m uint32) { w.setFault(lane(m), &Fault{Kind: Trap, Message: message}) })
	return nil
}

// hSleep lets other warps and goroutines run; for how long is up to the hardware as well.
func hSleep(i *ins) error {
	if i.typ() != tU32 {
		return i.unsupported("")
	}
	if err := i.args(1); err != nil {
		return err
	}
	i.add(instr{kind: kYield, run: func(*warp, uint32) { runtime.Gosched() }})
	return nil
}

func hBarrier(i *ins) error {
	if i.take(".warp") {
		return hWarpBarrier(i)
	}
	if i.take(".cluster") {
		return hClusterBarrier(i)
	}
	i.drop(".cta", ".aligned")
	info := &barrierInfo{count: -1}
	args := i.s.args
	switch i.oneOf(".sync", ".arrive", ".red") {
	case ".sync":
	case ".arrive":
		info.arrive = true
		if len(args) != 2 {
			return i.errorf("two operands are needed")
		}
	case ".red":
		op := i.oneOf(".popc", ".and", ".or")
		t := i.typ()
		if op == "" || (op == ".popc") != (t == tU32) || len(args) < 3 {
			return i.unsupported("")
		}
		info.reduce = op[1:]
		var err error
		if op == ".popc" {
			info.dst, err = i.dst(&args[0])
		} else {
			info.dst, err = i.predDst(&args[0])
		}
		if err != nil {
			return err
		}
		if info.pred, err = i.pred(&args[len(args)-1]); err != nil {
			return err
		}
		args = args[1 : len(args)-1]
	default:
		return i.unsupported("")
	}
	if len(args) < 1 || len(args) > 2 {
		return i.errorf("a barrier and possibly a thread count are needed")
	}
	var err error
	if info.id, err = i.src(&args[0], tU32); err != nil {
		return err
	}
	if len(args) == 2 {
		if info.count, err = i.src(&args[1], tU32); err != nil {
			return err
		}
	}
	i.add(instr{kind: kBarrier, aux: info})
	return nil
}

// hClusterBarrier is the barrier of all threads of a cluster, in its two halves.
func hClusterBarrier(i *ins) error {
	i.drop(".aligned")
	half := i.oneOf(".arrive", ".wait")
	i.drop(".release", ".relaxed", ".acquire")
	if half == "" {
		return i.unsupported("")
	}
	if err := i.args(0); err != nil {
		return err
	}
	if half == ".wait" {
		i.add(instr{kind: kClusterWait})
		return nil
	}
	i.emitMem(func(w *warp, m uint32) { w.clusterArrive(m) })
	return nil
}

// actuals resolves the operands of a call in parentheses.
func (i *ins) actuals(o *operand, result bool) ([]actual, error) {
	var list []actual
	for k := range o.list {
		e := &o.list[k]
		if e.kind == oName && e.comp == "" {
			sym, err := i.lookup(e)
			if err != nil {
				return nil, err
			}
			if sym.kind == symVariable && sym.v.space == vsParam && !sym.v.kernelParam {
				list = append(list, actual{reg: -1, off: sym.v.offset, size: sym.v.size})
				continue
			}
			if sym.kind == symRegister && sym.reg == tPred {
				p, err := i.pred(e)
				if err != nil {
					return nil, err
				}
				list = append(list, actual{pred: &p})
				continue
			}
		}
		var reg int
		var err error
		if result {
			reg, err = i.dst(e)
		} else {
			reg, err = i.src(e, tB64)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, actual{reg: reg})
	}
	return list, nil
}

func hCall(i *ins) error {
	i.drop(".uni")
	args := i.s.args
	info := &callInfo{}
	var err error
	if len(args) > 0 && args[0].kind == oParen {
		if info.rets, err = i.actuals(&args[0], true); err != nil {
			return err
		}
		args = args[1:]
	}
	if len(args) == 0 || args[0].kind != oName {
		return i.errorf("a function is needed")
	}
	callee := &args[0]
	args = args[1:]
	if len(args) > 0 && args[0].kind == oParen {
		if info.args, err = i.actuals(&args[0], false); err != nil {
			return err
		}
		args = args[1:]
	}
	sym, err := i.lookup(callee)
	if err != nil {
		return err
	}
	switch sym.kind {
	case symFunction:
		fn := sym.fn
		if b := builtins[fn.name]; b != nil && !fn.has {
			return b(i, info)
		}
		if !fn.has || fn.entry {
			return unsupportedAt(callee.pos, "function %s is called but not defined in this text", fn.name)
		}
		if len(fn.sig.params) != len(info.args) || len(fn.sig.rets) != len(info.rets) {
			return errAt(callee.pos, "call of %s does not match its parameters", fn.name)
		}
		for k, list := range [][]*variable{fn.sig.params, fn.sig.rets} {
			for n, a := range [][]actual{info.args, info.rets}[k] {
				if v := list[n]; (a.pred != nil) != (v.reg != nil && v.reg.reg == tPred) || a.pred != nil && k == 1 && a.pred.not {
					return errAt(callee.pos, "call of %s does not match its parameters", fn.name)
				}
			}
		}
		info.target = fn
		i.fn.calls = append(i.fn.calls, fn)
	case symRegister:
		if len(args) != 1 {
			return i.errorf("a call through a pointer needs a prototype")
		}
		proto, err := i.lookup(&args[0])
		if err != nil {
			return err
		}
		if proto.kind != symPrototype && proto.kind != symTargets {
			return i.errorf("%s is no prototype", args[0].name)
		}
		if info.pointer, err = i.src(callee, tB64); err != nil {
			return err
		}
		i.fn.indirect = true
	default:
		return i.errorf("%s cannot be called", callee.name)
	}
	i.add(instr{kind: kCall, aux: info})
	return nil
}

// builtins are the functions that every GPU has without a text defining them.
var builtins = map[string]func(i *ins, call *callInfo) error{"vprintf": callPrintf, "__assertfail": callAssert}

// argument reads an argument of a builtin.
func (a actual) argument(w *warp, lane int) uint64 {
	if a.reg >= 0 {
		return w.regs[a.reg+lane]
	}
	at := uint64(lane)*w.frame.fn.params + a.off
	return readInt(w.frame.params[at:at+a.size], int(a.size))
}

func (c *callInfo) plain(args, rets int) bool {
	ok := len(c.args) == args && len(c.rets) == rets
	for _, a := range c.args {
		ok = ok && a.pred == nil && (a.reg >= 0 || a.size == 8 || a.size == 4)
	}
	for _, a := range c.rets {
		ok = ok && a.pred == nil && (a.reg >= 0 || a.size == 4)
	}
	return ok
}

func callPrintf(i *ins, call *callInfo) error {
	if !call.plain(2, 1) {
		return i.errorf("vprintf takes a format and a list of arguments, and returns a number")
	}
	i.emitMem(func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			text, n := w.format(l, call.args[0].argument(w, l), call.args[1].argument(w, l))
			if w.fault != nil {
				return
			}
			r := w.blk.run
			if r.grid.Stdout != nil {
				r.printMu.Lock()
				// The kernel cannot be told of a writer's failure.
				_, _ = r.grid.Stdout.Write(text)
				r.printMu.Unlock()
			}
			if ret := call.rets[0]; ret.reg >= 0 {
				w.regs[ret.reg+l] = uint64(n)
			} else {
				writeInt(w.frame.params[uint64(l)*w.frame.fn.params+ret.off:], 4, uint64(n))
			}
		}
	})
	return nil
}

func callAssert(i *ins, call *callInfo) error {
	if !call.plain(5, 0) {
		return i.errorf("__assertfail takes five arguments and returns nothing")
	}
	i.emitMem(func(w *warp, m uint32) {
		l := lane(m)
		var parts []string
		for k := range 4 {
			v := call.args[k].argument(w, l)
			if k == 2 {
				continue
			}
			s, ok := w.cstring(l, v)
			if !ok {
				return
			}
			parts = append(parts, s)
		}
		line := uint32(call.args[2].argument(w, l))
		var b strings.Builder
		b.WriteString(parts[1] + ":")
		b.WriteString(uitoa(line) + ": " + parts[2] + ": assertion `" + parts[0] + "` failed")
		w.setFault(l, &Fault{Kind: Assert, Message: b.String()})
	})
	return nil
}
