package executor

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/bulk/bulktest"
)

// watching is a client that notes every message.
func watching(t *testing.T) *client {
	c := connect(t)
	c.mu.Lock()
	c.keepLog = true
	c.mu.Unlock()
	return c
}

// record records an event with a watch and gives the position that PROGRESS will name.
func (c *client) record(event, stream uint64) uint64 {
	c.t.Helper()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.write(frame(c.command(0, cuda.OpCuEventRecord, transport.FlagWatch, words(event, stream))))
	return c.seq
}

// told gives the PROGRESS messages about a handle.
func (c *client) told(handle uint64) (list []transport.MessageHeader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.log {
		if h.Type == transport.MsgProgress && h.Aux == handle {
			list = append(list, h)
		}
	}
	return list
}

func (c *client) untilTold(handle, at uint64) {
	c.t.Helper()
	until(c.t, "PROGRESS", func() bool {
		list := c.told(handle)
		return len(list) > 0 && list[len(list)-1].Seq >= at && list[len(list)-1].Result == 0
	})
}

func TestProgressOfEventsAndStreams(t *testing.T) {
	c := watching(t)
	c.openCallback()
	s, e := c.stream(1), c.event()
	for range 20 {
		before := len(c.told(e))
		hold := make(chan struct{})
		c.hostFunc(s, 1, func() { <-hold })
		at := c.record(e, s)
		c.expect(cuda.CUDA_ERROR_NOT_READY, cuda.OpCuEventQuery, words(e))
		asked := c.seq
		c.expect(cuda.CUDA_ERROR_NOT_READY, cuda.OpCuStreamQuery, words(s))
		stream := c.seq
		if n := len(c.told(e)); n != before {
			t.Fatalf("%d messages about an event that is not complete", n-before)
		}
		close(hold)
		c.untilTold(e, asked)
		c.untilTold(s, stream)
		if list := c.told(e); list[len(list)-1].Seq < at {
			t.Fatalf("told up to %d, recorded at %d", list[len(list)-1].Seq, at)
		}
		c.must(cuda.OpCuEventQuery, words(e))
	}
}

// An event that was recorded anew, or is gone, is not told of for what it was.
func TestProgressOfAnotherMeaning(t *testing.T) {
	c := watching(t)
	c.openCallback()
	s, free, e, gone := c.stream(1), c.stream(1), c.event(), c.event()
	hold := make(chan struct{})
	c.hostFunc(s, 1, func() { <-hold })
	c.record(gone, s)
	first := c.record(e, s)
	second := c.record(e, free)
	c.untilTold(e, second)
	c.must(cuda.OpCuEventDestroy_v2, words(gone))
	close(hold)
	c.sync(s)
	if list := c.told(e); len(list) != 1 || list[0].Seq == first {
		t.Errorf("told %+v", list)
	}
	if list := c.told(gone); len(list) != 0 {
		t.Errorf("told of a destroyed event: %+v", list)
	}
}

// What cannot be watched is refused, so that the client asks: failed records, and everything while an error waits to be
// reported.
func TestProgressRefused(t *testing.T) {
	c := watching(t)
	c.openCallback()
	s, e := c.stream(1), c.event()
	at := c.record(e, c.newHandle()) // no such stream
	until(t, "the refusal", func() bool { return len(c.told(e)) == 1 })
	if h := c.told(e)[0]; h.Result == 0 || h.Seq != at {
		t.Errorf("%+v", h)
	}
	if r, _ := c.call(cuda.OpCuEventQuery, words(e)); r == cuda.CUDA_SUCCESS {
		t.Error("the failed record was not reported")
	}
	hold := make(chan struct{})
	c.hostFunc(s, 1, func() { <-hold })
	at = c.record(e, s)
	c.send(cuda.OpCuMemsetD8Async, words(8, 0, 1<<20, s)) // fails, unanswered
	c.must(wire.OpPing, words(0))                         // it has failed
	close(hold)
	until(t, "the event's end", func() bool { return len(c.told(e)) == 2 })
	if h := c.told(e)[1]; h.Result == 0 || h.Seq < at {
		t.Errorf("an event was reported complete before an error: %+v", h)
	}
	if r, _ := c.call(cuda.OpCuEventQuery, words(e)); r == cuda.CUDA_SUCCESS {
		t.Error("the error was not reported")
	}
	c.must(cuda.OpCuEventQuery, words(e))
}

// Whoever learns of something has learned of all before it: random work on several streams, every message checked
// against the streams' orders.
func TestProgressOrder(t *testing.T) {
	for seed := range uint64(6) {
		c := watching(t)
		r := rand.New(rand.NewPCG(seed, 5))
		type item struct { // of a stream: an event (handle, position) or a download (id)
			event, at uint64
			id        uint32
		}
		var streams [3][]item
		var handles [3]uint64
		for i := range handles {
			handles[i] = c.stream(1)
		}
		mem := c.alloc(1 << 20)
		syncs := map[uint64]int{} // position of a synchronisation: stream, and how long its list was
		lengths := map[uint64]int{}
		id := uint32(transport.FirstTransfer)
		for range 150 {
			i := r.IntN(len(streams))
			switch r.IntN(4) {
			case 0:
				e := c.event()
				streams[i] = append(streams[i], item{event: e, at: c.record(e, handles[i])})
			case 1:
				id++
				c.asyncDownload(id, make([]byte, 4<<10<<r.IntN(8)), mem, handles[i], flagDone)
				streams[i] = append(streams[i], item{id: id})
			case 2:
				c.send(cuda.OpCuMemsetD8Async, words(mem, 1, 1<<16, handles[i]))
			case 3:
				if r.IntN(4) == 0 {
					at := c.seq
					syncs[at], lengths[at] = i, len(streams[i])
					c.sync(handles[i])
				}
			}
		}
		for i := range handles {
			at := c.seq
			syncs[at], lengths[at] = i, len(streams[i])
			c.sync(handles[i])
		}
		c.mu.Lock()
		complete := map[any]bool{}
		place := map[any][2]int{}
		for i := range streams {
			for k, it := range streams[i] {
				place[it.id] = [2]int{i, k}
				if it.event != 0 {
					place[it.event] = [2]int{i, k}
				}
			}
		}
		before := func(what string, i, n int) {
			for _, it := range streams[i][:n] {
				if it.event != 0 && !complete[it.event] || it.id != 0 && !complete[it.id] {
					t.Fatalf("seed %d: %s came before the end of %+v, which lies before it", seed, what, it)
				}
			}
		}
		for _, h := range c.log {
			switch h.Type {
			case transport.MsgProgress:
				p := place[h.Aux]
				before("PROGRESS", p[0], p[1])
				complete[h.Aux] = true
			case transport.MsgDone:
				p := place[h.ID]
				before("DONE", p[0], p[1])
				complete[h.ID] = true
			case transport.MsgReply:
				if i, ok := syncs[h.Seq]; ok {
					before("the reply", i, lengths[h.Seq])
				}
			}
		}
		c.mu.Unlock()
	}
}

// bulkLines gives the session bulk connections.
func (c *client) bulkLines(n int) []net.Conn {
	c.t.Helper()
	var lines []net.Conn
	for range n {
		fd, conn := fdPair(c.t)
		if err := c.session.AttachBulk(lineOf(c.t, fileConn(c.t, fd)), n); err != nil {
			c.t.Fatal(err)
		}
		lines = append(lines, &bulktest.Chained{Conn: conn})
		c.t.Cleanup(func() { conn.Close() })
	}
	return lines
}

func chunkOf(seq, off uint64, data []byte) []byte {
	h := transport.MessageHeader{Type: transport.MsgChunk, Len: uint32(len(data)), Seq: seq, Aux: off}
	return append(append(h.Append(nil), data...), make([]byte, transport.Pad(len(data))-len(data))...)
}

// transferUp sends the command of an upload whose data come over the bulk connections.
func (c *client) transferUp(dst uint64, n int) (seq uint64) {
	p := wire.CopyH2D{Dst: dst, Bytes: uint64(n)}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	seq = c.seq
	c.write(
		frame(c.command(0, wire.OpCopyH2D, transport.FlagBulk|transport.FlagTransfer,
			append(bytes.Clone(wire.Bytes(&p)), words(p.Bytes)...))))
	return seq
}

// Uploads arrive whole and in order however their chunks are spread over the connections, and before or behind their
// commands.
func TestUploadTransfers(t *testing.T) {
	c := connect(t)
	lines := c.bulkLines(3)
	k := collect(t, lines)
	r := rand.New(rand.NewPCG(1, 2))
	const n = 3<<20 + 5
	dst := c.alloc(n)
	for round := range 6 {
		first, second := pattern(n, byte(round)), pattern(n/2, byte(round+100))
		seqs := []uint64{c.transferUp(dst, len(first)), c.transferUp(dst, len(second))}
		spread := make([][][]byte, len(lines))
		for i, data := range [][]byte{first, second} {
			var offs []int
			for off := 0; off < len(data); off += 300 << 10 {
				offs = append(offs, off)
			}
			r.Shuffle(len(offs), func(a, b int) { offs[a], offs[b] = offs[b], offs[a] })
			for _, off := range offs {
				line := r.IntN(len(lines))
				if i == 0 && round%2 == 0 {
					line = 0 // the other connections bring the second upload's chunks at once
				}
				spread[line] = append(spread[line], chunkOf(seqs[i], uint64(off), data[off:min(off+300<<10, len(data))]))
			}
		}
		var wg sync.WaitGroup
		for i, line := range lines {
			wg.Go(func() { _, _ = line.Write(slices.Concat(spread[i]...)) })
		}
		got := c.downloadTransfer(dst, n, k)
		wg.Wait()
		same(t, got[:len(second)], second)
		same(t, got[len(second):], first[len(second):])
	}
}

// pathWithoutTraffic is a path that is up and on which nothing comes.
type pathWithoutTraffic struct{}

func (pathWithoutTraffic) State() bulk.State                    { return bulk.Up }
func (pathWithoutTraffic) ChunkBytes() int                      { return largeBytes }
func (pathWithoutTraffic) Want(uint32, uint64, uint64) bool     { return false }
func (pathWithoutTraffic) Register([]byte) (bulk.Region, error) { return nil, nil }
func (pathWithoutTraffic) Send(bulk.Piece, bulk.Region) error   { return bulk.ErrDown }
func (pathWithoutTraffic) Forget(uint32, uint64)                {}
func (pathWithoutTraffic) Release(...uint32)                    {}
func (pathWithoutTraffic) Close()                               {}

// Uploads come over the bulk connections though there is a path by RDMA, as where the program's memory cannot be
// registered; here before their commands.
func TestUploadsByFallbackBesidePath(t *testing.T) {
	c := connect(t)
	lines := c.bulkLines(2)
	k := collect(t, lines)
	c.session.copies.path.use(pathWithoutTraffic{})
	const n = 2 << 20
	dst := c.alloc(n)
	for round := range 20 {
		data := pattern(n, byte(round))
		var wg sync.WaitGroup
		seq := c.seq + transport.CommandHeaderSize + 8 // behind the next command
		for i, line := range lines {
			off := i * n / 2
			wg.Go(func() { _, _ = line.Write(chunkOf(seq, uint64(off), data[off:off+n/2])) })
		}
		c.sync(0)
		if got := c.transferUp(dst, n); got != seq {
			t.Fatalf("the command has number %d, expected %d", got, seq)
		}
		same(t, c.downloadTransfer(dst, n, k), data)
		wg.Wait()
	}
}

// recordingPath is a path that is up; it keeps what it is told to carry, and is through with nothing before it is let
// go on.
type recordingPath struct {
	pathWithoutTraffic
	s    *Session
	goOn chan struct{}
	mu   sync.Mutex
	got  []byte
	have int
}

func (*recordingPath) Want(uint32, uint64, uint64) bool { return true }
func (p *recordingPath) Send(piece bulk.Piece, _ bulk.Region) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.have += copy(p.got[piece.Chunk().Offset:], piece.Data())
	go func() {
		<-p.goOn
		(*pathHandler)(&p.s.copies.path).Sent(piece, true)
	}()
	return nil
}

// All slots of RDMA wait for a stream that is busy with something else when a download begins: commands behind it are
// not held up, and what waits for the stream is answered behind the download's end, though the path is through with
// nothing.
func TestDownloadsOfBusyStreams(t *testing.T) {
	c := connect(t)
	c.openCallback()
	const n = 12 << 20
	k := collect(t, c.bulkLines(2))
	s := c.session
	s.copies.path.count = leastRDMASlots
	var err error
	if s.copies.path.mem, err = mapMemory(s.copies.path.count * largeBytes); err != nil {
		t.Fatal(err)
	}
	s.copies.path.lay()
	p := &recordingPath{s: s, got: make([]byte, n), goOn: make(chan struct{})}
	k.mu.Lock()
	k.got = p.got // some go the other way
	k.mu.Unlock()
	s.copies.path.use(p)
	data, mem, st := pattern(n, 1), c.alloc(n), c.stream(1)
	for off := 0; off < n; off += 1 << 20 {
		c.upload(mem+uint64(off), data[off:off+1<<20], st, 0)
	}
	goOn := make(chan struct{})
	c.hostFunc(st, 1, func() { <-goOn })
	c.asyncDownload(transport.FirstTransfer, make([]byte, n), mem, st, flagDone)
	c.sync(c.stream(1)) // behind the download, and answered
	close(goOn)
	c.sync(st)
	c.mu.Lock()
	_, ended := c.done[transport.FirstTransfer]
	c.mu.Unlock()
	if !ended {
		t.Error("the stream is said to be through before the end of its download")
	}
	close(p.goOn)
	until(t, "the whole download", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		return p.have+k.have == n
	})
	if p.have < 4<<20 {
		t.Errorf("%d bytes went by RDMA", p.have)
	}
	same(t, p.got, data)
}

// collector stores the chunks of downloads.
type collector struct {
	mu   sync.Mutex
	got  []byte
	have int
}

func collect(t *testing.T, lines []net.Conn) *collector {
	k := &collector{}
	for _, line := range lines {
		go func() {
			head := make([]byte, transport.MessageHeaderSize)
			for {
				if _, err := io.ReadFull(line, head); err != nil {
					return
				}
				h, _, err := transport.ParseMessage(head)
				data := make([]byte, transport.Pad(int(h.Len)))
				if _, e := io.ReadFull(line, data); err != nil || e != nil || h.Type != transport.MsgChunk {
					t.Error(h, err, e)
					return
				}
				k.mu.Lock()
				k.have += copy(k.got[h.Aux:], data[:h.Len])
				k.mu.Unlock()
			}
		}()
	}
	return k
}

// downloadTransfer downloads over the bulk connections.
func (c *client) downloadTransfer(src uint64, n int, k *collector) []byte {
	c.t.Helper()
	k.mu.Lock()
	k.got, k.have = make([]byte, n), 0
	k.mu.Unlock()
	p := wire.CopyD2H{Src: src, Bytes: uint64(n), Flags: flagSync}
	m := c.await(c.start(0, wire.OpCopyD2H, 0, wire.Bytes(&p), nil))
	if m.Result != 0 || m.Aux != uint64(n) {
		c.t.Fatalf("reply %+v", m.MessageHeader)
	}
	until(c.t, "all chunks", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.have == n
	})
	return k.got
}

func TestBulkConnectionsEnd(t *testing.T) {
	for name, breakIt := range map[string]func(c *client, lines []net.Conn, seq uint64){
		"closed": func(_ *client, lines []net.Conn, _ uint64) { lines[1].Close() },
		"too far": func(_ *client, lines []net.Conn, seq uint64) {
			_, _ = lines[0].Write(chunkOf(seq, 4<<20, make([]byte, 8)))
		},
		"no chunk": func(_ *client, lines []net.Conn, _ uint64) { _, _ = lines[0].Write(make([]byte, 64)) },
		"empty":    func(_ *client, lines []net.Conn, seq uint64) { _, _ = lines[0].Write(chunkOf(seq, 0, nil)) },
		"twice": func(_ *client, lines []net.Conn, seq uint64) {
			_, _ = lines[1].Write(chunkOf(seq, 0, make([]byte, 1<<20)))
		},
		"in part twice": func(_ *client, lines []net.Conn, seq uint64) {
			_, _ = lines[1].Write(chunkOf(seq, 1<<20-1, make([]byte, 1<<20)))
		},
		"not numbered": func(_ *client, lines []net.Conn, seq uint64) {
			_, _ = lines[0].(*bulktest.Chained).Conn.Write(chunkOf(seq, 1<<20, make([]byte, 1<<20)))
		},
		"main gone": func(c *client, lines []net.Conn, _ uint64) { c.conn.Close(); lines[0].Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t)
			lines := c.bulkLines(2)
			seq := c.transferUp(c.alloc(4<<20), 4<<20)
			_, _ = lines[0].Write(chunkOf(seq, 0, make([]byte, 1<<20)))
			until(t, "the upload has begun", func() bool {
				return c.session.copies.bulk.in.Taking()
			})
			breakIt(c, lines, seq)
			// whoever sees first that a connection has ended knows no better reason
			err := c.wait()
			if !errors.Is(err, ErrProtocol) && (!errors.Is(err, ErrGone) || strings.Contains(name, "twice")) {
				t.Fatalf("the session ended with %v", err)
			}
		})
	}
}

// Without connections, or with too few, downloads use the main connection.
func TestBulkConnectionsIncomplete(t *testing.T) {
	c := connect(t)
	fd, conn := fdPair(t)
	defer conn.Close()
	if err := c.session.AttachBulk(lineOf(t, fileConn(t, fd)), 2); err != nil {
		t.Fatal(err)
	}
	data := pattern(3<<20, 3)
	dst := c.alloc(uint64(len(data)))
	c.upload(dst, data, 0, 0)
	same(t, c.download(dst, len(data), 0), data)
	conn.Close()
	same(t, c.download(dst, len(data), 0), data)
}

// FLUSH is answered while the executor carries out what the driver would hold it up for until a host function has run:
// memory freed, and more launches than a stream takes.
func TestFlushBehindHostFunction(t *testing.T) {
	for name, behind := range map[string]func(c *client, stream, mem uint64){
		"memory freed": func(c *client, _, mem uint64) { c.send(cuda.OpCuMemFree_v2, words(mem)) },
		"much work": func(c *client, stream, mem uint64) {
			for range 1100 { // the rest of them waits in the socket
				c.send(cuda.OpCuMemsetD8Async, words(mem, 1, 16, stream))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t)
			c.openCallback()
			c.keepLog = true
			st, mem, sent := c.stream(1), c.alloc(64), make(chan struct{})
			c.hostFunc(st, 1, func() {
				<-sent
				// the first ones may come before the executor has seen what was sent
				for n := uint64(1); n <= 200 && c.flush(n) != nil; n++ {
				}
			})
			behind(c, st, mem)
			close(sent)
			c.sync(st)
		})
	}
}

// The answer to FLUSH comes behind the ends of the downloads that the GPU had finished, and does not wait for the
// others.
func TestFlush(t *testing.T) {
	c := connect(t)
	c.openCallback()
	c.keepLog = true
	mem, a, b, e := c.alloc(4<<20), c.stream(1), c.stream(1), c.event()
	const before, behind = transport.FirstTransfer, transport.FirstTransfer + 1
	c.asyncDownload(before, make([]byte, 4<<20), mem, a, flagDone)
	at := func(m transport.MessageType, id uint32) int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.IndexFunc(c.log, func(h transport.MessageHeader) bool { return h.Type == m && h.ID == id })
	}
	asked := make(chan struct{})
	c.hostFunc(a, 1, func() {
		defer close(asked)
		if err := c.sayBack(transport.MessageHeader{Type: transport.MsgFlush, Seq: 1}, nil); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(deadline); at(transport.MsgFlushed, 0) < 0; runtime.Gosched() {
			if time.Now().After(end) {
				t.Error("FLUSH is not answered")
				return
			}
		}
	})
	c.send(cuda.OpCuEventRecord, words(e, a))
	c.send(cuda.OpCuStreamWaitEvent, words(b, e, 0))
	c.asyncDownload(behind, make([]byte, 8), mem, b, flagDone)
	<-asked
	c.sync(b)
	flushed, first, last := at(transport.MsgFlushed, 0), at(transport.MsgDone, before), at(transport.MsgDone, behind)
	if first < 0 || first > flushed || last < flushed {
		t.Errorf("the download before it ended at %d, the answer came at %d, the download behind it ended at %d", first,
			flushed, last)
	}
}
