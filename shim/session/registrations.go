package session

import (
	"math"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/transport"
)

// transfer is an asynchronous download that has not completed.
type transfer struct {
	dst   []byte
	order uint64 // when it was registered; see registrations.order
	kept  bool   // captured: it may come often, and is never complete
}

// source is the program's memory that a deferred upload is taken from.
type source struct {
	src   []byte
	order uint64
}

// hostFunction is a host function that may still run.
type hostFunction struct {
	HostFunction
	order uint64
}

// registrations are what the program has registered for the server to write to, to read or to run later: asynchronous
// downloads, sources of deferred uploads, host functions. Each has a number, and its place in the order in which all
// were registered: what the server asks for may be behind a download that has yet to arrive.
//
// Locks: its own lock guards the tables and what arrived covers. It is held while a piece of a captured download is
// stored, and not while anything is sent or waited for, but for arrived, which lets go of it. running and captured are
// atomic, so that [registrations.overlaps] looks without the lock. Locks of calls are taken beside it, never under it.
type registrations struct {
	mutex
	downloads    map[uint32]transfer
	nextDownload uint32
	sources      map[uint32]source
	nextSource   uint32
	hosts        map[uint64]hostFunction
	nextHost     uint64
	order        uint64     // counts what was registered
	lastFlush    uint64     // the last FLUSH that was answered
	arrived      *sync.Cond // of the lock: a download has arrived, or the session has ended

	running  atomic.Int64  // host functions that may still run
	captured atomic.Int64  // captured downloads
	pending  atomic.Uint32 // asynchronous downloads that have not completed; shared has those of all sessions

	shared shared
	calls  *calls // have the destinations of synchronous downloads
}

func (rs *registrations) init(sh shared, cs *calls) {
	rs.shared, rs.calls = sh, cs
	rs.downloads = make(map[uint32]transfer)
	rs.nextDownload = transport.FirstTransfer
	rs.sources = make(map[uint32]source)
	rs.hosts = make(map[uint64]hostFunction)
	rs.arrived = sync.NewCond(&rs.mutex)
}

// TransferKind says how a download ends. The values are those of scuda_core_transfer.
type TransferKind uint32

// The kinds of downloads.
const (
	TransferSync TransferKind = iota
	TransferAsync
	TransferCaptured
)

// Transfer registers the destination of a download and gives its identifier: the thread's ordinal for a synchronous
// one, which ends with the thread's reply, or a new one for an asynchronous one, which ends with DONE, or, if it is
// captured, never.
func (s *Session) Transfer(dst []byte, thread uint32, kind TransferKind) uint32 {
	s.bulk.want(len(dst))
	if kind == TransferSync {
		if w := s.calls.waiter(thread); w != nil {
			s.calls.setDestination(w, dst)
		}
		return thread
	}
	id := s.registered.download(dst, kind == TransferCaptured)
	if kind == TransferCaptured { // its bytes come over the callback connection
		s.callback.want()
	} else {
		s.reader.kick()
	}
	return id
}

// download registers an asynchronous download, or a captured one.
func (rs *registrations) download(dst []byte, captured bool) uint32 {
	rs.Lock()
	defer rs.Unlock()
	id := rs.nextDownload
	for _, taken := rs.downloads[id]; taken; _, taken = rs.downloads[id] {
		id = following(id)
	}
	rs.nextDownload = following(id)
	rs.order++
	rs.downloads[id] = transfer{dst: dst, order: rs.order, kept: captured}
	if captured {
		rs.captured.Add(1)
	} else {
		rs.pending.Add(1)
		atomic.AddUint32(&rs.shared.TransfersPending, 1)
	}
	return id
}

func following(id uint32) uint32 {
	if id++; id < transport.FirstTransfer {
		return transport.FirstTransfer
	}
	return id
}

// destination is where the bytes of a download go.
func (rs *registrations) destination(id uint32) ([]byte, bool) {
	if id < transport.FirstTransfer {
		return rs.calls.destination(id)
	}
	rs.Lock()
	defer rs.Unlock()
	t, ok := rs.downloads[id]
	return t.dst, ok
}

// endDownload notes that an asynchronous download is complete.
func (rs *registrations) endDownload(id uint32) {
	rs.Lock()
	defer rs.Unlock()
	if t, ok := rs.downloads[id]; ok && !t.kept {
		delete(rs.downloads, id)
		rs.arrived.Broadcast()
		rs.pending.Add(^uint32(0))
		atomic.AddUint32(&rs.shared.TransfersPending, ^uint32(0))
	}
}

// forget lets go of what the server's graphs had: it is not asked for again.
func (rs *registrations) forget(kind uint32, number uint64) {
	rs.Lock()
	defer rs.Unlock()
	switch kind {
	case transport.ForgetTransfer:
		if t, ok := rs.downloads[uint32(number)]; ok && t.kept {
			delete(rs.downloads, uint32(number))
			rs.captured.Add(-1)
		}
	case transport.ForgetSource:
		delete(rs.sources, uint32(number))
	case transport.ForgetFunction:
		if f, ok := rs.hosts[number]; ok && f.Keep {
			delete(rs.hosts, number)
			rs.running.Add(-1)
		}
	}
}

// Overlaps says whether an unfinished download, or a host function that has yet to run, may still write to p.
func (s *Session) Overlaps(p []byte) bool { return s.registered.overlaps(p) }

// overlaps says so.
func (rs *registrations) overlaps(p []byte) bool {
	if rs.running.Load() > 0 {
		return true
	}
	if rs.pending.Load() == 0 && rs.captured.Load() == 0 {
		return false
	}
	rs.Lock()
	defer rs.Unlock()
	for _, t := range rs.downloads {
		if overlap(t.dst, p) {
			return true
		}
	}
	return false
}

// late says whether a download registered before order, and into p if that is not nil, has yet to arrive. The lock is
// held.
func (rs *registrations) late(order uint64, p []byte) bool {
	for _, t := range rs.downloads {
		if !t.kept && t.order < order && (p == nil || overlap(t.dst, p)) {
			return true
		}
	}
	return false
}

// awaitEarlier waits until those of the downloads before order, into p if that is not nil, have arrived that the GPU
// had finished. The GPU's stream, which asks for something behind a download over the callback connection, may be ahead
// of the download's bytes, which come over the main connection. Other downloads may wait for something else, perhaps
// for what the caller is about to do. flush asks the server to send what downloads the GPU has finished, and gives the
// number that the answer has at least.
func (rs *registrations) awaitEarlier(order uint64, p []byte, flush func() (uint64, error)) {
	rs.Lock()
	defer rs.Unlock()
	if !rs.late(order, p) {
		return
	}
	rs.Unlock()
	number, err := flush()
	rs.Lock()
	if err != nil {
		return
	}
	for rs.shared.lost() == 0 && rs.lastFlush < number && rs.late(order, p) {
		rs.arrived.Wait()
	}
}

// always is the order of what a graph asks for: it may be behind any download.
const always = math.MaxUint64

// Source registers the source of a deferred upload, or of one in a graph.
func (s *Session) Source(src []byte, graph bool) uint32 {
	s.callback.want()
	return s.registered.source(src, graph)
}

// source registers a source.
func (rs *registrations) source(src []byte, graph bool) uint32 {
	rs.Lock()
	defer rs.Unlock()
	rs.nextSource++
	for _, taken := rs.sources[rs.nextSource]; taken; _, taken = rs.sources[rs.nextSource] {
		rs.nextSource++
	}
	rs.order++
	rs.sources[rs.nextSource] = source{src, rs.order}
	if graph {
		rs.sources[rs.nextSource] = source{src, always}
	}
	return rs.nextSource
}

// sourceOf is a source, and whether a download that it may be behind has yet to arrive.
func (rs *registrations) sourceOf(id uint32) (from source, ok, late bool) {
	rs.Lock()
	defer rs.Unlock()
	from, ok = rs.sources[id]
	return from, ok, ok && rs.late(from.order, from.src)
}

// endSource forgets a source.
func (rs *registrations) endSource(id uint32) {
	rs.Lock()
	defer rs.Unlock()
	delete(rs.sources, id)
}

// HostFunction registers a host function and gives its registration.
func (s *Session) HostFunction(f HostFunction) uint64 {
	s.callback.want()
	return s.registered.host(f)
}

// host registers a host function.
func (rs *registrations) host(f HostFunction) uint64 {
	rs.running.Add(1)
	rs.Lock()
	defer rs.Unlock()
	rs.nextHost++
	rs.order++
	rs.hosts[rs.nextHost] = hostFunction{f, rs.order}
	if f.Keep {
		rs.hosts[rs.nextHost] = hostFunction{f, always}
	}
	return rs.nextHost
}

// mayBeAsked says whether there is something that the server may ask for on the callback connection.
func (rs *registrations) mayBeAsked() bool {
	rs.Lock()
	defer rs.Unlock()
	return len(rs.hosts) > 0 || len(rs.sources) > 0 || rs.captured.Load() > 0
}

// hostOf is a host function.
func (rs *registrations) hostOf(registration uint64) (f hostFunction, ok bool) {
	rs.Lock()
	defer rs.Unlock()
	f, ok = rs.hosts[registration]
	return f, ok
}

// endHost forgets a host function that has run for the last time.
func (rs *registrations) endHost(registration uint64) {
	rs.Lock()
	delete(rs.hosts, registration)
	rs.Unlock()
	rs.running.Add(-1)
}

// pushed stores a piece of a captured download.
func (rs *registrations) pushed(id uint32, offset uint64, data []byte) error {
	rs.Lock()
	defer rs.Unlock()
	t, ok := rs.downloads[id]
	if !ok || !t.kept || offset > uint64(len(t.dst)) || uint64(len(data)) > uint64(len(t.dst))-offset {
		return protocol("PUSH of %d bytes at %d to transfer %d, which is no captured download of that size", len(data),
			offset, id)
	}
	rs.shared.news()
	if rs.shared.lost() == 0 { // afterwards the memory may be somebody else's
		copy(t.dst[offset:], data)
	}
	return nil
}

// flushed notes that a FLUSH was answered.
func (rs *registrations) flushed(number uint64) {
	rs.Lock()
	defer rs.Unlock()
	rs.lastFlush = max(rs.lastFlush, number)
	rs.arrived.Broadcast()
}

// release wakes those who wait for downloads after the end of the session. Nothing is stored any more when it returns.
func (rs *registrations) release() {
	rs.Lock()
	defer rs.Unlock()
	rs.arrived.Broadcast()
}
