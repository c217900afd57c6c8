package rdma

import (
	"context"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/verbs"
)

const (
	probeLeast = 128 << 10
	probeFirst = 32 << 10 // the first size, and the chunk of a path that is very slow
	// a chunk takes no longer: the device expects a sign of the peer, which comes with a chunk's end, within ackTime
	probePace   = ackTime / 4
	probeTime   = 8 * time.Millisecond   // for each size
	probeTotal  = 150 * time.Millisecond // for all: on a slow path the larger sizes are left out
	probePasses = 4
	probeMost   = 64 // writes of each size
	probeDepth  = 4
	probeFewest = 2
	// of the best: a larger chunk costs both ends less, in what is not measured here as well
	goodEnough = 0.85
	// chunks for so long are kept under way: until the word of their arrival is here, on a busy machine as well
	ahead      = 250 * time.Millisecond
	leastAhead = 8
	// the device has pieces of them for so long: until the word of one's end is here and others are posted
	atDevice = 250 * time.Microsecond
	leastAt  = 12
)

// trial is the measuring of one path.
type trial[M any] struct {
	ctx   context.Context
	link  *Link[M] // whose lock guards what a path counts of writes that measure
	conn  *conn
	mem   []byte
	r     region
	slots []uint32 // granted; they are written to
}

func newTrial[M any](ctx context.Context, l *Link[M], c *conn) *trial[M] {
	return &trial[M]{ctx: ctx, link: l, conn: c}
}

// run writes into granted slots and finds the chunk size of the highest bandwidth, how many chunks keep the path busy,
// and how many pieces of them the device. It proves at the same time that the path works. Without slots or memory the
// usual size is taken.
func (t *trial[M]) run() (chunk, limit, window int, err error) {
	depth := t.link.depth
	chunk, limit, window = min(transport.MaxChunk, max(t.conn.peer.SlotBytes, probeLeast)), depth, depth
	if t.slots, err = t.awaitCredits(); err != nil || len(t.slots) == 0 {
		return chunk, limit, window, err
	}
	var free func()
	if t.mem, t.r, free, err = t.link.own.forTrial(t.conn, chunk, t.link.cfg.Stats); err != nil {
		return chunk, limit, window, nil // uploads will find out as well
	}
	defer free()
	began := time.Now()
	rates, best, err := survey(chunk, t.probe, func() bool { return time.Since(began) >= probeTotal })
	if err != nil {
		return chunk, limit, window, err
	}
	chunk = pickChunk(rates, best)
	enough := func(span time.Duration, bytes, least int) int {
		return min(max(int(best*span.Seconds())/bytes+1, least), depth)
	}
	return chunk, enough(ahead, chunk, leastAhead), enough(atDevice, min(chunk, pieceBytes), leastAt), nil
}

// survey measures the sizes up to the largest. A moment in which a process had no processor must not decide for as long
// as the path lives: every size counts with the best of some passes, unless the largest shows at once that it is good
// enough.
func survey(
	most int, probe func(size int) (float64, error), over func() bool,
) (rates map[int]float64, best float64, err error) {
	rates = map[int]float64{}
	for pass := 0; pass == 0 || pass < probePasses && !over() && rates[most] < goodEnough*best; pass++ {
		for size := probeFirst; size == probeFirst ||
			size <= most && paced(size, best) && !over(); size = max(2*size, probeLeast) {
			rate, err := probe(size)
			if err != nil {
				return nil, 0, err
			}
			rates[size] = max(rates[size], rate)
			best = max(best, rate)
		}
	}
	return rates, best, nil
}

// paced says whether chunks of a size are through in time at a rate.
func paced(size int, rate float64) bool { return float64(size) <= rate*probePace.Seconds() }

// pickChunk chooses the largest size among those that were measured whose rate is near the best, and on slow paths one
// that is through in time.
func pickChunk(rates map[int]float64, best float64) int {
	chunk := probeLeast
	for size := probeLeast; size <= transport.MaxChunk; size *= 2 {
		if rates[size] >= goodEnough*best {
			chunk = size
		}
	}
	for chunk > probeFirst && !paced(chunk, best) {
		chunk /= 2
	}
	return chunk
}

// awaitCredits waits for the first credits.
func (t *trial[M]) awaitCredits() ([]uint32, error) {
	l, c, ctx := t.link, t.conn, t.ctx
	if c.peer.SlotCount == 0 {
		return nil, nil
	}
	stop := context.AfterFunc(ctx, l.wake)
	defer stop()
	stopToo := context.AfterFunc(c.ctx, l.wake)
	defer stopToo()
	l.mu.Lock()
	defer l.mu.Unlock()
	for ctx.Err() == nil && c.ctx.Err() == nil && l.peer.Credits() == 0 {
		l.moved.Wait()
	}
	if c.ctx.Err() != nil {
		return nil, context.Cause(c.ctx)
	}
	return append([]uint32(nil), l.peer.Granted()[:min(l.peer.Credits(), probeDepth)]...), nil
}

// probe writes so many bytes into slots at a time, for a moment, and gives the bytes a second.
func (t *trial[M]) probe(size int) (float64, error) {
	l, c, ctx, mem := t.link, t.conn, t.ctx, t.mem[:size]
	stop := context.AfterFunc(ctx, l.wake)
	defer stop()
	stopToo := context.AfterFunc(c.ctx, l.wake)
	defer stopToo()
	l.mu.Lock()
	defer l.mu.Unlock()
	began := time.Now()
	c.probed, c.probing = 0, true
	defer func() { c.probing = false }()
	l.watchdog.start()
	posted := 0
	var req [1]verbs.SendRequest
	for {
		if c.gone {
			return 0, context.Cause(c.ctx)
		}
		for posted < probeMost && posted-c.probed < len(t.slots) && (posted < probeFewest || time.Since(began) < probeTime) {
			slot := t.slots[posted%len(t.slots)]
			req[0] = verbs.SendRequest{
				ID: workProbe, Op: verbs.OpWrite, Flags: verbs.Signaled,
				Remote: c.peer.Slots.Addr + uint64(slot)*uint64(c.peer.SlotBytes), RKey: c.peer.Slots.Key, Count: 1,
			}
			req[0].SGE[0] = verbs.SGE{Addr: address(mem), Length: uint32(len(mem)), LKey: t.r.mr.LKey}
			if _, err := c.qp.PostSend(req[:]); err != nil {
				return 0, err
			}
			posted++
		}
		if c.probed == posted {
			return float64(posted) * float64(len(mem)) / time.Since(began).Seconds(), nil
		}
		if err := context.Cause(c.ctx); err != nil {
			return 0, err
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		l.moved.Wait()
	}
}
