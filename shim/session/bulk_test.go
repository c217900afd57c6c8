package session

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/bulk/bulktest"
)

// readChunk reads a chunk that the client sent.
func readChunk(c net.Conn) (h transport.MessageHeader, data []byte, err error) {
	head := make([]byte, transport.MessageHeaderSize)
	if _, err = io.ReadFull(c, head); err != nil {
		return h, nil, err
	}
	if h, _, err = transport.ParseMessage(head); err != nil {
		return h, nil, err
	}
	data = make([]byte, transport.Pad(int(h.Len)))
	_, err = io.ReadFull(c, data)
	return h, data[:h.Len], err
}

func some(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>9) ^ seed
	}
	return b
}

// withBulk opens a session with bulk connections that are ready.
func withBulk(t *testing.T, p *peer, f *front, conns int) (*Session, []net.Conn) {
	t.Helper()
	p.welcome.Bulk = transport.MaxBulkConns
	s, _ := p.openWith(f, nil, conns)
	var lines []net.Conn
	within(t, func() {
		s.bulk.want(bulk.MinTransfer)
		for range conns {
			lines = append(lines, &bulktest.Chained{Conn: <-p.bulk})
		}
		for s.bulk.state.Load() != bulkReady {
			schedYield()
		}
	})
	return s, lines
}

// The bulk connections are opened at once: the server here welcomes none before it has met all.
func TestBulkConnectionsOpenAtOnce(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.welcome.Capabilities = []string{transport.CapTickets}
	const conns = 4
	var all sync.WaitGroup
	all.Add(conns)
	var mu sync.Mutex
	var numbers []int
	p.joining = func(hello *transport.Hello) {
		n, _ := transport.TicketNumber(hello.Ticket)
		mu.Lock()
		numbers = append(numbers, n)
		mu.Unlock()
		if hello.Count != conns {
			t.Errorf("connection %d of %d, expected of %d", n, hello.Count, conns)
		}
		all.Done()
		all.Wait()
	}
	withBulk(t, p, f, conns)
	if slices.Sort(numbers); !slices.Equal(numbers, []int{0, 1, 2, 3}) {
		t.Errorf("connections %v", numbers)
	}
}

// Uploads of several threads arrive whole, and on every connection in the order of their commands.
func TestBulkUploads(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	s, lines := withBulk(t, p, f, 3)
	const threads, rounds, n = 3, 3, bulk.MinTransfer + 12345
	got := map[uint64][]byte{}
	var mu sync.Mutex
	total := 0
	var readers sync.WaitGroup
	for _, line := range lines {
		readers.Go(func() {
			var last uint64
			for {
				h, data, err := readChunk(line)
				if err != nil {
					return
				}
				if h.Seq < last {
					t.Errorf("a chunk of %d behind one of %d", h.Seq, last)
				}
				last = h.Seq
				mu.Lock()
				if got[h.Seq] == nil {
					got[h.Seq] = make([]byte, n)
				}
				total += copy(got[h.Seq][h.Aux:], data)
				mu.Unlock()
			}
		})
	}
	sent := map[uint64][]byte{}
	within(t, func() {
		var wg sync.WaitGroup
		for i := range threads {
			wg.Go(func() {
				for k := range rounds {
					data := some(n, byte(i*rounds+k))
					want := bytes.Clone(data)
					payload := append(bytes.Clone(wire.Bytes(&wire.CopyH2D{Bytes: n})), u64(n)...)
					end := f.publish(wire.OpCopyH2D, transport.FlagBulk, uint32(i), payload)
					if r := s.Bulk(end, data); r != 0 {
						t.Error(r)
					}
					clear(data) // the memory is the program's again
					mu.Lock()
					sent[end-uint64(transport.CommandHeaderSize+len(payload))] = want
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for {
			mu.Lock()
			all := total == threads*rounds*n
			mu.Unlock()
			if all {
				break
			}
			schedYield()
		}
	})
	for seq, want := range sent {
		if !bytes.Equal(got[seq], want) {
			t.Errorf("the upload at %d arrived changed", seq)
		}
	}
	p.kill()
	readers.Wait()
}

// The end of a download waits for its chunks, and so does everything behind it.
func TestBulkDownloads(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	const n = 3 << 20
	want := some(n, 9)
	var shared atomic.Pointer[[]net.Conn]
	p.command = func(p *peer, h transport.CommandHeader, payload, _ []byte) {
		p.say(transport.MessageHeader{Type: transport.MsgReply, ID: h.Thread, Seq: h.Seq, Aux: n}, nil)
		lines := *shared.Load()
		for i, off := 0, 0; off < n; i, off = i+1, off+1<<20 {
			sayOn(lines[i%len(lines)], transport.MessageHeader{
				Type: transport.MsgChunk, ID: binary.LittleEndian.Uint32(payload), Seq: h.Seq, Aux: uint64(off),
			}, want[off:off+1<<20])
		}
	}
	s, lines := withBulk(t, p, f, 2)
	shared.Store(&lines)
	within(t, func() {
		for round := range 10 {
			// The server may use the connections before the client has noted that all of them are there.
			s.bulk.state.Store([]int32{bulkReady, bulkOpening}[round%2])
			dst := make([]byte, n)
			id := s.Transfer(dst, 4, TransferSync)
			if r, _ := f.call(s, wire.OpCopyD2H, 4, u64(uint64(id)), nil); r != 0 {
				t.Fatal(r)
			}
			if !bytes.Equal(dst, want) {
				t.Fatalf("round %d: the call returned before its data were there", round)
			}
		}
	})
}

// Chunks of a download that something on the way doubles, exchanges or changes, and those that a server sends twice,
// end the session; the download does not succeed.
func TestBulkChunksOutOfOrder(t *testing.T) {
	const n, part = 2 << 20, 256 << 10
	chunk := func(id uint32, at int) []byte {
		h := transport.MessageHeader{Type: transport.MsgChunk, Len: part, ID: id, Aux: uint64(at * part)}
		return append(h.Append(nil), some(part, byte(at))...)
	}
	for name, c := range map[string]struct {
		numbered bool // the server itself sends them so
		change   func(list [][]byte) [][]byte
	}{
		"doubled":                         {false, func(l [][]byte) [][]byte { return slices.Insert(l, 3, l[2]) }},
		"dropped":                         {false, func(l [][]byte) [][]byte { return slices.Delete(l, 3, 4) }},
		"exchanged":                       {false, func(l [][]byte) [][]byte { l[3], l[4] = l[4], l[3]; return l }},
		"doubled in the place of another": {false, func(l [][]byte) [][]byte { l[4] = l[3]; return l }},
		"moved":                           {false, func(l [][]byte) [][]byte { l[4][24]++; return l }},
		"twice":                           {true, func(l [][]byte) [][]byte { l[4] = bytes.Clone(l[3]); return l }},
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newPeer(t), newFront(t, 1<<16)
			var shared atomic.Pointer[net.Conn]
			p.command = func(p *peer, h transport.CommandHeader, payload, _ []byte) {
				p.say(transport.MessageHeader{Type: transport.MsgReply, ID: h.Thread, Seq: h.Seq, Aux: n}, nil)
				var list [][]byte
				for i := range n / part {
					list = append(list, chunk(binary.LittleEndian.Uint32(payload), i))
				}
				if c.numbered {
					list = c.change(list)
				}
				var chain transport.Chain
				for _, k := range list {
					chain.Number(k)
				}
				if !c.numbered {
					list = c.change(list)
				}
				for _, k := range list {
					_, _ = (*shared.Load()).Write(k) // the client may have gone
				}
			}
			s, lines := withBulk(t, p, f, 1)
			shared.Store(&lines[0].(*bulktest.Chained).Conn)
			within(t, func() {
				id := s.Transfer(make([]byte, n), 4, TransferSync)
				if r, _ := f.call(s, wire.OpCopyD2H, 4, u64(uint64(id)), nil); r != Unavailable {
					t.Errorf("the download's result is %d", r)
				}
			})
		})
	}
}

// A bulk connection that breaks while nothing is under way costs only the speed; during a copy it ends the session.
func TestBulkBreaks(t *testing.T) {
	p, f := newPeer(t), newFront(t, 1<<16)
	p.command = echo
	s, lines := withBulk(t, p, f, 2)
	within(t, func() {
		lines[0].Close()
		for s.bulk.state.Load() != bulkGone {
			schedYield()
		}
		if r, _ := f.call(s, opEcho, 0, nil, nil); r != opEcho {
			t.Fatalf("after an idle connection broke: %d", r)
		}
	})
	p, f = newPeer(t), newFront(t, 1<<16)
	s, lines = withBulk(t, p, f, 2)
	within(t, func() {
		const n = 64 << 20 // more than the connections' buffers take
		end := f.publish(wire.OpCopyH2D, transport.FlagBulk, 0,
			append(bytes.Clone(wire.Bytes(&wire.CopyH2D{Bytes: n})), u64(n)...))
		result := make(chan int32, 1)
		go func() { result <- s.Bulk(end, make([]byte, n)) }()
		if _, _, err := readChunk(lines[0]); err != nil {
			t.Error(err)
		}
		lines[1].Close()
		if r := <-result; r != Unavailable {
			t.Errorf("the upload's result is %d", r)
		}
	})
}
