package executor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/rdma"
)

// Copies between this server and others of the same program. The bytes travel on connections between the two workers.
// To the receiving one they are an upload, to the sending one a download, with one difference: neither executor waits
// for the other. Both look at what has come and what can go, in between commands (peers.poll). So a program that has
// one server's GPU wait for another's, through NCCL, cannot be held up by a copy.
//
// The front waits for the work before a copy, at both ends, before it asks for the copy. So slots wait for nothing but
// the copy engines and the way.

// peerPatience is how long a copy waits for connections with the other server that are being made.
const peerPatience = 15 * time.Second

var (
	errPeer       = errors.New("a connection with another server broke")
	errPeerCopy   = errors.New("a part of a copy to another server failed")
	errPeerStream = errors.New("the stream or the context of a copy between servers has ended")
	errPeerOld    = errors.New("others have taken their place")
	errPeerLate   = errors.New("the connections with another server do not come")
)

// peers are the other servers of a session's program.
//
// mu guards list, as connections come from another goroutine. The rest belongs to the executor's thread.
type peers struct {
	*base
	loop    peersLoop
	profile *profile
	waker   *transport.Waker // of the executor

	rdmaSlots int    // that the session has for its client; fewer than [leastRDMASlots]: it has no RDMA
	device    string // see [rdma.Choose]

	busy   []*peer                       // those with copies that are not over, or with slots that the GPU still reads
	active atomic.Bool                   // there are such
	copies map[peerCopyName]*peerReceive // those that nobody has awaited

	mu    sync.Mutex
	list  map[uint32]*peer // by the client's number of the server
	old   []*peer          // whose place others have taken, while they have memory
	ended bool             // the session is over: no more connections are taken
	done  sync.WaitGroup   // those who use connections
}

// peersLoop is what it asks of the loop.
type peersLoop interface {
	reply(thread uint32, seq uint64, r cuda.CUresult, payload []byte)
}

// peer is one of them: the connections with it, made in one go, and the copies that use them. When one connection ends
// all do, and with them all copies; the client has others made.
type peer struct {
	ps     *peers
	number uint32
	epoch  uint32 // how many times the client had connections made before

	conns []*bulk.TCP // ps.mu guards it
	count int         // how many there will be; 0: not known yet. ps.mu guards it
	path  *peerPath   // nil: there is no RDMA. ps.mu guards it
	laid  bool        // it has memory. ps.mu guards it
	in    *bulk.Inbound
	out   bulk.Outbound

	// of the executor
	via      *rdma.Link[bulk.Piece] // of path, once it is open
	since    time.Time              // a copy waits for the connections; zero: they are there
	sends    []*peerSend
	receives []*peerReceive
	lent     int // slots that chunks arrive in
	peerMemory
	users atomic.Int32 // connections that may read or write it
}

func newPeers(s *Session, cfg *Config) peers {
	return peers{base: &s.base, loop: s, profile: &s.profile, waker: s.waker,
		rdmaSlots: cfg.RDMASlots, device: cfg.RDMADevice,
		list: make(map[uint32]*peer), copies: make(map[peerCopyName]*peerReceive)}
}

// at gives the connections with a server that were made in an epoch, nil: others have taken their place. mu is held.
func (ps *peers) at(number, epoch uint32) *peer {
	p := ps.list[number]
	switch {
	case p == nil || p.epoch < epoch:
		if p != nil {
			p.failLocked(errPeerOld)
			if p.laid {
				ps.old = append(ps.old, p)
			}
		}
		p = &peer{ps: ps, number: number, epoch: epoch, in: bulk.NewInbound()}
		p.in.Tell(ps.waker.Ring)
		ps.list[number] = p
	case p.epoch > epoch:
		return nil
	}
	return p
}

// Peering says what a connection with another server of a session's program is.
type Peering struct {
	Server uint32 // the client's number of the other server
	Epoch  uint32 // how many times the client had connections with it made before
	Count  int    // how many there will be
	Path   bool   // it is the control connection of RDMA
	Dial   bool   // over which this side opens paths
}

// AttachPeer gives a session a connection with another server.
func AttachPeer(s *Session, l *transport.Line, p Peering) error {
	if p.Path {
		return s.peers.attachPath(l, p.Server, p.Epoch, p.Dial)
	}
	return s.peers.attach(l, p.Server, p.Epoch, p.Count)
}

// attach adds one of count connections with another server.
func (ps *peers) attach(line *transport.Line, number, epoch uint32, count int) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var p *peer
	if !ps.ended && number < transport.MaxServers && count > 0 && count <= transport.MaxBulkConns {
		p = ps.at(number, epoch)
	}
	if p == nil || p.out.Err() != nil || p.count != 0 && (p.count != count || len(p.conns) == count) {
		_ = line.Close()
		return errors.New("a connection with another server that the session does not expect")
	}
	conn := &bulk.TCP{Line: line, Sent: func(_, all int) { ps.metrics.Add(metrics.SentPeerTCP, all) },
		Received: func(_, all int) { ps.metrics.Add(metrics.ReceivedPeerTCP, all) }}
	p.count, p.conns = count, append(p.conns, conn)
	p.in.Stream()
	p.out.Fallback()
	ps.waker.Ring()
	p.users.Add(1)
	var both sync.WaitGroup
	both.Go(func() { p.fail(conn.Receive(p.in)) })
	both.Go(func() { p.fail(p.out.Feed(conn)) })
	ps.done.Go(func() {
		both.Wait()
		p.users.Add(-1)
		_ = line.Close()
	})
	return nil
}

// attachPath adds the control connection of RDMA with another server, over which this side opens paths or takes them.
func (ps *peers) attachPath(line *transport.Line, number, epoch uint32, dial bool) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var p *peer
	if !ps.ended && number < transport.MaxServers && ps.hasRDMA() {
		p = ps.at(number, epoch)
	}
	if p == nil || p.out.Err() != nil || p.path != nil {
		_ = line.Close()
		return errors.New("a control connection of RDMA with another server that the session does not expect")
	}
	p.path = &peerPath{p: p, control: line, dial: dial}
	ps.waker.Ring()
	return nil
}

// hasRDMA says whether the session may use RDMA.
func (ps *peers) hasRDMA() bool { return ps.rdmaSlots >= leastRDMASlots }

// fail ends the use of the connections. Copies notice it when the executor looks.
func (p *peer) fail(why error) {
	p.ps.mu.Lock()
	defer p.ps.mu.Unlock()
	p.failLocked(why)
}

// failLocked is fail with mu held.
func (p *peer) failLocked(why error) {
	if p.out.Err() != nil {
		return
	}
	p.ps.log.Debug("the connections with another server of the program have ended", "server", p.number, "reason", why)
	why = fmt.Errorf("%w: %w", errPeer, why)
	p.out.Fail(why)
	p.in.Fail(why)
	for _, c := range p.conns {
		c.Line.Shutdown()
	}
	if p.path != nil {
		p.path.end()
	}
}

// stop ends them all. Any thread may call it.
func (ps *peers) stop() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.ended = true
	for _, p := range ps.list {
		p.failLocked(errCallbackClosed)
	}
}

// sockets are those of all connections. The kernel notices the end of the other machine while nothing is under way to
// it, and else after a quarter of an hour.
func (ps *peers) sockets() (fds []int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.list {
		fds = p.appendSockets(fds)
	}
	return fds
}

// appendSockets adds those of one of them. ps.mu is held.
func (p *peer) appendSockets(fds []int) []int {
	if p.out.Err() != nil {
		return fds
	}
	for _, c := range p.conns {
		fds = append(fds, c.Line.FD())
	}
	if p.path != nil {
		fds = append(fds, p.path.control.FD())
	}
	return fds
}

// lose gives up those servers of which a socket does not answer any more.
func (ps *peers) lose(silent []int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.list {
		if slices.ContainsFunc(p.appendSockets(nil), func(fd int) bool { return slices.Contains(silent, fd) }) {
			p.failLocked(unix.ETIMEDOUT)
		}
	}
}

// close waits until nobody uses them.
func (ps *peers) close() {
	ps.stop()
	ps.done.Wait()
}

// free unmaps memory.
func (ps *peers) free() {
	for _, p := range slices.AppendSeq(ps.old, maps.Values(ps.list)) {
		if p.mem != nil {
			unmapMemory(p.mem)
		}
	}
}

// of gives the connections that a command names, ready for a copy; nil: there are none any more.
func (ps *peers) of(number, epoch uint32) (*peer, error) {
	if number >= transport.MaxServers {
		return nil, protocolError("a copy with server %d", number)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.at(number, epoch)
	if p == nil || p.out.Err() != nil {
		return nil, nil
	}
	if p.count == 0 && p.since.IsZero() {
		p.since = time.Now()
	}
	return p, nil
}

// connections is how many there will be, 0: nobody knows yet.
func (p *peer) connections() int {
	p.ps.mu.Lock()
	defer p.ps.mu.Unlock()
	return p.count
}
