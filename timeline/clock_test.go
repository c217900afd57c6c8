package timeline

import (
	"testing"

	"pgregory.net/rapid"
)

// TestClock: with whatever delays, offset and drift, a time of the server's is translated to within the error that is
// said, and that is no more than half of the shortest round trip near it and the drift until there.
func TestClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.Int64Range(-1e15, 1e15).Draw(t, "offset")
		ppm := rapid.Float64Range(-40, 40).Draw(t, "drift")
		server := func(at int64) int64 { return at + offset + int64(float64(at)*ppm/1e6) }
		c := newClock()
		shortest := int64(1 << 62)
		for at := int64(1e9); at < 4e9; at += 1e8 {
			there, back := rapid.Int64Range(1, 1e6).Draw(t, "there"), rapid.Int64Range(1, 1e6).Draw(t, "back")
			c.after(at, server(at+there))
			c.before(at+there+back, server(at+there))
			shortest = min(shortest, there+back)
		}
		if !c.fit() {
			t.Fatal("nothing is known")
		}
		for at := int64(1e9); at < 4e9; at += 3e7 {
			got, err := c.client(server(at))
			if off := got - at; off < -err || off > err {
				t.Fatalf("%d is %d: wrong by %d, said to be %d at most", at, got, off, err)
			}
			if most := shortest/2 + 4*drift; err > most {
				t.Fatalf("an error of %d is said, want %d at most", err, most)
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
		c.after(at, server(at+1000))
		c.before(at+2000, server(at+1000))
	}
	c.fit()
	for _, at := range []int64{1.2e9, 2.8e9} {
		if got, err := c.client(server(at)); got < at-2000 || got > at+2000 || err > 2000+drift {
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
