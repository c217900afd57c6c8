package session

import (
	"sync/atomic"

	"scuda.dev/scuda/transport"
)

// transfer is an asynchronous download that has not completed.
type transfer struct {
	dst []byte
}

// Transfer registers the destination of a download and gives its identifier: the thread's ordinal for a synchronous one, which ends with the
// thread's reply, or a new one for an asynchronous one, which ends with DONE.
func (s *Session) Transfer(dst []byte, thread uint32, async bool) uint32 {
	if !async {
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
	s.mu.transfers[id] = transfer{dst: dst}
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
	if _, ok := s.mu.transfers[id]; ok {
		delete(s.mu.transfers, id)
		atomic.AddUint32(&s.shared.TransfersPending, ^uint32(0))
	}
}

// Overlaps says whether an unfinished download, or a host function that has yet to run, may still write to p.
func (s *Session) Overlaps(p []byte) bool {
	if s.hosts.Load() > 0 {
		return true
	}
	if atomic.LoadUint32(&s.shared.TransfersPending) == 0 {
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

// Source registers the source of a deferred upload.
func (s *Session) Source(src []byte) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.nextSrc++
	for _, taken := s.mu.sources[s.mu.nextSrc]; taken; _, taken = s.mu.sources[s.mu.nextSrc] {
		s.mu.nextSrc++
	}
	s.mu.sources[s.mu.nextSrc] = src
	return s.mu.nextSrc
}

// pull gives a part of a source, and forgets the source with its last part.
func (s *Session) pull(id uint32, offset, n uint64, last bool) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	src, ok := s.mu.sources[id]
	if last {
		delete(s.mu.sources, id)
	}
	if !ok || offset > uint64(len(src)) || n > uint64(len(src))-offset {
		return nil, false
	}
	return src[offset : offset+n], true
}
