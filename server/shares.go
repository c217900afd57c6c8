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

// Memory that one session exports and another imports is a file descriptor of the driver, which has to get from worker to worker. The
// supervisor keeps the exported ones, by tokens that the clients hand to each other, until they are withdrawn or their worker ends.

// Messages of sharing.
const (
	msgShare    = "share"    // worker: shareInfo with the descriptor
	msgFetch    = "fetch"    // worker: shareInfo
	msgWithdraw = "withdraw" // worker: shareInfo
	msgShared   = "shared"   // supervisor's answer to share and fetch: sharedInfo, to fetch with the descriptor
)

type shareInfo struct {
	Request uint64
	Token   executor.Token
}

type sharedInfo struct {
	Request uint64
	Error   string
	Missing bool // nobody shares anything under the token
}

const maxShares = 1024 // of one worker

// shelf is what the workers of a server share.
type shelf struct {
	mu    sync.Mutex
	items map[executor.Token]shared
}

type shared struct {
	fd    int
	owner *process
}

func newShelf() *shelf { return &shelf{items: make(map[executor.Token]shared)} }

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
		err = s.put(p, info.Token, m.FD)
		m.FD = -1
	default:
		fd, err = s.get(info.Token)
	}
	closeFD(m.FD)
	if err != nil {
		answer.Error, answer.Missing = err.Error(), errors.Is(err, executor.ErrNoShare)
	}
	_ = p.line.Send(msgShared, answer, fd) // a worker that is gone needs no answer
	closeFD(fd)
	return true
}

// put takes fd over.
func (s *shelf) put(p *process, t executor.Token, fd int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, x := range s.items {
		if x.owner == p {
			n++
		}
	}
	_, twice := s.items[t]
	switch {
	case fd < 0:
		return fmt.Errorf("%w: nothing to share", handoff.ErrMalformed)
	case twice || n >= maxShares:
		closeFD(fd)
		return fmt.Errorf("a session may share %d allocations at a time; close the file descriptors of those that were imported", maxShares)
	}
	s.items[t] = shared{fd, p}
	return nil
}

func (s *shelf) get(t executor.Token) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.items[t]
	if !ok {
		return -1, executor.ErrNoShare
	}
	return unix.FcntlInt(uintptr(x.fd), unix.F_DUPFD_CLOEXEC, 3)
}

func (s *shelf) withdraw(p *process, t executor.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.items[t]; ok && x.owner == p {
		closeFD(x.fd)
		delete(s.items, t)
	}
}

// forget ends what a worker shared.
func (s *shelf) forget(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, x := range s.items {
		if x.owner == p {
			closeFD(x.fd)
			delete(s.items, t)
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
func (s *sharer) Publish(fd int) (executor.Token, error) {
	var t executor.Token
	_, _ = rand.Read(t[:]) // never fails
	a, err := s.ask(msgShare, t, fd)
	if err == nil && a.info.Error != "" {
		err = errors.New(a.info.Error)
	}
	return t, err
}

// Fetch gets a copy from the supervisor.
func (s *sharer) Fetch(t executor.Token) (int, error) {
	a, err := s.ask(msgFetch, t, -1)
	switch {
	case err != nil:
	case a.info.Missing:
		err = executor.ErrNoShare
	case a.info.Error != "":
		err = errors.New(a.info.Error)
	case a.fd < 0:
		err = fmt.Errorf("%w: an answer without what was asked for", handoff.ErrMalformed)
	}
	return a.fd, err
}

// Withdraw ends a share.
func (s *sharer) Withdraw(t executor.Token) {
	_ = s.line.Send(msgWithdraw, shareInfo{Token: t}, -1) // the worker ends with its line
}

// ask waits for the answer without a limit: the supervisor answers at once, and a worker without a supervisor ends.
func (s *sharer) ask(kind string, t executor.Token, fd int) (sharedAnswer, error) {
	done := make(chan sharedAnswer, 1)
	s.mu.Lock()
	s.last++
	request := s.last
	s.waiting[request] = done
	s.mu.Unlock()
	if err := s.line.Send(kind, shareInfo{request, t}, fd); err != nil {
		s.mu.Lock()
		delete(s.waiting, request)
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
