package executor

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

const (
	blockBytes  = 64 << 10
	inlineBytes = 8 << 10  // payloads up to this are copied behind their header, larger ones are referred to
	outputLimit = 64 << 20 // queued bytes above which no further command is executed
)

// output is the queue of the main connection. Everybody appends whole messages under its lock and writes without
// blocking; what the socket does not take stays queued.
type output struct {
	mu      sync.Mutex
	conn    transport.Conn
	chain   transport.Chain
	metrics *metrics.Page
	queue   []segment
	spare   [][]byte
	bytes   int
	queued  uint64 // bytes ever queued
	sent    uint64 // bytes ever sent
	err     error
	pumping atomic.Bool // a goroutine writes what is queued, see push
	pumps   sync.WaitGroup
	bufs    [4][]byte // of a send; not on the stack, where it would be moved to the heap each time
}

// segment is a part of the stream: a block of small messages, or memory that belongs to somebody else until it is sent.
type segment struct {
	data  []byte
	block bool
	owner *atomic.Bool // stored true once the bytes are sent
}

var padding [8]byte

// message queues a message. A payload above inlineBytes is not copied: sent, if not nil, becomes true when it may be
// reused.
func (o *output) message(h transport.MessageHeader, payload []byte, sent *atomic.Bool) {
	o.mu.Lock()
	o.queueMessage(h, payload, sent)
	o.mu.Unlock()
}

func (o *output) queueMessage(h transport.MessageHeader, payload []byte, sent *atomic.Bool) {
	h.Len = uint32(len(payload))
	h.Flags = o.chain.Next(&h)
	b := o.block(transport.MessageHeaderSize + inlineBytes + 8)
	before := len(*b)
	*b = h.Append(*b)
	pad := padding[:transport.Pad(len(payload))-len(payload)]
	if len(payload) <= inlineBytes {
		*b = append(append(*b, payload...), pad...)
		o.count(len(*b) - before)
		if sent != nil {
			sent.Store(true)
		}
		return
	}
	o.count(len(*b) - before + len(payload) + len(pad))
	o.queue = append(o.queue, segment{data: payload, owner: sent})
	if len(pad) > 0 {
		b := o.block(len(pad))
		*b = append(*b, pad...)
	}
}

func (o *output) count(n int) {
	o.bytes += n
	o.queued += uint64(n)
}

// block gives the block at the end of the queue, with room for n bytes.
func (o *output) block(n int) *[]byte {
	if k := len(o.queue); k > 0 && o.queue[k-1].block && cap(o.queue[k-1].data)-len(o.queue[k-1].data) >= n {
		return &o.queue[k-1].data
	}
	var b []byte
	if k := len(o.spare); k > 0 {
		b, o.spare = o.spare[k-1][:0], o.spare[:k-1]
	} else {
		b = make([]byte, 0, blockBytes)
	}
	o.queue = append(o.queue, segment{data: b, block: true})
	return &o.queue[len(o.queue)-1].data
}

// flush writes as much as the socket takes. It says whether everything has been written.
func (o *output) flush() (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flushLocked()
}

func (o *output) flushLocked() (bool, error) {
	for o.err == nil && len(o.queue) > 0 {
		k := 0
		for k < len(o.queue) && k < len(o.bufs) {
			o.bufs[k] = o.queue[k].data
			k++
		}
		n, err := o.conn.Send(o.bufs[:k])
		o.advance(n)
		o.metrics.Add(metrics.Sent(o.conn.Transport()), n)
		if errors.Is(err, transport.ErrAgain) {
			return false, nil
		}
		o.err = err
	}
	return o.err == nil, o.err
}

func (o *output) advance(n int) {
	o.bytes -= n
	o.sent += uint64(n)
	done := 0
	for n > 0 {
		s := &o.queue[done]
		if n < len(s.data) {
			// A partly sent block keeps its capacity for appending; only its front moves.
			s.data = s.data[n:]
			break
		}
		n -= len(s.data)
		o.release(s)
		done++
	}
	if done > 0 {
		rest := copy(o.queue, o.queue[done:])
		clear(o.queue[rest:])
		o.queue = o.queue[:rest]
	}
}

func (o *output) release(s *segment) {
	if s.block && len(o.spare) < 8 && cap(s.data) == blockBytes {
		o.spare = append(o.spare, s.data)
	}
	if s.owner != nil {
		s.owner.Store(true)
	}
}

// pending is the number of bytes that wait for the socket.
func (o *output) pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// push sees to it that what is queued leaves without the executor. Any thread may call it.
func (o *output) push() {
	if done, err := o.flush(); done || err != nil || !o.pumping.CompareAndSwap(false, true) {
		return
	}
	o.pumps.Go(func() {
		for {
			done, err := o.flush()
			if err == nil && !done {
				_, err = o.conn.Wait(transport.Writable, time.Second)
			}
			if err != nil {
				return // the executor finds the same
			}
			if !done {
				continue
			}
			o.pumping.Store(false)
			if o.pending() == 0 || !o.pumping.CompareAndSwap(false, true) {
				return
			}
		}
	})
}
