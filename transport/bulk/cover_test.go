package bulk

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// A transfer's account agrees with one that has a mark for each byte.
func TestCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const bytes = 40
		var v cover
		var have [bytes]bool
		n := uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "chunks") {
			from := rapid.IntRange(0, bytes-1).Draw(t, "from")
			size := rapid.IntRange(1, min(6, bytes-from)).Draw(t, "size")
			fresh := true
			for i := range size {
				fresh = fresh && !have[from+i]
			}
			if got := v.add(Chunk{Offset: uint64(from), Bytes: uint32(size)}); got != fresh {
				t.Fatalf("%d bytes at %d are taken: %v", size, from, got)
			}
			if !fresh {
				continue
			}
			for i := range size {
				have[from+i] = true
			}
			if n += uint64(size); v.bytes != n {
				t.Fatalf("%d bytes, not %d", v.bytes, n)
			}
		}
		runs, before := 0, false
		for _, h := range have {
			if h && !before {
				runs++
			}
			before = h
		}
		if len(v.spans) != runs {
			t.Fatalf("%d spans for %d runs: %v", len(v.spans), runs, v.spans)
		}
	})
}

// A peer that leaves gaps takes no memory without end, and one that sends in any order within reason is served.
func TestCoverIsBounded(t *testing.T) {
	var v cover
	n := 0
	for ; v.add(Chunk{Offset: uint64(2 * n), Bytes: 1}); n++ {
		if n > maxGaps {
			t.Fatalf("%d gaps", n)
		}
	}
	if n != maxGaps {
		t.Errorf("%d gaps are too many", n)
	}
	v.reset()
	for _, i := range rand.Perm(maxGaps) {
		if !v.add(Chunk{Offset: uint64(i), Bytes: 1}) {
			t.Fatal("a chunk is refused")
		}
	}
	if len(v.spans) != 1 || v.add(Chunk{Offset: ^uint64(0), Bytes: 2}) {
		t.Errorf("%d spans", len(v.spans))
	}
}

func BenchmarkCover(b *testing.B) {
	var v cover
	for i := range b.N {
		if i%4096 == 0 {
			v.reset()
		}
		v.add(Chunk{Offset: uint64(i%4096^3) << 20, Bytes: 1 << 20})
	}
}
