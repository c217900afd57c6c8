package executor

import (
	"slices"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport"
)

// Work of the GPU may wait for the client (see [base.ask]), and the client, before it does what it is asked for, for
// downloads that the GPU had finished before that: it sends FLUSH. The executor must not be needed for the answer. The
// driver holds it up in many calls until the context's work is over, and what waits here is part of that. So the thread
// that reads the callback connection sends those downloads itself, and makes no call of the driver: behind the last
// chunk of an asynchronous download the GPU writes a number to page-locked memory. What is ordered behind the download
// is ordered behind that word, too.

// lateDownloads are the asynchronous downloads whose ends have not been told. No call of the driver is made while mu is
// held.
type lateDownloads struct {
	mu      sync.Mutex
	list    []*transfer   // in the order of the commands
	flushed atomic.Uint64 // the last FLUSH that was answered; stored with mu held
}

// mark is a word of page-locked memory and the number that the GPU was last told to write there. It belongs to one
// stream.
type mark struct {
	word   *atomic.Uint32
	number uint32
}

const marksBytes = 4 << 10 // of a context's marks that are allocated at a time

// expect enters an asynchronous download that is about to be enqueued.
func (d *downloads) expect(t *transfer) {
	if t.late = t.done && t.of == nil; !t.late {
		return
	}
	d.late.mu.Lock()
	d.late.list = append(d.late.list, t)
	d.late.mu.Unlock()
}

// sign has the GPU say when all chunks of an asynchronous download have come down. Where it cannot, the executor alone
// can tell.
func (d *downloads) sign(st *stream, t *transfer) {
	if !t.late {
		return
	}
	r := d.advance(st)
	d.late.mu.Lock()
	defer d.late.mu.Unlock()
	t.whole = true
	if t.unsigned = r != cuda.CUDA_SUCCESS; !t.unsigned {
		t.word, t.number = st.mark.word, st.mark.number
	}
}

// advance has the GPU write the next number of a stream's mark behind its present work.
func (d *downloads) advance(st *stream) cuda.CUresult {
	if st.mark == nil {
		st.mark = d.takeMark(st.ctx)
	}
	m := st.mark
	if m == nil {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	m.number++
	at := cuda.CUdeviceptr(addressOfWord(m.word))
	r := d.gpu.CuStreamWriteValue32_v2(st.real, at, cuda.Cuuint32(m.number), 0)
	if r == cuda.CUDA_ERROR_NOT_SUPPORTED { // old drivers
		r = d.gpu.CuMemsetD32Async(at, m.number, 1, st.real)
	}
	return r
}

// takeMark gives a word that no stream has, or nil.
func (d *downloads) takeMark(ctx *context) *mark {
	if len(ctx.marks) == 0 {
		mem, r := d.pageLocked(ctx, marksBytes)
		if r != cuda.CUDA_SUCCESS {
			return nil
		}
		clear(mem)
		list := markWords(mem)
		for i := range list {
			ctx.marks = append(ctx.marks, &mark{word: &list[i]})
		}
	}
	n := len(ctx.marks) - 1
	m := ctx.marks[n]
	ctx.marks = ctx.marks[:n]
	return m
}

// dropMark takes back the word of a stream that ends. One that is still to be written is left alone.
func (st *stream) dropMark() {
	if m := st.mark; m != nil && m.word.Load() == m.number {
		st.ctx.marks = append(st.ctx.marks, m)
	}
	st.mark = nil
}

// landed says whether all of a download has come down, as far as memory tells. late.mu is held.
func (t *transfer) landed() bool { return t.word != nil && int32(t.word.Load()-t.number) >= 0 }

// sendLate sends the asynchronous downloads that have come down, and their ends. It says whether it could. late.mu is
// held.
func (d *downloads) sendLate() bool {
	able := true
	for _, t := range d.late.list {
		if t.told || t.result != cuda.CUDA_SUCCESS {
			continue // the executor has the rest to say
		}
		if len(t.unsent) > 0 && !t.landed() {
			able = able && !t.unsigned
			continue
		}
		for len(t.unsent) > 0 && d.send(t.unsent[0]) {
			t.unsent = t.unsent[1:]
		}
		switch {
		case len(t.unsent) > 0:
			able = false
		case t.whole:
			d.sayDone(t)
		}
	}
	return able
}

// send queues the data of a chunk that has come down. It says no where only the executor can: the chunk lies in the
// GPU's memory and RDMA does not take it. For late downloads late.mu is held.
func (d *downloads) send(c *chunk) bool {
	switch t := c.t; {
	case c.fetching:
		return false
	case t.rows != nil:
		d.sendRows(t, c.off, c.slot.mem[:c.bytes], &c.slot.free)
	case t.of != nil && d.hostmem.sendChanges(t, c):
	case t.beside:
		if !d.sendChunk(t, c) {
			return false
		}
		t.posted += uint64(c.bytes)
	default:
		h := transport.MessageHeader{Type: transport.MsgData, ID: t.id, Seq: t.seq, Aux: c.off}
		d.out.message(h, c.slot.mem[:c.bytes], &c.slot.free)
	}
	return true
}

// arrivedLate sends a chunk that the executor has seen to arrive, unless that has been done. late.mu is held, but not
// while the driver is called.
func (d *downloads) arrivedLate(c *chunk, r cuda.CUresult) {
	t := c.t
	if !slices.Contains(t.unsent, c) {
		return
	}
	if r != cuda.CUDA_SUCCESS {
		c.slot.free.Store(true)
	} else if !d.send(c) {
		c.fetching = true
		d.late.mu.Unlock()
		d.sendFetched(c)
		d.late.mu.Lock()
	}
	t.unsent = slices.DeleteFunc(t.unsent, func(o *chunk) bool { return o == c })
}

// sayDone tells the end of an asynchronous download. For late ones late.mu is held.
func (d *downloads) sayDone(t *transfer) {
	t.told = true
	d.out.message(transport.MessageHeader{
		Type: transport.MsgDone, ID: t.id, Result: int32(t.result), Seq: t.seq, Aux: t.posted,
	}, nil, nil)
}

// sayFlushed answers FLUSH once. late.mu is held.
func (d *downloads) sayFlushed(asked uint64) bool {
	if asked <= d.late.flushed.Load() {
		return false
	}
	d.late.flushed.Store(asked)
	d.out.message(transport.MessageHeader{Type: transport.MsgFlushed, Seq: asked}, nil, nil)
	return true
}

// answerFlush answers FLUSH once the executor has looked at all downloads. It says whether that was still to do.
func (d *downloads) answerFlush(asked uint64) bool {
	if asked <= d.late.flushed.Load() {
		return false
	}
	d.late.mu.Lock()
	defer d.late.mu.Unlock()
	d.sayFlushed(asked)
	return true
}

// flush answers FLUSH on the thread that reads the callback connection, whatever call holds the executor.
func (d *downloads) flush(asked uint64) {
	d.late.mu.Lock()
	if d.sendLate() {
		d.sayFlushed(asked)
	}
	d.late.mu.Unlock()
	d.out.push()
}

// endLate tells the end of a download, unless that has been done, and forgets it.
func (d *downloads) endLate(t *transfer) {
	l := &d.late
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.told {
		d.sayDone(t)
	}
	if i := slices.Index(l.list, t); i >= 0 {
		l.list = slices.Delete(l.list, i, i+1)
	}
}
