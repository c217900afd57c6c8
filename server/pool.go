package server

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A worker that was handed out is replaced once its client has made no calls for refillAfter, or has ended, or after
// refillLatest, unless somebody wants the next one before. A new process that makes its context holds the driver's
// locks and the GPU for tenths of a second, which a client that begins would wait for.
const (
	refillAfter  = 300 * time.Millisecond
	refillLatest = 5 * time.Second
)

// pool keeps workers ready. Each of its fillers holds one process until somebody takes it.
type pool struct {
	start   func(context.Context) (*process, error)
	failed  func(error)
	idle    chan *process
	wanted  chan struct{} // somebody waits for a worker
	refused chan error
	wg      sync.WaitGroup
}

func newPool(ctx context.Context, n int, start func(context.Context) (*process, error), failed func(error)) *pool {
	p := &pool{
		start: start, failed: failed, idle: make(chan *process), wanted: make(chan struct{}, n), refused: make(chan error),
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
		w, err := p.start(ctx)
		if err == nil {
			select {
			case p.idle <- w:
				pause = least
				p.pause(ctx, w)
				continue
			case <-ctx.Done():
				w.line.Close() // its end makes an idle worker exit
				w.kill()
				<-w.exited
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

// pause lets the client that has just got w begin.
func (p *pool) pause(ctx context.Context, w *process) {
	latest, look := time.NewTimer(refillLatest), time.NewTicker(refillAfter)
	defer latest.Stop()
	defer look.Stop()
	for seen := w.calls(); ; {
		select {
		case <-look.C:
			n := w.calls()
			if n == seen {
				return
			}
			seen = n
		case <-w.exited:
			return
		case <-p.wanted:
			return
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
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	for {
		select {
		case w := <-p.idle:
			if w.gone() {
				continue
			}
			return w, nil
		default:
		}
		select { // a filler that pauses need not do so any longer
		case p.wanted <- struct{}{}:
		default:
		}
		select {
		case w := <-p.idle:
			if w.gone() {
				continue
			}
			return w, nil
		case err := <-p.refused:
			return nil, fmt.Errorf("%w: %w", ErrNoWorker, err)
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNoWorker, context.Cause(ctx))
		}
	}
}
