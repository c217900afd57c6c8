package executor

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/turn"
	"scuda.dev/scuda/transport"
)

// servers are two servers of a program, each with a session and a GPU of its own. To each the other has its place in
// the pair as number.
type servers struct {
	t      *testing.T
	of     [2]*client
	number uint64
	epoch  uint32
}

func twoServers(t *testing.T) *servers {
	s := &servers{t: t}
	for i := range s.of {
		s.of[i] = connect(t)
	}
	return s
}

// join connects them in another epoch.
func (s *servers) join(count int) {
	s.t.Helper()
	s.epoch++
	for range count {
		fd, conn := fdPair(s.t)
		ends := [2]net.Conn{fileConn(s.t, fd), conn}
		for i := range s.of {
			if err := s.attach(i, ends[i], count); err != nil {
				s.t.Fatal(err)
			}
		}
	}

}

// attach gives a server an end of one of count connections.
func (s *servers) attach(i int, end net.Conn, count int) error {
	p := Peering{Server: uint32(1 - i), Epoch: s.epoch, Count: count}
	return AttachPeer(s.of[i].session, lineOf(s.t, end), p)
}

// line is a copy of bytes between straight memory.
func line(dst, src, bytes uint64) (words [25]uint64) {
	b := copy3DOf(&words)
	b.SrcMemoryType, b.DstMemoryType = cuda.CU_MEMORYTYPE_DEVICE, cuda.CU_MEMORYTYPE_DEVICE
	b.SrcDevice, b.DstDevice = cuda.CUdeviceptr(src), cuda.CUdeviceptr(dst)
	b.WidthInBytes, b.Height, b.Depth = bytes, 1, 1
	b.SrcPitch, b.SrcHeight, b.DstPitch, b.DstHeight = bytes, 1, bytes, 1
	return words
}

func (s *servers) send(from int, copied [25]uint64, number uint64) {
	s.t.Helper()
	m := wire.PeerSend{Copy: copied, Number: number, Peer: uint32(1 - from), Epoch: s.epoch}
	s.of[from].must(wire.OpPeerSend, wire.Bytes(&m))
}

func (s *servers) receive(to int, copied [25]uint64, number uint64) {
	s.t.Helper()
	m := wire.PeerReceive{Copy: copied, Number: number, Peer: uint32(1 - to), Epoch: s.epoch}
	s.of[to].must(wire.OpPeerReceive, wire.Bytes(&m))
}

func (s *servers) await(to int, number uint64) <-chan message {
	s.t.Helper()
	m := wire.PeerAwait{Number: number, Peer: uint32(1 - to)}
	return s.of[to].start(uint32(number), wire.OpPeerAwait, 0, wire.Bytes(&m), nil)
}

// arrived is an answer to await: the result, and how many bytes have come.
func (s *servers) arrived(to int, ch <-chan message) (cuda.CUresult, uint64) {
	s.t.Helper()
	m := s.of[to].await(ch)
	if len(m.payload) < wire.SizePeerArrived {
		return cuda.CUresult(m.Result), 0
	}
	v, _, _ := wire.View[wire.PeerArrived](m.payload)
	return cuda.CUresult(m.Result), v.Bytes
}

// Copies go to and fro, whichever server hears of them first, and more than there are slots.
func TestPeers(t *testing.T) {
	s := twoServers(t)
	s.join(3)
	const most = 40 << 20
	var at [2]uint64
	for i, c := range s.of {
		at[i] = c.alloc(most)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for k, n := range []uint64{1, 8, 4097, 1 << 20, 3<<20 + 5, most, 300, 5 << 20} {
		from, to := k%2, 1-k%2
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		s.of[from].upload(at[from], data, 0, flagSync)
		s.number++
		parts := []func(){
			func() { s.send(from, line(at[to], at[from], n), s.number) },
			func() { s.receive(to, line(at[to], at[from], n), s.number) },
		}
		parts[k/2%2]()
		parts[1-k/2%2]()
		if r, come := s.arrived(to, s.await(to, s.number)); r != cuda.CUDA_SUCCESS || come != n {
			t.Fatalf("%d bytes: %v, %d have come", n, r, come)
		}
		if !bytes.Equal(s.of[to].download(at[to], int(n), 0), data) {
			t.Errorf("%d bytes differ", n)
		}
	}
}

// connWait is a wait for a connection: when it began, and how long it may take.
type connWait struct {
	at   time.Time
	most time.Duration
}

// waited tells of the waits for a connection, as long as somebody takes them.
type waited struct {
	transport.Conn
	waits chan connWait
}

func (c *waited) WaitOr(ev transport.Events, timeout time.Duration, w *transport.Waker) (transport.Events, error) {
	select {
	case c.waits <- connWait{time.Now(), timeout}:
	default:
	}
	return c.Conn.WaitOr(ev, timeout, w)
}

// While nothing comes from another server the executor sleeps; what comes wakes it.
func TestPeersSleep(t *testing.T) {
	conn := waited{waits: make(chan connWait, 4096)}
	counted := func(cfg *Config) { conn.Conn, cfg.Conn = cfg.Conn, &conn }
	s := &servers{t: t, of: [2]*client{connect(t), connect(t, counted)}}
	s.join(2)
	const n = 3 << 20
	src, dst := s.of[0].alloc(n), s.of[1].alloc(n)
	s.receive(1, line(dst, src, n), 1)
	end := s.await(1, 1)
	last := <-conn.waits
	full := func() bool { // the next wait is a nap that lasts, as the last one was
		next := <-conn.waits
		nap := last.most == napStalled && next.at.Sub(last.at) >= napStalled
		last = next
		return nap
	}
	for !full() { // it looks around, and the last command comes
	}
	for i := range 25 {
		if !full() {
			t.Errorf("nap %d did not last", i)
		}
	}
	s.send(0, line(dst, src, n), 1)
	if r, come := s.arrived(1, end); r != cuda.CUDA_SUCCESS || come != n {
		t.Errorf("%v, %d have come", r, come)
	}
}

// Of a copy that the driver refuses here the bytes are taken all the same, and the next ones come.
func TestPeersRefused(t *testing.T) {
	s := twoServers(t)
	s.join(2)
	const n = 3 << 20
	src, dst := s.of[0].alloc(n), s.of[1].alloc(n)
	data := bytes.Repeat([]byte("abc"), n/3)
	s.of[0].upload(src, data, 0, flagSync)
	s.send(0, line(8, src, n), 1)
	s.receive(1, line(8, src, n), 1)
	if r, come := s.arrived(1, s.await(1, 1)); r != cuda.CUDA_ERROR_INVALID_VALUE || come != n {
		t.Errorf("to no memory: %v, %d", r, come)
	}
	s.send(0, line(dst, src, n), 2)
	s.receive(1, line(dst, src, n), 2)
	if r, come := s.arrived(1, s.await(1, 2)); r != cuda.CUDA_SUCCESS || come != n ||
		!bytes.Equal(s.of[1].download(dst, n, 0), data) {
		t.Errorf("the next one: %v, %d", r, come)
	}
}

// A copy that is refused before there is memory for chunks does not wait for its bytes.
func TestPeersRefusedFirst(t *testing.T) {
	s := twoServers(t)
	s.join(2)
	const n = 3 << 20
	src, dst := s.of[0].alloc(n), s.of[1].alloc(n)
	s.send(0, line(dst, src, n), 1)
	m := wire.PeerReceive{Copy: line(dst, src, n), Number: 1, Stream: clientBase + 999*64, Epoch: s.epoch}
	s.of[1].must(wire.OpPeerReceive, wire.Bytes(&m))
	if r, come := s.arrived(1, s.await(1, 1)); r != cuda.CUDA_ERROR_INVALID_HANDLE || come != 0 {
		t.Errorf("in no stream: %v, %d", r, come)
	}
	s.join(2)
	s.send(0, line(dst, src, n), 2)
	s.receive(1, line(dst, src, n), 2)
	if r, come := s.arrived(1, s.await(1, 2)); r != cuda.CUDA_SUCCESS || come != n {
		t.Errorf("the next one: %v, %d", r, come)
	}
}

// Where a side cannot go on, the other one hears of it. Then there are other connections.
func TestPeersLost(t *testing.T) {
	s := twoServers(t)
	const n = 2 << 20
	src, dst := s.of[0].alloc(n), s.of[1].alloc(n)
	data := bytes.Repeat([]byte{7, 8}, n/2)
	s.of[0].upload(src, data, 0, flagSync)
	for round := range uint64(3) {
		s.join(2)
		s.receive(1, line(dst, src, n), 10*round+1)
		lost := s.await(1, 10*round+1)
		s.of[1].unanswered(lost)
		s.send(0, line(dst, 16, n), 10*round+1) // the driver refuses to read there
		if r, come := s.arrived(1, lost); r != cuda.CUDA_SUCCESS || come != 0 {
			t.Fatalf("%v, %d have come", r, come)
		}
		s.receive(1, line(dst, src, n), 10*round+2) // by connections that are gone
		if r, come := s.arrived(1, s.await(1, 10*round+2)); r != cuda.CUDA_SUCCESS || come != 0 {
			t.Fatalf("%v, %d have come", r, come)
		}
		s.join(2)
		s.send(0, line(dst, src, n), 10*round+3)
		s.receive(1, line(dst, src, n), 10*round+3)
		if r, come := s.arrived(1, s.await(1, 10*round+3)); r != cuda.CUDA_SUCCESS || come != n ||
			!bytes.Equal(s.of[1].download(dst, n, 0), data) {
			t.Fatalf("%v, %d have come", r, come)
		}
	}
}

// Memory is used again when nobody uses it any more: no connection, and no copy of the GPU's.
func TestPeersInherit(t *testing.T) {
	ps := &peers{}
	sl := &slot{event: 1}
	old := &peer{ps: ps, peerMemory: peerMemory{mem: make([]byte, 8), all: []*slot{sl}}}
	old.users.Store(1)
	ps.old = []*peer{{ps: ps}, old}
	next := &peer{ps: ps}
	ps.list = map[uint32]*peer{0: next}
	if next.inherit() {
		t.Error("the memory of connections that have not ended is taken")
	}
	old.users.Store(0)
	if next.inherit() {
		t.Error("memory that the GPU uses is taken")
	}
	sl.event = 0
	if !next.inherit() || len(next.mem) != 8 || !sl.free.Load() || len(ps.old) != 1 {
		t.Errorf("%d bytes, %d others", len(next.mem), len(ps.old))
	}
	if sl.event = 1; !old.rests() || old.reclaim() {
		t.Error("those before look after slots that are not theirs any more")
	}
}

// Another server's machine that does not answer ends its connections alone: copies are over, the session goes on.
func TestPeersSilent(t *testing.T) {
	s := twoServers(t)
	const n = 1 << 20
	src, dst := s.of[0].alloc(n), s.of[1].alloc(n)
	own := s.of[1].session.sockets()
	s.join(2)
	s.receive(1, line(dst, src, n), 1)
	ch := s.await(1, 1)
	s.of[1].unanswered(ch)
	all := s.of[1].session.sockets()
	if len(all) != len(own)+2 {
		t.Fatalf("%d sockets are looked at, and %d without those of the other server", len(all), len(own))
	}
	if !s.of[1].session.peers.active.Load() {
		t.Error("nobody looks while the copy is under way")
	}
	if !s.of[1].session.lose(all[len(own):][1:]) {
		t.Error("the session is over")
	}
	if r, come := s.arrived(1, ch); r != cuda.CUDA_SUCCESS || come != 0 {
		t.Errorf("%v, %d have come", r, come)
	}
	if left := s.of[1].session.sockets(); len(left) != len(own) {
		t.Errorf("%d sockets are looked at, %d before", len(left), len(own))
	}
	until(t, "nobody has to look any more", func() bool { return !s.of[1].session.peers.active.Load() })
}

// Where sessions take turns on a GPU, a copy to or from another server waits for its own, as all copies do.
func TestPeersTakeTurns(t *testing.T) {
	slots := [2]*turn.Slot{new(turn.Slot), new(turn.Slot)}
	s := &servers{t: t}
	for i := range s.of {
		s.of[i] = connect(t, func(c *Config) { c.Turn = slots[i] })
	}
	s.join(2)
	const n = 3 << 20
	src, dst := s.of[0].alloc(n), s.of[1].alloc(n)
	m := wire.PeerSend{Copy: line(dst, src, n), Number: 1, Epoch: s.epoch}
	for i, op := range []uint16{wire.OpPeerSend, wire.OpPeerReceive} {
		slots[i].Tell(turn.Report | turn.Wait)
		m.Peer = uint32(1 - i)
		ch := s.of[i].start(0, op, 0, wire.Bytes(&m), nil)
		went := false
		until(t, "it wants to go on, or does", func() bool {
			went = answered(ch)
			return went || slots[i].Read().Doing&turn.Wants != 0
		})
		if slots[i].Tell(0); went {
			t.Errorf("server %d did not wait", i)
			continue
		}
		s.of[i].await(ch)
	}
	if r, come := s.arrived(1, s.await(1, 1)); r != cuda.CUDA_SUCCESS || come != n {
		t.Errorf("%v, %d have come", r, come)
	}
}

// Nothing is enqueued in a stream that ends, or is captured, before a copy is over.
func TestPeersInStreamsThatEnd(t *testing.T) {
	const n = 3 << 20
	for name, c := range map[string]struct {
		meanwhile func(c *client, stream uint64)
		r         cuda.CUresult
		come      uint64
	}{
		"destroyed": {func(c *client, stream uint64) { c.must(cuda.OpCuStreamDestroy_v2, words(stream)) },
			cuda.CUDA_SUCCESS, 0},
		"captured": {func(c *client, stream uint64) { c.must(cuda.OpCuStreamBeginCapture_v2, words(stream, 2)) },
			cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, n},
	} {
		for _, end := range []string{"source", "destination"} {
			t.Run(name+" at the "+end, func(t *testing.T) {
				s := twoServers(t)
				s.join(2)
				src, dst := s.of[0].alloc(n), s.of[1].alloc(n)
				streams := [2]uint64{s.of[0].stream(1), s.of[1].stream(1)}
				send := wire.PeerSend{Copy: line(dst, src, n), Number: 1, Peer: 1, Epoch: s.epoch, Stream: streams[0]}
				receive := wire.PeerReceive{Copy: line(dst, src, n), Number: 1, Epoch: s.epoch, Stream: streams[1]}
				r, come := c.r, c.come
				if end == "source" { // where the first piece waits for another connection
					r, come = cuda.CUDA_SUCCESS, 0
					s.epoch++
					send.Epoch, receive.Epoch = s.epoch, s.epoch
					s.of[0].must(wire.OpPeerSend, wire.Bytes(&send))
					c.meanwhile(s.of[0], streams[0])
					fd, conn := fdPair(t)
					if err := s.attach(1, conn, 1); err != nil {
						t.Fatal(err)
					}
					_ = s.attach(0, fileConn(t, fd), 1) // where the connections have ended by now, it is closed
					s.of[1].must(wire.OpPeerReceive, wire.Bytes(&receive))
				} else {
					s.of[1].must(wire.OpPeerReceive, wire.Bytes(&receive))
					c.meanwhile(s.of[1], streams[1])
					s.of[0].must(wire.OpPeerSend, wire.Bytes(&send))
				}
				if got, has := s.arrived(1, s.await(1, 1)); got != r || has != come {
					t.Errorf("%v, %d have come; expected %v, %d", got, has, r, come)
				}
			})
		}
	}
}

// A client that names other connections with each copy does not fill the worker's memory with those before.
func TestPeersReplaced(t *testing.T) {
	s := twoServers(t)
	const n = 1 << 20
	src := s.of[0].alloc(n)
	for range 100 {
		s.epoch++
		m := wire.PeerSend{Copy: line(8, src, n), Peer: 1, Epoch: s.epoch, Stream: clientBase + 999*64}
		s.of[0].must(wire.OpPeerSend, wire.Bytes(&m))
	}
	ps := &s.of[0].session.peers
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if k := len(ps.old); k != 0 {
		t.Errorf("%d are kept, which have no memory", k)
	}
}

// registering counts how many times memory is page-locked.
type registering struct {
	cuda.GPU
	times atomic.Int32
}

func (g *registering) CuMemHostRegister_v2(p unsafe.Pointer, n uint64, flags uint32) cuda.CUresult {
	r := g.GPU.CuMemHostRegister_v2(p, n, flags)
	if r == cuda.CUDA_SUCCESS {
		g.times.Add(1)
	}
	return r
}

// Memory that is used again is page-locked as long as the context in which it was, and then anew.
func TestPeersLockedInAnotherContext(t *testing.T) {
	gpu := &registering{GPU: openSim(t)}
	s := &servers{t: t, of: [2]*client{connect(t), connect(t, func(c *Config) { c.GPU = gpu })}}
	const n = 1 << 20
	src, dst, to := s.of[0].alloc(n), s.of[1].alloc(n), s.of[1]
	copied := func() {
		t.Helper()
		s.number++
		s.send(0, line(dst, src, n), s.number)
		s.receive(1, line(dst, src, n), s.number)
		if r, come := s.arrived(1, s.await(1, s.number)); r != cuda.CUDA_SUCCESS || come != n {
			t.Fatalf("%v, %d have come", r, come)
		}
	}
	s.join(1)
	primary, other := to.context, to.newHandle()
	to.must(cuda.OpCuCtxCreate_v2, words(other, 0, 0))
	to.context = other
	copied()
	s.epoch++ // connections that never are
	m := wire.PeerReceive{Copy: line(dst, src, n), Number: 99, Epoch: s.epoch, Stream: clientBase + 999*64}
	to.must(wire.OpPeerReceive, wire.Bytes(&m))
	if r, come := s.arrived(1, s.await(1, 99)); come != 0 {
		t.Fatalf("%v, %d have come", r, come)
	}
	ps := &to.session.peers
	until(t, "nobody uses the memory", func() bool {
		ps.mu.Lock()
		defer ps.mu.Unlock()
		return len(ps.old) == 1 && ps.old[0].users.Load() == 0
	})
	to.context = primary
	s.join(1)
	copied()
	to.must(cuda.OpCuCtxDestroy_v2, words(other))
	copied()
	if k := gpu.times.Load(); k != 2 {
		t.Errorf("page-locked %d times", k)
	}
}

// A copy waits for connections that are being made, and not for ever.
func TestPeersLate(t *testing.T) {
	s := twoServers(t)
	const n = 1 << 20
	src, dst := s.of[0].alloc(n), s.of[1].alloc(n)
	s.epoch = 1
	s.send(0, line(dst, src, n), 1)
	s.receive(1, line(dst, src, n), 1)
	ch := s.await(1, 1)
	s.of[1].unanswered(ch)
	s.epoch = 0
	s.join(1)
	if r, come := s.arrived(1, ch); r != cuda.CUDA_SUCCESS || come != n {
		t.Fatalf("%v, %d have come", r, come)
	}
}

func TestWrongPeers(t *testing.T) {
	shaped := func(change func(*cuda.CUDA_MEMCPY3D_PEER)) [25]uint64 {
		words := line(1<<20, 1<<20, 64)
		change(copy3DOf(&words))
		return words
	}
	receive := func(m wire.PeerReceive) func(c *client) []byte {
		return func(c *client) []byte { return frame(c.command(0, wire.OpPeerReceive, 0, wire.Bytes(&m))) }
	}
	send := func(m wire.PeerSend) func(c *client) []byte {
		return func(c *client) []byte { return frame(c.command(0, wire.OpPeerSend, 0, wire.Bytes(&m))) }
	}
	good := line(1<<20, 1<<20, 64)
	for name, input := range map[string]func(c *client) []byte{
		"flags":          send(wire.PeerSend{Copy: good, Flags: copy3DPull}),
		"no bytes":       send(wire.PeerSend{}),
		"no such server": send(wire.PeerSend{Copy: good, Peer: transport.MaxServers}),
		"from no server": receive(wire.PeerReceive{Copy: good, Peer: transport.MaxServers}),
		"overflow":       receive(wire.PeerReceive{Copy: shaped(func(b *cuda.CUDA_MEMCPY3D_PEER) { b.Height = 1 << 63 })}),
		"the host's": receive(wire.PeerReceive{Copy: shaped(func(b *cuda.CUDA_MEMCPY3D_PEER) {
			b.DstMemoryType = cuda.CU_MEMORYTYPE_HOST
		})}),
		"from the host's": send(wire.PeerSend{Copy: shaped(func(b *cuda.CUDA_MEMCPY3D_PEER) {
			b.SrcMemoryType = cuda.CU_MEMORYTYPE_HOST
		})}),
		"too short": func(c *client) []byte { return frame(c.command(0, wire.OpPeerSend, 0, words(1))) },
		"too long": func(c *client) []byte {
			return frame(c.command(0, wire.OpPeerReceive, 0, append(wire.Bytes(&wire.PeerReceive{Copy: good}), words(1)...)))
		},
		"twice": func(c *client) []byte {
			m := wire.PeerReceive{Copy: good, Peer: 1, Number: 4}
			return frame(c.command(0, wire.OpPeerReceive, 0, wire.Bytes(&m)),
				c.command(0, wire.OpPeerReceive, 0, wire.Bytes(&m)))
		},
		"await of nothing": func(c *client) []byte {
			m := wire.PeerAwait{Peer: 1, Number: 4}
			return frame(c.command(0, wire.OpPeerAwait, transport.FlagAnswer, wire.Bytes(&m)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t)
			c.tolerant = true
			c.write(input(c))
			if err := c.wait(); !errors.Is(err, ErrProtocol) {
				t.Errorf("the session ended with %v", err)
			}
		})
	}
}

// Connections that nobody expects are not taken.
func TestPeersUnexpected(t *testing.T) {
	s := twoServers(t)
	s.join(2)
	for name, p := range map[string]Peering{
		"one more":             {Server: 1, Epoch: 1, Count: 2},
		"of another count":     {Server: 1, Epoch: 1, Count: 3},
		"of an epoch before":   {Server: 1, Epoch: 0, Count: 2},
		"none":                 {Server: 2, Epoch: 1, Count: 0},
		"too many":             {Server: 2, Epoch: 1, Count: transport.MaxBulkConns + 1},
		"of a server too many": {Server: transport.MaxServers, Epoch: 1, Count: 1},
		"of RDMA, too many":    {Server: transport.MaxServers, Epoch: 1, Path: true, Dial: true},
		"of RDMA, before":      {Server: 1, Epoch: 0, Path: true, Dial: true},
	} {
		fd, conn := fdPair(t)
		if AttachPeer(s.of[0].session, lineOf(t, fileConn(t, fd)), p) == nil {
			t.Errorf("%s: it is taken", name)
		}
		conn.Close()
	}
}
