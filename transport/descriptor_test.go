package transport

import (
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A program may close a descriptor that it does not know, and put a file of its own there: the stream ends at once, and
// the file stays where and as it is, whatever this side does then.
func TestTakenDescriptor(t *testing.T) {
	sends := func(r *Resumable) error { _, err := r.Send([][]byte{[]byte("x")}); return err }
	receives := func(r *Resumable) error { _, err := r.Recv([][]byte{{0}}); return err }
	for name, c := range map[string]struct {
		taken bool // by a file
		notes func(r *Resumable) error
	}{
		"closed, noticed by who sends":    {false, sends},
		"taken, noticed by who sends":     {true, sends},
		"closed, noticed by who receives": {false, receives},
		"taken, noticed by who receives":  {true, receives},
		"taken, noticed by the heart":     {true, func(r *Resumable) error { r.Lose(io.ErrUnexpectedEOF); return ErrAgain }},
	} {
		t.Run(name, func(t *testing.T) {
			n, lost := loose(t)
			untouched := take(t, n.near.FD(), c.taken)
			if err := c.notes(n.near); !errors.Is(err, ErrAgain) {
				t.Errorf("first: %v", err)
			}
			if _, err := n.near.Recv([][]byte{{0}}); !errors.Is(err, ErrTaken) || !n.near.IsOver() {
				t.Errorf("then: %v", err)
			}
			if _, err := n.near.Detach(); !errors.Is(err, ErrOver) {
				t.Errorf("another socket: %v", err)
			}
			n.near.Shutdown()
			if err := n.near.Close(); !errors.Is(err, ErrTaken) {
				t.Errorf("close: %v", err)
			}
			untouched()
			if len(lost) > 0 {
				t.Error("somebody is asked for another socket")
			}
		})
	}
}

// The descriptor is taken while the stream has no socket: no other one gets into its place.
func TestTakenBetweenSockets(t *testing.T) {
	for name, taken := range map[string]bool{"closed": false, "taken": true} {
		t.Run(name, func(t *testing.T) {
			n, _ := loose(t)
			if _, err := n.near.Detach(); err != nil {
				t.Fatal(err)
			}
			untouched := take(t, n.near.FD(), taken)
			near, far := n.pair()
			defer far.Close()
			if err := n.near.Attach(near, 0); !errors.Is(err, ErrTaken) || !n.near.IsOver() {
				t.Errorf("another socket: %v", err)
			}
			untouched()
		})
	}
}

// A socket that has come into the place of another one is known there.
func TestDescriptorMoves(t *testing.T) {
	n, _ := loose(t)
	if _, err := n.near.Detach(); err != nil {
		t.Fatal(err)
	}
	near, far := n.pair()
	defer far.Close()
	if err := n.near.Attach(near, 0); err != nil {
		t.Fatal(err)
	}
	if !n.near.Attached() || !n.near.socket.Load().place().isOurs() {
		t.Error("it is not taken for ours")
	}
	n.near.Lose(io.ErrUnexpectedEOF)
	if n.near.IsOver() {
		t.Error("it cannot be lost and come back")
	}
}

// loose is a stream for which nobody brings other sockets.
func loose(t *testing.T) (n *network, lost chan error) {
	t.Helper()
	n, lost = &network{t: t, next: func() int { return -1 }}, make(chan error, 8)
	near, far := n.pair()
	t.Cleanup(func() { far.Close(); n.all.Wait() })
	d, err := newDialled(near, "there")
	if err != nil {
		t.Fatal(err)
	}
	if n.near, err = NewResumable(d, Windows{Own: 4096, Peer: 4096}, func(err error) { lost <- err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.near.Close() })
	return n, lost
}

// take closes a descriptor, or puts a file there. What it gives says whether that is as it was.
func take(t *testing.T, fd int, byFile bool) (untouched func()) {
	t.Helper()
	if !byFile {
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
		return func() {}
	}
	const text = "the program's"
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = f.WriteString(text)
	if err := errors.Join(err, unix.Dup3(int(f.Fd()), fd, unix.O_CLOEXEC)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		b := make([]byte, 64)
		if n, err := unix.Pread(fd, b, 0); err != nil || string(b[:n]) != text {
			t.Errorf("the file's descriptor has %q (%v)", b[:max(n, 0)], err)
		}
		_ = unix.Close(fd)
	}
}
