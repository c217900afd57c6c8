package executor

import (
	"bytes"
	"sync/atomic"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// sent is what the client has of a range of pinned memory, so that only what kernels changed has to travel. It sends all of the range before it asks
// for changes the first time.
type sent struct {
	mem   []byte // nil when nothing was sent yet, or when there is too much of it: then everything travels
	known bool   // mem is what the client has
	begun bool   // something was sent
}

const (
	changeBlock = 4096
	// Memory of the server that a session may take to remember what it sent.
	maxSentBytes = 1 << 30
)

// hostChanges downloads what kernels changed of a range.
func (s *Session) hostChanges(c *command) (cuda.CUresult, error) {
	c.async = true
	p, rest, err := view[wire.HostChanges](c)
	if err != nil {
		return 0, err
	}
	h, ok := s.hostRanges[p.Address]
	if !ok || len(rest) != 0 || c.Flags&transport.FlagAnswer == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	t := &transfer{id: p.Transfer, thread: c.Thread, seq: c.Seq, began: c.began, reply: true, of: h, Changes: wire.Changes{Low: h.bytes}}
	st, r := s.stream(0)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	t.stripe = h.bytes >= stripeLeast && s.stripes.ready.Load()
	r, err = s.download(st, t, h.device, h.bytes)
	if err != nil {
		return 0, err
	}
	c.later = true
	if r != cuda.CUDA_SUCCESS {
		t.result = r
	}
	if t.left == 0 {
		s.endTransfer(t)
	}
	return r, nil
}

// sendChanges sends what is new of a chunk. It says whether it has done so: where all of it is new, it goes the way of every download.
func (s *Session) sendChanges(t *transfer, c *chunk) bool {
	now, h := c.slot.mem[:c.bytes], t.of
	list := append(s.stretches[:0], stretch{0, len(now)})
	if h.sent.mem != nil {
		old := h.sent.mem[c.off:][:len(now)]
		if h.sent.known {
			list = appendChanged(list[:0], old, now)
		}
		for _, d := range list {
			copy(old[d.from:d.to], now[d.from:d.to])
		}
	}
	s.stretches = list
	largest := 0
	for i, d := range list {
		t.Low, t.High = min(t.Low, c.off+uint64(d.from)), max(t.High, c.off+uint64(d.to))
		s.metrics.Add(metrics.CopiedToHost, d.to-d.from)
		if d.to-d.from > list[largest].to-list[largest].from {
			largest = i
		}
	}
	if len(list) == 0 {
		c.slot.free.Store(true)
		return true
	}
	if list[largest] == (stretch{0, len(now)}) {
		return false
	}
	// The last one releases the slot. Small ones are copied at once, so it has to be the one that least probably is.
	last := len(list) - 1
	list[largest], list[last] = list[last], list[largest]
	for i, d := range list {
		var release *atomic.Bool
		if i == last {
			release = &c.slot.free
		}
		s.out.message(transport.MessageHeader{Type: transport.MsgData, ID: t.id, Seq: t.seq, Aux: c.off + uint64(d.from)}, now[d.from:d.to], release)
	}
	return true
}

// stretch is part of a chunk.
type stretch struct{ from, to int }

// appendChanged appends the stretches of whole blocks in which two slices of one length differ.
func appendChanged(list []stretch, old, now []byte) []stretch {
	for at := 0; at < len(now); at += changeBlock {
		end := min(at+changeBlock, len(now))
		if bytes.Equal(old[at:end], now[at:end]) {
			continue
		}
		if n := len(list); n > 0 && list[n-1].to == at {
			list[n-1].to = end
		} else {
			list = append(list, stretch{at, end})
		}
	}
	return list
}

// noteSent notes what the client sent to a range's device memory, which needs not come back.
func (s *Session) noteSent(dst uint64, data []byte) {
	for _, h := range s.hostRanges {
		at := dst - uint64(h.device)
		if dst < uint64(h.device) || at >= h.bytes {
			continue
		}
		if !h.sent.begun && h.bytes <= maxSentBytes-s.sentBytes {
			h.sent.mem, h.sent.known = make([]byte, h.bytes), true
			s.sentBytes += h.bytes
		}
		h.sent.begun = true
		if h.sent.mem != nil {
			copy(h.sent.mem[at:], data)
		}
		return
	}
}
