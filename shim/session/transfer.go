package session

import (
	"math"
	"sync/atomic"

	"scuda.dev/scuda/transport"
)

// transfer is an asynchronous download that has not completed.
type transfer struct {
	dst   []byte
	order uint64 // when it was registered; see Session.mu.order
	kept  bool   // captured: it may come often, and is never complete
}

// source is the program's memory that a deferred upload is taken from.
type source struct {
	src   []byte
	order uint64
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
	s.wantBulk(len(dst))
	if kind == TransferSync {
		if w := s.waiter(thread); w != nil {
			s.mu.Lock()
			w.dst = dst
			s.mu.Unlock()
		}
		return thread
	}
	s.mu.Lock()
	id := s.mu.nextID
	for _, taken := s.mu.transfers[id]; taken; _, taken = s.mu.transfers[id] {
		id = following(id)
	}
	s.mu.nextID = following(id)
	s.mu.order++
	s.mu.transfers[id] = transfer{dst: dst, order: s.mu.order, kept: kind == TransferCaptured}
	if kind == TransferCaptured { // its bytes come over the callback connection
		s.kept.Add(1)
		s.mu.Unlock()
		s.wantCallback()
		return id
	}
	atomic.AddUint32(&s.shared.TransfersPending, 1)
	s.mu.Unlock()
	s.kickBackground()
	return id
}

func following(id uint32) uint32 {
	if id++; id < transport.FirstTransfer {
		return transport.FirstTransfer
	}
	return id
}

func (s *Session) destination(id uint32) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id < transport.FirstTransfer {
		w := s.waiter(id)
		return w.dst, w.dst != nil
	}
	t, ok := s.mu.transfers[id]
	return t.dst, ok
}

func (s *Session) endTransfer(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.mu.transfers[id]; ok && !t.kept {
		delete(s.mu.transfers, id)
		s.landed.Broadcast()
		atomic.AddUint32(&s.shared.TransfersPending, ^uint32(0))
	}
}

// forget lets go of what the server's graphs had: it is not asked for again.
func (s *Session) forget(kind uint16, number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case transport.ForgetTransfer:
		if t, ok := s.mu.transfers[uint32(number)]; ok && t.kept {
			delete(s.mu.transfers, uint32(number))
			s.kept.Add(-1)
		}
	case transport.ForgetSource:
		delete(s.mu.sources, uint32(number))
	case transport.ForgetFunction:
		if f, ok := s.mu.hosts[number]; ok && f.Keep {
			delete(s.mu.hosts, number)
			s.hosts.Add(-1)
		}
	}
}

// Overlaps says whether an unfinished download, or a host function that has yet to run, may still write to p.
func (s *Session) Overlaps(p []byte) bool {
	if s.hosts.Load() > 0 {
		return true
	}
	if atomic.LoadUint32(&s.shared.TransfersPending) == 0 && s.kept.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.mu.transfers {
		if overlap(t.dst, p) {
			return true
		}
	}
	return false
}

// late says whether a download registered before order, and into p if that is not nil, has yet to arrive. mu is held.
func (s *Session) late(order uint64, p []byte) bool {
	for _, t := range s.mu.transfers {
		if !t.kept && t.order < order && (p == nil || overlap(t.dst, p)) {
			return true
		}
	}
	return false
}

// awaitEarlier waits until those of the downloads before order, into p if that is not nil, have arrived that the GPU
// had finished. The GPU's stream, which asks for something behind a download over the callback connection, may be ahead
// of the download's bytes, which come over the main connection. Other downloads may wait for something else, perhaps
// for what the caller is about to do.
func (s *Session) awaitEarlier(order uint64, p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.late(order, p) {
		return
	}
	flush, err := s.flushDownloads()
	if err != nil {
		return
	}
	for s.lost() == 0 && s.mu.flushed < flush && s.late(order, p) {
		s.landed.Wait()
	}
}

// flushDownloads asks the server to send what downloads the GPU has finished, and gives the number that the answer has
// at least. mu is held, and let go in between.
func (s *Session) flushDownloads() (uint64, error) {
	s.mu.Unlock()
	defer s.mu.Lock()
	s.callback.flushing.Lock()
	defer s.callback.flushing.Unlock()
	s.callback.flushes++
	n := s.callback.flushes
	s.kickBackground()
	return n, s.callback.answer(transport.MessageHeader{Type: transport.MsgFlush, Seq: n}, nil)
}

// always is the order of what a graph asks for: it may be behind any download.
const always = math.MaxUint64

// Source registers the source of a deferred upload, or of one in a graph.
func (s *Session) Source(src []byte, graph bool) uint32 {
	s.wantCallback()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.nextSrc++
	for _, taken := s.mu.sources[s.mu.nextSrc]; taken; _, taken = s.mu.sources[s.mu.nextSrc] {
		s.mu.nextSrc++
	}
	s.mu.order++
	s.mu.sources[s.mu.nextSrc] = source{src, s.mu.order}
	if graph {
		s.mu.sources[s.mu.nextSrc] = source{src, always}
	}
	return s.mu.nextSrc
}

// pushed stores a piece of a captured download.
func (s *Session) pushed(id uint32, offset uint64, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.mu.transfers[id]
	if !ok || !t.kept || offset > uint64(len(t.dst)) || uint64(len(data)) > uint64(len(t.dst))-offset {
		return protocol("PUSH of %d bytes at %d to transfer %d, which is no captured download of that size", len(data),
			offset, id)
	}
	s.news()
	if s.lost() == 0 { // afterwards the memory may be somebody else's
		copy(t.dst[offset:], data)
	}
	return nil
}

// pull answers the server's wish for a part of a source once its bytes are what they are to be. The last part ends the
// source.
func (s *Session) pull(h transport.MessageHeader) error {
	s.mu.Lock()
	from, ok := s.mu.sources[h.ID]
	wait := ok && s.late(from.order, from.src)
	s.mu.Unlock()
	if !wait {
		return s.sendPulled(h, from.src, ok)
	}
	s.start(func() { // the callback connection goes on meanwhile
		s.awaitEarlier(from.order, from.src)
		if err := s.sendPulled(h, from.src, ok); err != nil {
			s.fail(err)
		}
	})
	return nil
}

func (s *Session) sendPulled(h transport.MessageHeader, src []byte, ok bool) error {
	answer := transport.MessageHeader{Type: transport.MsgPulled, ID: h.ID, Seq: h.Seq}
	offset := uint64(h.Result) * transport.PullUnit
	if !ok || offset > uint64(len(src)) || h.Aux > uint64(len(src))-offset {
		s.log.Error("the server asked for an upload's source that is not there", "source", h.ID, "offset", offset, "bytes",
			h.Aux)
		answer.Result = InvalidValue
		return s.callback.answer(answer, nil)
	}
	err := s.callback.answer(answer, src[offset:offset+h.Aux])
	if h.Flags&1 != 0 {
		s.mu.Lock()
		delete(s.mu.sources, h.ID)
		s.mu.Unlock()
	}
	return err
}
