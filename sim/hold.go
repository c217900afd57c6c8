package sim

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"scuda.dev/scuda/api/cuda"
)

// A real driver holds the caller of many functions up until the work of the context is over, and calls of other threads
// may wait for that one as well. Which functions these are differs between drivers and with what was done before. The
// simulated driver does it where it is told to.

// The settings that stand for several functions.
const (
	HoldAll      = "all"      // every call but those that by their nature wait for nothing
	HoldMeasured = "measured" // those that an H200's driver (580) was seen to hold up, and first launches
	HoldFirst    = "first"    // a kernel's first launch, for which its code is loaded
)

// measured are the functions that were held up on an H200.
var measured = []string{"ArrayDestroy", "CtxSetLimit", "MemFree", "MemFreeHost", "MemHostUnregister",
	"MipmappedArrayDestroy", "ModuleLoadData", "ModuleLoadDataEx", "ModuleUnload"}

// unheld are the beginnings of functions that only put work into a stream, look at something, or say what is current.
var unheld = []string{"CtxGet", "CtxPopCurrent", "CtxPushCurrent", "CtxSetCurrent", "EventElapsedTime", "EventQuery",
	"EventRecord", "GraphLaunch", "Launch", "PointerGet", "Stream", "Thread"}

// hold is what the simulated driver holds up.
type hold struct {
	names      map[string]bool
	all, first bool
}

// parseHold reads names of functions with or without their versions, joined by "+".
func parseHold(s string) (hold, error) {
	h := hold{names: map[string]bool{}}
	known := map[string]bool{}
	for op := range uint16(math.MaxUint16) {
		known[plainName(cuda.OpName(op))] = true
	}
	for name := range strings.SplitSeq(s, "+") {
		switch name {
		case "":
		case HoldAll:
			h.all, h.first = true, true
		case HoldMeasured:
			h.first = true
			for _, m := range measured {
				h.names[m] = true
			}
		case HoldFirst:
			h.first = true
		default:
			if name = plainName(name); !known[name] {
				return hold{}, fmt.Errorf("no function %q; name functions, %s, %s or %s, joined by +", name, HoldAll, HoldMeasured,
					HoldFirst)
			}
			h.names[strings.TrimPrefix(name, "cu")] = true
		}
	}
	return h, nil
}

// plainName is a function's name without its version.
func plainName(name string) string {
	if i := strings.LastIndex(name, "_v"); i > 0 {
		name = name[:i]
	}
	return name
}

func (h *hold) includes(name string) bool {
	name = plainName(name)
	if h.names[name] {
		return true
	}
	if !h.all || strings.HasSuffix(name, "Async") {
		return false
	}
	for _, prefix := range unheld {
		if strings.HasPrefix(name, prefix) && name != "StreamCreate" && name != "StreamDestroy" {
			return false
		}
	}
	return true
}

// gate keeps threads out of the driver while a call of another is held up. Its methods are called with the GPU's lock
// held.
type gate struct {
	calls    hold
	holder   int // the thread whose call is held up, or 0
	opened   sync.Cond
	launched map[cuda.CUfunction]bool // where first launches are held up
	stacks   map[stack]string         // the functions that were called, where any is held up
}

func (t *gate) init(calls string, lock sync.Locker) (err error) {
	t.opened.L = lock
	if calls != "" {
		t.launched, t.stacks = map[cuda.CUfunction]bool{}, map[stack]string{}
		t.calls, err = parseHold(calls)
	}
	return err
}

func (t *gate) held() bool { return t.holder != 0 }

func (t *gate) close() { t.holder = syscall.Gettid() }

func (t *gate) open() {
	t.holder = 0
	t.opened.Broadcast()
}

// wait waits until no other thread's call is held up; the lock is given up meanwhile.
func (t *gate) wait() {
	me := syscall.Gettid()
	for t.held() && t.holder != me {
		t.opened.Wait()
	}
}

// isFirst says whether f is launched for the first time where such launches are held up.
func (t *gate) isFirst(f cuda.CUfunction) bool {
	if !t.calls.first || t.launched[f] {
		return false
	}
	t.launched[f] = true
	return true
}

// passGate keeps a thread out of the driver while another's call is held up, and holds its own call up if it is one of
// those. g.mu is held, and given up meanwhile.
func (g *GPU) passGate() {
	if g.gate.calls.names == nil {
		return
	}
	g.gate.wait()
	if name := g.gate.calledName(); name != "" && g.gate.calls.includes(name) {
		g.holdUp()
	}
}

// passFirst holds the first launch of a kernel up. g.mu is held, and given up meanwhile.
func (g *GPU) passFirst(s *stream, f cuda.CUfunction) {
	if s.capture == nil && g.gate.isFirst(f) {
		g.holdUp()
	}
}

// holdUp waits until the work of the current context is over.
func (g *GPU) holdUp() {
	c, r := g.currentOf(g.thread())
	if r != ok || g.gate.held() || c.usable() != ok {
		return
	}
	g.gate.close()
	g.work.waitContext(c)
	g.gate.open()
}

// calledName is the function of the driver's that was called, without "Cu": the outermost method of that name. Which
// one it is of a stack is kept, since to find names takes longer than most calls.
func (t *gate) calledName() string {
	var pcs stack
	n := runtime.Callers(2, pcs[:])
	name, known := t.stacks[pcs]
	if !known {
		name = outermost(pcs[:n])
		t.stacks[pcs] = name
	}
	return name
}

// stack is where the callers of a function stood, the innermost first.
type stack [16]uintptr

func outermost(pcs []uintptr) (name string) {
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		method, found := strings.CutPrefix(f.Function, "scuda.dev/scuda/sim.(*GPU).")
		if !found {
			return name
		}
		if cu, found := strings.CutPrefix(method, "Cu"); found {
			name = cu
		}
		if !more {
			return name
		}
	}
}
