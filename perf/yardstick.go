package perf

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"time"
)

// Yardsticks are what a machine does without CUDA: they say whether it was the machine that changed between two
// results. They are timed at each repetition, like everything else.
const (
	yardMultiplication = "a multiplication" // that waits for the one before
	yardSystemCall     = "a system call"
	yardCopy           = "1 MiB copied in memory"
	yardRoundTrip      = "a round trip over TCP"
)

var yardsticks = []struct {
	name  string
	count int
	run   func(n int) error
}{
	{yardMultiplication, 10_000_000, func(n int) error {
		product := uint64(n)
		for range n {
			product *= product + 3
		}
		runtime.KeepAlive(product)
		return nil
	}},
	{yardSystemCall, 100_000, func(n int) error {
		for range n {
			os.Getppid()
		}
		return nil
	}},
	{yardCopy, 200, func(n int) error {
		from, to := make([]byte, 1<<20), make([]byte, 1<<20)
		for range n {
			copy(to, from)
		}
		return nil
	}},
	{yardRoundTrip, 2000, roundTrips},
}

// runMachine times the yardsticks.
func (t *task) runMachine() error {
	for _, y := range yardsticks {
		began := time.Now()
		if err := y.run(y.count); err != nil {
			return err
		}
		m := t.measure(y.name, "s", []string{"scuda", "perf", "run"})
		m.Values = append(m.Values, time.Since(began).Seconds()/float64(y.count))
	}
	return nil
}

func roundTrips(n int) (err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	far, err := l.Accept()
	if err = errors.Join(err, l.Close()); err != nil {
		return errors.Join(err, near.Close())
	}
	answered := make(chan error, 1)
	go func() {
		_, err := io.Copy(far, io.LimitReader(far, int64(n)))
		answered <- errors.Join(err, far.Close())
	}()
	b := make([]byte, 1)
	for range n {
		if _, err = near.Write(b); err == nil {
			_, err = io.ReadFull(near, b)
		}
		if err != nil {
			break
		}
	}
	return errors.Join(err, near.Close(), <-answered)
}
