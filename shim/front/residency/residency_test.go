package residency

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func (r *ranges) mark(s stretch, to state) {
	for i := range s.count {
		r.state[s.first+i] = to
	}
}

// arrive is what the fetchers do with a window.
func (r *ranges) arrive(s stretch) {
	r.mark(s, clean)
	r.state[s.first] = ready
}

// Whatever state a range is in, a fault brings blocks of one state around it, and what is asked for ahead are other
// blocks that the GPU has.
func TestAnyState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 700).Draw(t, "blocks")
		mostly := rapid.SampledFrom([]state{fresh, away, ready, clean, dirty}).Draw(t, "mostly")
		r := &ranges{state: slices.Repeat([]state{mostly}, n)}
		for range rapid.IntRange(0, 40).Draw(t, "pieces") {
			from := rapid.IntRange(0, n-1).Draw(t, "from")
			r.mark(stretch{from, rapid.IntRange(1, n-from).Draw(t, "long")},
				rapid.SampledFrom([]state{fresh, away, busy, ready, clean, dirty}).Draw(t, "state"))
		}
		at := 0
		for range rapid.IntRange(1, 60).Draw(t, "faults") {
			if rapid.IntRange(0, 3).Draw(t, "jump") == 0 {
				at = rapid.IntRange(0, n-1).Draw(t, "at")
			}
			at = min(at, n-1)
			was := r.state[at]
			if was == busy { // faults wait for these
				at++
				continue
			}
			room := rapid.IntRange(0, 6).Draw(t, "room")
			now, ahead := r.fault(at, room)
			if at < now.first || at >= now.first+now.count || now.first < 0 || now.first+now.count > n || now.count > windowMax {
				t.Fatalf("a fault at block %d of %d brings %v", at, n, now)
			}
			for i := range now.count {
				if r.state[now.first+i] != was {
					t.Fatalf("a fault at block %d in state %d brings %v, with one in state %d", at, was, now, r.state[now.first+i])
				}
			}
			if len(ahead) > room || len(ahead) > aheadMax {
				t.Fatalf("%d windows where there is room for %d", len(ahead), room)
			}
			behind := now.first + now.count
			for _, w := range ahead {
				if w.first < behind || w.count < 1 || w.count > windowMax || w.first+w.count > n {
					t.Fatalf("%v is asked for ahead of %v: %v", w, now, ahead)
				}
				behind = w.first + w.count
				for i := range w.count {
					if r.state[w.first+i] != away {
						t.Fatalf("%v is asked for ahead, with a block in state %d", w, r.state[w.first+i])
					}
				}
			}
			r.mark(now, clean)
			for _, w := range ahead {
				if rapid.Bool().Draw(t, "there") {
					r.arrive(w)
				} else {
					r.mark(w, busy)
				}
			}
			at = now.first + now.count
		}
	})
}

// read goes through blocks in an order and gives the number of faults and of blocks fetched, each of which counts once.
func read(t *testing.T, r *ranges, order []int) (faults, fetched int) {
	t.Helper()
	for _, b := range order {
		if r.state[b] == clean {
			continue
		}
		faults++
		was := r.state[b]
		now, ahead := r.fault(b, aheadMax)
		if was == away {
			fetched += now.count
		}
		r.mark(now, clean)
		for _, w := range ahead {
			fetched += w.count
			r.arrive(w)
		}
	}
	return faults, fetched
}

func upTo(n, step int) (order []int) {
	for i := 0; i < n; i += step {
		order = append(order, i)
	}
	return order
}

func TestPatterns(t *testing.T) {
	const blocks = 4096 // 256 MiB
	random := rand.New(rand.NewPCG(1, 2)).Perm(blocks)
	backwards := upTo(blocks, 1)
	slices.Reverse(backwards)
	scattered := slices.DeleteFunc(slices.Clone(random), func(b int) bool { return b%100 != 0 })
	var two []int // readers that take turns
	for i := range blocks / 2 {
		two = append(two, i, blocks/2+i)
	}
	for _, c := range []struct {
		name         string
		order        []int
		faults, most int // at most; blocks that are fetched, at most
	}{
		{"one after the other", upTo(blocks, 1), blocks/windowMax + 10, blocks},
		{"every other", upTo(blocks, 2), blocks/windowMax + 20, blocks},
		{"the first 64 KiB", upTo(1, 1), 1, 1},
		{"the first 192 KiB", upTo(3, 1), 2, 3},
		{"two readers", two, blocks/windowMax + 20, blocks},
		{"backwards", backwards, blocks, blocks},
		{"in random order", random, blocks, blocks},
		{"here and there", scattered, len(scattered), len(scattered)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &ranges{state: slices.Repeat([]state{away}, blocks)}
			faults, fetched := read(t, r, c.order)
			if faults > c.faults || fetched > c.most || fetched < len(c.order) && c.name != "every other" {
				t.Errorf("%d faults, at most %d wanted; %d blocks fetched, at most %d wanted", faults, c.faults, fetched, c.most)
			}
			for _, b := range c.order {
				if r.state[b] != clean {
					t.Fatalf("block %d was read and is in state %d", b, r.state[b])
				}
			}
		})
	}
}

// A node of the tree comes as a whole once more than half of it is here.
func TestTree(t *testing.T) {
	for _, c := range []struct {
		name string
		here []int
		at   int
		want stretch
	}{
		{"nothing is here", nil, 40, stretch{40, 1}},
		{"the neighbour", []int{40}, 41, stretch{41, 1}},
		{"half of four", []int{40}, 42, stretch{42, 1}},
		{"three of four", []int{40, 41}, 42, stretch{42, 2}},
		{"13 of 32", append(upTo(8, 1), upTo(16, 2)[4:]...), 31, stretch{31, 1}},
		{"a whole half", upTo(16, 1), 20, stretch{16, 16}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &ranges{state: slices.Repeat([]state{away}, 128)}
			for _, b := range c.here {
				r.state[b] = clean
			}
			if now, _ := r.fault(c.at, 0); now != c.want {
				t.Errorf("a fault at %d brings %v, want %v", c.at, now, c.want)
			}
		})
	}
}
