package session

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
)

// What the outages of a session took, the longest of them and what was sent again stand where the front finds them.
func TestOutagesAreNoted(t *testing.T) {
	f := newFront(t, 1<<16)
	s := &Session{shared: shared{f.shared, &f.shared.Lost}}
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

// Whoever reads from a connection that does not come back learns why, and not that the server has taken leave.
func TestReadersLearnWhy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, why := range []error{&goneError{io.EOF}, &awayError{time.Second, io.EOF}} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := transport.ConnOf(c)
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.NewResumable(conn, transport.LineWindows, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		res.Fail(why)
		line := transport.Resumed(res)
		if err := line.ReadFull(make([]byte, 1)); !errors.Is(err, why) || reason(err) == reason(io.EOF) {
			t.Errorf("%v", err)
		}
		_ = line.Close()
	}
}

// A loss is said in the same words by whichever connection notices it first.
func TestReasonOfALoss(t *testing.T) {
	for _, err := range []error{&goneError{io.EOF}, &awayError{time.Minute, io.EOF},
		&transport.SessionEnded{Reason: "its place is needed"}} {
		if got := reason(fmt.Errorf("receive from 10.0.0.2:14833: %w", err)); got != reason(err) {
			t.Errorf("%q, by itself %q", got, reason(err))
		}
	}
}
