// Package window says which addresses are whose where a program has GPUs of several servers: each server's driver keeps
// to a window of its own, so that an address says whose memory lies there. Client and server both reckon with it.
//
// What lies outside [Low, High) is no server's: the program's own code, heap, libraries and stacks, and from
// [ClientLow] to [ClientHigh] the memory for which it asks scuda, which servers may have to map at the same addresses.
package window

import (
	"errors"
	"fmt"
)

const (
	// Low is where the first window begins. Below it lie what Go's heap grows into, programs without PIE and their heaps.
	Low = 1 << 40
	// High is where the last window ends. Above it lie programs with PIE and their heaps (from 2/3 of 47 bits on), the
	// client's memory, libraries and stacks.
	High = 0x5500_0000_0000

	// ClientLow and ClientHigh bound pinned and managed memory of the client's (SCUDA_PINNED_FIRST in
	// shim/front/calls/calls.h, END in shim/front/uvm/pager.c).
	ClientLow  = 0x6000_0000_0000
	ClientHigh = 0x7000_0000_0000

	// Most is how many windows there may be, as many as a program may have servers.
	Most = 16
	// unit is what windows are whole numbers of: the largest granularity with which drivers hand addresses out.
	unit = 2 << 20
)

// ErrWrong is wrapped by the reason why there is no such window.
var ErrWrong = errors.New("wrong window of addresses")

// Range is the addresses from From up to, without, To.
type Range struct{ From, To uint64 }

// Holds says whether n bytes from at on lie in the range.
func (r Range) Holds(at, n uint64) bool { return r.From <= at && at <= r.To && n <= r.To-at }

// Overlaps says whether two ranges have an address in common.
func (r Range) Overlaps(o Range) bool { return r.From < o.To && o.From < r.To }

// Check says what is wrong with window number of several. One window or none, number 0, means all addresses, as a
// program with one server has them.
func Check(number, windows int) error {
	switch {
	case windows < 0 || windows > Most:
		return fmt.Errorf("%w: number %d of %d; a program can have up to %d", ErrWrong, number, windows, Most)
	case number < 0 || number >= max(windows, 1):
		return fmt.Errorf("%w: number %d of %d; they count from 0", ErrWrong, number, windows)
	}
	return nil
}

// Of gives window number of several, which is one of so many equal parts of what lies from [Low] to [High]. ok is false
// where there is one or none, which has no bounds.
func Of(number, windows int) (r Range, ok bool, err error) {
	if err := Check(number, windows); err != nil || windows <= 1 {
		return Range{}, false, err
	}
	size := uint64(High-Low) / uint64(windows) / unit * unit
	from := Low + uint64(number)*size
	return Range{from, from + size}, true, nil
}
