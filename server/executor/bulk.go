package executor

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// bulkTimeout is how long the executor waits for bulk connections over which an upload comes.
const bulkTimeout = 15 * time.Second

var errBulk = errors.New("a bulk connection broke during a copy")

// transfers are a session's bulk transfers: a big copy's bytes come and go in chunks, by RDMA while there is a path
// and else over all bulk connections at once. Each connection has a goroutine that receives, straight into staging
// slots that the executor has lent, and one that sends.
type transfers struct {
	loop    copiesLoop
	metrics *metrics.Page

	in  *bulk.Inbound
	out bulk.Outbound

	mu     sync.Mutex
	joined *sync.Cond // of mu: there is one more, or none will come
	conns  []*bulk.TCP
	ended  bool
	ready  atomic.Bool // all are there and work
	done   sync.WaitGroup
}

func newTransfers(loop copiesLoop, page *metrics.Page) *transfers {
	t := &transfers{loop: loop, metrics: page, in: bulk.NewInbound()}
	t.joined = sync.NewCond(&t.mu)
	return t
}

// attach adds one of count connections.
func (t *transfers) attach(line *transport.Line, count int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || count < 1 || count > transport.MaxBulkConns || len(t.conns) >= count {
		_ = line.Close()
		return errors.Join(errors.New("a bulk connection that the session does not expect"), t.out.Err())
	}
	conn := &bulk.TCP{Line: line, Sent: func(_, all int) { t.metrics.Add(metrics.SentTCP, all) },
		Received: func(_, all int) { t.metrics.Add(metrics.ReceivedTCP, all) }}
	t.conns = append(t.conns, conn)
	t.in.Stream()
	t.out.Fallback()
	t.done.Go(func() { t.failed(conn.Receive(t.in)) })
	t.done.Go(func() { t.failed(t.out.Feed(conn)) })
	if len(t.conns) == count {
		t.ready.Store(true)
	}
	t.joined.Broadcast()
	return nil
}

// failed ends the use of the bulk connections, and the session if something was under way on them.
func (t *transfers) failed(err error) {
	if t.fail(err) {
		t.loop.clientFailed("go on with a copy", fmt.Errorf("%w: %w", errBulk, err))
	}
}

// fail ends all bulk transfers and says whether there were some.
func (t *transfers) fail(err error) (lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	t.ended = true
	t.ready.Store(false)
	sending, receiving := t.out.Fail(err), t.in.Fail(err)
	for _, c := range t.conns {
		c.Line.Shutdown()
	}
	t.joined.Broadcast()
	return sending || receiving
}

// close ends the connections, once those who use them have seen the end. The link has ended before.
func (t *transfers) close() {
	t.fail(errCallbackClosed)
	t.out.Abandon() // the link is closed
	t.done.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.conns {
		_ = c.Line.Close()
	}
}

// await waits until all connections are there.
func (t *transfers) await() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for deadline := time.Now().Add(bulkTimeout); !t.ready.Load(); {
		if t.ended || time.Now().After(deadline) {
			return fmt.Errorf("%w: %w", ErrGone, errors.Join(errBulk, t.out.Err()))
		}
		wake := time.AfterFunc(time.Second, t.joined.Broadcast)
		t.joined.Wait()
		wake.Stop()
	}
	return nil
}

// pathHandler is the path as its link sees it.
type pathHandler path

func (h *pathHandler) Arrived(c bulk.Chunk, index int) {
	(*path)(h).awaitOpen()
	h.metrics.Add(metrics.ReceivedRDMA, int(c.Bytes))
	h.bulk.in.Arrived(c, h.slots[index])
}

// Placed is never called: a server grants no windows.
func (h *pathHandler) Placed(bulk.Chunk) {}

func (h *pathHandler) Sent(p bulk.Piece, arrived bool) {
	if arrived {
		h.metrics.Add(metrics.SentRDMA, p.N)
	}
	h.bulk.out.Settled(p, arrived)
}

// Memory gives nothing: a server grants no windows.
func (h *pathHandler) Memory(uint32, uint64) []byte { return nil }

func (h *pathHandler) Changed() {
	(*path)(h).awaitOpen()
	h.bulk.out.Changed()
	switch h.bulk.out.State() {
	case bulk.Up:
		h.metrics.Add(metrics.ToRDMA, 1)
	case bulk.Down: // a path that ends with its session is none that was lost
		if n := h.stats.Lost.Load(); n != h.lost.Swap(n) {
			h.metrics.Add(metrics.ToTCP, 1)
		}
	}
}

func (h *pathHandler) Broken(err error, underWay bool) {
	if underWay {
		h.loop.clientFailed("go on with a copy", fmt.Errorf("%w: RDMA's control connection: %w", errBulk, err))
	}
}
