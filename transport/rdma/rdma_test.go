package rdma

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/ring"
	"scuda.dev/scuda/verbs"
)

// The ranges are what a plain list of them says.
func TestPins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Pins
		var gone []pin
		p.tell(func(q pin) { gone = append(gone, q) })
		var model []pin
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			addr, n := uint64(rapid.IntRange(0, 100).Draw(t, "addr")), uint64(rapid.IntRange(0, 20).Draw(t, "bytes"))
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				p.Add(addr, n)
				if n > 0 && !slices.ContainsFunc(model, func(q pin) bool { return addr < q.end() && q.addr < addr+n }) {
					model = append(model, pin{addr, n})
				}
			case 1:
				before := len(gone)
				p.Remove(addr)
				i := slices.IndexFunc(model, func(q pin) bool { return q.addr == addr })
				if i >= 0 {
					if len(gone) != before+1 || gone[before] != model[i] {
						t.Fatalf("nobody was told of the end of %v", model[i])
					}
					model = slices.Delete(model, i, i+1)
				} else if len(gone) != before {
					t.Fatalf("the end of %v, which was not there", gone[before])
				}
			default:
				i := slices.IndexFunc(model, func(q pin) bool { return q.addr <= addr && addr+n <= q.end() })
				got, ok := p.find(addr, n)
				if ok != (i >= 0) && n > 0 {
					t.Fatalf("%d bytes at %d: %v, %v; the ranges are %v", n, addr, got, ok, model)
				}
			}
		}
	})
}

func place(name string, state verbs.PortState, addrs ...string) *verbs.DeviceInfo {
	p := verbs.PortInfo{Number: 1, State: state, Link: "Ethernet"}
	for i, a := range addrs {
		p.GIDs = append(p.GIDs, verbs.GID{Index: i, Addr: netip.MustParseAddr(a), Type: verbs.RoCEv2})
	}
	return &verbs.DeviceInfo{Name: name, Ports: []verbs.PortInfo{p}}
}

func TestChoose(t *testing.T) {
	a, b := place("a", verbs.PortActive, "10.0.0.1", "10.0.1.1"), place("b", verbs.PortActive, "10.0.2.1")
	down := place("down", verbs.PortDown, "10.0.3.1")
	for _, c := range []struct {
		list        []*verbs.DeviceInfo
		wish        string
		local, peer string
		device      string // "": none
		index       int
	}{
		{[]*verbs.DeviceInfo{a, b}, "", "10.0.2.1", "10.0.2.2", "b", 0},
		{[]*verbs.DeviceInfo{a, b}, "", "10.0.1.1", "10.0.2.2", "a", 1},
		{[]*verbs.DeviceInfo{a, b}, "", "192.168.0.1", "192.168.0.2", "a", 0},
		{[]*verbs.DeviceInfo{a, b}, "b", "10.0.1.1", "10.0.2.2", "b", 0},
		{[]*verbs.DeviceInfo{a, b}, "a:1:1", "", "", "a", 1},
		{[]*verbs.DeviceInfo{a, b}, "a:2", "", "", "", 0},
		{[]*verbs.DeviceInfo{a, b}, "a:1:7", "", "", "", 0},
		{[]*verbs.DeviceInfo{a, b}, "c", "", "", "", 0},
		{[]*verbs.DeviceInfo{a, b}, "a:x", "", "", "", 0},
		{[]*verbs.DeviceInfo{a, b}, "a:1:1:1", "", "", "", 0},
		{[]*verbs.DeviceInfo{down, b}, "", "10.0.3.1", "10.0.3.2", "b", 0},
		{[]*verbs.DeviceInfo{down}, "", "10.0.3.1", "10.0.3.2", "", 0},
		{[]*verbs.DeviceInfo{a}, "", "fd00::1", "fd00::2", "", 0},
		{nil, "", "", "", "", 0},
	} {
		addr := func(s string) netip.Addr { a, _ := netip.ParseAddr(s); return a }
		p, err := choose(c.list, c.wish, addr(c.local), addr(c.peer))
		switch {
		case c.device == "":
			if !errors.Is(err, ErrNoPlace) {
				t.Errorf("%q from %s to %s: %v, %v", c.wish, c.local, c.peer, p, err)
			}
		case err != nil || p.Device != c.device || p.GID.Index != c.index || p.Why == "":
			t.Errorf("%q from %s to %s: %+v, %v; expected %s, index %d", c.wish, c.local, c.peer, p, err, c.device, c.index)
		}
	}
}

// An end has to be the machine's with which the connection is, where that can be told.
func TestBelongs(t *testing.T) {
	for _, c := range []struct {
		kind                    verbs.GIDType
		own, local, remote, end string
		ok                      bool
	}{
		{verbs.RoCEv2, "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2", true},
		{verbs.RoCEv2, "10.0.0.1", "10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2", true},
		{verbs.RoCEv2, "10.0.0.1", "::ffff:10.0.0.1", "::ffff:10.0.0.2", "10.0.0.2", true},
		{verbs.RoCEv2, "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3", false},
		{verbs.RoCEv2, "10.0.0.1", "10.0.0.1", "10.0.0.2", "", false},
		{verbs.RoCEv2, "10.0.0.1", "10.0.0.1", "10.0.0.2", "fe80::1", false},
		{verbs.RoCEv2, "fd00::1", "fd00::1", "fd00::2", "fd00::2", true},
		{verbs.RoCEv2, "fd00::1", "fd00::1", "fd00::2", "fd00::3", false},
		{verbs.RoCEv2, "fe80::1", "fe80::1%eth0", "fe80::2%eth0", "fe80::2", true},
		{verbs.RoCEv2, "10.9.0.1", "10.0.0.1", "10.0.0.2", "10.9.0.2", true}, // a network of its own
		{verbs.RoCEv2, "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", true}, // two devices of one machine
		{verbs.IB, "fe80::1", "10.0.0.1", "10.0.0.2", "fe80::2", true},
		{verbs.RoCEv2, "10.0.0.1", "", "", "10.0.0.3", true}, // not over IP: a test
	} {
		addr := func(s string) netip.Addr { a, _ := netip.ParseAddr(s); return a }
		p := &Place{GID: verbs.GID{Addr: addr(c.own), Type: c.kind}}
		err := belongs(p, addr(c.local), addr(c.remote), verbs.Endpoint{GID: addr(c.end)})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrStranger) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// The numbers of a peer's queue pair are ones that a queue pair can have.
func TestNumbersOfQueuePairs(t *testing.T) {
	for _, c := range []struct {
		qpn, psn uint32
		ok       bool
	}{{2, 0, true}, {1<<24 - 1, 1<<24 - 1, true}, {0, 0, false}, {1, 0, false}, {1 << 24, 0, false}, {2, 1 << 24, false}} {
		s := setup{Depth: 1, Endpoint: verbs.Endpoint{QPN: c.qpn, PSN: c.psn, MTU: 1}}
		if err := s.check(); (err == nil) != c.ok {
			t.Errorf("queue pair %d, packet %d: %v", c.qpn, c.psn, err)
		}
	}
}

func TestMemlockIsJudged(t *testing.T) {
	for _, c := range []struct {
		limit uint64
		root  bool
		ok    bool
		text  string
	}{
		{unix.RLIM_INFINITY, false, true, "unlimited"}, {8 << 20, false, false, "8192 KiB: copies of larger"},
		{8 << 20, true, true, "8192 KiB"}, {1 << 30, false, true, "1048576 KiB"},
	} {
		r := &Report{}
		r.judgeMemlock(c.limit, c.root)
		if k := r.Checks[0]; k.OK != c.ok || !strings.Contains(k.Found, c.text) ||
			!k.OK && !strings.Contains(k.Remedy, "LimitMEMLOCK=infinity") || r.Why != "" {
			t.Errorf("%+v: %+v", c, k)
		}
	}
}

// On a fast path the largest piece that is about as good as any; on a slow one a piece that is through before the
// device expects a sign of the peer.
func TestPickPiece(t *testing.T) {
	flat := func(rate float64) map[int]float64 {
		m := map[int]float64{}
		for size := probeLeast; size <= pieceBytes && paced(size, rate); size *= 2 {
			m[size] = rate
		}
		return m
	}
	for _, c := range []struct {
		name  string
		rates map[int]float64
		best  float64
		piece int
	}{
		{"all the same", flat(10e9), 10e9, 256 << 10},
		{"larger is better", map[int]float64{128 << 10: 5e9, 256 << 10: 8e9}, 8e9, 256 << 10},
		{"smaller is better", map[int]float64{128 << 10: 10e9, 256 << 10: 8.4e9}, 10e9, 128 << 10},
		{"larger is about as good", map[int]float64{128 << 10: 10e9, 256 << 10: 8.6e9}, 10e9, 256 << 10},
		{"slow", flat(10e6), 10e6, 256 << 10},
		{"slow, the largest was not measured", map[int]float64{128 << 10: 10e6}, 10e6, 128 << 10},
		{"very slow", flat(5e6), 5e6, 128 << 10},
		{"still slower", flat(2e6), 2e6, 64 << 10},
		{"hardly moving", flat(1e5), 1e5, 32 << 10},
	} {
		if n := pickPiece(c.rates, c.best); n != c.piece {
			t.Errorf("%s: pieces of %d bytes, expected %d", c.name, n, c.piece)
		}
	}
}

// What is measured in a bad moment does not decide, and a path that is fast at once is measured once.
func TestSurvey(t *testing.T) {
	const rate = 1e9
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		probe  func(n, size int) float64 // the n-th; 0: the path fails
		time   int                       // probes until the time is over
		piece  int
		probes int
	}{
		{"fast", func(_, _ int) float64 { return rate }, 100, 256 << 10, 3},
		{"the first stalls", func(n, _ int) float64 {
			if n == 0 {
				return rate / 1000
			}
			return rate
		}, 100, 256 << 10, 4},
		{"the largest stalls once", func(n, _ int) float64 {
			if n == 2 {
				return rate / 10
			}
			return rate
		}, 100, 256 << 10, 6},
		{"all in a bad moment", func(n, _ int) float64 { return rate / 2 }, 100, 256 << 10, 3},
		{"smaller is better", func(_, size int) float64 { return rate * (128 << 10) / float64(max(size, 128<<10)) }, 100,
			128 << 10, 3 * probePasses},
		{"slow", func(_, _ int) float64 { return 5e6 }, 100, 128 << 10, 2 * probePasses},
		{"no time", func(_, _ int) float64 { return 1e6 }, 0, 32 << 10, 1},
		{"broken", func(n, _ int) float64 {
			if n == 1 {
				return 0
			}
			return rate
		}, 100, 0, 2},
	} {
		n := 0
		rates, best, err := survey(pieceBytes, func(size int) (float64, error) {
			r := c.probe(n, size)
			if n++; r == 0 {
				return 0, broken
			}
			return r, nil
		}, func() bool { return n >= c.time })
		if c.piece == 0 {
			if !errors.Is(err, broken) {
				t.Errorf("%s: %v", c.name, err)
			}
		} else if piece := pickPiece(rates, best); piece != c.piece || err != nil {
			t.Errorf("%s: pieces of %d bytes, expected %d; %v", c.name, piece, c.piece, err)
		}
		if n != c.probes {
			t.Errorf("%s: %d probes, expected %d", c.name, n, c.probes)
		}
	}
}

func TestHeader(t *testing.T) {
	b := make([]byte, headerBytes)
	h := header{position: 1<<32 + 5, slot: 3, chunk: bulk.Chunk{Seq: 7, Offset: 1 << 40, ID: 9, Bytes: 4096}}
	h.put(b)
	if got, err := parseHeader(b[:headerSize], 1<<32+5, 5, 4096); err != nil || got != h {
		t.Errorf("%+v, %v", got, err)
	}
	for name, f := range map[string]func() (uint64, uint32, int){
		"position":  func() (uint64, uint32, int) { return 6, 6, 4096 },
		"immediate": func() (uint64, uint32, int) { return 1<<32 + 5, 6, 4096 },
		"too large": func() (uint64, uint32, int) { return 1<<32 + 5, 5, 4095 },
	} {
		position, imm, size := f()
		if _, err := parseHeader(b[:headerSize], position, imm, size); !errors.Is(err, ring.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever a peer says, parsing ends with an error or with values within the limits.
func FuzzControl(f *testing.F) {
	f.Add(
		[]byte(`{"Epoch":1,"Depth":64,"SlotBytes":1048576,"SlotCount":64,"Endpoint":{"QPN":17,"GID":"10.0.0.1","MTU":5}}`))
	f.Add(make([]byte, windowBytes))
	f.Add(make([]byte, headerSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseSetup(b); err == nil &&
			(s.Depth < 1 || s.Depth > maxDepth || s.SlotCount < 0 || s.SlotCount > MaxSlots) {
			t.Errorf("%+v", s)
		}
		if w, err := parseWindow(b); err == nil {
			if again, err := parseWindow(w.append(nil)); err != nil || again != w {
				t.Errorf("%+v, %v", again, err)
			}
		}
		if slots, err := parseSlots(nil, b); err == nil && len(slots)*4 != len(b) {
			t.Errorf("%d slots of %d bytes", len(slots), len(b))
		}
		if len(b) >= headerSize {
			if h, err := parseHeader(b[:headerSize], le.Uint64(b), le.Uint32(b), 4096); err == nil &&
				(h.chunk.Bytes == 0 || h.slot != ring.NoSlot && h.chunk.Bytes > 4096) {
				t.Errorf("%+v", h)
			}
		}
	})
}
