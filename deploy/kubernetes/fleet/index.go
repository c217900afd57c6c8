package fleet

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// index finds a claim's leases without looking at every server: with a thousand of these, each of ten thousand claims
// would cost a thousand locks every few seconds. Its lock is the innermost.
type index struct {
	mu sync.Mutex // guards of
	of map[types.UID][]Held
}

func (x *index) get(claim types.UID) []Held {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.of[claim])
}

func (x *index) put(claim types.UID, h Held) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Contains(x.of[claim], h) {
		x.of[claim] = append(x.of[claim], h)
	}
}

func (x *index) drop(claim types.UID, h Held) {
	x.mu.Lock()
	defer x.mu.Unlock()
	left := slices.DeleteFunc(x.of[claim], func(o Held) bool { return o == h })
	if len(left) == 0 {
		delete(x.of, claim)
	} else {
		x.of[claim] = left
	}
}

// know replaces what is known of a server's leases; the caller has member.mu.
func (m *member) know(now map[types.UID][]string) {
	for claim, ids := range m.leases {
		for _, id := range ids {
			if !slices.Contains(now[claim], id) {
				m.fleet.held.drop(claim, Held{m.Name, id})
			}
		}
	}
	for claim, ids := range now {
		for _, id := range ids {
			if !slices.Contains(m.leases[claim], id) {
				m.fleet.held.put(claim, Held{m.Name, id})
			}
		}
	}
	m.leases = now
}
