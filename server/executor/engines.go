package executor

import "scuda.dev/scuda/api/cuda"

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

func inCopies(f func(*copies, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.copies, c) }
}

func inUploads(f func(*uploads, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.copies.uploads, c) }
}

// copyH2D and copyD2H name their methods, which saves small copies a call through a pointer.

func copyH2D(s *Session, c *command) (cuda.CUresult, error) { return s.copies.uploads.copyH2D(c) }

func copyD2H(s *Session, c *command) (cuda.CUresult, error) { return s.copies.downloads.copyD2H(c) }

func inPeers(f func(*peers, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.peers, c) }
}

func inOrdering(f func(*ordering, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.ordering, c) }
}

func inProfile(f func(*profile, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.profile, c) }
}

func inCollectives(f func(*collectives, *command) (cuda.CUresult, error)) handler {
	return func(s *Session, c *command) (cuda.CUresult, error) { return f(&s.collectives, c) }
}

// What engines ask of the loop.

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

func (s *Session) downloadJustBefore(st *stream) *transfer { return s.copies.downloads.justBefore(st) }

func (s *Session) finishDownloads(st *stream) { s.copies.downloads.finish(st) }
