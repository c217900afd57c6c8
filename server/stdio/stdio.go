// Package stdio keeps what a process prints to its standard output and error. A worker runs one client's session; what
// the CUDA driver prints there (text of device printf and assert) is that client's, who gets it from the executor, in
// order with its calls.
//
// The text goes to files in memory: the driver never waits for a reader, as it would with a pipe.
package stdio

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Streams that are captured, by descriptor.
const (
	Output = 1
	Error  = 2
)

// discardFrom is how much that was read may stay in memory.
const discardFrom = 1 << 20

// Capture has the process's standard output and error. Its methods are for one goroutine.
type Capture struct {
	fds  [3]int
	read [3]int64
}

// Redirect captures both streams of the process for the rest of its life.
func Redirect() (*Capture, error) {
	c := &Capture{}
	for _, stream := range []int{Output, Error} {
		fd, err := unix.MemfdCreate(fmt.Sprintf("scuda-text-%d", stream), unix.MFD_CLOEXEC)
		if err == nil {
			// several descriptions of one stream must not overwrite each other
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND)
		}
		if err == nil {
			err = unix.Dup3(fd, stream, 0)
		}
		if err != nil {
			return nil, fmt.Errorf("keep what the driver prints: %w", err)
		}
		c.fds[stream] = fd
	}
	return c, nil
}

// Take gives what was printed to a stream since the last time, at most limit bytes of it; nil is nothing.
func (c *Capture) Take(stream, limit int) []byte {
	fd := c.fds[stream]
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Size <= c.read[stream] {
		return nil
	}
	b := make([]byte, min(st.Size-c.read[stream], int64(limit)))
	n, err := unix.Pread(fd, b, c.read[stream])
	if err != nil || n == 0 {
		return nil
	}
	c.read[stream] += int64(n)
	if c.read[stream] >= discardFrom { // the offsets stay, the memory goes
		_ = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, c.read[stream])
	}
	return b[:n]
}

// Private gives a new description of the standard error as it is now, for messages that must not be captured.
func Private() *os.File {
	fd, err := unix.FcntlInt(Error, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.Stderr
	}
	return os.NewFile(uintptr(fd), "stderr")
}
