package transport

import (
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// least is the lowest number that sockets get; see [KeepHigh].
var least atomic.Int32

const (
	lowest   = 3
	highRoom = 24 // numbers at the end of the table
)

// KeepHigh gives the sockets of this process the highest numbers for which its table of descriptors has room as it is:
// programs take the lowest, so they get none of ours soon after they have closed them. A larger table would cost the
// kernel's wait for all readers of the present one, which is 10 ms.
func KeepHigh() {
	fd, err := unix.Open("/proc/self/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	text := make([]byte, 4096)
	n, _ := unix.Read(fd, text)
	_, rest, _ := strings.Cut(string(text[:max(n, 0)]), "\nFDSize:")
	line, _, _ := strings.Cut(rest, "\n")
	if size, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
		least.Store(int32(size - highRoom))
	}
}

// duplicate gives another descriptor for fd, with a high number where there is one.
func duplicate(fd int) (int, error) {
	if n := int(least.Load()); n > lowest {
		if high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, n); err == nil {
			return high, nil
		}
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, lowest)
}

// Reserve keeps descriptors for a connection that is opened later, perhaps when the program has taken all others.
type Reserve struct{ all []descriptor }

// reserved is what opening a connection takes: a socket, another number for it, and a file of the resolver's.
const reserved = 3

// NewReserve takes them. Where there are none, there is no reserve.
func NewReserve() *Reserve {
	r := new(Reserve)
	first, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // which can be told from others
	if err != nil {
		return r
	}
	defer unix.Close(first)
	for range reserved {
		if fd, err := duplicate(first); err == nil {
			if d, err := describe(fd); err == nil {
				r.all = append(r.all, d)
			}
		}
	}
	return r
}

// Release gives back what is still there.
func (r *Reserve) Release() {
	for _, d := range r.all {
		_ = d.close()
	}
	r.all = nil
}
