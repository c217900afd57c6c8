//go:build rdma

package rdma

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/verbs"
)

// intrude lets a side write where a key might let it, behind the link's back, and waits for the end of its path, which
// is what a refusal does.
func (e *end) intrude(remote memoryKey) {
	e.t.Helper()
	lost := e.stats.Lost.Load()
	mem := mapped(e.t, 4096)
	fill(mem, 99)
	l := e.link
	l.mu.Lock()
	c := l.conn
	// The path's own list of registrations sees to its end, which may come with the path's.
	r, err := c.register(nil, mem, 0, &e.stats)
	if err != nil {
		l.mu.Unlock()
		e.t.Fatal(err)
	}
	defer r.release()
	req := []verbs.SendRequest{
		{ID: workProbe, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: remote.Addr, RKey: remote.Key, Count: 1},
	}
	req[0].SGE[0] = verbs.SGE{Addr: address(mem), Length: uint32(len(mem)), LKey: r.mr.LKey}
	_, err = c.qp.PostSend(req)
	l.mu.Unlock()
	if err != nil {
		e.t.Fatal(err)
	}
	e.await("the refusal", func() bool { return e.stats.Lost.Load() > lost })
}

// slotsOf is the key to the other side's slots that a link was told.
func (e *end) slotsOf() memoryKey {
	e.link.mu.Lock()
	defer e.link.mu.Unlock()
	return e.link.conn.peer.Slots
}

func (e *end) works(to *end, seq uint64) {
	e.t.Helper()
	e.awaitState(bulk.Up)
	to.awaitState(bulk.Up)
	data := mapped(e.t, 2<<20)
	fill(data, seq)
	if d := e.upload(seq, data); d != 0 {
		e.t.Errorf("%d bytes did not go over the path", d)
	}
	to.awaitBytes(seq, len(data))
	if !bytes.Equal(to.got[seq][:len(data)], data) {
		e.t.Error("an upload arrived changed")
	}
}

// eventually waits for what a link's goroutines do, and nobody is told of.
func (l *Link[M]) eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		ok := f()
		l.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// What a session was told is of no use to another one: each has a protection domain of its own.
func TestKeysOfAnotherSession(t *testing.T) {
	one, oneServer := pair(t, nil, nil)
	other, otherServer := pair(t, nil, nil)
	before := bytes.Clone(oneServer.slots)
	other.intrude(one.slotsOf())
	if !bytes.Equal(before, oneServer.slots) {
		t.Error("a session has written to another one's slots")
	}
	one.works(oneServer, 1)
	if n := one.stats.Lost.Load() + oneServer.stats.Lost.Load(); n != 0 {
		t.Errorf("the other session lost %d paths", n)
	}
	other.works(otherServer, 1) // over another path
}

// Keys die with their path, even within a session.
func TestKeysOfAnEarlierPath(t *testing.T) {
	client, server := pair(t, nil, nil)
	old := client.slotsOf()
	client.link.mu.Lock()
	client.link.conn.cancel(errors.New("the test ends it"))
	client.link.mu.Unlock()
	client.await("the loss of the path", func() bool { return client.stats.Lost.Load() == 1 })
	client.works(server, 1)
	before := bytes.Clone(server.slots)
	client.intrude(old)
	if !bytes.Equal(before, server.slots) {
		t.Error("the key of a path that is over still opens the slots")
	}
	client.works(server, 2)
}

// The server may write to the destination of a download for as long as the download lasts, and nowhere behind it.
// (Where that is page-locked memory, a card sees to the latter by the window's bounds; rxe of Linux 6.1 checks only
// those of the registration.)
func TestWindowsEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		pinned bool
		beyond bool // the end of the window while it is open; else its begin when it is over
	}{
		{"over, page-locked", true, false}, {"over, other memory", false, false}, {"beyond, other memory", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n, id = 1 << 20, 70000
			pins := &Pins{}
			source := mapped(t, n)
			client, server := pair(t, pins, source)
			dst := mapped(t, 2*n)
			if c.pinned {
				pins.Add(address(dst), 2*n)
			}
			client.mu.Lock()
			client.memory[id] = dst[:n]
			client.mu.Unlock()
			server.link.Want(id, 1, n)
			var w window
			server.link.eventually(t, "a window", func() bool {
				x := server.link.placements.targets[id]
				if x == nil || !x.granted {
					return false
				}
				w = x.w
				return true
			})
			at := memoryKey{w.addr, w.key}
			if c.beyond {
				at.Addr += n - 2048
			} else {
				client.link.EndWindow(id)
				client.link.eventually(t, "the end of the window", func() bool {
					return len(client.link.conn.windows.open) == 0 && len(client.link.conn.windows.work) == 0
				})
			}
			server.intrude(at)
			if !bytes.Equal(dst, make([]byte, 2*n)) {
				t.Error("the server has written where it may not")
			}
			client.works(server, 5)
		})
	}
}

// The end of a download may come while a lost path is being taken apart.
func TestWindowEndsAfterItsQueuePair(t *testing.T) {
	const n, id = 1 << 20, 70000
	pins := &Pins{}
	client, server := pair(t, pins, mapped(t, n))
	dst := mapped(t, n)
	pins.Add(address(dst), n)
	client.mu.Lock()
	client.memory[id] = dst
	client.mu.Unlock()
	server.link.Want(id, 1, n)
	l := client.link
	l.eventually(t, "a window", func() bool { o := l.conn.windows.open[id]; return o != nil && o.bound })
	l.mu.Lock()
	c := l.conn
	c.abandon()
	if err := c.qp.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.qp.PostSend([]verbs.SendRequest{{Op: verbs.OpWrite}}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a queue pair that is freed: %v", err)
	}
	l.mu.Unlock()
	l.EndWindow(id)
	c.cancel(errors.New("the test ends it"))
	client.await("the loss of the path", func() bool { return client.stats.Lost.Load() == 1 })
	client.works(server, 1)
}
