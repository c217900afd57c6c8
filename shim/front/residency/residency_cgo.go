package residency

// #include "../residency.c"
// #include "../habit.c"
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

// habit is what a block does round after round.
type habit = C.struct_scuda_habit

// The ways in which a block comes with a wait, and numbers of rounds.
const (
	stays = C.SCUDA_STAYS
	comes = C.SCUDA_COMES
	open  = C.SCUDA_OPEN

	often    = C.SCUDA_OFTEN
	thrashes = C.SCUDA_THRASHES
	pinMost  = C.SCUDA_PIN_MOST
	never    = C.SCUDA_NEVER
)

// round is one of a program that uses the block or does not, where its work has `least` rounds to bounce before it comes. It tells how the block comes
// with the wait and whether using it is a fault.
func round(h *habit, least int, uses, writes bool) (how C.enum_scuda_arrival, faults, pinned bool) {
	how = C.scuda_habit_wait(h, C.uint8_t(least))
	pinned = C.scuda_habit_pin(h, C.uint8_t(least)) != 0
	h.asked = 0
	left := state(away)
	switch how {
	case comes:
		left = ready
	case open:
		left = clean
	}
	if uses && left != clean {
		faults = true
		C.scuda_habit_fault(h, 1)
		left = clean
	}
	if uses && writes {
		left = dirty
	}
	C.scuda_habit_round(h, left)
	return how, faults, pinned
}

func streams(h *habit) { C.scuda_habit_streams(h, 1) }
