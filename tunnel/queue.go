package tunnel

import "sync"

// queue holds bytes between the one who reads frames, who puts them in, and the one who writes them to a connection. It
// takes as much memory as has been needed at once, and at most a [window].
type queue struct {
	mu    sync.Mutex
	buf   []byte // a ring; its length is a power of two
	r, w  uint64 // bytes taken and put so far
	ended bool   // nothing more comes
	more  chan struct{}
}

const firstQueue = 16 << 10

func newQueue() *queue { return &queue{more: make(chan struct{}, 1)} }

// room gives the places for n bytes, which put then makes readable; nil where they are not allowed.
func (q *queue) room(n int) (a, b []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || int(q.w-q.r)+n > window {
		return nil, nil
	}
	if need := int(q.w-q.r) + n; need > len(q.buf) {
		size := max(len(q.buf), firstQueue)
		for size < need {
			size *= 2
		}
		fresh := make([]byte, size) // who takes may still hold a piece of the old one
		for at := q.r; at < q.w; {
			at += uint64(copy(fresh[at&uint64(size-1):], q.piece(at, q.w)))
		}
		q.buf = fresh
	}
	a = q.piece(q.w, q.w+uint64(n))
	return a, q.piece(q.w+uint64(len(a)), q.w+uint64(n))
}

// piece is what lies without a gap of the bytes from at to end. The lock is held.
func (q *queue) piece(at, end uint64) []byte {
	i := int(at & uint64(len(q.buf)-1))
	return q.buf[i:min(len(q.buf), i+int(end-at))]
}

func (q *queue) put(n int) {
	q.mu.Lock()
	q.w += uint64(n)
	q.mu.Unlock()
	q.wake()
}

// end says that nothing more comes.
func (q *queue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.wake()
}

func (q *queue) wake() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// take gives the next bytes, which taken then forgets: none at the end, or (ok false) when gone closes.
func (q *queue) take(gone <-chan struct{}) (b []byte, ok bool) {
	for {
		q.mu.Lock()
		if q.w > q.r {
			b = q.piece(q.r, q.w)
		}
		ended := q.ended
		q.mu.Unlock()
		if len(b) > 0 || ended {
			return b, true
		}
		select {
		case <-q.more:
		case <-gone:
			return nil, false
		}
	}
}

func (q *queue) taken(n int) {
	q.mu.Lock()
	q.r += uint64(n)
	q.mu.Unlock()
}
