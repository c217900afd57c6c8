package ptx

import (
	"cmp"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// A text is checked when it is loaded, and its functions are compiled when they are first used: most kernels of a
// library are never launched. The check is the compiler's first pass, whose code is thrown away.
//
// The texts of libraries are long, and a program loads dozens of them to launch a kernel or two of each. Of these the
// bodies of functions are not even read before they are used (late.go).

// check checks all functions, on all cores where there are many. The error is the first one's in the text.
func (m *Module) check(b *budget) error {
	errs := make([]error, len(m.funcs))
	var next atomic.Int64
	work := func() {
		for {
			i := int(next.Add(1)) - 1
			if i >= len(m.funcs) {
				return
			}
			fn := m.funcs[i]
			if fn.body != nil {
				continue
			}
			fn.params = max(fn.params, fn.maxParams)
			errs[i] = fn.check(b)
		}
	}
	var helpers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(m.funcs)) - 1 {
		helpers.Go(work)
	}
	work()
	helpers.Wait()
	return cmp.Or(errs...)
}

// compiler is what the functions of a module are compiled with when they are first used.
type compiler struct {
	sync.Mutex // guards the budget, and each function until it is compiled
	budget     budget
}

// Load reads and compiles what the entry may reach, if that was not done before. Of texts that were checked when they
// were parsed it does not fail.
func (e *Entry) Load() error {
	e.once.Do(func() {
		lazy := &e.module.lazy
		lazy.Lock()
		defer lazy.Unlock()
		if e.failed = e.layout(); e.failed != nil {
			e.reach, e.shared = nil, nil
			return
		}
		for _, fn := range e.reach {
			if fn.code == nil {
				lazy.budget.targets.Store(math.MaxInt64) // they were counted by the check
				if e.failed = compile(fn, &lazy.budget); e.failed != nil {
					return
				}
			}
			e.registers = max(e.registers, fn.pressure)
		}
	})
	return e.failed
}

// laidOut makes sure that what layout finds is there.
func (e *Entry) laidOut() {
	if e.module.late {
		_ = e.Load() // what cannot be loaded needs nothing
	}
}

// SharedSize is the static shared memory of a block, with what called functions use.
func (e *Entry) SharedSize() int {
	e.laidOut()
	return e.sharedSize
}

// LocalSize is the local memory of a thread, without that of called functions.
func (e *Entry) LocalSize() int {
	e.laidOut()
	return e.localSize
}

// Registers is how many 32-bit registers a thread needs at least, an estimate from the live ranges.
func (e *Entry) Registers() int {
	_ = e.Load() // what cannot be loaded needs any number
	return min(max(e.registers, 8), 255)
}

// check finds what is wrong with a function, and what it calls and shares. Its code is made when it is first used.
func (fn *function) check(b *budget) error {
	c := &comp{fn: fn, budget: b}
	if err := c.function(); err != nil {
		return err
	}
	for _, list := range [][]*symbol{c.registers, c.preds} {
		for _, sym := range list {
			sym.slot = 0
		}
	}
	fn.slots, fn.preds, fn.code, fn.inits = 0, 0, nil, nil
	return nil
}
