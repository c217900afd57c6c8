package spawner

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
)

// Client is the supervisor's end of the line to one spawner.
type Client struct {
	line  line
	facts Facts
	gone  chan struct{} // closed when the spawner is
	ended chan struct{} // closed when its process has ended; nil: it is no child
	kept  []Kept        // of the supervisor before; until somebody takes them
	house []*os.File    // likewise

	mu       sync.Mutex
	last     uint64
	starting map[uint64]chan packet
	workers  map[uint64]*Worker
	lost     bool
}

// newClient waits for the spawner's first word.
func newClient(l line) (*Client, error) {
	p, files, err := l.receive()
	closeAll(files)
	if err == nil && p.Kind != kindHello {
		err = errPacket
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrLost, err), l.sock.Close())
	}
	c := &Client{
		line: l, facts: p.Facts, gone: make(chan struct{}), starting: make(map[uint64]chan packet),
		workers: make(map[uint64]*Worker),
	}
	if err := c.takeOver(); err != nil {
		c.dropKept()
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrLost, err), l.sock.Close())
	}
	go c.read()
	return c, nil
}

// takeOver reads what the spawner keeps.
func (c *Client) takeOver() error {
	for {
		p, files, err := c.line.receive()
		if err != nil {
			return err
		}
		switch p.Kind {
		case kindHouse:
			closeAll(c.house)
			c.house = files
		case kindKept:
			w := c.newWorker(p.ID)
			w.PID = int(p.PID)
			c.last = max(c.last, p.ID)
			c.workers[p.ID] = w
			c.kept = append(c.kept, Kept{w, files})
		case kindAll:
			sortKept(c.kept)
			return nil
		default:
			closeAll(files)
			return errPacket
		}
	}
}

// newWorker is a worker that the spawner knows by a number.
func (c *Client) newWorker(id uint64) *Worker {
	w := &Worker{id: id, exited: make(chan struct{}),
		kill: func() error { return c.line.send(&packet{Kind: kindKill, ID: id}) }}
	if c.facts.Keeps {
		w.keep = func(files []*os.File) error { return c.line.send(&packet{Kind: kindKeep, ID: id}, files...) }
	}
	return w
}

// dropKept ends those that nobody has taken over.
func (c *Client) dropKept() {
	for i := range c.kept {
		_ = c.kept[i].Kill()
	}
	c.leaveKept()
}

// leaveKept leaves them to the spawner.
func (c *Client) leaveKept() {
	for _, k := range c.kept {
		closeAll(k.Files)
	}
	closeAll(c.house)
	c.kept, c.house = nil, nil
}

// Close hangs up; the spawner ends its workers, and itself where it is a child.
func (c *Client) Close() error {
	err := c.line.sock.Close()
	<-c.gone
	if c.ended != nil {
		<-c.ended
	}
	if errors.Is(err, net.ErrClosed) {
		return nil // the spawner was the first
	}
	return err
}

// Facts says what the spawner gives workers.
func (c *Client) Facts() (Facts, error) { return c.facts, nil }

// Start has the spawner start a worker.
func (c *Client) Start(o Order, line, errs *os.File) (*Worker, error) {
	answer := make(chan packet, 1)
	c.mu.Lock()
	if c.lost {
		c.mu.Unlock()
		<-c.gone // whoever asks again gets another spawner
		return nil, ErrLost
	}
	c.last++
	id := c.last
	// The worker is known before it is started: its end may be told at once.
	w := c.newWorker(id)
	c.starting[id], c.workers[id] = answer, w
	c.mu.Unlock()
	err := c.line.send(&packet{Kind: kindStart, ID: id, Order: o}, line, errs)
	if err != nil {
		c.line.sock.Close() // one that does not read is gone as well
		<-c.gone
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	p, ok := <-answer
	switch {
	case !ok:
		<-c.gone
		return nil, ErrLost
	case p.Kind == kindFailed:
		return nil, errors.New(p.Text)
	}
	w.PID = int(p.PID)
	return w, nil
}

// read follows the spawner to its end. Then nobody knows of its workers, which may go on.
func (c *Client) read() {
	defer close(c.gone)
	for c.next() == nil {
	}
	c.line.sock.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
	for _, answer := range c.starting {
		close(answer)
	}
	for _, w := range c.workers {
		w.err = ErrLost
		close(w.exited)
	}
	c.starting, c.workers = nil, nil
}

func (c *Client) next() error {
	p, files, err := c.line.receive()
	closeAll(files)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p.Kind {
	case kindStarted, kindFailed:
		answer, ok := c.starting[p.ID]
		if !ok {
			return errPacket
		}
		delete(c.starting, p.ID)
		if p.Kind == kindFailed {
			delete(c.workers, p.ID)
		}
		answer <- p
	case kindExited:
		w, ok := c.workers[p.ID]
		if !ok {
			return errPacket
		}
		delete(c.workers, p.ID)
		if p.Text != "" {
			w.err = &ExitError{p.Text}
		}
		close(w.exited)
	default:
		return errPacket
	}
	return nil
}

// Remote is a spawner that may end and come again. It is used by many at once.
type Remote struct {
	mu     sync.Mutex
	client *Client
	renew  func() (*Client, error) // nil: others connect
	none   error                   // why there is none
	taken  bool                    // what was kept
	house  []*os.File              // that this supervisor has kept
	closed bool
}

// now gives the spawner that there is.
func (r *Remote) now() (*Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		select {
		case <-r.client.gone:
			r.client = nil
		default:
			return r.client, nil
		}
	}
	if r.renew == nil {
		return nil, r.none
	}
	c, err := r.renew()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	r.client = c
	return c, nil
}

// set takes another spawner in the place of the one before, whose workers go on.
func (r *Remote) set(c *Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed { // what it keeps is for the next supervisor
		c.leaveKept()
		_ = c.Close()
		return
	}
	if r.taken { // the spawner had lost this server for a moment: nobody knows by now what it keeps
		c.dropKept()
	}
	if r.house != nil {
		_ = c.line.send(&packet{Kind: kindHouse}, r.house...) // one that is gone will come again
	}
	r.client = c
}

// TakeOver gives what a supervisor before this one had kept, the caller's by now: its workers, and [HouseFiles]
// descriptors or none.
func (r *Remote) TakeOver() (workers []Kept, house []*os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = true
	if c := r.client; c != nil {
		workers, house, c.kept, c.house = c.kept, c.house, nil, nil
	}
	return workers, house
}

// KeepHouse has each spawner hold what a supervisor after this one needs of the server: [HouseFiles] descriptors. They
// are the caller's, who leaves them open until Close.
func (r *Remote) KeepHouse(files []*os.File) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.house = files
	if r.client == nil || !r.client.facts.Keeps {
		return nil
	}
	return r.client.line.send(&packet{Kind: kindHouse}, files...)
}

// Bye says that no supervisor comes after this one.
func (r *Remote) Bye() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.house = nil
	if r.client != nil {
		_ = r.client.line.send(&packet{Kind: kindBye}) // one that is gone keeps nothing
	}
}

// Facts says what the spawner gives workers.
func (r *Remote) Facts() (Facts, error) {
	c, err := r.now()
	if err != nil {
		return Facts{}, err
	}
	return c.Facts()
}

// Start has the spawner start a worker.
func (r *Remote) Start(o Order, line, errs *os.File) (*Worker, error) {
	c, err := r.now()
	if err != nil {
		return nil, err
	}
	return c.Start(o, line, errs)
}

// Close hangs up, also on spawners that connect later.
func (r *Remote) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.client
	r.client, r.renew, r.none, r.closed = nil, nil, ErrLost, true
	if c == nil {
		return nil
	}
	return c.Close()
}
