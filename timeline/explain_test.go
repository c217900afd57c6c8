package timeline

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestExplain(t *testing.T) {
	reason := func(from, to int64, c Cause, detail string) Reason { return Reason{Span{from, to}, c, detail} }
	for _, c := range []struct {
		what     string
		from, to int64
		busy     []Span
		reasons  []Reason
		want     []Reason
	}{
		{"nothing known", 0, 10, nil, nil, []Reason{reason(0, 10, Program, "")}},
		{"no time", 5, 5, nil, []Reason{reason(0, 9, Server, "x")}, nil},
		{"always busy", 0, 10, []Span{{-5, 6}, {6, 20}}, []Reason{reason(0, 10, Server, "x")}, nil},
		{"busy in between, in any order", 0, 10, []Span{{7, 8}, {2, 4}, {3, 5}}, nil,
			[]Reason{reason(0, 2, Program, ""), reason(5, 7, Program, ""), reason(8, 10, Program, "")}},
		{"empty times are none", 0, 10, []Span{{4, 4}, {6, 3}}, []Reason{reason(5, 5, Server, "x")},
			[]Reason{reason(0, 10, Program, "")}},
		{"a wait, then the program", 0, 10, []Span{{0, 3}}, []Reason{reason(1, 5, Network, "answer")},
			[]Reason{reason(3, 5, Network, "answer"), reason(5, 10, Program, "")}},
		{"the server counts more than the network", 0, 10, nil,
			[]Reason{reason(0, 10, Network, "wait"), reason(3, 5, Server, "launch")},
			[]Reason{reason(0, 3, Network, "wait"), reason(3, 5, Server, "launch"), reason(5, 10, Network, "wait")}},
		{"others count most", 0, 10, []Span{{8, 10}},
			[]Reason{reason(2, 9, Others, "turn"), reason(0, 4, Server, "s"), reason(0, 9, Network, "n")},
			[]Reason{reason(0, 2, Server, "s"), reason(2, 8, Others, "turn")}},
		{"of one cause the first that began", 0, 10, nil,
			[]Reason{reason(2, 6, Network, "b"), reason(0, 4, Network, "a"), reason(0, 1, Network, "c")},
			[]Reason{reason(0, 4, Network, "a"), reason(4, 6, Network, "b"), reason(6, 10, Program, "")}},
		{"pieces of one kind are joined", 0, 10, nil,
			[]Reason{reason(0, 4, Network, "a"), reason(4, 10, Network, "a"), reason(5, 6, Network, "z")},
			[]Reason{reason(0, 10, Network, "a")}},
		{"but not over busy time", 0, 10, []Span{{4, 5}}, []Reason{reason(0, 10, Network, "a")},
			[]Reason{reason(0, 4, Network, "a"), reason(5, 10, Network, "a")}},
		{"reasons beyond both ends", 5, 10, nil, []Reason{reason(0, 7, Server, "s"), reason(9, 99, Network, "n")},
			[]Reason{reason(5, 7, Server, "s"), reason(7, 9, Program, ""), reason(9, 10, Network, "n")}},
	} {
		if got := Explain(c.from, c.to, c.busy, c.reasons); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v\nwant %v", c.what, got, c.want)
		}
	}
}

// TestExplainSums: for whatever intervals, gaps and busy time sum up to the whole, gaps are in order and do not touch
// busy time, and each ns has the cause that looking at every reason gives.
func TestExplainSums(t *testing.T) {
	span := rapid.Custom(func(t *rapid.T) Span {
		return Span{rapid.Int64Range(-5, 60).Draw(t, "from"), rapid.Int64Range(-5, 60).Draw(t, "to")}
	})
	reason := rapid.Custom(func(t *rapid.T) Reason {
		return Reason{span.Draw(t, "span"), Cause(rapid.IntRange(0, int(Others)).Draw(t, "cause")),
			fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "detail"))}
	})
	rapid.Check(t, func(t *rapid.T) {
		all := span.Draw(t, "all")
		busy, reasons := rapid.SliceOf(span).Draw(t, "busy"), rapid.SliceOf(reason).Draw(t, "reasons")
		before := slices.Clone(reasons)
		gaps := Explain(all.From, all.To, busy, reasons)
		if !slices.Equal(before, reasons) {
			t.Fatal("the reasons were changed")
		}
		cause := map[int64]Cause{}
		last := all.From
		for _, g := range gaps {
			if g.From < last || g.To <= g.From || g.To > all.To {
				t.Fatalf("%v after %d, of %v", g, last, all)
			}
			last = g.To
			for at := g.From; at < g.To; at++ {
				cause[at] = g.Cause
			}
		}
		contains := func(s Span, at int64) bool { return s.From <= at && at < s.To }
		for at := all.From; at < all.To; at++ {
			working := slices.ContainsFunc(busy, func(s Span) bool { return contains(s, at) })
			got, idle := cause[at]
			if working == idle {
				t.Fatalf("at %d: busy %v, and in a gap %v", at, working, idle)
			}
			want := Program
			for _, r := range reasons {
				if contains(r.Span, at) {
					want = max(want, r.Cause)
				}
			}
			if idle && got != want {
				t.Fatalf("at %d: %v, want %v", at, got, want)
			}
		}
	})
}
