// Package plan says who of those that wait for GPUs of a pool is next, and on which servers. It is pure: it is told
// what there is ([State]) and answers where requests may go now ([State.Next]). All who wait look at the same state and
// come to the same answer, so nobody has to be asked. An answer that is wrong, because the state was old, does no harm:
// the server itself says whether GPUs are free.
//
// Requests are in one queue: first the tenant that was served the longest ago, of one tenant the oldest first. A
// request that finds no place keeps GPUs of the server that has most of what it needs, or of the servers where it may
// have several: nobody behind it gets these. So those that want many GPUs are not passed for ever by those that want
// one, and who waits for one kind of GPU holds up nobody who wants another kind. To keep is no more than what this
// order says: nobody who waits has leases, so no two can wait for what the other has.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"scuda.dev/scuda/config"
)

// State is what is known of a pool.
type State struct {
	Servers []Server
	Held    []Held
	Queue   []Request
	Turns   map[string]int64 // tenant: when it was served last, a number that grows
	Taken   int64            // leases that were taken through the pool, since its etcd was empty
}

// Server is one of the pool.
type Server struct {
	Address     string  `json:"address"` // HOST:PORT, as programs reach it
	Fingerprint string  `json:"fingerprint,omitempty"`
	Draining    bool    `json:"draining,omitempty"`
	GPUs        []GPU   `json:"gpus"`
	Leases      []Lease `json:"leases"`

	Version int64 `json:"-"` // it grows when any of this changes
}

// GPU is one of a server's.
type GPU struct {
	UUID   string      `json:"uuid"`
	Name   string      `json:"name"`
	Memory config.Size `json:"memory_bytes"`
}

// Label begins the labels of leases that are taken through a pool.
const Label = "pool/"

// Lease is one that a server has, whoever made it.
type Lease struct {
	ID     string   `json:"id"`
	Label  string   `json:"label,omitempty"`
	Tenant string   `json:"tenant"`
	GPUs   []string `json:"gpus"` // none: all
}

// Held is a lease that was taken through the pool. It is known sooner than the server's own list, and may be missing.
type Held struct {
	Server string   `json:"server"`
	Lease  string   `json:"lease"`
	GPUs   []string `json:"gpus"`
	Tenant string   `json:"tenant"`
	Who    string   `json:"who"`
}

// Request is somebody who waits.
type Request struct {
	ID     string    `json:"id"`
	Tenant string    `json:"tenant"`
	Who    string    `json:"who"` // for people
	Since  time.Time `json:"since"`
	Want
	Except []string `json:"except,omitempty"` // servers that have refused it for good

	Order int64 `json:"-"` // a number that grows with each that comes
}

// Want is what somebody wants: so many whole GPUs.
type Want struct {
	GPUs    int         `json:"gpus"`
	Servers int         `json:"servers,omitempty"`      // that they are of at most; 0: 1
	Kind    string      `json:"kind,omitempty"`         // a part of the product's name, whatever the case; "": any
	Memory  config.Size `json:"memory_bytes,omitempty"` // that each GPU has at least
}

// String is how people are told of a wish.
func (w Want) String() string {
	text := fmt.Sprintf("%d GPU", w.GPUs)
	if w.GPUs != 1 {
		text += "s"
	}
	if w.Kind != "" {
		text += fmt.Sprintf(" of the kind %q", w.Kind)
	}
	if w.Memory > 0 {
		text += fmt.Sprintf(" with %v", w.Memory)
	}
	if w.Servers > 1 {
		text += fmt.Sprintf(" of up to %d servers", w.Servers)
	}
	return text
}

// Place is where a request may go: GPUs of one server after the other, in the order of their addresses. Leases are made
// in this order. So of those that try for the same GPUs at the same time, one gets them.
type Place []Part

// Part is what a request gets of a server.
type Part struct {
	Server string
	GPUs   []string
}

func (w *Want) fits(g *GPU) bool {
	return g.Memory >= w.Memory && strings.Contains(strings.ToLower(g.Name), strings.ToLower(w.Kind))
}

// fitting are the GPUs of a server that do for a request, free or not.
func (w *Want) fitting(s *Server) (list []string) {
	for i := range s.GPUs {
		if w.fits(&s.GPUs[i]) {
			list = append(list, s.GPUs[i].UUID)
		}
	}
	return list
}

// options are what a request can have of each server: all that fit, free or not. Of one that has too few nothing is of
// use to a request for one server.
func (r *Request) options(servers []Server) (list []Part) {
	if r.GPUs < 1 { // whoever writes to etcd may write anything
		return nil
	}
	for i := range servers {
		s := &servers[i]
		fitting := r.fitting(s)
		if len(fitting) >= r.GPUs || r.Servers > 1 && len(fitting) > 0 {
			if !slices.Contains(r.Except, s.Address) {
				list = append(list, Part{s.Address, fitting})
			}
		}
	}
	return list
}

// Of are the servers of the pool that have something of what a request wants, free or not.
func (st *State) Of(r *Request) (list []*Server) {
	for _, p := range r.options(st.Servers) {
		list = append(list, &st.Servers[slices.IndexFunc(st.Servers, func(s Server) bool { return s.Address == p.Server })])
	}
	return list
}

// Could says whether the pool has what a request wants, free or not.
func (st *State) Could(r *Request) bool {
	return fit(r.options(st.Servers), r) != nil
}

// Free are the GPUs of each server that nobody has.
func (st *State) Free() map[string][]string {
	free := map[string][]string{}
	for i := range st.Servers {
		s := &st.Servers[i]
		taken, all := map[string]bool{}, false
		for _, l := range s.Leases {
			all = all || len(l.GPUs) == 0
			for _, g := range l.GPUs {
				taken[g] = true
			}
		}
		for _, h := range st.Held {
			for _, g := range h.GPUs {
				taken[g] = taken[g] || h.Server == s.Address
			}
		}
		for _, g := range s.GPUs {
			if !taken[g.UUID] && !all {
				free[s.Address] = append(free[s.Address], g.UUID)
			}
		}
	}
	return free
}

// Sorted is the queue in its order.
func (st *State) Sorted() []Request {
	queue := slices.Clone(st.Queue)
	slices.SortFunc(queue, func(a, b Request) int { return cmp.Compare(a.Order, b.Order) })
	// Each tenant's requests stand behind each other; the next turn is of who was served the longest ago, and who has
	// had one in this order is served now, after all that were before.
	turns := map[string]int64{}
	now := int64(0)
	for _, r := range queue {
		turns[r.Tenant] = st.Turns[r.Tenant]
		now = max(now, turns[r.Tenant])
	}
	sorted := make([]Request, 0, len(queue))
	for len(queue) > 0 {
		next := 0
		for i := range queue { // the first of those with the least
			if turns[queue[i].Tenant] < turns[queue[next].Tenant] {
				next = i
			}
		}
		now++
		turns[queue[next].Tenant] = now
		sorted = append(sorted, queue[next])
		queue = slices.Delete(queue, next, next+1)
	}
	return sorted
}

// Next says which requests may go now, and where.
func (st *State) Next() map[string]Place {
	places, _ := st.next()
	return places
}

// Left are the GPUs of each server that nobody has, and that nobody who waits keeps or may take now.
func (st *State) Left() map[string][]string {
	_, left := st.next()
	return left
}

func (st *State) next() (places map[string]Place, free map[string][]string) {
	places, free = map[string]Place{}, st.Free()
	open := slices.DeleteFunc(slices.Clone(st.Servers), func(s Server) bool { return s.Draining })
	for _, r := range st.Sorted() {
		options := r.options(open)
		have := make([]Part, len(options)) // what is free of them
		for i, o := range options {
			have[i] = Part{o.Server, slices.DeleteFunc(slices.Clone(o.GPUs), func(g string) bool {
				return !slices.Contains(free[o.Server], g)
			})}
		}
		place := fit(have, &r)
		if place != nil {
			places[r.ID] = place
		} else {
			place = keep(options, have, &r)
		}
		for _, p := range place {
			free[p.Server] = slices.DeleteFunc(free[p.Server], func(g string) bool { return slices.Contains(p.GPUs, g) })
		}
	}
	return places, free
}

// fit finds a place for a request among what it can have, nil where there is none: of as few servers as can be, and of
// one that does for what is left the one that has the least.
func fit(have []Part, r *Request) (place Place) {
	have = slices.Clone(have)
	slices.SortStableFunc(have, func(a, b Part) int { return len(b.GPUs) - len(a.GPUs) })
	need := r.GPUs
	for i, p := range have {
		if i >= max(r.Servers, 1) {
			return nil
		}
		if len(p.GPUs) < need {
			place = append(place, p)
			need -= len(p.GPUs)
			continue
		}
		for _, q := range have[i+1:] {
			if len(q.GPUs) >= need && len(q.GPUs) < len(p.GPUs) {
				p = q
			}
		}
		place = append(place, Part{p.Server, p.GPUs[:need]})
		slices.SortFunc(place, func(a, b Part) int { return cmp.Compare(a.Server, b.Server) })
		return place
	}
	return nil
}

// keep chooses what is kept for a request that finds no place: the free GPUs of those servers that together have enough
// for it, and of such servers those that have most that is free. It is the most indeed, not nearly: what is kept for
// the first in the queue then never becomes less, and grows whenever a lease of these servers ends. nil: no servers
// have enough, free or not.
func keep(options, have []Part, r *Request) Place {
	if fit(options, r) == nil { // so what follows is no bigger than the pool, whatever somebody wants
		return nil
	}
	// most[n][m] are the n servers with m GPUs, or at least as many as are wanted, that have most free ones.
	type choice struct {
		free int
		of   Place // nil: there are no such servers
	}
	most := make([][]choice, min(max(r.Servers, 1), len(options))+1)
	for n := range most {
		most[n] = make([]choice, r.GPUs+1)
	}
	most[0][0].of = Place{}
	for i, o := range options {
		for n := len(most) - 2; n >= 0; n-- { // backwards, as each server counts once
			for m, c := range most[n] {
				next := &most[n+1][min(m+len(o.GPUs), r.GPUs)]
				if free := c.free + len(have[i].GPUs); c.of != nil && (next.of == nil || free > next.free) {
					*next = choice{free, append(slices.Clone(c.of), have[i])}
				}
			}
		}
	}
	var best choice
	for _, c := range most {
		if enough := c[r.GPUs]; enough.of != nil && (best.of == nil || enough.free > best.free) {
			best = enough
		}
	}
	return best.of
}
