package server

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/transport"
)

// A worker that was handed out is replaced once its client has made no calls for refillAfter, or has ended, or after
// refillLatest, unless somebody wants the next one before. A new process that makes its context holds the driver's
// locks and the GPU for tenths of a second, which a client that begins would wait for.
const (
	refillAfter  = 300 * time.Millisecond
	refillLatest = 5 * time.Second
)

// maxHelpers bounds the workers that are made at the same time for a crowd. The driver makes contexts one by one in
// large part, so more would only take memory.
const maxHelpers = 4

// slowStart is how long a worker may take to start before nobody counts on it any more. A driver gives a context within
// a second or two, but a process can hang in it until startTimeout is over.
const slowStart = 5 * time.Second

// pool keeps workers ready. Each of its fillers holds one process until somebody takes it. While more clients wait than
// there are fillers that can be counted on, helpers make workers as well.
type pool struct {
	starter func(context.Context) (*process, error)
	failed  func(error)
	discard func(*process) // ends one that nobody needs
	idle    chan *process
	counted chan struct{} // behind idle: the client does not wait any more
	wanted  chan struct{} // somebody has begun to wait
	refused chan error
	waiting atomic.Int64 // clients without a worker; who gives one away counts its client off
	fillers int64
	stuck   atomic.Int64  // fillers whose worker takes longer than slowStart
	helpers chan struct{} // holds one element for each helper that works
	starts  starts
	ctx     context.Context
	wg      sync.WaitGroup
}

func newPool(ctx context.Context, n int, start func(context.Context) (*process, error), failed func(error)) *pool {
	p := &pool{
		starter: start, failed: failed, discard: (*process).end, ctx: ctx,
		idle: make(chan *process), counted: make(chan struct{}), wanted: make(chan struct{}, n), refused: make(chan error),
		fillers: int64(n), helpers: make(chan struct{}, max(1, min(runtime.NumCPU()-1, maxHelpers))),
	}
	for range n {
		p.wg.Go(func() { p.fill(ctx) })
	}
	return p
}

func (p *pool) fill(ctx context.Context) {
	const least, most = 500 * time.Millisecond, 10 * time.Second
	pause := least
	for ctx.Err() == nil {
		began := time.Now()
		w, err := p.startWatched(ctx)
		if err == nil {
			select {
			case p.idle <- w:
				p.given()
				pause = least
				p.pause(ctx, w)
				continue
			case <-ctx.Done():
				p.discard(w)
				return
			case <-w.exited:
				err = fmt.Errorf("worker %d died while idle: %w", w.pid(), exitReason(w))
			}
		}
		if ctx.Err() != nil {
			return
		}
		p.failed(err)
		if time.Since(began) > most {
			pause = least
		}
		if !p.refuse(ctx, err, pause) {
			return
		}
		pause = min(2*pause, most)
	}
}

// start makes a worker.
func (p *pool) start(ctx context.Context) (*process, error) {
	id := p.starts.begin()
	w, err := p.starter(ctx)
	p.starts.end(id, err)
	return w, err
}

// startWatched makes a filler's worker. Where that takes long, the filler is not counted on any more, and those who
// wait for it are helped.
func (p *pool) startWatched(ctx context.Context) (*process, error) {
	told := make(chan struct{})
	late := time.AfterFunc(slowStart, func() {
		defer close(told)
		p.stuck.Add(1)
		p.summon()
	})
	w, err := p.start(ctx)
	if !late.Stop() {
		<-told
		p.stuck.Add(-1)
	}
	return w, err
}

// crowded says whether there are more clients than fillers that can be counted on.
func (p *pool) crowded() bool {
	return p.ctx.Err() == nil && p.waiting.Load() > p.fillers-p.stuck.Load()
}

// summon gets help for a crowd.
func (p *pool) summon() {
	if !p.crowded() {
		return
	}
	select {
	case p.helpers <- struct{}{}:
		p.wg.Go(p.help)
	default: // enough help already
	}
}

// help makes workers as long as there is a crowd.
func (p *pool) help() {
	defer func() { <-p.helpers }()
	for p.crowded() {
		w, err := p.start(p.ctx)
		if err != nil {
			if p.ctx.Err() == nil {
				p.failed(err)
			}
			return // those who wait are told by the fillers what is wrong, or when they have waited too long
		}
		late := time.NewTimer(refillLatest)
		select {
		case p.idle <- w:
			p.given()
		case <-w.exited:
			p.failed(fmt.Errorf("worker %d died while idle: %w", w.pid(), exitReason(w)))
		case <-late.C: // the crowd has gone elsewhere
			p.discard(w)
		case <-p.ctx.Done():
			p.discard(w)
		}
		late.Stop()
	}
}

// pause lets the client that has just got w begin, unless others wait.
func (p *pool) pause(ctx context.Context, w *process) {
	latest, look := time.NewTimer(refillLatest), time.NewTicker(refillAfter)
	defer latest.Stop()
	defer look.Stop()
	for seen := w.glance().Calls; p.waiting.Load() == 0; {
		select {
		case <-look.C:
			n := w.glance().Calls
			if n == seen {
				return
			}
			seen = n
		case <-w.exited:
			return
		case <-p.wanted: // or somebody wanted one and has it
		case <-latest.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// refuse answers everybody who asks for a worker during the pause with the reason why there is none.
func (p *pool) refuse(ctx context.Context, err error, pause time.Duration) bool {
	t := time.NewTimer(pause)
	defer t.Stop()
	for {
		select {
		case p.refused <- err:
		case <-t.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// take hands out a ready worker.
func (p *pool) take(ctx context.Context) (*process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, takeTimeout, errCrowd)
	defer cancel()
	for {
		w, err := p.wait(ctx)
		if err != nil {
			p.waiting.Add(-1)
			if errors.Is(err, errCrowd) {
				return nil, refusef(transport.StatusBusy, "%w within %v; %d other clients wait, %v", err, takeTimeout,
					p.waiting.Load(), &p.starts)
			}
			return nil, fmt.Errorf("%w: %w", ErrNoWorker, err)
		}
		if !w.gone() {
			return w, nil
		}
	}
}

// flush ends the workers that are ready. Those who fill make new ones.
func (p *pool) flush() {
	for {
		p.waiting.Add(1)
		select {
		case w := <-p.idle:
			<-p.counted
			p.discard(w)
		default:
			p.waiting.Add(-1)
			return
		}
	}
}

// given counts off the client that has just got a worker, before that client goes on.
func (p *pool) given() {
	p.waiting.Add(-1)
	p.counted <- struct{}{}
}

// errCrowd says that others got all workers that could be made.
var errCrowd = errors.New("no worker was free")

// wait counts the caller as a client that waits, and gives the next worker, whose giver has counted the client off.
func (p *pool) wait(ctx context.Context) (*process, error) {
	p.waiting.Add(1)
	select {
	case w := <-p.idle:
		<-p.counted
		return w, nil
	default:
	}
	select { // a filler that pauses need not do so any longer
	case p.wanted <- struct{}{}:
	default:
	}
	p.summon()
	select {
	case w := <-p.idle:
		<-p.counted
		return w, nil
	case err := <-p.refused:
		return nil, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
