package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"scuda.dev/scuda/server/handoff"
)

// requests are what a worker has asked the supervisor and waits for. Its zero value can be used.
//
// sending goes before mu.
type requests struct {
	sending sync.Mutex // what is asked is sent meanwhile, or held back
	held    bool       // there is another supervisor, which does not answer yet; guarded by sending

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]*question
}

// question is what was asked.
type question struct {
	line   *handoff.Conn
	kind   string
	body   any
	fd     int // the asker's
	answer chan *handoff.Message
}

func (q *question) send() error { return q.line.Send(q.kind, q.body, q.fd) }

// ask sends what make makes of the request's number and waits for the answer, without a limit: the supervisor answers,
// or one after it does, and a worker without a supervisor ends.
func (r *requests) ask(
	line *handoff.Conn, kind string, fd int, make func(number uint64) any,
) (*handoff.Message, error) {
	q := &question{line: line, kind: kind, fd: fd}
	if err := r.begin(q, make); err != nil {
		return nil, err
	}
	return <-q.answer, nil
}

func (r *requests) begin(q *question, body func(number uint64) any) error {
	r.sending.Lock()
	defer r.sending.Unlock()
	q.answer = make(chan *handoff.Message, 1)
	r.mu.Lock()
	if r.waiting == nil {
		r.waiting = make(map[uint64]*question)
	}
	r.last++
	number := r.last
	q.body = body(number)
	r.waiting[number] = q
	r.mu.Unlock()
	if r.held {
		return nil
	}
	err := q.send()
	if err != nil {
		r.mu.Lock()
		delete(r.waiting, number)
		r.mu.Unlock()
	}
	return err
}

// hold keeps back what is asked from now on, once tell has told another supervisor what it has to know.
func (r *requests) hold(tell func() error) error {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.held = true
	return tell()
}

// resume asks again what is waited for, and holds nothing back any more.
func (r *requests) resume() error {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.held = false
	r.mu.Lock()
	var list []*question
	for _, number := range slices.Sorted(maps.Keys(r.waiting)) {
		list = append(list, r.waiting[number])
	}
	r.mu.Unlock()
	var failed error
	for _, q := range list {
		failed = cmp.Or(failed, q.send())
	}
	return failed
}

// answered takes an answer, with its descriptor.
func (r *requests) answered(m *handoff.Message) error {
	var info struct{ Request uint64 }
	err := m.Decode(&info)
	r.mu.Lock()
	q, ok := r.waiting[info.Request]
	delete(r.waiting, info.Request)
	r.mu.Unlock()
	if !ok {
		closeFD(m.FD)
		if err == nil {
			err = fmt.Errorf("%w: an answer that nobody waits for", handoff.ErrMalformed)
		}
		return err
	}
	q.answer <- m
	return nil
}
