package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// tcpPair gives both ends of a connection. The test closes them.
func tcpPair(t testing.TB) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

func linePair(t testing.TB) (a, b *Line) {
	t.Helper()
	var err error
	near, far := tcpPair(t)
	for c, line := range map[net.Conn]**Line{near: &a, far: &b} {
		if *line, err = NewLine(c); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*line).Close() })
	}
	return a, b
}

func TestLine(t *testing.T) {
	a, b := linePair(t)
	want := bytes.Repeat([]byte("0123456"), 1<<20)
	var writer sync.WaitGroup
	writer.Go(func() {
		if err := a.write([][]byte{want[:5], nil, want[5:9], want[9:]}); err != nil {
			t.Error(err)
		}
		a.Shutdown()
	})
	got := make([]byte, len(want))
	for _, part := range [][]byte{got[:1], got[1 : 3<<20], got[3<<20:]} {
		if err := b.ReadFull(part); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want) {
		t.Error("the bytes arrived changed")
	}
	if err := b.ReadFull(got[:1]); !errors.Is(err, io.EOF) {
		t.Errorf("behind the end: %v", err)
	}
	writer.Wait()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

// A thread that is asleep in a line is woken by its end.
func TestLineShutdown(t *testing.T) {
	a, b := linePair(t)
	var users sync.WaitGroup
	users.Go(func() {
		if err := b.ReadFull(make([]byte, 10)); err == nil {
			t.Error("a read of 3 bytes gave 10")
		}
	})
	users.Go(func() {
		for huge := make([]byte, 1<<20); ; {
			if err := b.write([][]byte{huge}); err != nil {
				return // nobody reads, so it filled the socket and slept
			}
		}
	})
	if err := a.write([][]byte{{1, 2, 3}}); err != nil {
		t.Fatal(err)
	}
	b.Shutdown()
	users.Wait()
	if _, err := NewLine(struct{ net.Conn }{pipeEnd(t)}); err == nil {
		t.Error("a pipe was taken for a socket")
	}
}

func pipeEnd(t *testing.T) net.Conn {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return near
}

// Nobody who waits misses a ring.
func TestBell(t *testing.T) {
	var bell Bell
	var mu sync.Mutex
	var waiters sync.WaitGroup
	work, ended := 0, false
	const rounds, threads = 2000, 4
	for range threads {
		waiters.Go(func() {
			for {
				mu.Lock()
				for work == 0 && !ended {
					seen := bell.Now()
					mu.Unlock()
					bell.Await(seen)
					mu.Lock()
				}
				if work == 0 {
					mu.Unlock()
					return
				}
				work--
				mu.Unlock()
			}
		})
	}
	for range rounds {
		mu.Lock()
		work++
		bell.Ring()
		mu.Unlock()
	}
	mu.Lock()
	ended = true
	bell.Ring()
	mu.Unlock()
	waiters.Wait()
}

// BenchmarkLine sends 64 KiB pieces: allocations are none.
func BenchmarkLine(b *testing.B) {
	near, far := linePair(b)
	data := make([]byte, 64<<10)
	var reader sync.WaitGroup
	reader.Go(func() {
		for into := make([]byte, len(data)); far.ReadFull(into) == nil; {
		}
	})
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	var bufs [1][]byte
	for b.Loop() {
		bufs[0] = data
		if err := near.write(bufs[:]); err != nil {
			b.Fatal(err)
		}
	}
	near.Shutdown()
	reader.Wait()
}
