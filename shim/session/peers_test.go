package session

import (
	"sync/atomic"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
)

// Two servers that were connected are connected again when the way between them is there, however often that fails.
// Two that never were are not asked again.
func TestPeersConnectAgain(t *testing.T) {
	for name, first := range map[string]bool{"connected": true, "never": false} {
		t.Run(name, func(t *testing.T) {
			var may atomic.Bool
			var held atomic.Pointer[chan struct{}] // until it is closed no server connects
			var asked atomic.Int32
			var text logText
			var servers []Config
			for range 2 {
				p := newPeer(t)
				p.command, p.welcome.Bulk = echo, 2
				p.connects = func(*transport.Introduction) bool {
					asked.Add(1)
					if hold := held.Load(); hold != nil {
						<-*hold
					}
					return may.Load()
				}
				p.welcome.Capabilities = transport.Offered()
				cfg := p.config(&text)
				cfg.Bulk = 2
				servers = append(servers, cfg)
			}
			all, err := OpenAll(newFront(t, 1<<14).shared, servers...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				all.Close()
				for i := range servers {
					all.Of(i).Wait()
				}
			})
			rested := func() { // the time is over in which they are left alone
				p := all.between(0, 1)
				p.mu.Lock()
				p.until = time.Time{}
				p.mu.Unlock()
			}
			may.Store(first)
			epoch := all.Peer(0, 1)
			if (epoch != 0) != first {
				t.Fatalf("epoch %d: %s", epoch, &text)
			}
			all.PeerLost(1, 0, epoch)
			may.Store(false)
			tried := func() { // nobody waits for it but the test
				p := all.between(0, 1)
				p.mu.Lock()
				trying := p.trying
				p.mu.Unlock()
				if trying != nil {
					<-trying
				}
			}
			for range 3 {
				rested()
				if got := all.Peer(0, 1); got != 0 {
					t.Errorf("epoch %d of a connection that is not there", got)
				}
				tried()
				before := asked.Load()
				if all.Peer(1, 0); asked.Load() != before {
					t.Error("they are not left alone")
				}
			}
			may.Store(true)
			rested()
			hold := make(chan struct{})
			held.Store(&hold)
			if got := all.Peer(0, 1); got != 0 {
				t.Errorf("epoch %d while they connect", got)
			}
			close(hold)
			tried()
			if got := all.Peer(1, 0); (got > epoch) != first {
				t.Errorf("epoch %d after %d: %s", got, epoch, &text)
			}
		})
	}
}
