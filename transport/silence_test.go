package transport

import (
	"net"
	"slices"
	"testing"
)

func TestDebtors(t *testing.T) {
	d, owed := Debtors{}, map[int]bool{7: true}
	traffic := func(fd int) Traffic { return Traffic{Owed: owed[fd]} }
	look := func(beats int) (gone bool) {
		for range beats {
			gone = slices.Equal(d.Look([]int{3, 7}, traffic), []int{7})
		}
		return gone
	}
	if look(SilentBeats - 1) {
		t.Error("given up too early")
	}
	owed[7] = false
	look(1)
	if owed[7] = true; look(SilentBeats - 1) {
		t.Error("what was acknowledged meanwhile counts")
	}
	if !look(1) {
		t.Error("not given up")
	}
}

// What the kernel says of a socket is what happened there.
func TestTraffic(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := c.Write(make([]byte, 500)); err != nil {
		t.Fatal(err)
	}
	fd, err := Detach(s.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := NewConn(fd, "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for Unread(fd) < 500 {
		if _, err := conn.Wait(Readable, -1); err != nil {
			t.Fatal(err)
		}
	}
	if got := TrafficOf(fd); got.Received != 500 || got.Owed {
		t.Errorf("%+v", got)
	}
	if got := TrafficOf(-1); got != (Traffic{}) || Unread(-1) != 0 {
		t.Errorf("of no socket: %+v", got)
	}
}
