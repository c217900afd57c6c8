package residency

// #cgo CFLAGS: -I${SRCDIR}/..
// #include "uvm/residency.c"
// #include "uvm/thrashing.c"
// #include "uvm/advice.c"
import "C"

import "unsafe"

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

// thrashing is what a block does round after round.
type thrashing = C.struct_scuda_thrashing

// The ways in which a block comes with a wait, and numbers of rounds.
const (
	stays = C.SCUDA_STAYS
	comes = C.SCUDA_COMES
	open  = C.SCUDA_OPEN

	often    = C.SCUDA_OFTEN
	thrashes = C.SCUDA_THRASHES
	pinMost  = C.SCUDA_PIN_MOST

	noPlace = C.SCUDA_NO_PLACE
	atCPU   = C.SCUDA_AT_CPU
	atGPU   = C.SCUDA_AT_GPU
)

// round is one of a program that uses the block or does not. It tells how the block comes with the wait and whether
// using it is a fault.
func round(h *thrashing, uses, writes bool) (how C.enum_scuda_arrival, faults, pinned bool) {
	how = C.scuda_thrashing_wait(h)
	pinned = C.scuda_thrashing_pin(h) != 0
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
		C.scuda_thrashing_fault(h, 1)
		left = clean
	}
	if uses && writes {
		left = dirty
	}
	C.scuda_thrashing_round(h, left)
	return how, faults, pinned
}

// thrashingRun is a fault of a run of that window that began at a block. It tells where the run begins from then on.
func thrashingRun(blocks []thrashing, brought stretch, first, window int, ahead []stretch) int {
	run := C.struct_scuda_run{first: C.uint32_t(first), window: C.uint32_t(window)}
	var windows [aheadMax]C.struct_scuda_stretch
	for i, w := range ahead {
		windows[i] = C.struct_scuda_stretch{C.uint32_t(w.first), C.uint32_t(w.count)}
	}
	s := C.struct_scuda_stretch{C.uint32_t(brought.first), C.uint32_t(brought.count)}
	C.scuda_thrashing_run(&blocks[0], s, &run, &windows[0], C.uint32_t(len(ahead)))
	return int(run.first)
}

func streams(h *thrashing) { C.scuda_thrashing_streams(h, 1) }

// advices is what was said of a range's pages, in C's memory until it is dropped.
type advices C.struct_scuda_advices

// said is what holds for some pages.
type said struct {
	preferred, prefetched C.struct_CUmemLocation_st
	accessedBy            uint64
	readMostly            bool
}

// say changes what is said of the bytes [from, to). It tells how many stretches there are then.
func (a *advices) say(from, to int, change func(*said)) int {
	all := (*C.struct_scuda_advices)(a)
	var first, end C.uint32_t
	if C.scuda_advice_cut(all, C.uint64_t(from), C.uint64_t(to), &first, &end) == 0 {
		panic("no memory")
	}
	for i := range unsafe.Slice(all.list, all.count)[first:end] {
		is := &unsafe.Slice(all.list, all.count)[int(first)+i].is
		s := heard(*is)
		change(&s)
		*is = C.struct_scuda_advice{preferred: s.preferred, prefetched: s.prefetched, accessed_by: C.uint64_t(s.accessedBy)}
		if s.readMostly {
			is.read_mostly = 1
		}
	}
	C.scuda_advice_join(all)
	return int(all.count)
}

func heard(is C.struct_scuda_advice) said {
	return said{is.preferred, is.prefetched, uint64(is.accessed_by), is.read_mostly != 0}
}

func (a *advices) at(offset int) said {
	return heard(*C.scuda_advice_at((*C.struct_scuda_advices)(a), C.uint64_t(offset)))
}

// of gives what holds for all of [from, to), and the devices of its places.
func (a *advices) of(from, to int) (s said, preferred, prefetched int) {
	var at, asked C.int32_t
	s = heard(C.scuda_advice_of((*C.struct_scuda_advices)(a), C.uint64_t(from), C.uint64_t(to), &at, &asked))
	return s, int(at), int(asked)
}

func (a *advices) drop() { C.free(unsafe.Pointer(a.list)) }

func device(l C.struct_CUmemLocation_st) int { return int(C.scuda_location_device(l)) }

// place gives a location of a kind and number.
func place(kind, id int) C.struct_CUmemLocation_st {
	return C.struct_CUmemLocation_st{_type: C.int32_t(kind), id: C.int32_t(id)}
}
