package executor

import (
	"cmp"
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// pending says whether anything has to be looked at between commands.
func (s *Session) pending() bool { return mustLook(s) || s.peers.pending() }

// mustLook says whether that includes what only a look shows, beside copies between servers.
func mustLook(s *Session) bool {
	return len(s.waits.list) > 0 || len(s.waits.watches) > 0 || s.copies.pending() || s.turns.active ||
		s.collectives.underWay > 0
}

// poll looks at everything pending, once. It says whether something was completed.
func (s *Session) poll() bool {
	s.launchAll()
	s.enterAny()
	s.turns.look()
	progress := false
	asked := s.callback.flush.Load() // before the look at the downloads
	ready := s.waits.gatherFired()
	if s.pollProgress() {
		progress = true
	}
	ready = s.waits.gatherDownloaded(ready)
	if s.copies.path.poll() {
		progress = true
	}
	if s.copies.downloads.answerFlush(asked) {
		progress = true
	}
	if s.collectives.poll() {
		progress = true
	}
	if s.peers.poll() {
		progress = true
	}
	if ready == 0 {
		return progress
	}
	// The downloads that these waits cover were enqueued before them, so the look at the downloads just now has seen
	// them finished.
	s.waits.answerFirst(ready)
	return true
}

// abandonContext ends what is under way in a context that ends.
func (s *Session) abandonContext(ctx *context) {
	s.times.forget(ctx)
	s.turns.abandon(ctx)
	s.copies.path.abandon(ctx)
	s.peers.abandon(ctx)
	for _, st := range append([]*stream{&ctx.legacy}, ctx.streams...) {
		s.copies.downloads.fail(st, cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED)
		s.waits.endWatches(st)
	}
	s.waits.abandon(ctx)
}

// pollProgress sends the data of downloads that have come down, and tells of downloads and watches that are complete.
// A client that learns of one has learned of all that lies before it: what is complete is collected until a look at
// everything finds no more, and told in the order of the commands. (What waits for other work has a later command
// than that.)
func (s *Session) pollProgress() bool {
	d := &s.copies.downloads
	if d.underWay == 0 && len(s.waits.watches) == 0 && len(d.endings) == 0 {
		return false
	}
	s.waits.fired = s.waits.fired[:0]
	progress := len(d.endings) > 0
	for more := true; more; {
		n := len(s.waits.fired)
		s.waits.pollWatches()
		more = d.underWay > 0 && d.poll()
		more = more || len(s.waits.fired) > n
		progress = progress || more
	}
	if len(s.waits.fired) > 1 {
		slices.SortFunc(s.waits.fired, func(a, b fired) int { return cmp.Compare(a.at, b.at) })
	}
	if len(d.endings) > 1 {
		slices.SortFunc(d.endings, func(a, b *transfer) int { return cmp.Compare(a.seq, b.seq) })
	}
	ends, told := d.endings, s.waits.fired
	for len(ends) > 0 || len(told) > 0 {
		if len(told) > 0 && (len(ends) == 0 || told[0].at <= ends[0].seq) {
			s.waits.tellWatch(&told[0])
			told = told[1:]
		} else {
			d.tellEnd(ends[0])
			ends = ends[1:]
		}
	}
	clear(d.endings)
	d.endings = d.endings[:0]
	return progress
}
