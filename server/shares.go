package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/handoff"
)

// Memory that one session exports and another imports is a file descriptor of the driver, which has to get from worker
// to worker, or a value (bytes that the driver reads in the other process). The supervisor keeps both, by tokens that
// the clients hand to each other, until they are withdrawn or their worker ends.

// Messages of sharing.
const (
	msgShare    = "share"    // worker: shareInfo with the descriptor, or with a value
	msgFetch    = "fetch"    // worker: shareInfo
	msgWithdraw = "withdraw" // worker: shareInfo
	// supervisor's answer to share and fetch: sharedInfo, to fetch with the descriptor or the value
	msgShared = "shared"
)

type shareInfo struct {
	Request uint64
	Token   executor.Token
	Value   *executor.Value // none: a descriptor
}

type sharedInfo struct {
	Request uint64
	Error   string
	Missing bool            // nobody shares anything under the token
	Value   *executor.Value // none: a descriptor, or nothing
}

const maxShares = 1024 // descriptors of one worker

// shelf is what the workers of a server share.
type shelf struct {
	mu     sync.Mutex
	items  map[executor.Token]shared
	counts map[*process]shareCount
}

// shared is a descriptor or a value.
type shared struct {
	fd    int // -1 where there is a value
	value *executor.Value
	owner *process
}

// shareCount is how much one worker shares.
type shareCount struct{ descriptors, values int }

func newShelf() *shelf {
	return &shelf{items: make(map[executor.Token]shared), counts: make(map[*process]shareCount)}
}

// serve carries out a worker's wish; false if the message is about something else.
func (s *shelf) serve(p *process, m *handoff.Message) bool {
	if m.Type != msgShare && m.Type != msgFetch && m.Type != msgWithdraw {
		return false
	}
	var info shareInfo
	err := m.Decode(&info)
	answer, fd := sharedInfo{Request: info.Request}, -1
	switch {
	case err != nil:
	case m.Type == msgWithdraw:
		s.withdraw(p, info.Token)
		closeFD(m.FD)
		return true
	case m.Type == msgShare:
		err = s.put(info.Token, shared{m.FD, info.Value, p})
		m.FD = -1
	default:
		fd, answer.Value, err = s.get(info.Token)
	}
	closeFD(m.FD)
	if err != nil {
		answer.Error, answer.Missing = err.Error(), errors.Is(err, executor.ErrNoShare)
	}
	_ = p.line.Send(msgShared, answer, fd) // a worker that is gone needs no answer
	closeFD(fd)
	return true
}

// put takes the item, and its descriptor, over.
func (s *shelf) put(t executor.Token, item shared) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.judge(t, item); err != nil {
		closeFD(item.fd)
		return err
	}
	s.items[t] = item
	s.count(item, 1)
	return nil
}

// judge says why an item cannot be kept.
func (s *shelf) judge(t executor.Token, item shared) error {
	n := s.counts[item.owner]
	_, twice := s.items[t]
	switch {
	case (item.fd < 0) == (item.value == nil):
		return fmt.Errorf("%w: not one thing to share", handoff.ErrMalformed)
	case twice:
		return fmt.Errorf("%w: a token that is in use", handoff.ErrMalformed)
	case item.value == nil && n.descriptors >= maxShares:
		return fmt.Errorf(
			"a session may share %d allocations at a time; close the file descriptors of those that were imported", maxShares)
	case item.value != nil && n.values >= executor.MaxValues:
		return fmt.Errorf("%w: more than %d values", handoff.ErrMalformed, executor.MaxValues)
	}
	return nil
}

// count adds an item to what its worker shares, or (by -1) takes it away. s.mu is held.
func (s *shelf) count(item shared, by int) {
	n := s.counts[item.owner]
	if item.value == nil {
		n.descriptors += by
	} else {
		n.values += by
	}
	if s.counts[item.owner] = n; n == (shareCount{}) {
		delete(s.counts, item.owner)
	}
}

func (s *shelf) get(t executor.Token) (int, *executor.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.items[t]
	switch {
	case !ok:
		return -1, nil, executor.ErrNoShare
	case x.value != nil:
		return -1, x.value, nil
	}
	fd, err := unix.FcntlInt(uintptr(x.fd), unix.F_DUPFD_CLOEXEC, 3)
	return fd, nil, err
}

func (s *shelf) withdraw(p *process, t executor.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.items[t]; ok && x.owner == p {
		s.drop(t, x)
	}
}

// drop ends one share. s.mu is held.
func (s *shelf) drop(t executor.Token, x shared) {
	closeFD(x.fd)
	delete(s.items, t)
	s.count(x, -1)
}

// forget ends what a worker shared.
func (s *shelf) forget(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[p] == (shareCount{}) {
		return
	}
	for t, x := range s.items {
		if x.owner == p {
			s.drop(t, x)
		}
	}
}

// sharer is the worker's side of the shelf.
type sharer struct {
	line *handoff.Conn

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan sharedAnswer
}

type sharedAnswer struct {
	info sharedInfo
	fd   int
}

func newSharer(line *handoff.Conn) *sharer {
	return &sharer{line: line, waiting: make(map[uint64]chan sharedAnswer)}
}

// Publish gives the supervisor a copy of fd.
func (s *sharer) Publish(fd int) (executor.Token, error) { return s.publish(nil, fd) }

// PublishValue gives the supervisor a value.
func (s *sharer) PublishValue(v executor.Value) (executor.Token, error) { return s.publish(&v, -1) }

func (s *sharer) publish(v *executor.Value, fd int) (executor.Token, error) {
	var t executor.Token
	_, _ = rand.Read(t[:]) // never fails
	a, err := s.ask(msgShare, shareInfo{Token: t, Value: v}, fd)
	if err == nil && a.info.Error != "" {
		err = errors.New(a.info.Error)
	}
	return t, err
}

// Fetch gets a copy from the supervisor.
func (s *sharer) Fetch(t executor.Token) (int, error) {
	a, err := s.fetch(t)
	if err == nil && a.fd < 0 {
		err = executor.ErrNoShare // a value
	}
	return a.fd, err
}

// FetchValue gets a value from the supervisor.
func (s *sharer) FetchValue(t executor.Token) (executor.Value, error) {
	a, err := s.fetch(t)
	if err != nil {
		return executor.Value{}, err
	}
	if a.info.Value == nil {
		closeFD(a.fd)
		return executor.Value{}, executor.ErrNoShare // a descriptor
	}
	return *a.info.Value, nil
}

func (s *sharer) fetch(t executor.Token) (sharedAnswer, error) {
	a, err := s.ask(msgFetch, shareInfo{Token: t}, -1)
	switch {
	case err != nil:
	case a.info.Missing:
		err = executor.ErrNoShare
	case a.info.Error != "":
		err = errors.New(a.info.Error)
	case a.fd < 0 && a.info.Value == nil:
		err = fmt.Errorf("%w: an answer without what was asked for", handoff.ErrMalformed)
	}
	return a, err
}

// Withdraw ends a share.
func (s *sharer) Withdraw(t executor.Token) {
	_ = s.line.Send(msgWithdraw, shareInfo{Token: t}, -1) // the worker ends with its line
}

// ask waits for the answer without a limit: the supervisor answers at once, and a worker without a supervisor ends.
func (s *sharer) ask(kind string, info shareInfo, fd int) (sharedAnswer, error) {
	done := make(chan sharedAnswer, 1)
	s.mu.Lock()
	s.last++
	info.Request = s.last
	s.waiting[info.Request] = done
	s.mu.Unlock()
	if err := s.line.Send(kind, info, fd); err != nil {
		s.mu.Lock()
		delete(s.waiting, info.Request)
		s.mu.Unlock()
		return sharedAnswer{fd: -1}, err
	}
	return <-done, nil
}

// answered takes the supervisor's answer.
func (s *sharer) answered(m *handoff.Message) error {
	var info sharedInfo
	if err := m.Decode(&info); err != nil {
		closeFD(m.FD)
		return err
	}
	s.mu.Lock()
	done, ok := s.waiting[info.Request]
	delete(s.waiting, info.Request)
	s.mu.Unlock()
	if !ok {
		closeFD(m.FD)
		return fmt.Errorf("%w: an answer that nobody waits for", handoff.ErrMalformed)
	}
	done <- sharedAnswer{info, m.FD}
	return nil
}
