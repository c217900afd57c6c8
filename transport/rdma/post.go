package rdma

import "scuda.dev/scuda/verbs"

// post has a message sent by the next [Link.flush]: its header, then its bytes. Both stay where they are until the
// completion. The link's lock is held.
func (c *conn) post(depth int, h *header, addr uint64, lkey uint32, remote uint64, rkey uint32) error {
	if c.gone {
		return errClosed
	}
	at := int(h.position%uint64(depth)) * headerBytes
	h.put(c.outHeaders[at:])
	head := verbs.SendRequest{
		ID: workHeader, Op: verbs.OpWrite, Flags: c.inline, Remote: c.peer.Headers.Addr + uint64(at),
		RKey: c.peer.Headers.Key, Count: 1,
	}
	head.SGE[0] = verbs.SGE{Addr: c.outMR.Addr + uint64(at), Length: headerSize, LKey: c.outMR.LKey}
	c.pending = append(c.pending, head)
	for left := h.chunk.Bytes; ; {
		n := min(left, uint32(c.piece))
		c.sends++
		part := verbs.SendRequest{
			ID: workPart, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: remote, RKey: rkey, Count: 1,
		}
		part.SGE[0] = verbs.SGE{Addr: addr, Length: n, LKey: lkey}
		if left -= n; left == 0 {
			part.ID, part.Op, part.Imm = workData|h.position, verbs.OpWriteImm, uint32(h.position)
			c.pending = append(c.pending, part)
			return nil
		}
		c.pending = append(c.pending, part)
		addr, remote = addr+uint64(n), remote+uint64(n)
	}
}

// next takes the requests of so many pieces from those that are to be posted. The link's lock is held.
func (c *conn) next(most int) []verbs.SendRequest {
	n, requests := 0, 0
	for i := 0; i < len(c.pending) && n < most; i++ {
		if kindOf(c.pending[i].ID) != workHeader {
			n, requests = n+1, i+1
		}
	}
	c.posting = append(c.posting[:0], c.pending[:requests]...)
	c.pending = c.pending[:copy(c.pending, c.pending[requests:])]
	c.inDevice += n
	return c.posting
}

// pieces counts those in a list of requests.
func pieces(list []verbs.SendRequest) (n int) {
	for i := range list {
		if kindOf(list[i].ID) != workHeader {
			n++
		}
	}
	return n
}

// flush posts what is to be posted, in order, as long as the device has less than its window. Another call that does so
// already takes this one's messages as well. mu is held, and let go meanwhile: a driver in software works on the
// messages in the caller's time.
func (l *Link[M]) flush(c *conn) {
	if c.flushes {
		return
	}
	c.flushes = true
	for !c.gone {
		if c.ctx.Err() != nil { // they are among those that are given back
			c.sends -= pieces(c.pending)
			c.pending = c.pending[:0]
		}
		list := c.next(l.window - c.inDevice)
		if len(list) == 0 {
			break
		}
		l.mu.Unlock()
		n, err := c.qp.PostSend(list)
		l.mu.Lock()
		if err != nil {
			refused := pieces(list[n:])
			c.sends -= refused
			c.inDevice -= refused
			c.cancel(err)
		}
	}
	c.flushes = false
	if c.ctx.Err() != nil {
		l.moved.Broadcast() // see flushed
	}
}

// post posts what [Link.pump] has prepared, in the place of those who have no time for it, until the path is over.
func (l *Link[M]) post(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !c.gone {
		l.flush(c)
		c.toPost.Wait()
	}
}

// flushed waits for the end of a flush, on a path that ends. mu is held, and let go meanwhile.
func (l *Link[M]) flushed(c *conn) {
	for c.flushes {
		l.moved.Wait()
	}
}

// posted accounts for a message that was posted. mu is held.
func (l *Link[M]) posted(c *conn, err error, bytes int) {
	if err != nil {
		c.cancel(err) // the message is one of those that are given back
		return
	}
	l.cfg.Stats.SentChunks.Add(1)
	l.cfg.Stats.SentBytes.Add(uint64(bytes))
	if l.peer.Unfinished() == 1 {
		l.watchdog.start()
	}
}
