package server

import (
	"context"
	"fmt"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/internal/window"
	"scuda.dev/scuda/server/addresses"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/transport"
)

// makeWorker makes a worker for one session, of a program with several servers. One that is ready cannot have it: its
// driver has addresses already, and nobody can say that none is in another server's window. That is so for the first
// window as for the others, so all are alike; and since the others have to be made, a ready one would save no time.
func makeWorker(ctx context.Context, s *supervisor, of whose) (*process, error) {
	late := time.NewTimer(takeTimeout)
	defer late.Stop()
	select { // the driver makes contexts one by one in large part
	case s.made <- struct{}{}:
		defer func() { <-s.made }()
	case <-late.C:
		return nil, refusef(transport.StatusBusy, "%w within %v", errCrowd, takeTimeout)
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrNoWorker, context.Cause(ctx))
	}
	p, err := s.startCUDA(ctx, of)
	if err != nil {
		if ctx.Err() == nil {
			startFailed(s, of, err)
		}
		return nil, fmt.Errorf("%w: %w", ErrNoWorker, err)
	}
	return p, nil
}

// keepToWindow takes from a CUDA worker all addresses but its session's, before there is a driver.
func (w *worker) keepToWindow() error {
	r, ok, err := window.Of(w.cfg.Window.Number, w.cfg.Window.Of)
	if err != nil || !ok {
		return err
	}
	began := time.Now()
	if w.kept, err = addresses.Keep(r); err == nil {
		w.log.Debug("keeps to a window of addresses", "from", fmt.Sprintf("%#x", r.From), "to", fmt.Sprintf("%#x", r.To),
			"took", time.Since(began))
	}
	return err
}

// begin has the driver begin, and takes the rest of the addresses before it has memory for anybody.
func (w *worker) begin() error {
	if w.kept == nil {
		return nil
	}
	w.gpu.ThreadInit()
	if w.gpu.CuInit(0) != cuda.CUDA_SUCCESS {
		return nil // whoever looks at the machine next says so
	}
	return w.kept.Begun()
}

// room gives the session back what the client needs of the addresses that were taken.
func (w *worker) room() executor.Room {
	if w.kept == nil {
		return nil // not a nil *addresses.Kept in an interface
	}
	return w.kept
}
