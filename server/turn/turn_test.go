package turn

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scuda.dev/scuda/server/lease"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// program is a session of a made-up machine: it has work for a GPU for some time, and none for some time.
type program struct {
	party  Party
	gpus   uint64
	begins time.Duration
	works  time.Duration // of GPU time in a round; 0: for ever
	pauses time.Duration

	m       *Member
	left    time.Duration // of this round that was not handed over
	resumes time.Duration // the next round; negative: it goes on
	flight  time.Duration // of work that the GPU has
	handed  uint64
	done    time.Duration
	waiting time.Duration // since when, negative: not
	longest time.Duration
}

// Work that a worker hands over at most, while it paces itself and while it does not.
const (
	paced   = 500 * time.Microsecond
	brief   = 100 * time.Microsecond
	unpaced = 100 * time.Millisecond
	forever = 1 << 62
)

func (p *program) step(now time.Duration) {
	if p.left == 0 && p.flight == 0 {
		switch {
		case p.resumes < 0:
			p.resumes = now + p.pauses
			fallthrough
		case now < p.resumes:
		default:
			if p.left, p.resumes = p.works, -1; p.works == 0 {
				p.left = forever
			}
		}
	}
	word := p.m.Word()
	most := unpaced
	if word&Pace != 0 {
		most = paced
	}
	if word&Brief != 0 {
		most = brief
	}
	if p.left > 0 && word&Wait == 0 && p.flight < most {
		more := min(most-p.flight, p.left)
		p.left -= more
		p.flight += more
		p.handed++
	}
	doing := Doing(0)
	if word&Report != 0 {
		if p.flight > 0 {
			doing |= Busy
		}
		if p.left > 0 && word&Wait != 0 {
			doing |= Wants
		}
	}
	switch waits := p.left > 0 && p.flight == 0 && word&Wait != 0; {
	case waits && p.waiting < 0:
		p.waiting = now
	case !waits && p.waiting >= 0:
		p.longest = max(p.longest, now-p.waiting)
		p.waiting = -1
	}
	p.m.See(Seen{doing, p.handed, p.gpus})
}

// machine runs programs on GPUs whose driver lets sessions take turns evenly.
type machine struct {
	*Turns
	programs []*program
	now      time.Duration
	check    func(m *machine)
}

func newMachine(r Rules, list ...*program) *machine {
	m := &machine{Turns: New(r), programs: list}
	for _, p := range list {
		p.m = m.Join(p.party)
		p.waiting, p.resumes = -1, p.begins
		if p.gpus == 0 {
			p.gpus = 1
		}
	}
	return m
}

func (m *machine) run(d time.Duration) {
	const step = 100 * time.Microsecond
	for end := m.now + d; m.now < end; m.now += step {
		for _, p := range m.programs {
			p.step(m.now)
		}
		m.Look(start.Add(m.now))
		if m.check != nil {
			m.check(m)
		}
		for g := uint64(1); g < 8; g <<= 1 {
			m.execute(g, step)
		}
	}
}

// execute has a GPU work for a step: on what all who have work for it handed over, evenly.
func (m *machine) execute(gpu uint64, step time.Duration) {
	for left := step; left > 0; {
		users := []*program{}
		least := left
		for _, p := range m.programs {
			if p.gpus&gpu != 0 && p.flight > 0 {
				users = append(users, p)
				least = min(least, p.flight)
			}
		}
		if len(users) == 0 {
			return
		}
		part := max(min(least, left/time.Duration(len(users))), 1)
		for _, p := range users {
			p.flight -= part
			p.done += part
		}
		left -= part * time.Duration(len(users))
	}
}

func of(name string, c lease.Class, share uint32) *program {
	return &program{party: Party{name, c, share}}
}

func TestWeights(t *testing.T) {
	for _, shares := range [][]uint32{{300, 100}, {100, 300}, {100, 200, 300}, {1000, 100}, {150, 100}, {33, 100, 100}} {
		t.Run(fmt.Sprint(shares), func(t *testing.T) {
			var list []*program
			sum := uint32(0)
			for i, s := range shares {
				list = append(list, of(string(rune('a'+i)), lease.Normal, s))
				sum += s
			}
			m := newMachine(Usual, list...)
			m.run(4 * time.Second)
			for i, p := range list {
				got, want := p.done.Seconds()/4, float64(shares[i])/float64(sum)
				if math.Abs(got-want) > 0.05*want {
					t.Errorf("a share of %d of %d: %.3f of the time instead of %.3f", shares[i], sum, got, want)
				}
			}
		})
	}
}

// What sessions got in turns is all of the GPU's time, by shares; who got less has waited the longer.
func TestGot(t *testing.T) {
	large, small := of("a", lease.Normal, 300), of("b", lease.Normal, 100)
	other := of("c", lease.Normal, 100)
	other.gpus = 2 // nobody else uses it
	newMachine(Usual, large, small, other).run(4 * time.Second)
	a, b := large.m.Got(), small.m.Got()
	if all := a.GPU + b.GPU; math.Abs(all.Seconds()-4) > .1 || math.Abs(a.GPU.Seconds()/b.GPU.Seconds()-3) > .15 {
		t.Errorf("they got %v and %v of 4 s", a.GPU, b.GPU)
	}
	if a.Waited < 500*time.Millisecond || b.Waited < 2*a.Waited || a.Waited+b.Waited > 4*time.Second {
		t.Errorf("they waited for %v and %v", a.Waited, b.Waited)
	}
	if a.Taken != b.Taken || a.Taken < 3900*time.Millisecond || a.Taken > 4*time.Second {
		t.Errorf("turns were taken for %v and %v of 4 s", a.Taken, b.Taken)
	}
	if got := other.m.Got(); got != (Got{}) {
		t.Errorf("who took no turns: %+v", got)
	}
}

// The share is that of a tenant, however many sessions it has.
func TestWeightsOfParties(t *testing.T) {
	one, many := of("one", lease.Normal, 100), []*program{}
	for range 7 {
		many = append(many, of("many", lease.Normal, 100))
	}
	newMachine(Usual, append(many, one)...).run(4 * time.Second)
	if got := one.done.Seconds(); math.Abs(got-2) > 0.15 {
		t.Errorf("one session beside seven of another tenant had the GPU for %.2f of 4 s", got)
	}
}

// A program that pauses between its rounds gets what it wants if that is less than its share.
func TestPauses(t *testing.T) {
	p, other := of("a", lease.Normal, 300), of("b", lease.Normal, 100)
	p.works, p.pauses = 2*time.Millisecond, time.Millisecond
	newMachine(Usual, p, other).run(4 * time.Second)
	if got := p.done.Seconds(); got < 2.2 { // 2.7 alone
		t.Errorf("it works for %.2f of 4 s", got)
	}
	if got := other.done.Seconds(); got < 1 || p.done.Seconds()+got < 3.8 {
		t.Errorf("the other one has %.2f of 4 s, it has %.2f", got, p.done.Seconds())
	}
}

// What somebody did not use for long is no right to have the GPU alone later.
func TestNoSavings(t *testing.T) {
	late, other := of("a", lease.Normal, 100), of("b", lease.Normal, 200)
	late.begins = 20 * time.Second
	early := of("a", lease.Normal, 100) // of the same party, and works a little all the time
	early.works, early.pauses = 100*time.Microsecond, 10*time.Millisecond
	m := newMachine(Usual, late, early, other)
	m.run(20 * time.Second)
	before := other.done
	m.run(time.Second)
	if got := (other.done - before).Seconds(); got < 0.55 {
		t.Errorf("it had %.2f s of the second after another tenant came", got)
	}
}

// A high class beside a batch trainer: requests take little longer than alone, and the trainer has the rest.
func TestClasses(t *testing.T) {
	high, batch := of("high", lease.High, 100), of("batch", lease.Low, 100)
	high.works, high.pauses = 2*time.Millisecond, 8*time.Millisecond
	newMachine(Usual, high, batch).run(4 * time.Second)
	rounds := high.done.Seconds() / high.works.Seconds()
	if each := 4/rounds - high.pauses.Seconds(); each > 1.5*high.works.Seconds() {
		t.Errorf("a request of %v takes %.2f ms", high.works, 1000*each)
	}
	if got := batch.done.Seconds() / 4; got < 0.7 {
		t.Errorf("the batch has %.2f of the time", got)
	}
}

// Whoever waits behind a class that never rests has a window now and then.
func TestLongestWait(t *testing.T) {
	high, low := of("high", lease.High, 100), of("low", lease.Low, 100)
	m := newMachine(Usual, high, low)
	m.run(500 * time.Millisecond) // and what was handed over before anybody knew of the other
	before := low.done
	m.run(10 * time.Second)
	if got := low.longest; got > Usual.Longest+10*time.Millisecond {
		t.Errorf("it waited for %v", got)
	}
	if got := low.done - before; got < 8*Usual.Window || got > 30*Usual.Window {
		t.Errorf("it had the GPU for %v", got)
	}
	for i, c := range m.Counts() {
		if c.Class != classes[i] || (c.Turns > 0) != (c.Class != lease.Normal) || (c.Waited > 0) != (c.Turns > 0) {
			t.Errorf("%+v", c)
		}
	}
}

// Words are 0 while one works, while the driver does what is right, and between those who use different GPUs.
func TestFree(t *testing.T) {
	for name, list := range map[string][]*program{
		"one":            {of("a", lease.Normal, 100)},
		"one of two":     {of("a", lease.Normal, 100), {party: Party{"b", lease.High, 100}, begins: time.Hour}},
		"two alike":      {of("a", lease.Normal, 100), of("b", lease.Normal, 100)},
		"two of a party": {of("a", lease.Normal, 100), of("a", lease.Normal, 100)},
		"as many as are due": {of("a", lease.Normal, 200), of("a", lease.Normal, 200),
			of("b", lease.Normal, 100)},
		"GPUs of their own": {of("a", lease.Normal, 100), {party: Party{"b", lease.High, 100}, gpus: 2}},
		"no GPU":            {of("a", lease.Normal, 100), {party: Party{"b", lease.High, 100}, gpus: 1 << 40}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(Usual, list...)
			m.check = func(m *machine) {
				for i, p := range m.programs {
					if p.m.Word() != 0 && !t.Failed() {
						t.Errorf("after %v session %d is told %b", m.now, i, p.m.Word())
					}
				}
			}
			m.run(3 * time.Second)
		})
	}
}

// A class that came and went is forgotten, as is one whose sessions end.
func TestFreeAgain(t *testing.T) {
	batch, high := of("batch", lease.Low, 100), of("high", lease.High, 100)
	high.works, high.pauses = time.Millisecond, time.Hour
	m := newMachine(Usual, batch, high)
	m.run(Usual.Recent / 2)
	if w := batch.m.Word(); w != Report|Pace|Brief {
		t.Errorf("right after it: %b", w)
	}
	m.run(Usual.Recent)
	if w := batch.m.Word(); w != 0 {
		t.Errorf("long after it: %b", w)
	}
	if again := m.Look(start.Add(m.now)); again != Usual.Rest {
		t.Errorf("the next look is in %v", again)
	}
	m.Leave(high.m)
	if again := m.Look(start.Add(m.now)); again != 0 {
		t.Errorf("one session is left: the next look is in %v", again)
	}
}

// Sessions that say what they like stop nobody: the others have their turns.
func TestLiars(t *testing.T) {
	for name, says := range map[string]Seen{
		"always busy":  {Doing: Busy, GPUs: 1},
		"always wants": {Doing: Wants, GPUs: 1},
		"all GPUs":     {Doing: Busy | Wants, GPUs: math.MaxUint64, Handed: math.MaxUint64},
		"nonsense":     {Doing: math.MaxUint32, GPUs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			honest := of("honest", lease.Normal, 300)
			m := newMachine(Usual, honest)
			liar := m.Join(Party{"liar", lease.Normal, 100})
			m.check = func(*machine) { liar.See(says) }
			m.run(4 * time.Second)
			if got := honest.done.Seconds(); got < 2.8 {
				t.Errorf("the honest one had %.2f of 4 s", got)
			}
		})
	}
}

// Whatever programs do: of those who want a GPU one has it, nobody holds it who has nothing to do for longer than
// allowed, a class goes before lower ones, and nobody waits without end.
func TestTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []*program
		n := rapid.IntRange(1, 5).Draw(t, "programs")
		for range n {
			ms := func(from, to int, name string) time.Duration {
				return time.Duration(rapid.IntRange(from, to).Draw(t, name)) * time.Millisecond
			}
			list = append(list, &program{
				party: Party{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"),
					lease.Class(rapid.IntRange(-1, 1).Draw(t, "class")), uint32(rapid.IntRange(1, 1000).Draw(t, "share"))},
				gpus:   uint64(rapid.IntRange(1, 7).Draw(t, "GPUs")),
				begins: ms(0, 60, "begins"), works: ms(0, 20, "works"), pauses: ms(0, 20, "pauses"),
			})
		}
		rules := Usual
		rules.Longest, rules.Recent = 40*time.Millisecond, 30*time.Millisecond
		m := newMachine(rules, list...)
		m.check = func(m *machine) { checkWords(t, m) }
		m.run(200 * time.Millisecond)
		for i, p := range list {
			if p.waiting >= 0 {
				p.longest = max(p.longest, m.now-p.waiting)
			}
			if most := rules.Longest + time.Duration(n*2)*rules.Window; p.longest > most {
				t.Errorf("%d waited for %v", i, p.longest)
			}
		}
	})
}

func checkWords(t *rapid.T, m *machine) {
	for _, x := range m.order {
		if x.holds && !x.busy {
			t.Fatalf("%v: %+v holds the turn and has nothing to do", m.now, x.Party)
		}
		word := x.members[0].Word()
		if !x.rivals || !x.busy {
			continue
		}
		if x.holds == (word&Wait != 0) {
			t.Fatalf("%v: %+v has the turn: %v, and is told %b", m.now, x.Party, x.holds, word)
		}
		blocked := false
		for _, y := range m.order {
			if x == y || !y.rivals || x.gpus&y.gpus == 0 {
				continue
			}
			if x.holds && y.holds {
				t.Fatalf("%v: %+v and %+v have the turn of a GPU", m.now, x.Party, y.Party)
			}
			lingers := !y.busy && y.Class > x.Class && start.Add(m.now).Sub(y.active) < m.rules.Linger
			blocked = blocked || y.holds || lingers
		}
		if !x.holds && !blocked {
			t.Fatalf("%v: %+v wants the GPU, and nobody has it", m.now, x.Party)
		}
	}
}
