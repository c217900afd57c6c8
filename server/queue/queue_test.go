package queue

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scuda.dev/scuda/server/lease"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// enter puts requests into a queue, and says by which name each is known here.
func enter(t *testing.T, q *Queue, now time.Time, list ...Request) map[*Waiter]int {
	t.Helper()
	known := make(map[*Waiter]int)
	for i, r := range list {
		known[q.Enter(now, r)] = i
	}
	return known
}

func of(tenant string) Request { return Request{Tenant: tenant, Standing: Usual} }

func classed(tenant string, c lease.Class, weight float64) Request {
	return Request{Tenant: tenant, Standing: Standing{c, weight}}
}

func TestOrder(t *testing.T) {
	hour := start.Add(time.Hour)
	for name, c := range map[string]struct {
		before func(q *Queue)
		list   []Request
		want   []int
	}{
		"arrival": {func(*Queue) {}, []Request{of("a"), of("b"), of("a")}, []int{0, 1, 2}},
		"class before all": {func(q *Queue) { q.uses.begin("boss", start) },
			[]Request{classed("a", lease.Low, 1), classed("b", lease.Normal, 1), classed("boss", lease.High, 1)},
			[]int{2, 1, 0}},
		"use before arrival": {func(q *Queue) {
			q.uses.begin("a", start)
			q.Ended(start.Add(time.Minute), "a", time.Minute)
		}, []Request{of("a"), of("b")}, []int{1, 0}},
		"a running session counts": {func(q *Queue) { q.uses.begin("a", hour) }, []Request{of("a"), of("b")}, []int{1, 0}},
		"weight": {func(q *Queue) {
			q.uses.begin("a", start)
			q.Ended(start.Add(3*time.Minute), "a", 0)
			q.uses.begin("b", start)
			q.Ended(start.Add(2*time.Minute), "b", 0)
		}, []Request{classed("b", lease.Normal, 1), classed("a", lease.Normal, 2)}, []int{1, 0}},
		"no weight is one": {func(q *Queue) { q.uses.begin("a", start) },
			[]Request{classed("a", lease.Normal, 0), classed("b", lease.Normal, -1)}, []int{1, 0}},
		"long ago is forgotten": {func(q *Queue) {
			q.uses.begin("a", start)
			q.Ended(start.Add(10*time.Minute), "a", 0)
			q.uses.begin("b", start.Add(50*time.Minute))
			q.Ended(start.Add(59*time.Minute), "b", 0)
		}, []Request{of("b"), of("a")}, []int{1, 0}},
		"classes beyond the ends": {func(*Queue) {},
			[]Request{classed("a", -9, 1), classed("a", lease.Low, 1), classed("b", 9, 1)}, []int{2, 0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var q Queue
			c.before(&q)
			known := enter(t, &q, hour, c.list...)
			got := []int{}
			for _, w := range q.Waiting(hour) {
				got = append(got, known[w])
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, not %v", got, c.want)
			}
		})
	}
}

// Places that come free together go to different tenants.
func TestPlacesAreSpread(t *testing.T) {
	var q Queue
	known := enter(t, &q, start, of("a"), of("a"), of("a"), of("b"), of("b"))
	free := 4
	got := []int{}
	for _, w := range q.Admit(start, func(*Waiter) Verdict {
		if free == 0 {
			return Full
		}
		free--
		return Admitted
	}) {
		got = append(got, known[w])
	}
	if want := []int{0, 3, 1, 4}; !slices.Equal(got, want) || q.Len() != 1 {
		t.Errorf("%v and %d wait, not %v and 1", got, q.Len(), want)
	}
}

func TestOwnLimitsHoldNobodyUp(t *testing.T) {
	var q Queue
	known := enter(t, &q, start, of("a"), of("b"))
	got := q.Admit(start, func(w *Waiter) Verdict {
		if w.Tenant == "a" {
			return Own
		}
		return Admitted
	})
	if len(got) != 1 || known[got[0]] != 1 || q.Len() != 1 {
		t.Errorf("%d got a place, %d wait", len(got), q.Len())
	}
}

// Who needs little memory passes who needs much, and no more once that has lasted.
func TestBackfill(t *testing.T) {
	var q Queue
	known := enter(t, &q, start, of("big"), of("small"))
	try := func(w *Waiter) Verdict {
		if w.Tenant == "big" {
			return Memory
		}
		return Admitted
	}
	if got := q.Admit(start, try); len(got) != 1 || known[got[0]] != 1 {
		t.Fatalf("%d got a place beside the one that needs much", len(got))
	}
	later := start.Add(Patience - time.Second)
	enter(t, &q, later, of("small"))
	if got := q.Admit(later, try); len(got) != 1 {
		t.Errorf("%d got a place before the patience was over", len(got))
	}
	later = start.Add(Patience)
	enter(t, &q, later, of("small"))
	if got := q.Admit(later, try); len(got) != 0 {
		t.Errorf("%d got a place when the patience was over", len(got))
	}
	if got := q.Admit(later, func(*Waiter) Verdict { return Admitted }); len(got) != 2 || got[0].Tenant != "big" {
		t.Errorf("%d got a place when there was memory", len(got))
	}
}

// Nobody who waits for memory is kept waiting longer because of a time when others could not pass either.
func TestPatienceCountsFromTheFirstWhoPassed(t *testing.T) {
	var q Queue
	enter(t, &q, start, of("big"))
	try := func(w *Waiter) Verdict {
		if w.Tenant == "big" {
			return Memory
		}
		return Admitted
	}
	q.Admit(start, try)
	later := start.Add(2 * Patience)
	enter(t, &q, later, of("small"))
	if got := q.Admit(later, try); len(got) != 1 {
		t.Error("a place is kept for somebody whom nobody has passed")
	}
}

func TestLimits(t *testing.T) {
	a, b := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	from := func(tenant string, p netip.Prefix) Request { return Request{Tenant: tenant, Peer: p, Standing: Usual} }
	l := Limits{All: 3, Tenant: 2, Peer: 2}
	for name, c := range map[string]struct {
		list []Request
		want []bool
	}{
		"in all":  {[]Request{from("a", a), from("b", a), from("a", b), from("b", b)}, []bool{true, true, true, false}},
		"tenant":  {[]Request{from("a", a), from("a", b), from("a", b), from("b", b)}, []bool{true, true, false, true}},
		"address": {[]Request{from("a", a), from("b", a), from("c", a), from("c", b)}, []bool{true, true, false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var q Queue
			for i, r := range c.list {
				err := q.Room(r, l)
				if c.want[i] != (err == nil) || err != nil && !errors.Is(err, ErrFull) {
					t.Errorf("%d: %v", i, err)
				}
				if err == nil {
					q.Leave(q.Enter(start, r))
					q.Enter(start, r)
				}
			}
		})
	}
}

func TestLeave(t *testing.T) {
	var q Queue
	w := q.Enter(start, of("a"))
	if !q.Leave(w) || q.Leave(w) || q.Len() != 0 || len(q.tenants) != 0 || len(q.peers) != 0 {
		t.Errorf("%d wait, %d tenants, %d addresses", q.Len(), len(q.tenants), len(q.peers))
	}
}

func TestEstimate(t *testing.T) {
	var q Queue
	if d := q.lives.estimate(1, 4); d != 0 {
		t.Errorf("%v, and nobody has ended", d)
	}
	q.uses.begin("a", start)
	q.Ended(start.Add(time.Minute), "a", time.Minute)
	for _, c := range []struct {
		position, places int
		want             time.Duration
	}{{1, 1, time.Minute}, {1, 4, 15 * time.Second}, {4, 2, 2 * time.Minute}, {0, 1, 0}, {1, 0, 0}} {
		if got := q.lives.estimate(c.position, c.places); got != c.want {
			t.Errorf("%d of %d: %v, not %v", c.position, c.places, got, c.want)
		}
	}
	q.Ended(start, "a", 1<<62)
	if d := q.lives.estimate(1<<20, 1); d != longest {
		t.Errorf("%v is longer than %v", d, longest)
	}
}

func TestPositions(t *testing.T) {
	var q Queue
	q.Ended(start, "a", time.Minute)
	known := enter(t, &q, start, of("a"), classed("b", lease.High, 1), of("c"))
	q.Admit(start, func(w *Waiter) Verdict {
		if w.Tenant == "b" {
			return Own
		}
		return Full
	})
	want := map[int]Position{1: {1, 3, 0}, 0: {2, 3, time.Minute}, 2: {3, 3, time.Minute * 3 / 2}}
	got := map[int]Position{}
	for w, p := range q.Positions(start, 2) {
		got[known[w]] = p
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	if q.Count(lease.High) != 1 || q.Count(lease.Normal) != 2 || q.Count(lease.Low) != 0 {
		t.Error("classes are counted wrongly")
	}
}

// Use is the same however often it is looked at, and what makes no difference is forgotten.
func TestUse(t *testing.T) {
	var often, once uses
	often.begin("a", start)
	once.begin("a", start)
	now := start
	for range 600 {
		now = now.Add(time.Second)
		often.of("a", now)
	}
	if a, b := often.of("a", now), once.of("a", now); a-b > 1e-6 || b-a > 1e-6 || a < 500 || a > 630 {
		t.Errorf("%v and %v", a, b)
	}
	often.end("a", now)
	often.end("a", now)
	often.end("nobody", now)
	often.begin("b", now.Add(24*time.Hour))
	if len(often) != 1 {
		t.Errorf("%d tenants are known", len(often))
	}
	if often.of("b", start) != ahead { // a clock that goes back
		t.Error("use before its time")
	}
}

// Whatever comes and goes: the queue's counts are right, nobody of a lower class gets what one of a higher could have,
// nobody is lost, and whoever is admitted has its place.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue
		l := Limits{All: rapid.IntRange(1, 12).Draw(t, "all"), Tenant: 5, Peer: 6}
		places, taken := rapid.IntRange(1, 4).Draw(t, "places"), 0
		running := map[string]int{}
		in := map[*Waiter]bool{}
		now := start
		names := []string{"a", "b", "c"}
		try := func(w *Waiter) Verdict {
			switch {
			case taken == places:
				return Full
			case running[w.Tenant] == 2:
				return Own
			}
			taken++
			running[w.Tenant]++
			return Admitted
		}
		admit := func() {
			for _, w := range q.Admit(now, try) {
				if !in[w] {
					t.Fatal("somebody got a place who does not wait")
				}
				delete(in, w)
				for o := range in {
					if clamp(o.Class) > clamp(w.Class) && running[o.Tenant] < 2 {
						t.Fatalf("a place for %v while %v waits", w.Class, o.Class)
					}
				}
			}
			if taken < places {
				for w := range in {
					if running[w.Tenant] < 2 {
						t.Fatal("a place is free, and somebody waits who could have it")
					}
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				total := 0
				for _, n := range q.tenants {
					total += n
				}
				if q.Len() != len(in) || total != len(in) || len(q.Waiting(now)) != len(in) || q.Len() > l.All {
					t.Fatalf("%d wait, %d by tenants, %d are known", q.Len(), total, len(in))
				}
				seen := map[int]bool{}
				for _, p := range q.Positions(now, places) {
					seen[p.Place] = true
				}
				for i := range len(in) {
					if !seen[i+1] {
						t.Fatalf("nobody is number %d", i+1)
					}
				}
			},
			"enter": func(t *rapid.T) {
				r := classed(rapid.SampledFrom(names).Draw(t, "tenant"), lease.Class(rapid.IntRange(-2, 2).Draw(t, "class")),
					rapid.Float64Range(-1, 4).Draw(t, "weight"))
				room := q.Room(r, l)
				w := q.Enter(now, r)
				in[w] = true
				admit()
				if in[w] && room != nil {
					q.Leave(w)
					delete(in, w)
				}
			},
			"leave": func(t *rapid.T) {
				for w := range in {
					if !q.Leave(w) {
						t.Fatal("somebody who waits cannot leave")
					}
					delete(in, w)
					break
				}
				admit()
			},
			"end": func(t *rapid.T) {
				name := rapid.SampledFrom(names).Draw(t, "tenant")
				if running[name] > 0 {
					running[name]--
					taken--
					q.Ended(now, name, time.Second)
				}
				admit()
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "seconds")) * time.Second)
			},
		})
	})
}
