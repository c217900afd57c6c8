package timeline

import (
	"testing"

	"pgregory.net/rapid"
)

// TestClock: with whatever delays, offset and drift, a time of the server's is translated to within the error that is
// said to be the most. Where no way takes more than three times as long as the way back, whatever else waits on either,
// it is within the likely one. They are no more than a half and a quarter of the shortest round trip, and the drift
// until there.
func TestClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.Int64Range(-1e15, 1e15).Draw(t, "offset")
		ppm := rapid.Float64Range(-40, 40).Draw(t, "drift")
		fair := rapid.Bool().Draw(t, "fair")
		server := func(at int64) int64 { return at + offset + int64(float64(at)*ppm/1e6) }
		c := newClock()
		shortest := int64(1 << 62)
		ask := func(at, there, back, held int64) {
			c.question(at, at+there+held+back, server(at+there+held), held)
			shortest = min(shortest, there+back)
		}
		const way = 20e3
		for at := int64(1e9); at < 4e9; at += 1e8 {
			there, back := rapid.Int64Range(1, 1e6).Draw(t, "there"), rapid.Int64Range(1, 1e6).Draw(t, "back")
			if fair {
				there, back = there+way, back+3*way
			}
			ask(at, there, back, rapid.Int64Range(0, 1e6).Draw(t, "held"))
		}
		if fair {
			ask(4e9, way, 3*way, 0)
		}
		if !c.fit() {
			t.Fatal("nothing is known")
		}
		for at := int64(1e9); at < 4e9; at += 3e7 {
			got, likely, most := c.client(server(at))
			if off := max(got-at, at-got); off > most || (fair && off > likely) {
				t.Fatalf("%d is %d: wrong by %d, said to be %d or %d at most", at, got, off, likely, most)
			}
			if drifted := int64(4 * drift); likely > shortest/4+drifted || most > shortest/2+drifted {
				t.Fatalf("errors of %d and %d are said, the shortest round trip is %d", likely, most, shortest)
			}
		}
	})
}

// A clock that is set in between does not spoil what was before and after.
func TestClockIsSet(t *testing.T) {
	c := newClock()
	server := func(at int64) int64 {
		if at < 2e9 {
			return at + 1e12
		}
		return at + 1e12 + 1e9
	}
	for at := int64(1e9); at < 3e9; at += 1e8 {
		c.question(at, at+2000, server(at+1000), 0)
	}
	c.fit()
	for _, at := range []int64{1.2e9, 2.8e9} {
		if got, err, _ := c.client(server(at)); got < at-2000 || got > at+2000 || err > 2000+drift {
			t.Errorf("%d is %d, and may be wrong by %d", at, got, err)
		}
	}
}

func TestNoClock(t *testing.T) {
	c := newClock()
	c.after(5, 7)
	if c.fit() {
		t.Error("half a bound is enough")
	}
}
