package server

import (
	"fmt"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport"
)

// Connections of a killed program are told from lost ones: the kernel closes all, and resets those with bytes that the
// program had not read.
func TestLinesClosed(t *testing.T) {
	reset := fmt.Errorf("receive: %w", unix.ECONNRESET)
	for name, c := range map[string]struct {
		lost   [3]error
		closed bool
	}{
		"in order":                 {[3]error{io.EOF, io.EOF, io.EOF}, true},
		"unread bytes":             {[3]error{reset, io.EOF, reset}, true},
		"sent to after its end":    {[3]error{reset, unix.EPIPE, reset}, true},
		"one lives":                {[3]error{io.EOF, io.EOF, nil}, false},
		"resets by something":      {[3]error{reset, reset, reset}, false},
		"one is replaced":          {[3]error{io.EOF, transport.ErrReplaced, io.EOF}, false},
		"one does not answer":      {[3]error{io.EOF, unix.ETIMEDOUT, io.EOF}, false},
		"the network is not there": {[3]error{unix.EHOSTUNREACH, unix.EHOSTUNREACH, unix.EHOSTUNREACH}, false},
	} {
		l := newLines(time.Minute, nil, nil)
		for i, err := range c.lost {
			l.all[uint32(i)] = new(transport.Resumable)
			if err != nil {
				l.lost[uint32(i)] = err
			}
		}
		if got := l.closed(); got != c.closed {
			t.Errorf("%s: %v", name, got)
		}
	}
}
