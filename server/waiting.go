package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/queue"
	"scuda.dev/scuda/transport"
)

// CUDA clients that want a place all go through the queue, so that nobody overtakes those who wait. Most have one at
// once. Who may not wait, or for whom there is no room in the queue, is refused as if there were none.

// shareOfQueue is the part of the queue's room for one address, and for one of several tenants unless its limit says
// more.
const shareOfQueue = 4

// waiting is the queue.
type waiting struct {
	sessions *sessions
	metrics  *metrics.Server

	mu    sync.Mutex // is taken before sessions.mu; guards what follows, and what it says of waiters
	queue queue.Queue
	by    map[*queue.Waiter]*waiter
}

// waiter is a client that wants a place.
type waiter struct {
	place place
	who   bearer
	most  func() uint64 // sessions that its tenant may have; 0: any number
	class lease.Class
	key   *queue.Waiter
	may   chan error // gets nil with the place, or why there will be none

	position queue.Position // guarded by waiting.mu, as reason is
	reason   error          // why there is no place
}

// standing is what terms give a session in the queue.
func standing(t *lease.Terms) queue.Standing {
	return queue.Standing{Class: t.Class, Weight: float64(t.Share) / lease.UsualShare}
}

// roomFor is how many may wait in a client's sight.
func (s *supervisor) roomFor(l *config.Limits) queue.Limits {
	room := queue.Limits{All: min(max(s.cfg.MaxQueue, 0), door.Places())}
	share := max(room.All/shareOfQueue, 1)
	if s.cfg.MaxPerClient > 0 {
		room.Peer = share
	}
	switch {
	case l.Queue > 0:
		room.Tenant = int(l.Queue)
	case s.cfg.Tenants.Sole() == "":
		room.Tenant = share
	}
	return room
}

// takePlace takes a place for a client, for which a CUDA client may have to wait. The function gives it back, once the
// session is over; it may be called again.
func (s *supervisor) takePlace(c arrival, log *slog.Logger, mine place, terms lease.Terms) (leave func(), err error) {
	perTenant := func() uint64 {
		limits := s.cfg.Tenants.Limits(mine.tenant, *s.cfg.Limits)
		most := s.sessions.perTenant(mine.kind, &limits, s.soleTenant())
		if mine.kind == cudaSession {
			most = s.mps.bound(most)
		}
		return most
	}
	if mine.kind == nvmlSession {
		if err := s.sessions.admit(mine, perTenant()); err != nil {
			return nil, err
		}
		return sync.OnceFunc(func() { s.sessions.leave(mine) }), nil
	}
	patience := time.Duration(0)
	if slices.Contains(c.Capabilities, transport.CapQueue) {
		patience = min(max(c.Wait, 0), transport.LongestWait)
	}
	limits := s.cfg.Tenants.Limits(mine.tenant, *s.cfg.Limits)
	w := &waiter{place: mine, who: c.who, most: perTenant, may: make(chan error, 1)}
	waits, err := s.waiting.enter(w, standing(&terms), s.roomFor(&limits), patience > 0)
	if waits {
		err = s.wait(c, log, w, patience)
	}
	if err != nil {
		return nil, err
	}
	began := time.Now()
	return sync.OnceFunc(func() { s.waiting.ended(w, time.Since(began)) }), nil
}

// errQueueLeft is a client in the queue that cannot be told anything any more.
var errQueueLeft = errors.New("the client left the queue")

// wait waits until a client has a place, and tells it how it stands.
func (s *supervisor) wait(c arrival, log *slog.Logger, w *waiter, patience time.Duration) (err error) {
	began := time.Now()
	ctx, attended := whilePeerStays(s.stop, transport.Socket(c.peer), true)
	defer attended()
	late, tick := time.NewTimer(patience), time.NewTicker(transport.WaitQuiet)
	defer late.Stop()
	defer tick.Stop()
	if _, why, waits := s.waiting.look(w); waits {
		log.Info("a client waits for a place", "reason", why, "at_most", patience.String())
	}
	outcome := metrics.WaitRefused
	defer func() {
		if err == nil {
			outcome = metrics.WaitAdmitted
		}
		s.metrics.Waited.WithLabelValues(w.class.String(), outcome).Observe(time.Since(began).Seconds())
	}()
	closed := make(chan error, 1)
	if err := s.closed(); err != nil { // since before it entered: nobody will answer it
		closed <- err
	}
	var said queue.Position
	for ticks := 0; ; {
		select {
		case err := <-w.may:
			return err
		case err = <-closed:
		case <-late.C:
			p, reason, waits := s.waiting.look(w)
			if !waits {
				continue
			}
			err = refusef(transport.StatusBusy, "%w; %v, after %v", reason,
				transport.Queued{Place: p.Place}, patience)
		case <-tick.C:
			p, reason, waits := s.waiting.look(w)
			if !waits {
				continue
			}
			if ticks++; p.Place == said.Place && time.Duration(ticks)*transport.WaitQuiet < transport.WaitBeat {
				continue
			}
			ticks, said = 0, p
			if s.sayPosition(c, p, reason) == nil {
				continue
			}
			err = errQueueLeft
		case <-ctx.Done():
			if err = s.closed(); err == nil {
				err = context.Cause(ctx)
			}
		}
		if !s.waiting.leave(w) { // it had its answer at the same time
			if <-w.may == nil {
				s.waiting.ended(w, 0)
			}
		}
		if errors.Is(err, errQueueLeft) || errors.Is(err, errPeerGone) {
			outcome = metrics.WaitLeft
			log.Info("a client left the queue", "after", time.Since(began).Round(time.Millisecond))
		}
		return err
	}
}

// sayPosition tells a client how it stands.
func (s *supervisor) sayPosition(c arrival, p queue.Position, reason error) error {
	w := greeting(c.Hello)
	w.Status = transport.StatusWaiting
	w.Queue = &transport.Queued{Place: p.Place, Of: p.Of, Wait: p.Wait, Reason: door.Clip(reason.Error(), maxReason)}
	return sendWelcome(c, w)
}

// enter takes a place for a client, or lets it wait for one: then waits is true. Otherwise the error says why it may
// not.
func (q *waiting) enter(w *waiter, of queue.Standing, room queue.Limits, ready bool) (waits bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	r := queue.Request{Tenant: w.place.tenant, Peer: w.place.client, Standing: of}
	full := q.queue.Room(r, room)
	w.key, w.class = q.queue.Enter(now, r), of.Class
	if q.by == nil {
		q.by = make(map[*queue.Waiter]*waiter)
	}
	q.by[w.key] = w
	defer q.changed(now)
	q.admit(now)
	if _, waits = q.by[w.key]; !waits {
		return false, <-w.may
	}
	if ready && full == nil {
		return true, nil
	}
	q.drop(w)
	if ready && room.All > 0 {
		return false, refusef(transport.StatusBusy, "%w; %w", w.reason, full)
	}
	return false, w.reason
}

// drop takes a waiter out; false if it has had its answer. q.mu is held.
func (q *waiting) drop(w *waiter) bool {
	if q.by[w.key] == nil {
		return false
	}
	delete(q.by, w.key)
	return q.queue.Leave(w.key)
}

// leave is drop for those who do not wait any more.
func (q *waiting) leave(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.changed(time.Now())
	return q.drop(w)
}

// admit gives the places that are free to those whose turn it is. q.mu is held.
func (q *waiting) admit(now time.Time) {
	var all error // why nobody gets a place
	tried := make(map[*queue.Waiter]bool)
	for _, k := range q.queue.Admit(now, func(k *queue.Waiter) (v queue.Verdict) {
		w := q.by[k]
		v, w.reason = q.sessions.try(w.place, w.most())
		if all, tried[k] = w.reason, true; v == queue.Admitted {
			clear(tried)
		}
		return v
	}) {
		q.by[k].may <- nil
		delete(q.by, k)
	}
	for k, w := range q.by {
		if !tried[k] { // it stands behind one for whom places are kept
			w.reason = all
		}
	}
}

// changed says to everybody how they stand now. q.mu is held.
func (q *waiting) changed(now time.Time) {
	taken, _, _ := q.sessions.places(cudaSession, "")
	for k, p := range q.queue.Positions(now, taken) {
		q.by[k].position = p
	}
	for _, class := range queue.Classes() {
		q.metrics.Waiting.WithLabelValues(class.String()).Set(float64(q.queue.Count(class)))
	}
}

// errOthersFirst is why a client waits that could have a place which is kept for others.
var errOthersFirst = errors.New("others come first")

// look is how a client stands, and why it has no place. Where it waits no longer its answer has come.
func (q *waiting) look(w *waiter) (p queue.Position, reason error, waits bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.position, cmp.Or(w.reason, errOthersFirst), q.by[w.key] == w
}

// length is how many wait.
func (q *waiting) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queue.Len()
}

// count is how many of some wait.
func (q *waiting) count(of func(*waiter) bool) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.by {
		if of(w) {
			n++
		}
	}
	return n
}

// byTenant is how many of each tenant wait.
func (q *waiting) byTenant() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	counts := make(map[string]int)
	for _, w := range q.by {
		counts[w.who.Name]++
	}
	return counts
}

// takeOver takes the place of a session that had one of the supervisor before, whatever the limits are by now.
func (q *waiting) takeOver(p place) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sessions.mu.Lock()
	q.sessions.take(p)
	q.sessions.mu.Unlock()
	q.queue.Began(time.Now(), p.tenant)
}

// ended gives a place back, and to the next one.
func (q *waiting) ended(w *waiter, lasted time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sessions.leave(w.place)
	now := time.Now()
	q.queue.Ended(now, w.place.tenant, lasted)
	q.admit(now)
	q.changed(now)
}

// review answers those who may not wait any more, and lets in whom new limits allow to come.
func (q *waiting) review(why func(w *waiter) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.by {
		if err := why(w); err != nil && q.drop(w) {
			w.may <- err
		}
	}
	now := time.Now()
	q.admit(now)
	q.changed(now)
}

// closedQueue answers those who wait on a server that takes no new sessions.
func (s *supervisor) closedQueue() {
	if err := s.closed(); err != nil {
		s.waiting.review(func(*waiter) error { return err })
	}
}
