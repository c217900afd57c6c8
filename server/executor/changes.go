package executor

import (
	"bytes"
	"sync/atomic"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// sent is what the client has of a range of pinned or unified memory, so that only what kernels changed has to travel.
type sent struct {
	mem   []byte // nil when nothing was sent or asked for yet, or when there is too much of it: then everything travels
	known []bool // of each changeBlock: the client has what mem says
}

const (
	changeBlock = 4096
	// Memory of the server that a session may take to remember what it sent.
	maxSentBytes = 1 << 30
)

// remember prepares a range's sent, as far as there is room.
func (hm *hostmem) remember(h *hostRange) {
	if h.sent.mem == nil && h.bytes <= maxSentBytes-hm.sentBytes {
		h.sent.mem, h.sent.known = make([]byte, h.bytes), make([]bool, (h.bytes+changeBlock-1)/changeBlock)
		hm.sentBytes += h.bytes
	}
}

// forgetSent makes what the client has of a stretch unknown.
func (h *hostRange) forgetSent(from, bytes uint64) {
	if h.sent.mem != nil && bytes > 0 {
		clear(h.sent.known[from/changeBlock : min((from+bytes+changeBlock-1)/changeBlock, uint64(len(h.sent.known)))])
	}
}

// forgetSent notes that a stretch of device memory travels in another way.
func (hm *hostmem) forgetSent(at, bytes uint64) {
	if hm.sentBytes == 0 {
		return
	}
	for _, h := range hm.ranges {
		if start := uint64(h.device); at < start+h.bytes && start < at+bytes {
			from := max(at, start)
			h.forgetSent(from-start, min(at+bytes, start+h.bytes)-from)
		}
	}
}

// countFetch counts a fetch of unified memory.
func (hm *hostmem) countFetch(flags uint32) {
	if flags&flagPush != 0 {
		hm.metrics.Add(metrics.Pushes, 1)
	} else {
		hm.metrics.Add(metrics.Faults, 1)
	}
}

// downloadChanges downloads what kernels changed of a stretch.
func (hm *hostmem) downloadChanges(c *command) (cuda.CUresult, error) {
	c.async = true
	p, rest, err := view[wire.HostChanges](c)
	if err != nil {
		return 0, err
	}
	h, ok := hm.ranges[p.Address]
	if !ok || len(rest) != 0 || c.Flags&transport.FlagAnswer == 0 ||
		p.Bytes == 0 || p.From > h.bytes || p.Bytes > h.bytes-p.From ||
		p.From%changeBlock != 0 || p.Bytes%changeBlock != 0 && p.From+p.Bytes != h.bytes {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	hm.remember(h)
	t := &transfer{
		id: p.Transfer, thread: c.Thread, seq: c.Seq, began: c.began, reply: true,
		of: h, from: p.From, bytes: p.Bytes, managed: p.Flags&flagManaged != 0, Changes: wire.Changes{Low: h.bytes},
	}
	st, r := hm.stream(p.Stream)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if t.managed {
		hm.countFetch(p.Flags)
	}
	c.later = true
	return hm.loop.start(st, t, h.device+cuda.CUdeviceptr(p.From), p.Bytes)
}

// sendChanges sends what is new of a chunk. It says whether it has done so: where all of it is new, it goes the way
// of every download.
func (hm *hostmem) sendChanges(t *transfer, c *chunk) bool {
	now, h, at := c.slot.mem[:c.bytes], t.of, t.from+c.off
	list := append(hm.stretches[:0], stretch{0, len(now)})
	if h.sent.mem != nil {
		old, known := h.sent.mem[at:][:len(now)], h.sent.known[at/changeBlock:]
		list = appendChanged(list[:0], old, now, known)
		for _, d := range list {
			copy(old[d.from:d.to], now[d.from:d.to])
			for b := d.from; b < d.to; b += changeBlock {
				known[b/changeBlock] = true
			}
		}
	}
	hm.stretches = list
	largest := 0
	for i, d := range list {
		t.Low, t.High = min(t.Low, at+uint64(d.from)), max(t.High, at+uint64(d.to))
		t.Bytes += uint64(d.to - d.from)
		hm.metrics.Add(metrics.CopiedToHost, d.to-d.from)
		if t.managed {
			hm.metrics.Add(metrics.MigratedToHost, d.to-d.from)
		}
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
		head := transport.MessageHeader{Type: transport.MsgData, ID: t.id, Seq: t.seq, Aux: c.off + uint64(d.from)}
		hm.out.message(head, now[d.from:d.to], release)
	}
	return true
}

// stretch is part of a chunk.
type stretch struct{ from, to int }

// appendChanged appends the stretches of whole blocks in which two slices of one length differ, or of which the first
// is not known.
func appendChanged(list []stretch, old, now []byte, known []bool) []stretch {
	for at := 0; at < len(now); at += changeBlock {
		end := min(at+changeBlock, len(now))
		if known[at/changeBlock] && bytes.Equal(old[at:end], now[at:end]) {
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

// noteSent notes what the client sent to a range's device memory, which needs not come back. What lies behind the
// range's end is none of it.
func (hm *hostmem) noteSent(dst uint64, data []byte) {
	for _, h := range hm.ranges {
		at := dst - uint64(h.device)
		if dst < uint64(h.device) || at >= h.bytes {
			continue
		}
		hm.remember(h)
		if h.sent.mem == nil {
			return
		}
		end := at + uint64(copy(h.sent.mem[at:], data))
		for b := (at + changeBlock - 1) / changeBlock; b*changeBlock < end && min((b+1)*changeBlock, h.bytes) <= end; b++ {
			h.sent.known[b] = true
		}
		return
	}
}
