//go:build rdma

package rdma

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// These tests need two devices that reach each other; verbs/guest/rdma-guest has them.

const (
	testSlots     = 12
	testSlotBytes = 1 << 20
)

// piece is a chunk as the tests know it.
type piece struct {
	chunk bulk.Chunk
	data  []byte
}

// end is one side: it keeps what arrives, and carries what is given back to the other side itself, as TCP would.
type end struct {
	t     *testing.T
	link  *Link[piece]
	stats Stats
	log   logWriter
	slots []byte
	other *end

	mu       sync.Mutex
	news     *sync.Cond
	got      map[uint64][]byte // by Seq: what arrived
	count    map[uint64]int    // bytes
	sent     int
	returned int
	detours  int // pieces that came another way
	memory   map[uint32][]byte
	broken   bool
	underWay bool
	changes  []bulk.State
	hold     bool // slots are not released
	drop     bool // what arrives is only counted
}

func (e *end) Arrived(c bulk.Chunk, slot int) {
	e.mu.Lock()
	hold, drop := e.hold, e.drop
	e.mu.Unlock()
	if drop {
		e.Placed(c)
	} else {
		e.store(c, e.slots[slot*testSlotBytes:][:c.Bytes])
	}
	if !hold {
		e.link.Release(uint32(slot))
	}
}

func (e *end) store(c bulk.Chunk, b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.got[c.Seq] == nil {
		e.got[c.Seq] = make([]byte, 64<<20)
	}
	copy(e.got[c.Seq][c.Offset:], b)
	e.count[c.Seq] += len(b)
	e.news.Broadcast()
}

func (e *end) Placed(c bulk.Chunk) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.count[c.Seq] += int(c.Bytes)
	e.news.Broadcast()
}

func (e *end) Sent(p piece, arrived bool) {
	if !arrived {
		e.other.carried(p)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent++
	if !arrived {
		e.returned++
	}
	e.news.Broadcast()
}

// carried is a piece that comes another way.
func (e *end) carried(p piece) {
	e.mu.Lock()
	e.detours++
	e.news.Broadcast()
	mem := e.memory[p.chunk.ID]
	e.mu.Unlock()
	if mem != nil {
		copy(mem[p.chunk.Offset:], p.data)
		e.Placed(p.chunk)
		return
	}
	e.store(p.chunk, p.data)
}

func (e *end) Memory(id uint32, bytes uint64) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.memory[id]
}

func (e *end) Changed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changes = append(e.changes, e.link.State())
	e.news.Broadcast()
}

func (e *end) Broken(_ error, underWay bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken, e.underWay = true, underWay
	e.news.Broadcast()
}

func (e *end) await(what string, f func() bool) {
	e.t.Helper()
	late := time.AfterFunc(60*time.Second, func() { e.mu.Lock(); defer e.mu.Unlock(); e.news.Broadcast() })
	defer late.Stop()
	deadline := time.Now().Add(60 * time.Second)
	e.mu.Lock()
	defer e.mu.Unlock()
	for !f() {
		if time.Now().After(deadline) {
			e.t.Fatalf("in vain: %s (state %v, changes %v, sent %d, returned %d)",
				what, e.link.State(), e.changes, e.sent, e.returned)
		}
		e.news.Wait()
	}
}

func (e *end) awaitState(m bulk.State) {
	e.t.Helper()
	e.await("state "+m.String(), func() bool { return e.link.State() == m })
}

func (e *end) awaitBytes(seq uint64, n int) {
	e.t.Helper()
	e.await("the bytes", func() bool { return e.count[seq] >= n })
	if e.count[seq] != n {
		e.t.Fatalf("transfer %d: %d of %d bytes", seq, e.count[seq], n)
	}
}

func mapped(t *testing.T, n int) []byte {
	t.Helper()
	b, err := mapMemory(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unmapMemory(b) })
	return b
}

func fill(b []byte, seed uint64) {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	_, _ = r.Read(b)
}

// pair gives a client and a server that are joined by a path.
func pair(t *testing.T, pins *Pins, source []byte) (client, server *end) {
	t.Helper()
	return pairWith(t, pins, source, testSlots, 0)
}

// pairWith does so with a number of slots and a client's buffer.
func pairWith(t *testing.T, pins *Pins, source []byte, slots, buffer int) (client, server *end) {
	t.Helper()
	l, err := net.Listen("tcp", os.Getenv("RXE_IP0")+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	logger := func(e *end) *slog.Logger {
		return slog.New(slog.NewTextHandler(&e.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	make := func() *end {
		e := &end{t: t, log: logWriter{t: t}, got: map[uint64][]byte{}, count: map[uint64]int{}, memory: map[uint32][]byte{}}
		e.news = sync.NewCond(&e.mu)
		return e
	}
	client, server = make(), make()
	client.other, server.other = server, client
	server.slots = mapped(t, slots*testSlotBytes)
	server.mu.Lock() // a call must not come before the link is known
	server.link =
		New(Config[piece]{Control: line(t, far), Device: os.Getenv("RXE_DEV0"), Slots: Mapped(server.slots),
			SlotBytes: testSlotBytes, Source: Mapped(source), Handler: server, Stats: &server.stats,
			Log: logger(server).With("side", "server")})
	server.mu.Unlock()
	client.mu.Lock()
	client.link =
		New(Config[piece]{Control: line(t, near), Dial: true, Device: os.Getenv("RXE_DEV1"), Pins: pins, Buffer: buffer,
			Handler: client, Stats: &client.stats, Log: logger(client).With("side", "client")})
	client.mu.Unlock()
	t.Cleanup(func() { client.link.Close(); server.link.Close() })
	client.awaitState(bulk.Up)
	server.awaitState(bulk.Up)
	return client, server
}

func line(t *testing.T, c net.Conn) *transport.Line {
	t.Helper()
	l, err := transport.NewLine(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// logWriter keeps what an end logs.
type logWriter struct {
	t    *testing.T
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *logWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t.Log(strings.TrimSpace(string(b)))
	return w.text.Write(b)
}

func (w *logWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// upload sends data, by other means where the link does not take it, and says how much that was.
func (e *end) upload(seq uint64, data []byte) (detour int) {
	from, err := e.link.Register(data)
	if err == nil {
		defer from.Release()
	}
	e.mu.Lock()
	before := e.sent
	e.mu.Unlock()
	taken := 0
	for off := 0; off < len(data); {
		n := min(e.link.ChunkBytes(), len(data)-off)
		p := piece{bulk.Chunk{Seq: seq, Offset: uint64(off), Bytes: uint32(n), More: off+n < len(data)}, data[off : off+n]}
		if err == nil && e.link.Send(p.chunk, p.data, from, p) {
			taken++
		} else {
			e.other.carried(p)
			detour += n
		}
		off += n
	}
	e.await("the end of an upload", func() bool { return e.sent == before+taken })
	return detour
}

// download sends a piece of the link's source to a window of the other side, by other means what the link does not
// take, and says how much that was.
func (e *end) download(id uint32, seq uint64, data []byte) (detour int) {
	e.link.Want(id, seq, uint64(len(data)))
	e.mu.Lock()
	before := e.sent
	e.mu.Unlock()
	taken := 0
	for off := 0; off < len(data); {
		n := min(e.link.ChunkBytes(), len(data)-off)
		p := piece{
			bulk.Chunk{Seq: seq, ID: id, Offset: uint64(off), Bytes: uint32(n), More: off+n < len(data)}, data[off : off+n]}
		if e.link.Place(p.chunk, address(p.data), p) {
			taken++
		} else {
			e.other.carried(p)
			detour += n
		}
		off += n
	}
	e.link.Forget(id, seq)
	e.await("the end of a download", func() bool { return e.sent == before+taken })
	return detour
}
