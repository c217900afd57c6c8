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
		lost   []error
		age    time.Duration
		closed bool
	}{
		"in order":                        {[]error{io.EOF, io.EOF, io.EOF}, time.Minute, true},
		"unread bytes":                    {[]error{reset, io.EOF, reset}, time.Minute, true},
		"sent to after its end":           {[]error{reset, unix.EPIPE, reset}, time.Minute, true},
		"one lives":                       {[]error{io.EOF, io.EOF, nil}, time.Minute, false},
		"resets by something":             {[]error{reset, reset, reset}, time.Minute, false},
		"one is replaced":                 {[]error{io.EOF, transport.ErrReplaced, io.EOF}, time.Minute, false},
		"one does not answer":             {[]error{io.EOF, unix.ETIMEDOUT, io.EOF}, time.Minute, false},
		"before it could have another":    {[]error{reset}, 0, true},
		"with no other, later":            {[]error{reset}, time.Second, false},
		"two, in the first second":        {[]error{reset, reset}, 0, false},
		"no network, in the first second": {[]error{unix.ETIMEDOUT}, 0, false},
		"the network is not there":        {[]error{unix.EHOSTUNREACH, unix.EHOSTUNREACH}, time.Minute, false},
	} {
		l := newLines(time.Minute, nil, nil)
		l.since = l.began.Add(c.age)
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
