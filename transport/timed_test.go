package transport

import (
	"testing"
	"time"
)

// TestTimed: a connection knows how long ago bytes came, though somebody looked at them only later.
func TestTimed(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, MainWindows, secure, func() int { return -1 })
			near, far := n.near, n.far
			if d := near.Since(); d != 0 {
				t.Errorf("%v, which nobody asked for", d)
			}
			for until := time.Now().Add(time.Minute); ; { // the kernel begins to note times a moment after it was told to
				near.KeepTimes()
				before := time.Now()
				if k, err := far.Send([][]byte{{1}}); k != 1 || err != nil {
					t.Fatal(k, err)
				}
				if _, err := near.Wait(Readable, -1); err != nil {
					t.Fatal(err)
				}
				here := time.Now()
				for time.Since(here) < time.Millisecond {
				}
				waited := time.Since(here)
				if k, err := near.Recv([][]byte{make([]byte, 8)}); k != 1 || err != nil {
					t.Fatal(k, err)
				}
				since := near.Since()
				if most := time.Since(before); since != 0 && (since < waited || since > most) {
					t.Fatalf("the byte came %v ago, want %v to %v", since, waited, most)
				}
				if since != 0 {
					break
				}
				if time.Now().After(until) {
					t.Fatal("it is not known when bytes came")
				}
			}
		})
	}
}
