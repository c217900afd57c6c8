package transport

import (
	"net"
	"sync"
	"testing"
	"time"
)

// wakeable is an end of a connection of each kind, and the other end.
func wakeable(t *testing.T, resumable bool) (near, far Conn) {
	t.Helper()
	n := &network{t: t, next: func() int { return -1 }, stop: make(chan struct{}), broken: make(chan struct{}, 1)}
	t.Cleanup(n.all.Wait)
	a, b := n.pair()
	ends := [2]Conn{}
	for i, c := range []net.Conn{a, b} {
		conn, err := ConnOf(c)
		if err == nil && resumable {
			conn, err = NewResumable(conn, MainWindows, func(error) {})
		}
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = conn
		t.Cleanup(func() { conn.Close() })
	}
	return ends[0], ends[1]
}

// A ring ends the wait that is under way, or else the next one, and no other.
func TestWaker(t *testing.T) {
	for name, resumable := range map[string]bool{"socket": false, "stream": true} {
		t.Run(name, func(t *testing.T) {
			near, far := wakeable(t, resumable)
			w, err := NewWaker()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			wait := func(timeout time.Duration) Events {
				t.Helper()
				ev, err := near.WaitOr(Readable, timeout, w)
				if err != nil {
					t.Fatal(err)
				}
				return ev
			}
			w.Look()
			w.Ring()
			if ev := wait(-1); ev != 0 {
				t.Errorf("rung before the wait: %v", ev)
			}
			w.Look()
			if began := time.Now(); wait(10*time.Millisecond) != 0 || time.Since(began) < 10*time.Millisecond {
				t.Error("what was seen ends another wait")
			}
			var rings sync.WaitGroup
			for range 3 {
				rings.Go(w.Ring)
			}
			for range 1000 {
				if ev := wait(-1); ev != 0 {
					t.Errorf("rung meanwhile: %v", ev)
				}
				w.Look()
				rings.Go(w.Ring)
			}
			rings.Wait()
			w.Look()
			for w.isRung() || wait(10*time.Millisecond) != 0 {
				w.Look()
			}
			if _, err := far.Send([][]byte{[]byte("x")}); err != nil {
				t.Fatal(err)
			}
			if ev := wait(10 * time.Second); ev != Readable {
				t.Errorf("bytes have come: %v", ev)
			}
			((*Waker)(nil)).Ring() // nobody waits
		})
	}
}

// A thread that has one does not miss what comes while it looks, whatever the moment.
func TestWakerMissesNothing(t *testing.T) {
	near, _ := wakeable(t, true)
	w, err := NewWaker()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var mu sync.Mutex
	items, taken := 0, 0
	const all = 20000
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for range all / 4 {
				mu.Lock()
				items++
				mu.Unlock()
				w.Ring()
			}
		})
	}
	for taken < all {
		w.Look()
		mu.Lock()
		n := items - taken
		taken = items
		mu.Unlock()
		if n > 0 {
			continue
		}
		if _, err := near.WaitOr(Readable, -1, w); err != nil {
			t.Fatal(err)
		}
	}
	others.Wait()
}
