// Package addresses keeps a process to a window of addresses: it takes all others, so that whatever asks the system for
// memory afterwards gets it there. A worker of one of a program's several servers does so before its driver starts,
// since drivers take unified addresses from the process's own.
//
// Two places are taken when the driver has begun ([Kept.Begun]). NVIDIA's wants one for itself. The other is the
// client's: the driver makes no use of that later where it has found it taken. What comes to lie at its upper end by
// then is the driver's own and the process's; memory for programs comes later.
//
// What the process itself needs later (threads' stacks, libraries, buffers, Go's heap) lies in its window as well,
// where it is in nobody's way. A heap that Go began below all windows can grow there.
//
// What the process had before and gives back later is a hole that the system offers first: the stack of a thread that
// ends, a few MiB. So a process keeps to its window early, while it has few threads.
//
// Taken addresses cost no memory. Neighbours of them are one mapping for the system, so there are few.
package addresses

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/window"
)

const (
	// bottom is where taking begins. Below it are programs without PIE with their heaps, and what is asked for in 32 bits.
	bottom = 1 << 32
	// heapRoom is what stays free for Go's heap with the race detector, which can be nowhere else: more than a worker's
	// ever has. Since Go 1.26 others begin anywhere, by chance, and go on in the window where that is taken.
	heapRoom, raceHeap = 64 << 30, 0xc0_0000_0000
	// piece is the smallest part that is taken of what the system does not offer by itself.
	piece = 2 << 20
	// spareRoom is what is free for others while addresses are lent: more than anything that a worker asks for.
	spareRoom = 64 << 30
	// biggest is what the system is asked for first: every window has room for that in one piece.
	biggest = 1 << 40
)

// Places that are free until the driver has begun (perf/gpu/windows.c tries it).
var (
	// driverRoom is where version 580 wants 4 GiB and 2 MiB from the start on. It fails with CUDA_ERROR_OUT_OF_MEMORY
	// where it does not get them.
	driverRoom = window.Range{From: 8 << 30, To: 16 << 30}
	clientRoom = window.Range{From: window.ClientLow, To: window.ClientHigh}
)

// ErrNoWindow is wrapped by the reason why a process cannot be kept to a window.
var ErrNoWindow = errors.New("this worker cannot keep to a window of addresses")

// Kept are the addresses that a process is kept from.
type Kept struct {
	mu     sync.Mutex
	window window.Range
	begun  bool           // the driver
	taken  []window.Range // sorted; neighbours are one
}

// Keep keeps this process to a window, but for what it is offered before the driver has begun. Other threads may ask
// for memory meanwhile: the window stays free.
func Keep(w window.Range) (*Kept, error) {
	k := &Kept{window: w}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.takeOthers(); err != nil {
		for _, r := range k.taken {
			free(r.From, r.To-r.From)
		}
		return nil, err
	}
	return k, nil
}

// Begun says that the driver has begun. From now on everything comes to lie in the window.
func (k *Kept) Begun() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.begun {
		return nil
	}
	k.begun = true
	if err := k.take(driverRoom); err != nil {
		return err
	}
	if err := k.take(clientRoom); err != nil {
		return err
	}
	k.takeOffered(k.window.To) // holes beside what has come to lie in the client's place
	return k.try()
}

func (k *Kept) takeOthers() error {
	// The system has to offer the highest addresses first. Where it does, what it offers below the window is the last.
	if at, err := takeAny(piece); err != nil {
		return noMemory(err)
	} else if free(at, piece); at < window.ClientHigh {
		return fmt.Errorf("%w: the system places memory from %#x on upwards (ulimit -s unlimited, vm.legacy_va_layout) or "+
			"has less than 47 bits of addresses", ErrNoWindow, at)
	}
	for _, r := range []window.Range{
		{From: bottom, To: driverRoom.From}, {From: driverRoom.To, To: k.window.From},
		{From: k.window.To, To: clientRoom.From},
	} {
		for _, part := range without(r, heapRange()) {
			if err := k.take(part); err != nil {
				return err
			}
		}
	}
	k.takeOffered(clientRoom.To)
	return nil
}

// takeOffered takes what the system offers above an address, one by one, also the small holes: those between libraries
// and stacks.
func (k *Kept) takeOffered(above uint64) {
	for size := uint64(biggest); size >= uint64(os.Getpagesize()); size /= 2 {
		for {
			at, err := takeAny(size)
			if err != nil {
				break // the window has no room for so much, or try says what is wrong
			}
			if at < above {
				free(at, size)
				break
			}
			k.note(window.Range{From: at, To: at + size})
		}
	}
}

// heapRange is where Go's heap has to stay, if anywhere.
func heapRange() window.Range {
	if heapAddress()/heapRoom*heapRoom != raceHeap {
		return window.Range{}
	}
	return window.Range{From: raceHeap, To: raceHeap + heapRoom}
}

// take takes what is free of a range, but for small pieces.
func (k *Kept) take(r window.Range) error {
	if r.From >= r.To || r.To-r.From < piece {
		return nil
	}
	err := takeAt(r.From, r.To-r.From)
	switch {
	case err == nil:
		k.note(r)
		return nil
	case !errors.Is(err, unix.EEXIST):
		return noMemory(err)
	case r.To-r.From == piece:
		return nil
	}
	middle := r.From + (r.To-r.From)/2/piece*piece
	if middle == r.From {
		middle += piece
	}
	if err := k.take(window.Range{From: r.From, To: middle}); err != nil {
		return err
	}
	return k.take(window.Range{From: middle, To: r.To})
}

// try looks whether the system offers the window now.
func (k *Kept) try() error {
	at, err := takeAny(piece)
	if err != nil {
		return noMemory(err)
	}
	free(at, piece)
	if !k.window.Holds(at, piece) {
		return fmt.Errorf("%w: the system offers %#x, and the window is %#x to %#x", ErrNoWindow, at, k.window.From,
			k.window.To)
	}
	return nil
}

func noMemory(err error) error {
	return fmt.Errorf("%w: the system does not let it take the others: %w; allow more virtual memory (ulimit -v)",
		ErrNoWindow, err)
}

// Lend has use called while addresses are free that were taken, for memory at the client's addresses, and takes back
// what use says it has not used. What a server's window has is not given, nor what was not taken as a whole.
//
// The system offers what is free to other threads as well, the highest first, and what they put there stays. So there
// is more free above meanwhile, in no server's window either.
func (k *Kept) Lend(at, bytes uint64, use func() bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := window.Range{From: at, To: at + bytes}
	if r.To <= r.From || r.Overlaps(window.Range{From: window.Low, To: window.High}) || !k.give(r) {
		use()
		return nil
	}
	above := k.spare(r.To)
	defer k.takeOffered(k.window.To) // holes beside what others have put there
	// What is above is free before, and for longer.
	free(above.From, above.To-above.From)
	free(at, bytes)
	if use() {
		return k.take(above)
	}
	return errors.Join(k.take(r), k.take(above))
}

// give notes that a range is not taken any more. ok is false, and nothing is changed, where not all of it was.
func (k *Kept) give(r window.Range) (ok bool) {
	for i, t := range k.taken {
		if t.Holds(r.From, r.To-r.From) {
			k.taken = slices.Replace(k.taken, i, i+1, without(t, r)...)
			return true
		}
	}
	return false
}

// spare is the largest part, up to spareRoom, that was taken above an address, the highest of several. It is noted as
// not taken any more. None is empty.
func (k *Kept) spare(above uint64) (r window.Range) {
	for _, t := range k.taken {
		t.From = max(t.From, above, t.To-min(t.To, spareRoom))
		if t.From < t.To && t.To-t.From >= r.To-r.From {
			r = t
		}
	}
	if r.From < r.To {
		k.give(r)
	}
	return r
}

// note remembers a range that was taken.
func (k *Kept) note(r window.Range) {
	i, _ := slices.BinarySearchFunc(k.taken, r.From, func(t window.Range, from uint64) int {
		if t.From < from {
			return -1
		}
		return 1
	})
	if i > 0 && k.taken[i-1].To == r.From {
		i--
		r.From = k.taken[i].From
		k.taken = slices.Delete(k.taken, i, i+1)
	}
	if i < len(k.taken) && k.taken[i].From == r.To {
		r.To = k.taken[i].To
		k.taken = slices.Delete(k.taken, i, i+1)
	}
	k.taken = slices.Insert(k.taken, i, r)
}

// without are the parts of a range that lie outside of another.
func without(r, o window.Range) (parts []window.Range) {
	for _, part := range []window.Range{{From: r.From, To: min(r.To, o.From)}, {From: max(r.From, o.To), To: r.To}} {
		if part.From < part.To {
			parts = append(parts, part)
		}
	}
	return parts
}
