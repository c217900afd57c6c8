package metrics

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/internal/clock"
	"scuda.dev/scuda/internal/memfd"
	"scuda.dev/scuda/server/turn"
)

const errorCodes = 1000 // CUresults are below; the last is CUDA_ERROR_UNKNOWN, 999

// Page is what one worker counts. Its zero value can be used; one that a supervisor reads lies in shared memory
// ([NewPage], [OpenPage]). All methods may be called by several goroutines at once.
type Page struct {
	calls      [class.Count]atomic.Uint64
	series     [series]atomic.Uint64
	errors     [errorCodes]atomic.Uint64
	histograms [histograms]histogram

	// moments of package clock; in sums they mean nothing
	active atomic.Int64 // when there was last something to do
	lost   atomic.Int64 // since when the session waits for its client; 0: it does not
	until  atomic.Int64 // how long it does
}

// Call counts a call and gives how many of its class there have been.
func (p *Page) Call(c class.Class) uint64 { return p.calls[c].Add(1) }

// Calls is the number of calls of all classes.
func (p *Page) Calls() (n uint64) {
	for i := range p.calls {
		n += p.calls[i].Load()
	}
	return n
}

// Add adds to a counter.
func (p *Page) Add(s Series, n int) { p.series[s].Add(uint64(n)) }

// Set sets a gauge.
func (p *Page) Set(s Series, n int) { p.series[s].Store(uint64(n)) }

// Value is what a counter or gauge has come to.
func (p *Page) Value(s Series) uint64 { return p.series[s].Load() }

// Active says that there was something to do.
func (p *Page) Active(when time.Time) { p.active.Store(clock.Stamp(when)) }

// Lost says that the session has lost a connection, and until when it waits for its client to come back.
func (p *Page) Lost(since, until time.Time) {
	p.until.Store(clock.Stamp(until))
	p.lost.Store(clock.Stamp(since))
	p.Set(Away, 1)
}

// Back says that the wait for the client is over, after so long.
func (p *Page) Back(lasted time.Duration) {
	p.lost.Store(0)
	p.Set(Away, 0)
	p.Observe(Outage, int64(lasted))
}

// Observe notes a time of ns nanoseconds.
func (p *Page) Observe(h Histogram, ns int64) { p.histograms[h].observe(ns) }

// Error counts a CUresult that a client was given.
func (p *Page) Error(result int32) {
	if result < 0 || result >= errorCodes {
		result = errorCodes - 1
	}
	p.errors[result].Add(1)
}

// words are all numbers of the page.
func (p *Page) words() []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(p)), pageBytes/8)
}

const pageBytes = int(unsafe.Sizeof(Page{}))

// add adds another page's numbers up in p.
func (p *Page) add(o *Page) {
	from, to := o.words(), p.words()
	for i := range from {
		if n := from[i].Load(); n != 0 {
			to[i].Add(n)
		}
	}
}

// addSince does so with what they have come to since before.
func (p *Page) addSince(before, o *Page) {
	from, to, less := o.words(), p.words(), before.words()
	for i := range from {
		n := from[i].Load()
		if n -= min(n, less[i].Load()); n != 0 { // they do not go back, but a worker that was taken over may write anything
			to[i].Add(n)
		}
	}
}

// counters is what has been counted so far, without the gauges.
func (p *Page) counters() *Page {
	c := &Page{}
	c.add(p)
	for g := firstGauge; int(g) < series; g++ {
		c.Set(g, 0)
	}
	return c
}

// Shared is a page in shared memory, with what the worker and its supervisor tell each other about turns. FD is for the
// other process; Close gives the memory back, after which neither must be used.
type Shared struct {
	*Page
	Turn *turn.Slot
	FD   int
}

// shared is what lies in that memory.
type shared struct {
	page Page
	turn turn.Slot
}

const sharedBytes = int(unsafe.Sizeof(shared{}))

// NewPage makes a page that another process can open.
func NewPage() (*Shared, error) {
	fd, err := memfd.New("scuda-metrics", int64(sharedBytes))
	if err != nil {
		return nil, fmt.Errorf("memory for metrics: %w", err)
	}
	return OpenPage(fd)
}

// OpenPage maps the page behind fd, which it takes over.
func OpenPage(fd int) (*Shared, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && st.Size != int64(sharedBytes) {
		err = fmt.Errorf("%d bytes instead of %d", st.Size, sharedBytes)
	}
	var b []byte
	if err == nil {
		b, err = unix.Mmap(fd, 0, sharedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memory for metrics: %w", err)
	}
	m := (*shared)(unsafe.Pointer(unsafe.SliceData(b)))
	return &Shared{&m.page, &m.turn, fd}, nil
}

// Close unmaps the page.
func (s *Shared) Close() {
	if s.Page == nil {
		return
	}
	_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(s.Page)), sharedBytes))
	unix.Close(s.FD)
	s.Page, s.Turn, s.FD = nil, nil, -1
}
