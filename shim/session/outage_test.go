package session

import (
	"testing"
	"time"
)

// What the outages of a session took, the longest of them and what was sent again stand where the front finds them.
func TestOutagesAreNoted(t *testing.T) {
	f := newFront(t, 1<<16)
	s := &Session{shared: f.shared}
	for _, lasted := range []time.Duration{2 * time.Second, 5 * time.Second, -time.Second, time.Second} {
		f.shared.Outages.note(lasted)
	}
	f.shared.Outages.add(100)
	f.shared.Outages.add(11)
	got := s.Figures()
	if got.Outages != 4 || got.Out != 8*time.Second || got.Replayed != 111 || got.Away {
		t.Errorf("%+v", got)
	}
	if longest := time.Duration(f.shared.Outages.most); longest != 5*time.Second {
		t.Errorf("the longest took %v", longest)
	}
}
