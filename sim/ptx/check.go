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
	failed     error // never, after the check
}

// compiled is called before the entry is used: it compiles what the entry may reach.
func (e *Entry) compiled() error {
	e.once.Do(func() {
		lazy := &e.module.lazy
		lazy.Lock()
		defer lazy.Unlock()
		for _, fn := range e.reach {
			if fn.code == nil && lazy.failed == nil {
				lazy.budget.targets.Store(math.MaxInt64) // they were counted by the check
				lazy.failed = compile(fn, &lazy.budget)
			}
			e.registers = max(e.registers, fn.pressure)
		}
		e.registers, e.failed = min(max(e.registers, 8), 255), lazy.failed
	})
	return e.failed
}

// Registers is how many 32-bit registers a thread needs at least, an estimate from the live ranges.
func (e *Entry) Registers() int {
	_ = e.compiled() // what cannot be compiled needs any number
	return e.registers
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
