package server

import (
	"fmt"
	"sync"

	"scuda.dev/scuda/server/handoff"
)

// requests are what a worker has asked the supervisor and waits for. Its zero value can be used.
type requests struct {
	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan *handoff.Message
}

// ask sends what make makes of the request's number and waits for the answer, without a limit: the supervisor answers,
// and a worker without a supervisor ends.
func (r *requests) ask(
	line *handoff.Conn, kind string, fd int, make func(number uint64) any,
) (*handoff.Message, error) {
	done, number := r.begin()
	if err := line.Send(kind, make(number), fd); err != nil {
		r.mu.Lock()
		delete(r.waiting, number)
		r.mu.Unlock()
		return nil, err
	}
	return <-done, nil
}

func (r *requests) begin() (<-chan *handoff.Message, uint64) {
	done := make(chan *handoff.Message, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = make(map[uint64]chan *handoff.Message)
	}
	r.last++
	r.waiting[r.last] = done
	return done, r.last
}

// answered takes an answer, with its descriptor.
func (r *requests) answered(m *handoff.Message) error {
	var info struct{ Request uint64 }
	err := m.Decode(&info)
	r.mu.Lock()
	done, ok := r.waiting[info.Request]
	delete(r.waiting, info.Request)
	r.mu.Unlock()
	if !ok {
		closeFD(m.FD)
		if err == nil {
			err = fmt.Errorf("%w: an answer that nobody waits for", handoff.ErrMalformed)
		}
		return err
	}
	done <- m
	return nil
}
