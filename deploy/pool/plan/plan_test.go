package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"scuda.dev/scuda/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine has GPUs of kinds, whose UUIDs are its name and a number.
func machine(name string, kinds ...string) Server {
	s := Server{Address: name}
	for i, k := range kinds {
		s.GPUs = append(s.GPUs, GPU{fmt.Sprint(name, i), "NVIDIA " + k, 80 * config.GiB})
	}
	return s
}

func wants(id, tenant string, order int64, gpus int, kind string) Request {
	return Request{ID: id, Tenant: tenant, Order: order, Want: Want{GPUs: gpus, Kind: kind}}
}

// over is a request for GPUs of so many servers at most.
func over(servers int, r Request) Request {
	r.Servers = servers
	return r
}

func ids(list []Request) (names []string) {
	for _, r := range list {
		names = append(names, r.ID)
	}
	return names
}

func TestNext(t *testing.T) {
	two := []Server{machine("a", "H100", "H100"), machine("b", "H200", "H200", "L4")}
	for _, c := range []struct {
		name string
		st   State
		want map[string]string
	}{
		{"each kind has a queue of its own", State{Servers: two, Queue: []Request{
			wants("1", "x", 1, 2, "h100"), wants("2", "x", 2, 1, "h100"), wants("3", "x", 3, 2, "h200"),
		}}, map[string]string{"1": "[a0 a1]", "3": "[b0 b1]"}},
		{"one server has all that a program gets", State{Servers: two, Queue: []Request{wants("1", "x", 1, 4, "")}},
			map[string]string{}},
		{"what is leased or held is not free", State{Servers: []Server{{Address: "b", GPUs: two[1].GPUs,
			Leases: []Lease{{GPUs: []string{"b1"}}}}}, Held: []Held{{Server: "b", GPUs: []string{"b0"}},
			{Server: "a", GPUs: []string{"b2"}}}, Queue: []Request{wants("1", "x", 1, 1, "")}},
			map[string]string{"1": "[b2]"}},
		{"a lease without GPUs has all", State{Servers: []Server{{Address: "a", GPUs: two[0].GPUs, Leases: []Lease{{}}}},
			Queue: []Request{wants("1", "x", 1, 1, "")}}, map[string]string{}},
		{"who drains gets nobody", State{Servers: []Server{{Address: "a", GPUs: two[0].GPUs, Draining: true}},
			Queue: []Request{wants("1", "x", 1, 1, "")}}, map[string]string{}},
		{"whoever refused is not asked again", State{Servers: two, Queue: []Request{
			{ID: "1", Want: Want{GPUs: 2}, Except: []string{"b"}}, {ID: "2", Want: Want{GPUs: 1}, Except: []string{"a", "b"}},
		}}, map[string]string{"1": "[a0 a1]"}},
		{"memory", State{Servers: two, Queue: []Request{{ID: "1", Want: Want{GPUs: 1, Memory: 81 * config.GiB}},
			{ID: "2", Order: 1, Want: Want{GPUs: 1, Memory: 80 * config.GiB}}}}, map[string]string{"2": "[a0]"}},
		{"small ones go where the least is left", State{Servers: two, Held: []Held{{Server: "b", GPUs: []string{"b0", "b1"}}},
			Queue: []Request{wants("1", "x", 1, 1, "")}}, map[string]string{"1": "[b2]"}},
		{"who waits for many is not passed", State{Servers: two[:1], Held: []Held{{Server: "a", GPUs: []string{"a0"}}},
			Queue: []Request{wants("1", "x", 1, 2, ""), wants("2", "x", 2, 1, "")}}, map[string]string{}},
		{"several servers", State{Servers: two, Queue: []Request{over(2, wants("1", "x", 1, 4, "")),
			wants("2", "x", 2, 1, "")}}, map[string]string{"1": "[a0] [b0 b1 b2]", "2": "[a1]"}},
		{"no more of them than are wanted", State{Servers: append(two, machine("c", "H100")), Queue: []Request{
			over(2, wants("1", "x", 1, 3, "h100")), over(2, wants("2", "x", 2, 6, "")), over(3, wants("3", "x", 3, 3, "")),
		}}, map[string]string{"1": "[a0 a1] [c0]", "3": "[b0 b1 b2]"}},
		{"one server before several", State{Servers: two, Queue: []Request{over(2, wants("1", "x", 1, 2, "")),
			over(9, wants("2", "x", 2, 3, ""))}}, map[string]string{"1": "[a0 a1]", "2": "[b0 b1 b2]"}},
		{"what is left is of where the least is left", State{Servers: append(two, machine("c", "L4")),
			Queue: []Request{over(2, wants("1", "x", 1, 4, ""))}}, map[string]string{"1": "[b0 b1 b2] [c0]"}},
		{"who waits for several keeps GPUs of several", State{Servers: two, Held: []Held{{Server: "a", GPUs: []string{"a0"}},
			{Server: "b", GPUs: []string{"b2"}}}, Queue: []Request{over(2, wants("1", "x", 1, 4, "")),
			wants("2", "x", 2, 1, "")}}, map[string]string{}},
		{"and not of more", State{Servers: append(two, machine("c", "L4", "L4")), Held: []Held{
			{Server: "b", GPUs: []string{"b0", "b1"}}}, Queue: []Request{over(2, wants("1", "x", 1, 5, "")),
			wants("2", "x", 2, 1, "")}}, map[string]string{"2": "[c0]"}},
		{"of two that wait for the same the first has it", State{Servers: two, Queue: []Request{
			over(2, wants("1", "x", 1, 4, "H")), over(2, wants("2", "x", 2, 3, "H")), wants("3", "x", 3, 1, "L4"),
		}}, map[string]string{"1": "[a0 a1] [b0 b1]", "3": "[b2]"}},
		{"what could never be keeps nothing", State{Servers: two, Queue: []Request{over(2, wants("1", "x", 1, 6, "")),
			over(1<<40, wants("2", "x", 2, 1<<40, "")), over(-1, wants("3", "x", 3, -1, "")), over(2, wants("4", "x", 4, 5, "")),
		}}, map[string]string{"4": "[a0 a1] [b0 b1 b2]"}},
		{"but on other servers", State{Servers: two, Held: []Held{{Server: "a", GPUs: []string{"a0"}}},
			Queue: []Request{wants("1", "x", 1, 2, "h100"), wants("2", "x", 2, 1, "")}}, map[string]string{"2": "[b0]"}},
	} {
		got := map[string]string{}
		for id, p := range c.st.Next() {
			for _, part := range p {
				got[id] = strings.TrimSpace(got[id] + " " + fmt.Sprint(part.GPUs))
			}
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
}

// Tenants take turns: who has many requests does not hold up who has one.
func TestSorted(t *testing.T) {
	queue := []Request{
		wants("a1", "a", 1, 1, ""), wants("a2", "a", 2, 1, ""), wants("a3", "a", 3, 1, ""), wants("b1", "b", 4, 1, ""),
		wants("c1", "c", 5, 1, ""), wants("b2", "b", 6, 1, ""),
	}
	for _, c := range []struct {
		turns map[string]int64
		want  string
	}{
		{nil, "[a1 b1 c1 a2 b2 a3]"},
		{map[string]int64{"a": 9}, "[b1 c1 a1 b2 a2 a3]"},
		{map[string]int64{"a": 7, "b": 9, "c": 8}, "[a1 c1 b1 a2 b2 a3]"},
	} {
		st := State{Queue: queue, Turns: c.turns}
		if got := fmt.Sprint(ids(st.Sorted())); got != c.want {
			t.Errorf("%v: %s, not %s", c.turns, got, c.want)
		}
	}
}

// world is a pool in which programs come, run and end.
type world struct {
	*rapid.T
	State
	clock int64
}

func (w *world) add(tenants []string, most int) {
	w.clock++
	q := wants(fmt.Sprint(w.clock), rapid.SampledFrom(tenants).Draw(w.T, "tenant"), w.clock,
		rapid.IntRange(1, most).Draw(w.T, "gpus"), rapid.SampledFrom([]string{"", "h100", "H2"}).Draw(w.T, "kind"))
	q.Servers = rapid.IntRange(0, 3).Draw(w.T, "over")
	if w.Could(&q) {
		w.Queue = append(w.Queue, q)
	}
}

// round lets those start that may, and the one end that has run the longest.
func (w *world) round() {
	for id, place := range w.Next() {
		i := slices.IndexFunc(w.Queue, func(q Request) bool { return q.ID == id })
		for n, p := range place {
			for _, h := range w.Held {
				if slices.ContainsFunc(p.GPUs, func(g string) bool { return slices.Contains(h.GPUs, g) }) {
					w.Fatalf("%s gets %v, and %s has %v", id, p.GPUs, h.Lease, h.GPUs)
				}
			}
			if n > 0 && place[n-1].Server >= p.Server || len(p.GPUs) == 0 {
				w.Fatalf("%s gets %v", id, place)
			}
		}
		gets := 0
		for _, p := range place {
			w.Held = append(w.Held, Held{Server: p.Server, Lease: id, GPUs: p.GPUs})
			gets += len(p.GPUs)
		}
		if gets != w.Queue[i].GPUs || len(place) > max(w.Queue[i].Servers, 1) {
			w.Fatalf("%s gets %v", id, place)
		}
		w.clock++
		w.Turns[w.Queue[i].Tenant] = w.clock
		w.Queue = slices.Delete(w.Queue, i, i+1)
	}
	if len(w.Held) > 0 {
		oldest := w.Held[0].Lease
		w.Held = slices.DeleteFunc(w.Held, func(h Held) bool { return h.Lease == oldest })
	} else if len(w.Queue) > 0 {
		w.Fatalf("everything is free, and %v wait", ids(w.Queue))
	}
}

// Whatever comes and goes, nobody gets what another has. And whoever waits is served, though others come all the time
// that want less and could be served at once.
func TestNobodyWaitsForEver(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := &world{T: r, State: State{Turns: map[string]int64{}}}
		for i := range rapid.IntRange(1, 3).Draw(r, "servers") {
			w.Servers = append(w.Servers, machine(string(rune('a'+i)), rapid.SliceOfN(
				rapid.SampledFrom([]string{"H100", "H200"}), 1, 4).Draw(r, "kinds")...))
		}
		for range 20 {
			w.add([]string{"x", "y", "z"}, 8)
			w.add([]string{"x", "y", "z"}, 8)
			w.round()
		}
		waited := ids(w.Queue)
		for rounds := 4 * (len(waited) + 12); ; rounds-- {
			left := slices.DeleteFunc(ids(w.Queue), func(id string) bool { return !slices.Contains(waited, id) })
			if len(left) == 0 {
				return
			}
			if rounds == 0 {
				r.Fatalf("of %v still wait %v", waited, left)
			}
			for range 3 {
				w.add([]string{"z"}, 1)
			}
			w.round()
		}
	})
}

// What is kept for a request that waits is as much as can be.
func TestKeep(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		q := Request{Want: Want{GPUs: rapid.IntRange(1, 12).Draw(r, "gpus"), Servers: rapid.IntRange(0, 4).Draw(r, "over")}}
		var options, have []Part
		for i, gpus := range rapid.SliceOfN(rapid.IntRange(1, 4), 1, 6).Draw(r, "all") {
			all := machine(fmt.Sprint(i), make([]string, gpus)...)
			options = append(options, Part{all.Address, q.fitting(&all)})
			free := rapid.IntRange(0, gpus).Draw(r, "free")
			have = append(have, Part{all.Address, options[i].GPUs[:free]})
		}
		if fit(have, &q) != nil {
			return
		}
		most := -1
		for set := range 1 << len(options) {
			n, could, free := 0, 0, 0
			for i := range options {
				if set>>i&1 == 1 {
					n, could, free = n+1, could+len(options[i].GPUs), free+len(have[i].GPUs)
				}
			}
			if n <= max(q.Servers, 1) && could >= q.GPUs {
				most = max(most, free)
			}
		}
		kept, got := keep(options, have, &q), -1
		for _, p := range kept {
			got = max(got, 0) + len(p.GPUs)
		}
		if got != most || len(kept) > max(q.Servers, 1) || (kept == nil) != (fit(options, &q) == nil) {
			r.Fatalf("of %v, free %v, it keeps %v: %d, not %d", options, have, kept, got, most)
		}
	})
}
