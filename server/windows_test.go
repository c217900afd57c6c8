package server

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/internal/window"
	"scuda.dev/scuda/transport"
)

// windowed is a hello whose session keeps to a window.
func windowed(number, windows int) *transport.Hello {
	h := hello(transport.KindCUDA)
	h.Window, h.Windows = number, windows
	return h
}

// addresses has memory of each kind that the server's driver chooses addresses for.
func (l *link) addresses() (list []window.Range) {
	l.t.Helper()
	const ctx = 1 << 36
	if r, _, err := l.call(wire.OpPrimary, 0, wire.Bytes(&wire.Primary{Context: ctx})); r != 0 || err != nil {
		l.t.Fatalf("primary context: %d %v", r, err)
	}
	ask := func(what string, op uint16, bytes uint64, words ...uint64) {
		l.t.Helper()
		var payload []byte
		for _, w := range words {
			payload = binary.LittleEndian.AppendUint64(payload, w)
		}
		r, b, err := l.call(op, ctx, payload)
		if r != 0 || err != nil || len(b) < 16 {
			l.t.Fatalf("%s: %d %v", what, r, err)
		}
		at := binary.LittleEndian.Uint64(b[8:])
		list = append(list, window.Range{From: at, To: at + bytes})
	}
	for range 16 {
		ask("memory", cuda.OpCuMemAlloc_v2, 128<<20, 1, 128<<20)
	}
	ask("a little memory", cuda.OpCuMemAlloc_v2, 100, 1, 100)
	ask("memory of a pool", cuda.OpCuMemAllocAsync, 1<<20, 1, 1<<20, 0)
	ask("memory in rows", cuda.OpCuMemAllocPitch_v2, 1<<20, 1, 1, 1000, 1000, 4)
	ask("addresses", cuda.OpCuMemAddressReserve, 1<<40, 1, 1<<40, 0, 0, 0)
	ask("addresses at a place that it cannot have", cuda.OpCuMemAddressReserve, 1<<30, 1, 1<<30, 0, 0x7800_0000_0000, 0)
	return list
}

// TestWindows: two servers' memory has no address in common, and both have the client's memory at its own addresses.
func TestWindows(t *testing.T) {
	s := serve(t, func(c *Config) { c.SimMemory, c.Staging = 4<<30, 1024 })
	var all []window.Range
	for n := range 2 {
		w, _, err := window.Of(n, 2)
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.dial(windowed(n, 2))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range l.addresses() {
			if !w.Holds(r.From, r.To-r.From) {
				t.Errorf("server %d has memory at %#x, its window is %#x", n, r, w)
			}
			all = append(all, r)
		}
		for _, at := range []uint64{window.ClientLow, window.ClientLow + 100<<30, window.ClientHigh - 256<<30} {
			p := wire.HostMap{Address: at, Bytes: 3 << 20}
			r, b, err := l.call(wire.OpHostMap, 1<<36, wire.Bytes(&p))
			if r != 0 || err != nil || binary.LittleEndian.Uint64(b) != at {
				t.Errorf("server %d has the client's memory at %#x, its address is %#x (%d, %v)", n, b, at, r, err)
			}
		}
		defer l.leave()
	}
	slices.SortFunc(all, func(a, b window.Range) int { return int(int64(a.From - b.From)) })
	for i := range all[1:] {
		if all[i].Overlaps(all[i+1]) {
			t.Errorf("%#x and %#x", all[i], all[i+1])
		}
	}
}

// TestWarmWorkers: a session without a window has a worker that was ready; one with a window has one of its own, and
// leaves those alone that are ready.
func TestWarmWorkers(t *testing.T) {
	s := serve(t, nil)
	starts := func() int { return strings.Count(s.log.String(), "msg=\"keeps to a window of addresses\"") }
	l := s.open(transport.KindCUDA)
	l.use(1 << 20)
	if n := starts(); n != 0 {
		t.Errorf("%d workers keep to windows", n)
	}
	l.leave()
	for n, want := range []int{0, 0} { // none of none, and 0 of 1
		l, err := s.dial(windowed(0, n))
		if err != nil {
			t.Fatal(err)
		}
		l.use(1 << 20)
		l.leave()
		if got := starts(); got != want {
			t.Errorf("0 of %d: %d workers keep to windows", n, got)
		}
	}
	l, err := s.dial(windowed(0, 2))
	if err != nil {
		t.Fatal(err)
	}
	l.use(1 << 20)
	l.leave()
	s.logged("keeps to a window of addresses")
}

// TestWrongWindows: a window that there is not is refused before a worker is made, and says so.
func TestWrongWindows(t *testing.T) {
	s := serve(t, nil)
	for _, w := range [][2]int{{2, 2}, {1, 0}, {1, 1}, {-1, 2}, {0, -1}, {0, 17}, {16, 17}} {
		_, err := s.dial(windowed(w[0], w[1]))
		if !errors.Is(err, transport.ErrNotScuda) || !strings.Contains(err.Error(), "wrong window of addresses: number") {
			t.Errorf("%v: %v", w, err)
		}
	}
	if strings.Contains(s.log.String(), "session opened") {
		t.Error("it got a session")
	}
}

// TestWindowsNeedTheCapability: a client that names a window says so by name to a server that does not know them.
func TestWindowsNeedTheCapability(t *testing.T) {
	if err := check(windowed(1, 2), []string{transport.CapSkip}); !errors.Is(err, transport.ErrCapability) {
		t.Errorf("%v", err)
	}
	if err := check(windowed(1, 2), transport.Offered()); err != nil {
		t.Errorf("%v", err)
	}
}

// TestNoWorkerForAWindow: a worker that cannot be made is told to the client, and costs nobody else anything.
func TestNoWorkerForAWindow(t *testing.T) {
	s := serve(t, func(c *Config) { c.Workers.Env = []string{workerEnv + "=few addresses"} })
	l := s.open(transport.KindCUDA)
	for range maxHelpers + 1 {
		_, err := s.dial(windowed(1, 2))
		if err == nil || !strings.Contains(err.Error(), "could not start a session: look into the server's log") {
			t.Errorf("%v", err)
		}
	}
	s.logged("a worker failed")
	s.logged("allow more virtual memory (ulimit -v)")
	if !l.alive() {
		t.Error("another session has ended")
	}
	l.leave()
}
