package timeline

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sort"
)

// Clock says how far a timeline's times of the server can be trusted, in ns.
type Clock struct {
	Offset   int64 // the server's clock less the client's, when it was first known
	Likely   int64 // by how much times may be wrong, if no way takes more than three times as long as the way back
	Most     int64 // likewise, however long either way takes
	Shortest int64 // way there and back
}

// join gives what is true of the times of two processes.
func (c Clock) join(d Clock) Clock {
	if c.Shortest == 0 || d.Shortest == 0 {
		return cmp.Or(c, d)
	}
	return Clock{c.Offset, max(c.Likely, d.Likely), max(c.Most, d.Most), min(c.Shortest, d.Shortest)}
}

// clock says how the server's clock stands to the client's. What is known are bounds: the server looked at its clock
// after something had been sent, or before something was received. In each window the offset lies between the highest
// lower and the lowest upper bound; between the middles of windows it is a straight line, which follows a drift.
//
// The bounds are apart by a way there and a way back. That neither takes less than a quarter of the shortest of both
// together is likely, and halves what the error may be.
type clock struct {
	windows  map[int64]*bounds
	knots    []knot
	shortest int64
}

// window is so short that clocks drift apart by 0.25 µs in it at most.
const window = 5e6

// bounds are those of the server's clock less the client's.
type bounds struct{ least, most int64 }

type knot struct {
	at          int64 // by the client's clock
	offset, err int64
}

func newClock() *clock { return &clock{windows: map[int64]*bounds{}} }

// after notes that the server's clock showed server at the client's time at, or later: the offset is at most their
// difference.
func (c *clock) after(at, server int64) { b := c.window(at); b.most = min(b.most, server-at) }

// before notes that it showed server at the client's time at, or earlier.
func (c *clock) before(at, server int64) { b := c.window(at); b.least = max(b.least, server-at) }

// question notes both of a question that came back with the server's clock after the server had had it in hand for so
// long.
func (c *clock) question(asked, answered, server, held int64) {
	c.after(asked, server-min(held, max(answered-asked, 0)))
	c.before(answered, server)
}

func (c *clock) window(at int64) *bounds {
	i := at / window
	b := c.windows[i]
	if b == nil {
		b = &bounds{math.MinInt64, math.MaxInt64}
		c.windows[i] = b
	}
	return b
}

// drift is by how much clocks run apart in a second: 50 µs, what quartzes are allowed.
const drift = 50e3

// fit makes the straight lines of what was noted. It says whether there was enough. What bounds one window bounds its
// neighbours, too, but for the drift; unless that contradicts what they know themselves, as where a clock was set.
func (c *clock) fit() bool {
	order := slices.Sorted(maps.Keys(c.windows))
	near := make([]bounds, len(order))
	for i, at := range order {
		near[i] = *c.windows[at]
	}
	pull := func(to, from int) {
		away := int64(math.Abs(float64(order[to]-order[from])) * window / 1e9 * drift)
		if l := near[from].least; l != math.MinInt64 {
			near[to].least = max(near[to].least, l-away)
		}
		if m := near[from].most; m != math.MaxInt64 {
			near[to].most = min(near[to].most, m+away)
		}
	}
	for i := 1; i < len(order); i++ {
		pull(i, i-1)
	}
	for i := len(order) - 2; i >= 0; i-- {
		pull(i, i+1)
	}
	for i, at := range order {
		b := near[i]
		if own := *c.windows[at]; b.least > b.most {
			b = own
		}
		if b.least == math.MinInt64 || b.most == math.MaxInt64 {
			continue
		}
		half := (b.most - b.least) / 2
		if ways := max(2*half, 1); c.shortest == 0 || ways < c.shortest {
			c.shortest = ways
		}
		c.knots = append(c.knots, knot{at*window + window/2, b.least + half, max(half, -half) + window*drift/1e9})
	}
	return len(c.knots) > 0
}

// client gives the client's time of one of the server's, and how wrong it may be: likely, and at most. fit has said
// yes.
func (c *clock) client(server int64) (at, likely, most int64) {
	at, most = c.place(server)
	return at, most - c.shortest/4, most
}

func (c *clock) place(server int64) (at, err int64) {
	i := sort.Search(len(c.knots), func(i int) bool { return c.knots[i].at+c.knots[i].offset > server })
	if i == 0 || i == len(c.knots) {
		k := c.knots[min(i, len(c.knots)-1)]
		at = server - k.offset
		return at, k.err + int64(math.Abs(float64(at-k.at))/1e9*drift)
	}
	a, b := c.knots[i-1], c.knots[i]
	share := float64(server-a.offset-a.at) / float64(max(b.at-a.at, 1))
	share = min(max(share, 0), 1)
	return server - a.offset - int64(share*float64(b.offset-a.offset)), max(a.err, b.err)
}
