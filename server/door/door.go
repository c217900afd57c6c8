// Package door bounds what those cost a server who have not been admitted yet: connections that say nothing, or the
// wrong thing. The supervisor calls it for every connection that it accepts.
//
// A door has a number of places. A new connection always gets one: where all are taken, the oldest connection of the
// address that has the most makes room. So somebody who holds thousands of silent connections only pushes out his own.
//
// A door has one lock, which is held for no call but Close of a connection.
package door

import (
	"container/list"
	"io"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MaxPlaces is the number of places where the limit of descriptors allows it. A silent connection takes about 10 KiB.
const MaxPlaces = 4096

// Places is how many places fit into the process's limit of descriptors: a quarter is for those who are not admitted.
func Places() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return MaxPlaces
	}
	return places(r.Cur)
}

func places(descriptors uint64) int { return int(max(1, min(descriptors/4, MaxPlaces))) }

// Door is where connections wait for admission.
type Door struct {
	places int

	mu     sync.Mutex
	taken  int
	peers  map[netip.Prefix]*list.List // of *Visit, the oldest first
	wrongs map[netip.Prefix]*wrong
}

// Visit is one connection at the door.
type Visit struct {
	door    *Door
	peer    netip.Prefix
	conn    io.Closer
	place   *list.Element // nil once it has left
	dropped chan struct{}
}

// wrong is how often a peer presented a wrong token.
type wrong struct {
	times int
	last  time.Time
}

// New gives a door with a number of places.
func New(places int) *Door {
	return &Door{places: places, peers: make(map[netip.Prefix]*list.List), wrongs: make(map[netip.Prefix]*wrong)}
}

// Peer is who counts as one: an IPv4 address, or the 64 bits of an IPv6 network, since a host may take any address
// of it.
func Peer(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	p, _ := ip.Prefix(bits) // an invalid address gives the zero prefix
	return p
}

// Enter gives a connection a place.
func (d *Door) Enter(c io.Closer, from net.Addr) *Visit {
	v := &Visit{door: d, peer: Peer(from), conn: c, dropped: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.taken >= d.places {
		d.drop()
	}
	l := d.peers[v.peer]
	if l == nil {
		l = list.New()
		d.peers[v.peer] = l
	}
	v.place = l.PushBack(v)
	d.taken++
	return v
}

// Shed ends one connection, where the process has no descriptor left; false if there is none at the door.
func (d *Door) Shed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.drop()
}

// drop ends the oldest connection of the peer that has the most. d.mu is held.
func (d *Door) drop() bool {
	var most *list.List
	for _, l := range d.peers {
		if most == nil || l.Len() > most.Len() {
			most = l
		}
	}
	if most == nil {
		return false
	}
	v := most.Front().Value.(*Visit)
	d.leave(v)
	close(v.dropped)
	_ = v.conn.Close()
	return true
}

// leave takes a visit off the lists. d.mu is held.
func (d *Door) leave(v *Visit) {
	if v.place == nil {
		return
	}
	l := d.peers[v.peer]
	l.Remove(v.place)
	if l.Len() == 0 {
		delete(d.peers, v.peer)
	}
	v.place = nil
	d.taken--
}

// Leave gives the place back: the connection was admitted, or has ended. It may be called again.
func (v *Visit) Leave() {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	v.door.leave(v)
}

// Dropped is closed when the connection had to make room for another.
func (v *Visit) Dropped() <-chan struct{} { return v.dropped }

// Somebody who presents wrong tokens is answered later each time. The first ones are answered at once: people mistype.
const (
	freeWrongs  = 3
	firstDelay  = 100 * time.Millisecond
	longestWait = 3 * time.Second
	forgetAfter = time.Minute
	maxWrongs   = 4096 // peers that are remembered
)

// Wrong notes that the visitor presented a wrong token, and gives how long the answer should be kept back.
func (v *Visit) Wrong() time.Duration {
	d := v.door
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	w := d.wrongs[v.peer]
	if w == nil {
		for p := range d.wrongs { // any: who is forgotten begins anew
			if len(d.wrongs) < maxWrongs {
				break
			}
			delete(d.wrongs, p)
		}
		w = new(wrong)
		d.wrongs[v.peer] = w
	}
	if now.Sub(w.last) > forgetAfter {
		w.times = 0
	}
	w.last = now
	w.times = min(w.times+1, math.MaxInt16)
	if w.times <= freeWrongs {
		return 0
	}
	delay := firstDelay
	for range w.times - freeWrongs - 1 {
		if delay *= 2; delay >= longestWait {
			return longestWait
		}
	}
	return delay
}
