// Package plan says who of those that wait for GPUs of a pool is next, and on which server. It is pure: it is told what
// there is ([State]) and answers where requests may go now ([State.Next]). All who wait look at the same state and come
// to the same answer, so nobody has to be asked. An answer that is wrong, because the state was old, does no harm: the
// server itself says whether GPUs are free.
//
// Requests are in one queue: first the tenant that was served the longest ago, of one tenant the oldest first. A
// request that finds no place keeps GPUs of the server that has most of what it needs: nobody behind it gets these. So
// those that want many GPUs are not passed for ever by those that want one, and who waits for one kind of GPU holds up
// nobody who wants another kind.
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

// Want is what somebody wants: so many whole GPUs of one server.
type Want struct {
	GPUs   int         `json:"gpus"`
	Kind   string      `json:"kind,omitempty"`         // a part of the product's name, whatever the case; "": any
	Memory config.Size `json:"memory_bytes,omitempty"` // that each GPU has at least
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
	return text
}

// Place is where a request may go.
type Place struct {
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

// Could says whether a server of the pool has what a request wants, free or not.
func (st *State) Could(r *Request) bool {
	return slices.ContainsFunc(st.Servers, func(s Server) bool {
		return !slices.Contains(r.Except, s.Address) && len(r.fitting(&s)) >= r.GPUs
	})
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
	for _, r := range st.Sorted() {
		var best string
		var have []string // of the best server's GPUs, what the request can have
		for i := range st.Servers {
			s := &st.Servers[i]
			fitting := r.fitting(s)
			if s.Draining || slices.Contains(r.Except, s.Address) || len(fitting) < r.GPUs {
				continue
			}
			list := slices.DeleteFunc(fitting, func(g string) bool { return !slices.Contains(free[s.Address], g) })
			if best == "" || better(len(list), len(have), r.GPUs) {
				best, have = s.Address, list
			}
		}
		if best == "" {
			continue
		}
		if len(have) >= r.GPUs {
			have = have[:r.GPUs]
			places[r.ID] = Place{best, have}
		}
		free[best] = slices.DeleteFunc(free[best], func(g string) bool { return slices.Contains(have, g) })
	}
	return places, free
}

// better says whether so many free GPUs are a better place for a request than what was found so far: one where it fits
// before others, there the fullest, and else the one that has most.
func better(n, before, wanted int) bool {
	if n >= wanted && before >= wanted {
		return n < before
	}
	return n > before
}
