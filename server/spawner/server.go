package spawner

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
)

// server carries out what one supervisor asks for.
type server struct {
	line    line
	starter Starter
	mu      sync.Mutex
	workers map[uint64]*Worker
	wg      sync.WaitGroup // those who follow a worker to its end
}

// mostWorkers bounds what one supervisor may have at once.
const mostWorkers = 16384

// serve speaks with a supervisor until that is gone, whose workers are ended then, or until ctx ends, when they go on.
func serve(ctx context.Context, l line, starter Starter) error {
	defer l.sock.Close()
	unhook := context.AfterFunc(ctx, func() { l.sock.Close() })
	defer unhook()
	facts, err := starter.Facts()
	if err != nil {
		return err
	}
	if err := l.send(&packet{Kind: kindHello, Facts: facts}); err != nil {
		return err
	}
	s := &server{line: l, starter: starter, workers: make(map[uint64]*Worker)}
	for err == nil {
		err = s.next()
	}
	if ctx.Err() != nil {
		return nil
	}
	s.end()
	s.wg.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (s *server) next() error {
	p, files, err := s.line.receive()
	if err != nil {
		return err
	}
	switch p.Kind {
	case kindStart:
		return s.start(p, files)
	case kindKill:
		s.mu.Lock()
		w := s.workers[p.ID]
		s.mu.Unlock()
		if w != nil { // else it is gone already
			_ = w.Kill()
		}
		return nil
	}
	return errPacket
}

func (s *server) start(p packet, files []*os.File) error {
	defer closeAll(files)
	fail := func(err error) error { return s.line.send(&packet{Kind: kindFailed, ID: p.ID, Text: err.Error()}) }
	s.mu.Lock()
	_, twice := s.workers[p.ID]
	full := len(s.workers) >= mostWorkers
	s.mu.Unlock()
	if twice {
		return errPacket
	}
	if full {
		return fail(errors.New("there are too many workers"))
	}
	w, err := s.starter.Start(p.Order, files[0], files[1])
	if err != nil {
		return fail(err)
	}
	s.mu.Lock()
	s.workers[p.ID] = w
	s.mu.Unlock()
	err = s.line.send(&packet{Kind: kindStarted, ID: p.ID, PID: uint32(w.PID)})
	s.wg.Go(func() {
		end := &packet{Kind: kindExited, ID: p.ID}
		if err := w.Wait(); err != nil {
			end.Text = err.Error()
		}
		s.mu.Lock()
		delete(s.workers, p.ID)
		s.mu.Unlock()
		_ = s.line.send(end) // a supervisor that is gone need not know
	})
	return err
}

// end ends all workers.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workers {
		_ = w.Kill()
	}
}
