package residency

// #include "../residency.c"
import "C"

type state = C.uint8_t

const (
	fresh = C.SCUDA_FRESH
	away  = C.SCUDA_AWAY
	busy  = C.SCUDA_BUSY
	ready = C.SCUDA_READY
	clean = C.SCUDA_CLEAN
	dirty = C.SCUDA_DIRTY

	windowMax = C.SCUDA_WINDOW_MAX
	aheadMax  = C.SCUDA_AHEAD_MAX
	nodeMax   = C.SCUDA_NODE_MAX
)

// stretch is a number of blocks from the first one on.
type stretch struct{ first, count int }

// ranges is a range's blocks with the runs of programs that go through it.
type ranges struct {
	state []state
	runs  C.struct_scuda_runs
}

// fault gives what a fault at block b brings, and the windows to ask for ahead, at most room of them.
func (r *ranges) fault(b, room int) (now stretch, ahead []stretch) {
	var run *C.struct_scuda_run
	s := C.scuda_residency_fault(&r.state[0], C.uint32_t(len(r.state)), C.uint32_t(b), &r.runs, &run)
	var windows [aheadMax]C.struct_scuda_stretch
	n := C.scuda_residency_ahead(&r.state[0], C.uint32_t(len(r.state)), run, &windows[0], C.uint32_t(room))
	for _, w := range windows[:n] {
		ahead = append(ahead, stretch{int(w.first), int(w.count)})
	}
	return stretch{int(s.first), int(s.count)}, ahead
}
