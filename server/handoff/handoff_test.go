package handoff

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
)

func pair(t *testing.T) (*Conn, *Conn) {
	t.Helper()
	a, file, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	b, err := FromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestMessagesWithAndWithoutDescriptor(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	type body struct{ Text string }
	long := strings.Repeat("x", 1<<20)
	sent := make(chan error, 1)
	go func() {
		for _, m := range []struct {
			kind, text string
			fd         int
		}{{"one", "a", -1}, {"two", "b", int(w.Fd())}, {"three", long, -1}, {"four", long, int(w.Fd())}} {
			if err := a.Send(m.kind, body{m.text}, m.fd); err != nil {
				sent <- err
				return
			}
		}
		w.Close()
		sent <- a.Close()
	}()
	for _, want := range []struct {
		kind, text string
		fd         bool
	}{{"one", "a", false}, {"two", "b", true}, {"three", long, false}, {"four", long, true}} {
		m, err := b.Receive()
		if err != nil {
			t.Fatal(err)
		}
		var got body
		if err := m.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if m.Type != want.kind || got.Text != want.text || (m.FD >= 0) != want.fd {
			t.Fatalf("got %s (%d bytes, fd %d), want %s", m.Type, len(got.Text), m.FD, want.kind)
		}
		if m.FD >= 0 {
			if _, err := unix.Write(m.FD, []byte("through")); err != nil {
				t.Fatal(err)
			}
			unix.Close(m.FD)
			buf := make([]byte, 7)
			if _, err := io.ReadFull(r, buf); err != nil || string(buf) != "through" {
				t.Fatalf("the descriptor is not the pipe: %q %v", buf, err)
			}
		}
	}
	if _, err := b.Receive(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the end: %v, want EOF", err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func TestMalformed(t *testing.T) {
	for name, raw := range map[string][]byte{
		"too long":       append([]byte{inPacket}, `{"type":"`+strings.Repeat("x", packetBytes)+`"}`...),
		"not JSON":       append([]byte{inPacket}, "abc"...),
		"half":           append([]byte{inPacket}, `{"type":"x"`...),
		"no message":     {inPacket},
		"of no kind":     append([]byte{9}, `{"type":"x"}`...),
		"without memory": {inMemory},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			if _, err := a.sock.Write(raw); err != nil {
				t.Fatal(err)
			}
			if m, err := b.Receive(); !errors.Is(err, ErrMalformed) {
				t.Fatalf("accepted %v, %v", m, err)
			}
		})
	}
}

// A message that lies elsewhere is read from memory and from nothing that could keep the reader waiting, or change.
func TestMemoryOfOthers(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	unsealed, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unsealed)
	huge, err := memfd.New("test", MaxBytes+1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(huge)
	for name, fd := range map[string]int{"a pipe": int(r.Fd()), "unsealed": unsealed, "too long": huge} {
		a, b := pair(t)
		if _, _, err := a.sock.WriteMsgUnix([]byte{inMemory}, unix.UnixRights(fd), nil); err != nil {
			t.Fatal(err)
		}
		if m, err := b.Receive(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: accepted %v, %v", name, m, err)
		}
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err != nil || len(fds) > 100 {
		t.Errorf("%d descriptors are open, %v", len(fds), err)
	}
}

// What a peer said before it ended is heard, also where it has not read all that it was told.
func TestLastWords(t *testing.T) {
	a, b := pair(t)
	if err := a.Send("unread", 1, -1); err != nil {
		t.Fatal(err)
	}
	if err := b.Send("last", 2, -1); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if m, err := a.Receive(); err != nil || m.Type != "last" {
		t.Fatalf("%v, %v", m, err)
	}
	if _, err := a.Receive(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the end: %v, want EOF", err)
	}
}

// A peer that does not read holds nobody up for longer than the limit, and gets nothing more.
func TestPeerThatDoesNotRead(t *testing.T) {
	a, b := pair(t)
	if a.limit != SendLimit || b.limit != 0 {
		t.Errorf("limits %v and %v", a.limit, b.limit)
	}
	a.limit = 10 * time.Millisecond
	var err error
	for range 10000 {
		if err = a.Send("news", "text", -1); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrStuck) {
		t.Fatalf("sending to a peer that does not read: %v", err)
	}
	if err = a.Send("news", "text", -1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("sending once more: %v", err)
	}
}
