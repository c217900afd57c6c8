package residency

import (
	"testing"

	"pgregory.net/rapid"
)

// A block that the program uses in every round faults ever less, and without a round trip from the third round on.
func TestThrashing(t *testing.T) {
	for _, c := range []struct {
		prefers state
		before  int
	}{{noPlace, often}, {atCPU, 1}} {
		h := thrashing{prefers: c.prefers}
		faults, pinnings := 0, 0
		for i := range 1000 {
			how, fault, pinned := round(&h, true, i%2 == 0)
			if (how == stays) != (i < c.before) {
				t.Errorf("%+v: in round %d the block comes as %d", c, i, how)
			}
			if fault {
				faults++
			}
			if pinned {
				pinnings++
			}
		}
		if most := thrashes + 4 + 1000/pinMost; faults > most || pinnings > faults || pinnings < 1000/(pinMost+1) {
			t.Errorf("%+v: %d faults and %d pinnings in 1000 rounds, at most %d faults wanted", c, faults, pinnings, most)
		}
	}
}

// Whatever a program does, a block comes only after rounds in which it was used, and in vain no more often than it was
// used and no longer than a pinning and the look behind it; where it is to stay with the GPU it never comes.
func TestAnyThrashing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := thrashing{prefers: rapid.SampledFrom([]state{noPlace, atCPU, atGPU}).Draw(t, "prefers")}
		used, vain, inVain := 0, 0, 0
		for _, p := range rapid.SliceOfN(rapid.IntRange(1, 40), 1, 30).Draw(t, "phases") {
			uses, writes := rapid.Bool().Draw(t, "uses"), rapid.Bool().Draw(t, "writes")
			for range p {
				how, fault, _ := round(&h, uses, writes)
				switch {
				case how != stays && h.prefers == atGPU:
					t.Fatal("memory that prefers the GPU came")
				case how != stays && used == 0:
					t.Fatal("it came before it was ever used")
				case how == open && uses && fault:
					t.Fatal("a pinned block faulted")
				case how != stays && !uses:
					vain++
					inVain++
				}
				if uses {
					used++
					inVain = 0
				}
				if inVain > pinMost+1 || vain > 2*used {
					t.Fatalf("it came %d times in vain, %d of them in a row, and was used %d times", vain, inVain, used)
				}
			}
		}
	})
}

// What was asked for comes once, allowed; what the program goes through in order is not pinned.
func TestAskedAndStreamed(t *testing.T) {
	h := thrashing{asked: 1}
	if how, _, pinned := round(&h, false, false); how != open || pinned {
		t.Errorf("what was asked for came as %d", how)
	}
	if how, _, _ := round(&h, false, false); how != stays {
		t.Errorf("and then as %d", how)
	}
	for range 20 {
		round(&h, true, false)
	}
	streams(&h)
	if how, _, _ := round(&h, false, false); how != stays {
		t.Errorf("a block of a stream came as %d", how)
	}
}

// TestThrashingOfARun: blocks that a short run brings count as used; those of a long run do not thrash, from where it
// began, and large windows ahead do not count.
func TestThrashingOfARun(t *testing.T) {
	for _, c := range []struct {
		name          string
		brought       stretch
		first, window int
		ahead         []stretch
		used, cleared stretch // blocks whose rounds grow, and are forgotten; all others keep theirs
		begins        int
	}{
		{"one block", stretch{5, 1}, 5, 1, nil, stretch{5, 1}, stretch{}, 5},
		{"the largest node", stretch{0, nodeMax}, 0, nodeMax, nil, stretch{0, nodeMax}, stretch{}, 0},
		{"a window ahead", stretch{0, 2}, 0, 2, []stretch{{2, 16}}, stretch{0, 18}, stretch{}, 0},
		{"a large window ahead", stretch{0, 2}, 0, 2, []stretch{{2, nodeMax + 1}}, stretch{0, 2}, stretch{}, 0},
		{"a long run", stretch{70, 10}, 20, nodeMax + 1, nil, stretch{}, stretch{20, 60}, 80},
		{"behind it", stretch{70, 10}, 80, nodeMax + 1, nil, stretch{}, stretch{}, 80},
	} {
		blocks := make([]thrashing, 100)
		for i := range blocks {
			blocks[i].rounds = 1
		}
		if begins := thrashingRun(blocks, c.brought, c.first, c.window, c.ahead); begins != c.begins {
			t.Errorf("%s: the run begins at block %d, want %d", c.name, begins, c.begins)
		}
		for i, b := range blocks {
			want := 1
			switch {
			case i >= c.used.first && i < c.used.first+c.used.count:
				want = 2
			case i >= c.cleared.first && i < c.cleared.first+c.cleared.count:
				want = 0
			}
			if int(b.rounds) != want {
				t.Errorf("%s: block %d has %d rounds, want %d", c.name, i, b.rounds, want)
			}
		}
	}
}
