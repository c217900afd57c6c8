package rdma

import (
	"errors"
	"slices"
	"sync"
	"time"

	"scuda.dev/scuda/verbs"
)

// Pins are ranges of memory that their owner promises to keep mapped until it says otherwise: memory that a program
// allocated page-locked. Their registrations are kept, while other memory is registered for the time of one transfer.
// The zero value is empty.
type Pins struct {
	mu   sync.Mutex
	list []pin // sorted, disjoint
	gone func(pin)
}

type pin struct{ addr, bytes uint64 }

func (p pin) end() uint64 { return p.addr + p.bytes }

func (p *Pins) search(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(p.list, addr, func(q pin, a uint64) int {
		switch {
		case q.addr < a:
			return -1
		case q.addr > a:
			return 1
		}
		return 0
	})
}

// Add adds a range. One that overlaps another is not worth a registration that stays, and ignored.
func (p *Pins) Add(addr, bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.search(addr)
	if ok || bytes == 0 || i > 0 && p.list[i-1].end() > addr || i < len(p.list) && p.list[i].addr < addr+bytes {
		return
	}
	p.list = slices.Insert(p.list, i, pin{addr, bytes})
}

// Remove removes the range that starts at addr. Its memory may be unmapped when this returns.
func (p *Pins) Remove(addr uint64) {
	p.mu.Lock()
	i, ok := p.search(addr)
	if !ok {
		p.mu.Unlock()
		return
	}
	q := p.list[i]
	p.list = slices.Delete(p.list, i, i+1)
	gone := p.gone
	p.mu.Unlock()
	if gone != nil {
		gone(q)
	}
}

// find gives the range that holds bytes at addr.
func (p *Pins) find(addr, bytes uint64) (pin, bool) {
	if p == nil {
		return pin{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.search(addr)
	if !ok {
		i--
	}
	if i < 0 || p.list[i].end() < addr+bytes {
		return pin{}, false
	}
	return p.list[i], true
}

func (p *Pins) tell(gone func(pin)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = gone
}

// Memory is memory of a side that every path registers: the process's, or a GPU's.
type Memory struct {
	Addr, Bytes uint64 // as requests address it
	// Register registers it on a path's protection domain; nil: as memory of this process.
	Register func(*verbs.PD, verbs.Access) (*verbs.MR, error)
}

// Mapped is memory of this process that is not Go's and stays mapped as long as the link.
func Mapped(b []byte) Memory {
	if len(b) == 0 {
		return Memory{}
	}
	return Memory{Addr: address(b), Bytes: uint64(len(b))}
}

// on registers the memory; nil where there is none.
func (m *Memory) on(pd *verbs.PD, access verbs.Access) (*verbs.MR, error) {
	switch {
	case m.Bytes == 0:
		return nil, nil
	case m.Register != nil:
		return m.Register(pd, access)
	}
	return pd.RegisterRange(m.Addr, m.Bytes, access)
}

// errClosed is a path that is over.
var errClosed = errors.New("the path is over")

// registry holds a path's registrations of program memory.
type registry struct {
	mu     sync.Mutex
	closed bool
	kept   map[pin]*verbs.MR
	others map[*verbs.MR]struct{} // for one transfer
}

// region is program memory that is registered on a path.
type region struct {
	conn *conn
	mr   *verbs.MR
	kept bool
}

// register gives a registration of memory: the kept one of a pinned range, where that will do, or a new one. The peer
// may write to a new one, but not to a kept one, for which it gets a window.
func (c *conn) register(pins *Pins, b []byte, access verbs.Access, stats *Stats) (region, error) {
	g := &c.registry
	addr, bytes := address(b), uint64(len(b))
	p, pinned := pins.find(addr, bytes)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return region{}, errClosed
	}
	if pinned && (access&verbs.RemoteWrite == 0 || c.twoWindows) {
		if m := g.kept[p]; m != nil {
			stats.RegistrationHits.Add(1)
			return region{c, m, true}, nil
		}
		if m, err := c.pd.RegisterRange(p.addr, p.bytes, verbs.LocalWrite|verbs.WindowBind); err == nil {
			stats.Registrations.Add(1)
			g.kept[p] = m
			return region{c, m, true}, nil
		} // read-only, or more than may be locked: the piece alone may do
	}
	m, err := c.pd.RegisterRange(addr, bytes, access)
	if err != nil {
		stats.RegistrationFail.Add(1)
		return region{}, err
	}
	stats.Registrations.Add(1)
	g.others[m] = struct{}{}
	return region{c, m, false}, nil
}

// release ends a registration that was for one transfer.
func (r region) release() {
	if r.mr == nil || r.kept {
		return
	}
	g := &r.conn.registry
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.others[r.mr]; ok {
		delete(g.others, r.mr)
		_ = r.mr.Close()
	}
}

// forget ends the registration of a pinned range. It says no where windows into it are still being taken back.
func (c *conn) forget(p pin) bool {
	g := &c.registry
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.kept[p]
	if m == nil {
		return true
	}
	if m.Close() != nil {
		return false
	}
	delete(g.kept, p)
	return true
}

// Waiting for windows that are being taken back before a registration ends.
const (
	forgetTimeout = 100 * time.Millisecond
	forgetPause   = 100 * time.Microsecond
)

func (g *registry) close() (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, m := range g.kept {
		err = errors.Join(err, m.Close())
	}
	for m := range g.others {
		err = errors.Join(err, m.Close())
	}
	clear(g.kept)
	clear(g.others)
	return err
}

// windows are those into the program's memory that a path's peer was given. The link's lock guards them.
type windows struct {
	open map[uint32]*opening // by transfer
	work map[uint64]*opening // being bound or taken back, by request
	free []*verbs.MW
	next uint64
}

// opening is a window of a transfer.
type opening struct {
	id    uint32
	seq   uint64
	addr  uint64
	bytes uint64
	r     region
	mw    *verbs.MW // nil: the registration itself lets the peer write
	bound bool
	over  bool // the transfer ended before the window was bound
}

// bind starts to give a window. It says yes where the key is good at once.
func (c *conn) bind(o *opening) (now bool, err error) {
	w := &c.windows
	if !o.r.kept {
		w.open[o.id] = o
		return true, nil
	}
	if c.gone {
		return false, errClosed
	}
	if n := len(w.free); n > 0 {
		o.mw, w.free = w.free[n-1], w.free[:n-1]
	} else if o.mw, err = c.pd.AllocMW(); err != nil {
		return false, err
	}
	w.next++
	if err := c.qp.Bind(workBind|w.next, o.mw, o.r.mr, o.addr, o.bytes, verbs.RemoteWrite); err != nil {
		w.free = append(w.free, o.mw)
		return false, err
	}
	w.work[w.next] = o
	w.open[o.id] = o
	return false, nil
}

// revoke takes a window back. For one that is bound the end comes with a completion.
func (c *conn) revoke(o *opening) error {
	w := &c.windows
	if w.open[o.id] == o {
		delete(w.open, o.id)
	}
	switch {
	case o.mw == nil:
		o.r.release()
		return nil
	case !o.bound:
		o.over = true // goes on when it is bound
		return nil
	case c.gone: // and with it the window
		w.free = append(w.free, o.mw)
		return nil
	}
	w.next++
	w.work[w.next] = o
	_, err := c.qp.PostSend([]verbs.SendRequest{
		{ID: workInvalidate | w.next, Op: verbs.OpLocalInvalidate, Flags: verbs.Signaled, Imm: o.mw.RKey},
	})
	return err
}

// bound notes the completion of a bind; the opening is to be told to the peer unless it is nil.
func (c *conn) bound(request uint64) (*opening, error) {
	w := &c.windows
	o := w.work[request]
	if o == nil {
		return nil, nil
	}
	delete(w.work, request)
	o.bound = true
	if o.over {
		return nil, c.revoke(o)
	}
	return o, nil
}

// unbound notes that a window was taken back.
func (c *conn) unbound(request uint64) {
	w := &c.windows
	if o := w.work[request]; o != nil {
		delete(w.work, request)
		w.free = append(w.free, o.mw)
	}
}

// close frees the windows.
func (w *windows) close() (err error) {
	all := map[*verbs.MW]struct{}{}
	for _, m := range w.free {
		all[m] = struct{}{}
	}
	for _, o := range w.open {
		all[o.mw] = struct{}{}
	}
	for _, o := range w.work {
		all[o.mw] = struct{}{}
	}
	delete(all, nil)
	for m := range all {
		err = errors.Join(err, m.Close())
	}
	return err
}
