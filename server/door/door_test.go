package door

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

type fakeConn struct{ closed bool }

func (f *fakeConn) Close() error {
	f.closed = true
	return nil
}

func from(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }

// Whoever has the most connections makes room, with the oldest of them.
func TestEnter(t *testing.T) {
	const attacker, other = "192.0.2.1", "192.0.2.2"
	d := New(8)
	enter := func(ip string) (*Visit, *fakeConn) {
		c := new(fakeConn)
		return d.Enter(c, from(ip)), c
	}
	_, friend := enter(other)
	var conns []*fakeConn
	for range 100 {
		_, c := enter(attacker)
		conns = append(conns, c)
	}
	left := 0
	for i, c := range conns {
		if c.closed == (i >= 93) {
			t.Errorf("connection %d: closed %v", i, c.closed)
		}
		if !c.closed {
			left++
		}
	}
	if friend.closed || left != 7 {
		t.Errorf("the other's connection is closed: %v; the attacker has %d", friend.closed, left)
	}
	v, c := enter(other)
	if c.closed || !conns[93].closed {
		t.Error("a new connection did not push out the attacker's oldest")
	}
	v.Leave()
	v.Leave()
	if v, _ = enter(attacker); conns[94].closed {
		t.Error("a free place was not used")
	}
	if !d.Shed() || !conns[94].closed {
		t.Error("nothing was shed")
	}
	select {
	case <-v.Dropped():
		t.Error("the newest was dropped")
	default:
	}
	for d.Shed() {
	}
	<-v.Dropped()
	if d.taken != 0 || len(d.peers) != 0 {
		t.Errorf("%d places are taken by %d peers", d.taken, len(d.peers))
	}
}

func TestPeer(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::ffff:1", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		if got := Peer(from(c.a)) == Peer(from(c.b)); got != c.same {
			t.Errorf("%s and %s: one peer %v, not %v", c.a, c.b, got, c.same)
		}
	}
}

func TestPlaces(t *testing.T) {
	for descriptors, want := range map[uint64]int{0: 1, 64: 16, 1024: 256, 1 << 20: MaxPlaces, 1<<64 - 1: MaxPlaces} {
		if got := places(descriptors); got != want {
			t.Errorf("%d descriptors: %d places, not %d", descriptors, got, want)
		}
	}
}

func TestWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(4)
		guesser, other := d.Enter(new(fakeConn), from("192.0.2.1")), d.Enter(new(fakeConn), from("192.0.2.2"))
		for i, times := range []int{0, 0, 0, 1, 2, 4, 8, 16, 30, 30} {
			if got := guesser.Wrong(); got != time.Duration(times)*firstDelay {
				t.Errorf("wrong token %d: kept back %v", i+1, got)
			}
		}
		if got := other.Wrong(); got != 0 {
			t.Errorf("somebody else is kept back %v", got)
		}
		time.Sleep(forgetAfter + 1)
		if got := guesser.Wrong(); got != 0 {
			t.Errorf("after a while: kept back %v", got)
		}
		for i := range 2 * maxWrongs {
			d.Enter(new(fakeConn), from(fmt.Sprintf("10.1.%d.%d", i>>8, i&255))).Wrong()
		}
		if n := len(d.wrongs); n > maxWrongs {
			t.Errorf("%d peers are remembered", n)
		}
	})
}

func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lines
		count := func(n int) (written, missed int) {
			for range n {
				if m, ok := l.Allow(); ok {
					written, missed = written+1, missed+m
				}
			}
			return written, missed
		}
		for _, c := range []struct {
			pause                  time.Duration
			lines, written, missed int
		}{
			{0, 1000, burst, 0}, {interval, 10, 1, 1000 - burst}, {3 * interval, 10, 3, 9}, {time.Hour, 100, burst, 7},
		} {
			time.Sleep(c.pause)
			if w, m := count(c.lines); w != c.written || m != c.missed {
				t.Errorf("%d lines after %v: %d written, %d told as missed; not %d, %d",
					c.lines, c.pause, w, m, c.written, c.missed)
			}
		}
	})
}

func TestClip(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "short": "short", strings.Repeat("x", 10): strings.Repeat("x", 10), strings.Repeat("x", 11): "xxxxxxx…",
		"äöüäöü": "äöü…", "xäöüäö": "xäöü…", "\xff": "�",
	} {
		if got := Clip(in, 10); got != want || !utf8.ValidString(got) {
			t.Errorf("%q becomes %q, not %q", in, got, want)
		}
	}
}
