package turn

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"scuda.dev/scuda/server/lease"
)

// Rules are times. [Usual] are those of a server.
type Rules struct {
	Window  time.Duration // of GPU time, by which who has the turn gets ahead of others
	Linger  time.Duration // for which a higher class keeps its turn while it has nothing to do
	Recent  time.Duration // for which a party counts after its last work
	Longest time.Duration // for which nobody waits without a turn of one window

	Tick, Rest time.Duration // between two looks while turns are taken, and while that may begin
}

// Usual are the rules of a server.
var Usual = Rules{
	Window: 5 * time.Millisecond, Linger: 300 * time.Microsecond, Recent: 2 * time.Second, Longest: time.Second,
	Tick: 100 * time.Microsecond, Rest: 5 * time.Millisecond,
}

// Party is who takes turns: a tenant or a lease, with its rights.
type Party struct {
	Name  string
	Class lease.Class
	Share uint32
}

// Turns is who takes turns, and what they have used.
type Turns struct {
	rules   Rules
	parties map[Party]*party
	order   []*party // the same, who is next as of the last look first
	users   [GPUs]int
	first   []*party  // who has a turn, or keeps it for a moment
	last    time.Time // look
	number  uint64    // of the last party
	counts  [len(classes)]Count
}

var classes = [...]lease.Class{lease.Low, lease.Normal, lease.High}

// Count is what has come of the turns of a class.
type Count struct {
	Class  lease.Class
	Turns  uint64
	Waited time.Duration // of all that waited, until they had the turn or wanted it no more
}

// Got is what has come of the turns of a session.
type Got struct {
	GPU    time.Duration // of a GPU's time that it got while turns were taken: its part where several had work there
	Waited time.Duration // with work to hand over, for its turn
	Taken  time.Duration // in which its party took turns with others, whether it had work or not
}

// Member is a session.
type Member struct {
	party  *party
	got    Got
	was    Seen      // as of the last look
	seen   Seen      // now
	recent time.Time // when it last had work; zero: never
	word   Word
}

// Word is what the session's worker is to be told.
func (m *Member) Word() Word { return m.word }

// Got is what has come of the session's turns so far.
func (m *Member) Got() Got { return m.got }

// See says what the worker says.
func (m *Member) See(s Seen) { m.seen = s }

// party is a party with its sessions.
type party struct {
	Party
	weight  float64
	number  uint64
	members []*Member

	used    float64   // nanoseconds of GPU time for its weight
	turn    float64   // the same, of this turn
	active  time.Time // when it last had something to do; zero: never
	busy    bool      // it has something to do
	fresh   bool      // ... and had not at the look before
	recents int       // sessions that count
	gpus    uint64    // of those
	rivals  bool      // it takes turns with others
	paced   bool      // ... some of whom are not of a lower class
	brief   bool      // ... and some of a higher one
	holds   bool      // it has the turn
	waits   time.Time // since when it waits for the turn; zero: it does not
	overdue bool      // it has waited for too long, until it has had a window
}

// New gives turns that nobody takes yet.
func New(r Rules) *Turns {
	t := &Turns{rules: r, parties: make(map[Party]*party)}
	for i, c := range classes {
		t.counts[i].Class = c
	}
	return t
}

// Join adds a session of a party.
func (t *Turns) Join(p Party) *Member {
	p.Class, p.Share = max(lease.Low, min(p.Class, lease.High)), max(p.Share, 1)
	x := t.parties[p]
	if x == nil {
		t.number++
		x = &party{Party: p, weight: float64(p.Share) / lease.UsualShare, number: t.number}
		t.parties[p] = x
		t.order = append(t.order, x)
	}
	m := &Member{party: x}
	x.members = append(x.members, m)
	return m
}

// Leave takes a session away.
func (t *Turns) Leave(m *Member) {
	x := m.party
	x.members = slices.DeleteFunc(x.members, func(o *Member) bool { return o == m })
	if len(x.members) == 0 {
		delete(t.parties, x.Party)
		t.order = slices.DeleteFunc(t.order, func(o *party) bool { return o == x })
	}
}

// Counts is what has come of turns, by class.
func (t *Turns) Counts() []Count { return t.counts[:] }

// Look decides anew what each session is to be told, after all of them have been seen. It says when the next look is
// due; 0: not before somebody joins.
func (t *Turns) Look(now time.Time) (again time.Duration) {
	t.charge(now)
	for _, x := range t.order {
		t.notice(x, now)
	}
	taken := false
	for _, x := range t.order {
		t.compare(x, now)
		taken = taken || x.rivals && x.busy
	}
	for _, x := range t.order {
		t.catchUp(x)
	}
	slices.SortFunc(t.order, t.before)
	t.grant(now)
	switch t.last = now; {
	case taken:
		return t.rules.Tick
	case len(t.order) > 1:
		return t.rules.Rest
	}
	return 0
}

// charge books the time since the last look on those who used the GPUs then.
func (t *Turns) charge(now time.Time) {
	passed := max(now.Sub(t.last), 0)
	if t.last.IsZero() {
		return
	}
	t.note(passed)
	t.users = [GPUs]int{}
	t.eachUser(func(_ *party, _ *Member, gpus uint64) {
		for ; gpus != 0; gpus &= gpus - 1 {
			t.users[bits.TrailingZeros64(gpus)]++
		}
	})
	t.eachUser(func(x *party, m *Member, gpus uint64) {
		most := 1
		for ; gpus != 0; gpus &= gpus - 1 {
			most = max(most, t.users[bits.TrailingZeros64(gpus)])
		}
		part := float64(passed) / float64(most)
		m.got.GPU += time.Duration(part)
		x.turn += part
		x.used += part / x.weight
	})
}

// note books the time since the last look on those who took turns then, and those of them who waited.
func (t *Turns) note(passed time.Duration) {
	for _, x := range t.order {
		if !x.rivals {
			continue
		}
		for _, m := range x.members {
			m.got.Taken += passed
			if m.was.Doing&Wants != 0 && m.word&Wait != 0 {
				m.got.Waited += passed
			}
		}
	}
}

// eachUser gives the sessions that used GPUs since the last look. Who has the turn, and wants to use it, uses it.
func (t *Turns) eachUser(f func(x *party, m *Member, gpus uint64)) {
	for _, x := range t.order {
		if !x.rivals {
			continue
		}
		for _, m := range x.members {
			if m.was.Doing&Busy != 0 || x.holds && m.was.Doing != 0 {
				f(x, m, m.was.GPUs)
			}
		}
	}
}

// notice notes what the sessions of a party say.
func (t *Turns) notice(x *party, now time.Time) {
	before := x.busy
	x.busy, x.recents, x.gpus = false, 0, 0
	for _, m := range x.members {
		if m.seen.Doing != 0 || m.seen.Handed != m.was.Handed {
			m.recent = now
		}
		m.was = m.seen
		x.busy = x.busy || m.seen.Doing != 0
		if !m.recent.IsZero() && now.Sub(m.recent) < t.rules.Recent {
			x.recents++
			x.gpus |= m.seen.GPUs
		}
	}
	if x.fresh = x.busy && !before; x.busy {
		x.active = now
	} else {
		t.endWait(x, now)
		x.holds, x.overdue = false, false
	}
	if x.holds && x.turn >= float64(t.rules.Window) {
		x.overdue = false
	}
}

// compare finds out whether a party takes turns with others.
func (t *Turns) compare(x *party, now time.Time) {
	x.rivals, x.paced, x.brief = false, false, false
	for _, y := range t.order {
		if x.gpus == 0 {
			break
		}
		if x != y && x.gpus&y.gpus != 0 && !x.even(y) {
			x.rivals = true
			x.paced = x.paced || y.Class >= x.Class
			x.brief = x.brief || y.Class > x.Class
		}
	}
	if !x.rivals {
		t.endWait(x, now)
		x.holds, x.overdue = false, false
	}
}

// even says whether a driver treats two parties as they are entitled to: each session alike.
func (x *party) even(y *party) bool {
	return x.Class == y.Class && uint64(x.Share)*uint64(y.recents) == uint64(y.Share)*uint64(x.recents)
}

// catchUp has a party that has something to do again forget most of what it did not use meanwhile.
func (t *Turns) catchUp(x *party) {
	if !x.fresh || !x.rivals {
		return
	}
	least, found := 0.0, false
	for _, y := range t.order {
		if y.busy && !y.fresh && y.rivals && y.Class == x.Class && y.gpus&x.gpus != 0 {
			kept := keptWindows * float64(t.rules.Window) / min(x.weight, y.weight)
			if !found || y.used-kept < least {
				least, found = y.used-kept, true
			}
		}
	}
	if found {
		x.used = max(x.used, least)
	}
}

// keptWindows is how many windows a party keeps that it did not use.
const keptWindows = 10

// before sorts parties by their rights to the turn.
func (t *Turns) before(a, b *party) int {
	return cmp.Or(
		-compareBool(a.overdue, b.overdue),
		cmp.Compare(b.Class, a.Class),
		cmp.Compare(t.lead(a), t.lead(b)),
		cmp.Compare(a.number, b.number),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// lead is what a party has used for its weight. Who has the turn keeps it for a window more.
func (t *Turns) lead(x *party) float64 {
	if x.holds {
		return x.used - float64(t.rules.Window)/x.weight
	}
	return x.used
}

// grant gives the turn of each GPU to the first who has something to do there, and every session its word.
func (t *Turns) grant(now time.Time) {
	t.first = t.first[:0]
	for _, x := range t.order {
		word := Word(0)
		if x.rivals {
			if word = Report; x.paced {
				word |= Pace
			}
			if x.brief {
				word |= Brief
			}
			if t.isBehind(x) {
				word |= Wait
			}
			t.give(x, word&Wait == 0, now)
		}
		for _, m := range x.members {
			m.word = word
		}
	}
}

// isBehind says whether somebody else has the turn of a GPU that a party uses, or keeps it for a moment. Who has
// nothing to do need not ask for a turn first, unless that would disturb a higher class.
func (t *Turns) isBehind(x *party) bool {
	return slices.ContainsFunc(t.first, func(y *party) bool {
		switch {
		case y.gpus&x.gpus == 0:
			return false
		case y.busy && x.busy:
			return true
		}
		return y.Class > x.Class && !x.overdue
	})
}

// give lets a party have the turn, or wait for it, if it has something to do.
func (t *Turns) give(x *party, turn bool, now time.Time) {
	switch {
	case !x.busy:
		if turn && now.Sub(x.active) < t.rules.Linger {
			t.first = append(t.first, x)
		}
	case turn:
		t.first = append(t.first, x)
		if !x.holds {
			x.holds, x.turn = true, 0
			t.counts[x.Class-lease.Low].Turns++
		}
		t.endWait(x, now)
	default:
		x.holds = false
		if x.waits.IsZero() {
			x.waits = now
		}
		x.overdue = x.overdue || now.Sub(x.waits) >= t.rules.Longest
	}
}

func (t *Turns) endWait(x *party, now time.Time) {
	if !x.waits.IsZero() {
		t.counts[x.Class-lease.Low].Waited += now.Sub(x.waits)
		x.waits = time.Time{}
	}
}
