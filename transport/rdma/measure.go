package rdma

import (
	"context"
	"time"

	"scuda.dev/scuda/verbs"
)

const (
	probeLeast = 128 << 10
	probeFirst = 32 << 10 // the first size, and the pieces of a path that is very slow
	// a piece takes no longer: the device expects a sign of the peer, which comes with a write's end, within ackTime
	probePace   = ackTime / 2
	probeTime   = 8 * time.Millisecond   // for each size
	probeTotal  = 150 * time.Millisecond // for all: on a slow path the larger sizes are left out
	probePasses = 4
	probeMost   = 64 // writes of each size
	probeDepth  = 4
	probeFewest = 2
	// of the best: a larger piece costs the sender less, in what is not measured here as well
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

// plan is how chunks are sent over a path.
type plan struct {
	piece  int // bytes of a piece of one
	limit  int // chunks that are under way at most
	window int // pieces of them that the device has at most
}

// run writes into granted slots and finds the size of pieces of the highest bandwidth, how many chunks keep the path
// busy, and how many pieces of them the device. It proves at the same time that the path works. Without slots or memory
// the usual sizes are taken.
func (t *trial[M]) run(chunk int) (plan, error) {
	depth := t.link.depth
	p := plan{min(chunk, pieceBytes), depth, depth}
	var err error
	if t.slots, err = t.awaitCredits(); err != nil || len(t.slots) == 0 {
		return p, err
	}
	var free func()
	if t.mem, t.r, free, err = t.link.own.forTrial(t.conn, p.piece, t.link.cfg.Stats); err != nil {
		return p, nil // uploads will find out as well
	}
	defer free()
	began := time.Now()
	rates, best, err := survey(p.piece, t.probe, func() bool { return time.Since(began) >= probeTotal })
	if err != nil {
		return p, err
	}
	enough := func(span time.Duration, bytes, least int) int {
		return min(max(int(best*span.Seconds())/bytes+1, least), depth)
	}
	p.piece = pickPiece(rates, best)
	p.limit, p.window = enough(ahead, chunk, leastAhead), enough(atDevice, p.piece, leastAt)
	return p, nil
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

// paced says whether pieces of a size are through in time at a rate.
func paced(size int, rate float64) bool { return float64(size) <= rate*probePace.Seconds() }

// pickPiece chooses the largest size among those that were measured whose rate is near the best, and on slow paths one
// that is through in time. Chunks are as large as slots all the same: each costs both ends more than the device sees.
func pickPiece(rates map[int]float64, best float64) int {
	piece := probeLeast
	for size := probeLeast; size <= pieceBytes; size *= 2 {
		if rates[size] >= goodEnough*best {
			piece = size
		}
	}
	for piece > probeFirst && !paced(piece, best) {
		piece /= 2
	}
	return piece
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
