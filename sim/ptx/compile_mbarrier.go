package ptx

import "maps"

func init() {
	maps.Copy(handlers, map[string]handler{"mbarrier": hMbarrier, "mapa": hMapa, "getctarank": hRank})
}

// mbarrier is the state of an mbarrier object, which programs cannot look into: from the lowest bit on the arrivals
// that the phase waits for, 20 bits, those that the next one will wait for, 20 bits, the bytes it waits for, 22 bits
// with a sign, and whether the phase is an odd one.
type mbarrier uint64

const (
	mbCountBits  = 20
	mbCountMask  = 1<<mbCountBits - 1
	mbBytesShift = 2 * mbCountBits
	mbBytesMask  = 1<<22 - 1
	mbPhase      = 62
)

func (b mbarrier) pending() uint64 { return uint64(b) & mbCountMask }
func (b mbarrier) phase() uint64   { return uint64(b) >> mbPhase & 1 }

// add changes the counts, and begins the next phase where nothing is waited for any more.
func (b mbarrier) add(pending, expected, bytes int64) mbarrier {
	p := (int64(b.pending()) + pending) & mbCountMask
	e := (int64(b>>mbCountBits) + expected) & mbCountMask
	t := (int64(b>>mbBytesShift) + bytes) & mbBytesMask
	phase := b.phase()
	if p == 0 && t == 0 {
		p, phase = e, phase^1
	}
	return mbarrier(uint64(p) | uint64(e)<<mbCountBits | uint64(t)<<mbBytesShift | phase<<mbPhase)
}

// eachBarrier calls f for the barrier of every lane and stores what it returns.
func (a address) eachBarrier(w *warp, m uint32, f func(lane int, b mbarrier) mbarrier) {
	base := w.r(a.base)
	for ; m != 0; m &= m - 1 {
		l := lane(m)
		b := w.at(a.space, l, (base[l]+a.off)&a.cut, 8, true)
		if b == nil {
			return
		}
		writeInt(b, 8, uint64(f(l, mbarrier(readInt(b, 8)))))
	}
}

// barrierAddress resolves the operand of an mbarrier, which lies in shared memory.
func (i *ins) barrierAddress(o *operand) (address, error) {
	sp, _ := i.space()
	if sp != msGeneric && sp != msShared {
		return address{}, i.unsupported("")
	}
	return i.address(o, sp)
}

func hMbarrier(i *ins) error {
	i.dropHints()
	args := i.s.args
	what := i.oneOf(".init", ".inval", ".expect_tx", ".complete_tx", ".arrive", ".arrive_drop", ".test_wait", ".try_wait",
		".pending_count")
	if what == ".arrive" || what == ".arrive_drop" {
		return hArrive(i, what == ".arrive_drop")
	}
	if what == ".test_wait" || what == ".try_wait" {
		return hBarrierTest(i, what == ".try_wait")
	}
	if what == "" || !i.take(".b64") {
		return i.unsupported("")
	}
	if what == ".pending_count" {
		d, s, err := i.operands(tB64)
		if err != nil {
			return err
		}
		i.emit(un(d, s[0], func(x uint64) uint64 { return mbarrier(x).pending() }))
		return nil
	}
	n := 2
	if what == ".inval" {
		n = 1
	}
	if err := i.args(n); err != nil {
		return err
	}
	a, err := i.barrierAddress(&args[0])
	if err != nil {
		return err
	}
	count := i.constant(0)
	if n == 2 {
		if count, err = i.src(&args[1], tU32); err != nil {
			return err
		}
	}
	i.emitMem(func(w *warp, m uint32) {
		count := w.r(count)
		a.eachBarrier(w, m, func(l int, b mbarrier) mbarrier {
			n := int64(uint32(count[l]))
			switch what {
			case ".init":
				return mbarrier(n&mbCountMask | n&mbCountMask<<mbCountBits)
			case ".expect_tx":
				return b.add(0, 0, n)
			case ".complete_tx":
				return b.add(0, 0, -n)
			}
			return 0
		})
	})
	return nil
}

// hArrive is an arrival, possibly of several threads at once, that takes the thread out for good, or that announces
// bytes to come.
func hArrive(i *ins, drop bool) error {
	expects := i.take(".expect_tx")
	single := i.take(".noComplete") || expects
	args := i.s.args
	if !i.take(".b64") {
		return i.unsupported("")
	}
	if len(args) != 3 && (single || len(args) != 2) {
		return i.errorf("a state, an address and a count are needed")
	}
	d, err := i.dst(&args[0])
	if err != nil {
		return err
	}
	a, err := i.barrierAddress(&args[1])
	if err != nil {
		return err
	}
	count := i.constant(1)
	if len(args) == 3 {
		if count, err = i.src(&args[2], tU32); err != nil {
			return err
		}
	}
	i.emitMem(func(w *warp, m uint32) {
		d, count := w.r(d), w.r(count)
		a.eachBarrier(w, m, func(l int, b mbarrier) mbarrier {
			n, bytes := int64(uint32(count[l])), int64(0)
			if expects {
				n, bytes = 1, n
			}
			gone := int64(0)
			if drop {
				gone = n
			}
			d[l] = uint64(b)
			return b.add(-n, -gone, bytes)
		})
	})
	return nil
}

// hBarrierTest tells whether a phase is over. Threads that try get another turn, as if they had waited.
func hBarrierTest(i *ins, try bool) error {
	parity := i.take(".parity")
	args := i.s.args
	if !i.take(".b64") {
		return i.unsupported("")
	}
	if len(args) != 3 && !(try && len(args) == 4) {
		return i.errorf("a predicate, an address and a phase are needed")
	}
	p, err := i.predDst(&args[0])
	if err != nil {
		return err
	}
	a, err := i.barrierAddress(&args[1])
	if err != nil {
		return err
	}
	t := tB64
	if parity {
		t = tU32
	}
	state, err := i.src(&args[2], t)
	if err != nil {
		return err
	}
	if len(args) == 4 {
		// How long to wait at most is only a hint.
		if _, err := i.src(&args[3], tU32); err != nil {
			return err
		}
	}
	i.add(instr{kind: kYield, run: func(w *warp, m uint32) {
		var v uint32
		state := w.r(state)
		a.eachBarrier(w, m, func(l int, b mbarrier) mbarrier {
			asked := mbarrier(state[l]).phase()
			if parity {
				asked = state[l] & 1
			}
			if b.phase() != asked {
				v |= 1 << l
			}
			return b
		})
		w.setPred(p, m, v)
	}})
	return nil
}

// hCopyArrive is the arrival when the thread's copies are complete, which they are.
func hCopyArrive(i *ins) error {
	announced := i.take(".noinc")
	if !i.take(".b64") {
		return i.unsupported("")
	}
	if err := i.args(1); err != nil {
		return err
	}
	a, err := i.barrierAddress(&i.s.args[0])
	if err != nil {
		return err
	}
	i.emitMem(func(w *warp, m uint32) {
		a.eachBarrier(w, m, func(_ int, b mbarrier) mbarrier {
			if announced {
				return b.add(-1, 0, 0)
			}
			return b // one more to wait for, and come
		})
	})
	return nil
}
