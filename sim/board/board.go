// Package board is a piece of memory that all processes of one simulated machine share, as a real machine has its GPUs:
// each process takes a seat and says when its work keeps a GPU busy and how much of the GPU's memory it has; NVML, in
// whichever process, reads the sum.
//
// How busy a GPU is, is kept as averages that forget exponentially: a process notes only the moments at which its work
// begins and ends, and what the average is at any later moment follows from them. Nobody has to sample, a reader that
// has just started sees the past as well, and a process that is killed in the middle of a kernel leaves nothing behind
// that has to be repaired.
package board

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	Devices = 16  // of a machine, at most
	Seats   = 256 // processes at the same time, at most

	// Room is for the memory of one device of one process. It is taken when it is used.
	Room = 1 << 42

	// LoadTime and HeatTime are the times in which the averages forget all but 1/e of the past.
	LoadTime = 250 * time.Millisecond
	HeatTime = 15 * time.Second
)

// Kind is what keeps a GPU busy.
type Kind int

const (
	Kernels Kind = iota
	Copies       // and fills of memory
	kinds
)

// ErrFull is the cause when all seats are taken.
var ErrFull = errors.New("no seat is free")

// layout is the whole memory; zero bytes are a board on which nothing ever happened.
type layout [Seats]seat

type seat struct {
	owner   atomic.Uint64 // 0: never taken; see identity
	devices [Devices]state
}

type state struct {
	contexts atomic.Uint64
	used     atomic.Uint64 // bytes
	gauges   [kinds]gauge
}

// gauge is two averages at a moment, and whether the GPU has been busy ever since. Its owner alone writes it.
type gauge struct {
	writes atomic.Uint32 // odd while one is in progress
	busy   atomic.Uint32
	at     atomic.Int64 // CLOCK_MONOTONIC in nanoseconds
	load   atomic.Uint64
	heat   atomic.Uint64 // both the bits of a float64 between 0 and 1
}

// Board is an open board. Its memory stays mapped as long as the process lives.
type Board struct {
	seats *layout
	now   func() int64
	file  *os.File // with room for what the GPUs hold, see [Seat.Memory]; nil: there is none
}

// Seat is a process's place at a board. Its methods may be called by several goroutines at once.
type Seat struct {
	board  *Board
	own    *seat
	number int
	turns  [Devices]chan struct{} // is full while a device works for the process, see [Seat.Take]

	mu      sync.Mutex
	running [Devices][kinds]int
}

// Join takes a seat for the calling process.
func (b *Board) Join() (*Seat, error) {
	me, err := identity(os.Getpid())
	if err == nil && me == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("the board of the simulated machine: /proc says nothing of this process: %w", err)
	}
	for i := range b.seats {
		s := &b.seats[i]
		old := s.owner.Load()
		if alive(old) || !s.owner.CompareAndSwap(old, me) {
			continue
		}
		for d := range s.devices {
			s.devices[d].contexts.Store(0)
			s.devices[d].used.Store(0)
			for k := range s.devices[d].gauges {
				s.devices[d].gauges[k].set(b.now(), false, true)
			}
		}
		seat := &Seat{board: b, own: s, number: i}
		for d := range seat.turns {
			seat.turns[d] = make(chan struct{}, 1)
		}
		return seat, nil
	}
	return nil, fmt.Errorf("the board of the simulated machine: %w: %d processes have one", ErrFull, Seats)
}

// Memory is where a device's memory may lie that keeps its contents when the process is gone: whoever has the seat next
// gets the same. There is room for [Room] bytes; ok is false where the board's file has none.
func (s *Seat) Memory(device int) (fd int, offset int64, ok bool) {
	if s.board.file == nil {
		return -1, 0, false
	}
	return int(s.board.file.Fd()), int64(size) + int64(s.number*Devices+device)*Room, true
}

// Leave gives the seat up. What the work did to the averages stays.
func (s *Seat) Leave() {
	for d := range s.own.devices {
		s.own.devices[d].contexts.Store(0)
		s.own.devices[d].used.Store(0)
		for k := range s.own.devices[d].gauges {
			s.own.devices[d].gauges[k].set(s.board.now(), false, false)
		}
	}
	s.own.owner.Store(gone)
}

// Contexts says how many contexts the process has on a device.
func (s *Seat) Contexts(device, n int) { s.own.devices[device].contexts.Store(uint64(n)) }

// Use says how much of a device's memory the process has.
func (s *Seat) Use(device int, bytes uint64) { s.own.devices[device].used.Store(bytes) }

// Begin says that work on a device begins, End that it has ended.
func (s *Seat) Begin(device int, k Kind) { s.count(device, k, +1, 1) }

func (s *Seat) End(device int, k Kind) { s.count(device, k, -1, 0) }

func (s *Seat) count(device int, k Kind, by, changes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.running[device][k]
	if *n += by; *n == changes {
		s.own.devices[device].gauges[k].set(s.board.now(), *n > 0, false)
	}
}

// set notes that from now on the GPU is busy, or that it is not. The owner before may have died while it was busy; then
// nothing is known of the time since, and fresh says that it does not count.
func (g *gauge) set(now int64, busy, fresh bool) {
	if fresh {
		g.busy.Store(0)
		g.writes.Store(0)
	}
	load, heat := g.average(now, true)
	g.writes.Add(1)
	g.load.Store(math.Float64bits(load))
	g.heat.Store(math.Float64bits(heat))
	g.at.Store(now)
	g.busy.Store(0)
	if busy {
		g.busy.Store(1)
	}
	g.writes.Add(1)
}

// average is what the averages have come to by now.
func (g *gauge) average(now int64, alive bool) (load, heat float64) {
	var at int64
	var busy float64
	for range 1000 { // not for ever, as the writer may have died half way: then a value is one step old
		before := g.writes.Load()
		at, busy = g.at.Load(), float64(g.busy.Load())
		load, heat = math.Float64frombits(g.load.Load()), math.Float64frombits(g.heat.Load())
		if before%2 == 0 && g.writes.Load() == before {
			break
		}
		runtime.Gosched()
	}
	if !alive {
		busy = 0
	}
	passed := time.Duration(max(0, now-at))
	return approach(load, busy, passed, LoadTime), approach(heat, busy, passed, HeatTime)
}

// approach is where an average that was v is after being fed with x for a time.
func approach(v, x float64, passed, forgets time.Duration) float64 {
	return x + (v-x)*math.Exp(-float64(passed)/float64(forgets))
}

// Reading is what all processes together do to a device.
type Reading struct {
	Used uint64 // bytes of memory
	// parts of the last moments (LoadTime) in which kernels ran, 0 to 1; work of several processes adds up to 1 at most
	Kernels float64
	Copies  float64 // the same for copies and fills
	Heat    float64 // as Kernels, of a longer time (HeatTime)
	Users   []User  // processes that have contexts on it
}

// User is a process that uses a device.
type User struct {
	PID  int
	Used uint64
}

// Read reads about a device.
func (b *Board) Read(device int) (r Reading) {
	now := b.now()
	for i := range b.seats {
		s := &b.seats[i]
		owner := s.owner.Load()
		if owner == 0 {
			break // seats are taken from the first on, and never become 0 again
		}
		d, live := &s.devices[device], alive(owner)
		kernels, heat := d.gauges[Kernels].average(now, live)
		copies, _ := d.gauges[Copies].average(now, live)
		r.Kernels, r.Copies, r.Heat = min(1, r.Kernels+kernels), min(1, r.Copies+copies), min(1, r.Heat+heat)
		if !live {
			continue
		}
		used := d.used.Load()
		r.Used += used
		if d.contexts.Load() > 0 {
			r.Users = append(r.Users, User{PID: int(owner >> 32), Used: used})
		}
	}
	return r
}

const gone = 1 // the owner of a seat that was given up

// identity names a process: its number, and the low half of the time at which it began, so that a later process of the
// same number is another. It is 0 if there is no such process, and an error where the kernel does not say.
func identity(pid int) (uint64, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	// what is before is the number and the name, which may hold anything
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	// proc(5) counts from 1, and two fields are before rest
	const began = 22 - 3
	if len(fields) <= began {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, nil
	}
	ticks, err := strconv.ParseUint(fields[began], 10, 64)
	return uint64(pid)<<32 | ticks&math.MaxUint32, err
}

// alive says whether a seat's owner still runs. One of whom the kernel says nothing does: a seat that is taken from its
// owner would be two processes' memory.
func alive(owner uint64) bool {
	if owner <= gone {
		return false
	}
	now, err := identity(int(owner >> 32))
	return err != nil || now == owner
}
