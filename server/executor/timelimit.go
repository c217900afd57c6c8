package executor

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/metrics"
)

// ErrTime is wrapped by the reason of a session that a limit of time ended.
var ErrTime = errors.New("a limit of time was reached")

// timeError is such a limit. Calls of the client answer result from then on, where it is not 0.
type timeError struct {
	text   string
	result cuda.CUresult
}

func (e *timeError) Error() string { return e.text }
func (e *timeError) Unwrap() error { return ErrTime }

// timelimit is the engine of limits of time.
//
// A session that makes no call is seen by the executor when it has nothing else to do. Work that takes too long is seen
// by a goroutine, since the driver may hold the executor until that work is over: behind work of a stream the GPU
// writes a number to page-locked memory (see [mark]), and what was not written in time is too late. Such a mark is put
// on a stream from time to time, and before calls that the client waits for, where the last one has come down.
//
// Locks: mu guards the list of marks. The rest belongs to the executor's thread.
type timelimit struct {
	*base
	downloads *downloads
	idle      time.Duration
	work      time.Duration
	abort     func(error) // ends the process where the driver does not return; nil: only the connection

	calls  uint64 // as of the last look
	pings  uint64 // commands that are no calls
	since  time.Time
	marked int64 // when streams were last looked at, by metrics.Now

	mu      sync.Mutex
	open    []openMark
	expired atomic.Bool
}

// openMark is a mark that the GPU has to write.
type openMark struct {
	stream *stream
	word   *atomic.Uint32
	number uint32
	since  int64
}

func (m *openMark) landed() bool { return int32(m.word.Load()-m.number) >= 0 }

// looksPerLimit is how often a limit of time is looked at while it passes.
const looksPerLimit = 8

// overrun is how long the executor has to notice that the work's time is over, before the process is ended.
const overrun = time.Second

func (l *timelimit) begin(s *Session, limits config.Limits, abort func(error)) {
	l.base, l.downloads = &s.base, &s.copies.downloads
	l.idle, l.work, l.abort, l.since = limits.Idle, limits.Work, abort, time.Now()
}

func (l *timelimit) interval() time.Duration { return l.work / looksPerLimit }

// rest is how long the executor may wait for the next command, negative: for ever. Nothing is to be done now; busy says
// whether a GPU has work. The error ends a session that has made no call for too long.
func (l *timelimit) rest(now time.Time, busy func() bool) (time.Duration, error) {
	wait := time.Duration(-1)
	if l.work > 0 { // somebody has to put marks on streams, and to see that the time is over
		wait = l.interval()
	}
	if l.idle == 0 {
		return wait, nil
	}
	if calls := l.commands - l.pings; calls != l.calls {
		l.calls, l.since = calls, now
	}
	left := l.idle - now.Sub(l.since)
	if left <= 0 && busy() {
		l.since, left = now, l.idle
	}
	if left <= 0 {
		return 0, &timeError{text: fmt.Sprintf(
			"the program made no call for %v, which is as long as the server lets sessions be idle (idle-timeout)", l.idle)}
	}
	if wait < 0 || left < wait {
		wait = left
	}
	return wait, nil
}

// check is called now and then by the executor, which puts marks on streams and learns that time is over.
func (l *timelimit) check() error {
	if l.work == 0 {
		return nil
	}
	if now := metrics.Now(); now-l.marked > int64(l.interval()) {
		l.mark(now)
	}
	if l.expired.Load() {
		return l.over()
	}
	return nil
}

func (l *timelimit) over() error {
	return &timeError{result: cuda.CUDA_ERROR_LAUNCH_TIMEOUT, text: fmt.Sprintf(
		"the GPU worked for more than %v on what it was given, which is as long as the server lets it (work-timeout)",
		l.work)}
}

// mark puts a mark on each stream that has work, where the last one has been written.
func (l *timelimit) mark(now int64) {
	l.marked = now
	if len(l.captures) > 0 {
		return // the driver refuses work for the legacy stream meanwhile
	}
	for _, ctx := range l.contexts {
		for i := -1; i < len(ctx.streams); i++ {
			st := &ctx.legacy
			if i >= 0 {
				st = ctx.streams[i]
			}
			// A mark on the legacy stream is a barrier for others, so there is none unless the program had one there.
			if st.used && (!st.legacy || st.kernels != st.timed) && !l.isOpen(st) {
				l.markStream(st, now)
			}
		}
	}
}

func (l *timelimit) markStream(st *stream, now int64) {
	l.within(st.ctx, func() cuda.CUresult {
		r := l.gpu.CuStreamQuery(st.real)
		if r != cuda.CUDA_ERROR_NOT_READY {
			return r
		}
		if r = l.downloads.advance(st); r == cuda.CUDA_SUCCESS {
			st.timed = st.kernels
			l.mu.Lock()
			l.open = append(l.open, openMark{st, st.mark.word, st.mark.number, now})
			l.mu.Unlock()
		}
		return r
	})
}

// isOpen says whether a stream has a mark that was not written yet, and forgets those that were.
func (l *timelimit) isOpen(st *stream) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	open, kept := false, l.open[:0]
	for _, m := range l.open {
		if !m.landed() {
			kept = append(kept, m)
			open = open || m.stream == st
		}
	}
	clear(l.open[len(kept):])
	l.open = kept
	return open
}

// forget leaves out a context, whose memory ends.
func (l *timelimit) forget(ctx *context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.open[:0]
	for _, m := range l.open {
		if m.stream.ctx != ctx {
			kept = append(kept, m)
		}
	}
	clear(l.open[len(kept):])
	l.open = kept
}

// late says whether the GPU has had a piece of work for too long.
func (l *timelimit) late(now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.open {
		if m := &l.open[i]; now-m.since > int64(l.work) && !m.landed() {
			return true
		}
	}
	return false
}

// watch looks at the marks until the session ends. Where the driver holds the executor, it says why the session ends,
// and ends the process.
func (l *timelimit) watch(s *Session) {
	look := time.NewTicker(l.interval())
	defer look.Stop()
	for !l.late(metrics.Now()) {
		select {
		case <-look.C:
		case <-s.stopped:
			return
		}
	}
	l.expired.Store(true)
	patience := time.NewTimer(overrun)
	defer patience.Stop()
	select {
	case <-s.stopped:
		return
	case <-patience.C:
	}
	err := l.over()
	s.tell(err)
	if l.abort != nil {
		l.abort(err)
	}
	s.conn.Shutdown()
}

// busy says whether a GPU has work of the session's.
func (s *Session) busy() bool {
	for _, ctx := range s.contexts {
		r := s.within(ctx, func() cuda.CUresult {
			for _, st := range append([]*stream{&ctx.legacy}, ctx.streams...) {
				if s.gpu.CuStreamQuery(st.real) == cuda.CUDA_ERROR_NOT_READY {
					return cuda.CUDA_ERROR_NOT_READY
				}
			}
			return cuda.CUDA_SUCCESS
		})
		if r == cuda.CUDA_ERROR_NOT_READY {
			return true
		}
	}
	return len(s.captures) > 0
}

// tell sends the client the reason why its session ends, and what its calls answer from then on.
func (s *Session) tell(err error) {
	result := cuda.CUDA_SUCCESS // its client's usual answer
	if e := (*timeError)(nil); errors.As(err, &e) {
		result = e.result
	}
	s.notice(err.Error(), result)
}
