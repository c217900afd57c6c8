package executor

import (
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport/bulk"
)

// What carries out a command is a method of the session's or of one of its engines.

func inObjects(f func(*objects, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.objects, c) }
}

func inHostmem(f func(*hostmem, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.hostmem, c) }
}

func inModules(f func(*modules, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.modules, c) }
}

func inGraphs(f func(*graphs, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.graphs, c) }
}

func inWaits(f func(*waits, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.waits, c) }
}

func inOrdering(f func(*ordering, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.ordering, c) }
}

// What engines ask of the loop.

func (s *Session) startDownload(st *stream, t *transfer, src cuda.CUdeviceptr, bytes uint64) (cuda.CUresult, error) {
	t.beside = bytes >= bulk.MinTransfer && s.bulk.ready.Load()
	r, err := s.download(st, t, src, bytes)
	if err != nil {
		return 0, err
	}
	if r != cuda.CUDA_SUCCESS {
		t.result = r
	}
	if t.left == 0 {
		s.endTransfer(t)
	}
	return r, nil
}

func (s *Session) kernelsLaunchGraphs() bool { return len(s.graphs.deviceGraphs) > 0 }

func (s *Session) layoutOf(h uint64) (*layout, cuda.CUresult) { return s.modules.layoutOf(h) }

func (s *Session) notePools() { s.printf.usesPools = true }

// isIdle says whether no context has any work.
func (s *Session) isIdle() bool {
	for _, ctx := range s.contexts {
		events, r := s.waits.unfinishedEvents(ctx)
		for _, e := range events {
			if e.ctx != nil {
				e.ctx.events = append(e.ctx.events, e.event)
			}
		}
		if r != cuda.CUDA_SUCCESS || len(events) > 0 {
			return false
		}
	}
	return true
}

func (s *Session) downloadJustBefore(st *stream) *transfer {
	if l := s.latest; l.st == st && l.command+1 == s.commands && l.t.left > 0 {
		return l.t
	}
	return nil
}
