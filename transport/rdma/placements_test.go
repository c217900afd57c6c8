package rdma

import (
	"slices"
	"testing"

	"scuda.dev/scuda/transport/bulk"
)

// Chunks wait for the answer about their window, and then go to their place in it, into slots, or back.
func TestPlacements(t *testing.T) {
	const id, seq = 7, 40
	chunk := func(offset uint64, bytes uint32) placement[string] {
		return placement[string]{chunk: bulk.Chunk{ID: id, Seq: seq, Offset: offset, Bytes: bytes}, m: "chunk"}
	}
	for name, c := range map[string]struct {
		answer    func(*target[string])
		slotBytes int
		queued    []placement[string]
		back      int
	}{
		"a window": {
			answer:    func(x *target[string]) { x.granted, x.w = true, window{addr: 1 << 20, bytes: 100, key: 5} },
			slotBytes: -1,
			queued:    []placement[string]{{remote: 1 << 20, key: 5}, {remote: 1<<20 + 90, key: 5}},
			back:      1, // it reaches beyond the window
		},
		"no window, but slots": {
			answer: func(x *target[string]) { x.refused = true }, slotBytes: 10,
			queued: []placement[string]{{slot: true}, {slot: true}},
			back:   1, // it is larger than a slot
		},
		"nothing": {answer: func(x *target[string]) { x.refused = true }, slotBytes: -1, back: 3},
	} {
		t.Run(name, func(t *testing.T) {
			ps := placements[string]{targets: map[uint32]*target[string]{}}
			if _, ok := ps.add(chunk(0, 10), c.slotBytes); ok {
				t.Error("a chunk was taken for a window that nobody asked for")
			}
			ps.want(id, seq)
			for _, p := range []placement[string]{chunk(0, 10), chunk(90, 10), chunk(90, 11)} {
				if now, ok := ps.add(p, c.slotBytes); now || !ok {
					t.Fatalf("before the answer: %v %v", now, ok)
				}
			}
			if ps.asked(id, seq+1) != nil || ps.asked(id+1, seq) != nil {
				t.Error("an answer to no question")
			}
			x := ps.asked(id, seq)
			c.answer(x)
			back := 0
			ps.settle(id, x, c.slotBytes, func(string) { back++ })
			if back != c.back || ps.asked(id, seq) != nil {
				t.Errorf("%d chunks were given back, want %d", back, c.back)
			}
			if !slices.EqualFunc(ps.queue, c.queued, func(a, b placement[string]) bool {
				return a.remote == b.remote && a.key == b.key && a.slot == b.slot
			}) {
				t.Errorf("%+v, want %+v", ps.queue, c.queued)
			}
			if now, ok := ps.add(chunk(0, 10), c.slotBytes); now != (len(c.queued) > 0) || ok != now {
				t.Errorf("after the answer: %v %v", now, ok)
			}
			ps.posted(min(1, len(ps.queue)))
			left := len(ps.queue)
			back = 0
			ps.clear(func(string) { back++ })
			if back != left || len(ps.queue) != 0 || len(ps.targets) != 0 {
				t.Errorf("%d of %d chunks came back from a path that is over", back, left)
			}
		})
	}
}

// A window that is no longer needed stays until the chunks that wait for it have their place.
func TestForgottenWindow(t *testing.T) {
	ps := placements[int]{targets: map[uint32]*target[int]{}}
	ps.want(1, 10)
	ps.forget(1, 9)
	if ps.asked(1, 10) == nil {
		t.Fatal("another transfer's window was forgotten")
	}
	if _, ok := ps.add(placement[int]{chunk: bulk.Chunk{ID: 1, Seq: 10, Bytes: 8}}, -1); !ok {
		t.Fatal("no place")
	}
	ps.forget(1, 10)
	x := ps.asked(1, 10)
	if x == nil {
		t.Fatal("forgotten though a chunk waits")
	}
	x.granted, x.w.bytes = true, 8
	ps.settle(1, x, -1, func(int) { t.Error("given back") })
	if len(ps.queue) != 1 || len(ps.targets) != 0 {
		t.Errorf("%d chunks, %d windows", len(ps.queue), len(ps.targets))
	}
}
