package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/sim"
)

// Memory that one session exports and another imports is a file descriptor of the driver, which has to get from worker
// to worker, or a value (bytes that the driver reads in the other process). The supervisor keeps both, by tokens that
// the clients hand to each other, until they are withdrawn or their worker ends. A token is worth something to the
// sessions of its tenant only; to others it is one that nobody has given out.

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

// sharesOf gives how many descriptors all workers may share where the supervisor may have so many, and how many one:
// a quarter, as for connections that are not admitted, and a quarter of that.
func sharesOf(descriptors uint64) (all, one int) {
	all = int(max(1, min(descriptors/4, 1<<20)))
	return all, max(1, min(all/4, maxShares))
}

// shelf is what the workers of a server share.
type shelf struct {
	mu      sync.Mutex
	items   map[shareKey]shared
	counts  map[*process]shareCount
	tenants map[string]int // descriptors

	open, most, each, tenantMax int // descriptors: that there are, of all workers, of one, of one tenant
}

// shareKey is a token in the eyes of a tenant.
type shareKey struct {
	tenant string
	token  executor.Token
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
	s := &shelf{items: make(map[shareKey]shared), counts: make(map[*process]shareCount), tenants: make(map[string]int)}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		r.Cur = 1024
	}
	s.most, s.each = sharesOf(r.Cur)
	s.tenantMax = max(s.each, s.most/2)
	return s
}

// serve carries out a worker's wish; false if the message is about something else.
func (s *shelf) serve(p *process, m *handoff.Message) bool {
	if m.Type != msgShare && m.Type != msgFetch && m.Type != msgWithdraw {
		return false
	}
	var info shareInfo
	err := m.Decode(&info)
	answer, fd := sharedInfo{Request: info.Request}, -1
	grant := p.grant.Load()
	switch {
	case err != nil:
	case grant == nil:
		err = fmt.Errorf("%w: %s without a session", handoff.ErrMalformed, m.Type)
	case m.Type == msgWithdraw:
		s.withdraw(p, shareKey{grant.tenant, info.Token})
		closeFD(m.FD)
		return true
	case m.Type == msgShare:
		err = s.put(shareKey{grant.tenant, info.Token}, shared{m.FD, info.Value, p})
		m.FD = -1
	default:
		fd, answer.Value, err = s.get(shareKey{grant.tenant, info.Token})
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
func (s *shelf) put(k shareKey, item shared) error {
	if err := s.keep(k, item); err != nil {
		closeFD(item.fd)
		return err
	}
	return nil
}

func (s *shelf) keep(k shareKey, item shared) error {
	if err := judgeFile(item.fd); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, twice := s.items[k]; twice && x.owner == item.owner { // it asks again, as the supervisor is another one
		closeFD(item.fd)
		return nil
	}
	if err := s.judge(k, item); err != nil {
		return err
	}
	s.items[k] = item
	s.count(k, item, 1)
	return nil
}

// judgeFile refuses what is no memory. The supervisor will close the descriptor, and that of a connection may take as
// long as the other end likes.
func judgeFile(fd int) error {
	if fd < 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK, unix.S_IFIFO, unix.S_IFDIR, unix.S_IFBLK:
		return fmt.Errorf("%w: a descriptor that is not of memory", handoff.ErrMalformed)
	}
	return nil
}

// judge says why an item cannot be kept.
func (s *shelf) judge(k shareKey, item shared) error {
	n := s.counts[item.owner]
	_, twice := s.items[k]
	switch {
	case (item.fd < 0) == (item.value == nil):
		return fmt.Errorf("%w: not one thing to share", handoff.ErrMalformed)
	case twice:
		return fmt.Errorf("%w: a token that is in use", handoff.ErrMalformed)
	case item.value == nil && n.descriptors >= s.each:
		return fmt.Errorf(
			"a session may share %d allocations at a time; close the file descriptors of those that were imported", s.each)
	case item.value == nil && s.tenants[k.tenant] >= s.tenantMax:
		return fmt.Errorf("the sessions of one tenant may share %d allocations at a time, a part of the server's limit of "+
			"open files", s.tenantMax)
	case item.value == nil && s.open >= s.most:
		return fmt.Errorf("all sessions together may share %d allocations at a time (a quarter of the server's ulimit -n)",
			s.most)
	case item.value != nil && n.values >= executor.MaxValues:
		return fmt.Errorf("%w: more than %d values", handoff.ErrMalformed, executor.MaxValues)
	}
	return nil
}

// count adds an item to what its worker shares, or (by -1) takes it away. s.mu is held.
func (s *shelf) count(k shareKey, item shared, by int) {
	n := s.counts[item.owner]
	if item.value != nil {
		n.values += by
	} else {
		n.descriptors += by
		s.open += by
		if s.tenants[k.tenant] += by; s.tenants[k.tenant] == 0 {
			delete(s.tenants, k.tenant)
		}
	}
	if s.counts[item.owner] = n; n == (shareCount{}) {
		delete(s.counts, item.owner)
	}
}

func (s *shelf) get(k shareKey) (int, *executor.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.items[k]
	switch {
	case !ok:
		return -1, nil, executor.ErrNoShare
	case x.value != nil:
		return -1, x.value, nil
	}
	fd, err := unix.FcntlInt(uintptr(x.fd), unix.F_DUPFD_CLOEXEC, 3)
	return fd, nil, err
}

func (s *shelf) withdraw(p *process, k shareKey) {
	s.mu.Lock()
	x, ok := s.items[k]
	ok = ok && x.owner == p
	if ok {
		s.drop(k, x)
	}
	s.mu.Unlock()
	if ok {
		closeFD(x.fd)
	}
}

// drop ends one share; the caller closes the descriptor, without the lock. s.mu is held.
func (s *shelf) drop(k shareKey, x shared) {
	delete(s.items, k)
	s.count(k, x, -1)
}

// forget ends what a worker shared.
func (s *shelf) forget(p *process) {
	for _, fd := range s.takeAll(p) {
		closeFD(fd)
	}
}

func (s *shelf) takeAll(p *process) (fds []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[p] == (shareCount{}) {
		return nil
	}
	for k, x := range s.items {
		if x.owner == p {
			s.drop(k, x)
			fds = append(fds, x.fd)
		}
	}
	return fds
}

// putAgain takes what a worker shared with the supervisor before this one.
func (s *shelf) putAgain(p *process, m *handoff.Message) error {
	var info shareInfo
	if err := m.Decode(&info); err != nil {
		closeFD(m.FD)
		return err
	}
	return s.put(shareKey{p.grant.Load().tenant, info.Token}, shared{m.FD, info.Value, p})
}

// sharer is the worker's side of the shelf.
type sharer struct {
	line *handoff.Conn
	requests
	shares map[executor.Token]shared // what there is to tell another supervisor; guarded by requests.sending
}

type sharedAnswer struct {
	info sharedInfo
	fd   int
}

// Publish gives the supervisor a copy of fd.
func (s *sharer) Publish(fd int) (executor.Token, error) { return s.publish(nil, fd) }

// PublishValue gives the supervisor a value.
func (s *sharer) PublishValue(v executor.Value) (executor.Token, error) { return s.publish(&v, -1) }

func (s *sharer) publish(v *executor.Value, fd int) (executor.Token, error) {
	var t executor.Token
	_, _ = rand.Read(t[:]) // never fails
	if err := s.note(t, v, fd); err != nil {
		return t, err
	}
	a, err := s.ask(msgShare, shareInfo{Token: t, Value: v}, fd)
	if err == nil && a.info.Error != "" {
		err = errors.New(a.info.Error)
	}
	if err != nil {
		s.forget(t)
	}
	return t, err
}

// note remembers what is shared, with a descriptor of its own.
func (s *sharer) note(t executor.Token, v *executor.Value, fd int) (err error) {
	item := shared{fd: -1, value: v}
	if v == nil {
		if item.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return err
		}
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.shares == nil {
		s.shares = make(map[executor.Token]shared)
	}
	s.shares[t] = item
	return nil
}

// forget is for what is not shared any more.
func (s *sharer) forget(t executor.Token) {
	s.sending.Lock()
	defer s.sending.Unlock()
	if item, ok := s.shares[t]; ok {
		closeFD(item.fd)
		delete(s.shares, t)
	}
}

// tellAll tells another supervisor what is shared. requests.sending is held.
func (s *sharer) tellAll() error {
	for t, item := range s.shares {
		if err := s.line.Send(msgShare, shareInfo{Token: t, Value: item.value}, item.fd); err != nil {
			return err
		}
	}
	return nil
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

// exchange is the shelf as the simulated GPU sees it: its processes cannot open each other's files.
type exchange struct{ sharer *sharer }

func (e exchange) Publish(fd int) (sim.Name, error) {
	t, err := e.sharer.Publish(fd)
	return sim.Name(t), err
}

func (e exchange) Fetch(n sim.Name) (int, error) { return e.sharer.Fetch(executor.Token(n)) }
func (e exchange) Withdraw(n sim.Name)           { e.sharer.Withdraw(executor.Token(n)) }

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
	s.forget(t)
	_ = s.line.Send(msgWithdraw, shareInfo{Token: t}, -1) // the worker ends with its line
}

// ask asks, and reads the answer.
func (s *sharer) ask(kind string, info shareInfo, fd int) (a sharedAnswer, err error) {
	m, err := s.requests.ask(s.line, kind, fd, func(n uint64) any {
		info.Request = n
		return info
	})
	if err != nil {
		return sharedAnswer{fd: -1}, err
	}
	if err := m.Decode(&a.info); err != nil {
		closeFD(m.FD)
		return sharedAnswer{fd: -1}, err
	}
	a.fd = m.FD
	return a, nil
}
