//go:build rdma

package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/verbs"
)

// These tests need two devices that reach each other; guest/rdma-guest has them.

var names = [2]string{os.Getenv("RXE_DEV0"), os.Getenv("RXE_DEV1")}

// memory is page-aligned memory outside of Go's heap.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// end is one side of a connection.
type end struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mem []byte
	mr  *verbs.MR
	loc verbs.Local
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (e *end) sge(off, n int) [verbs.MaxSGE]verbs.SGE {
	return [verbs.MaxSGE]verbs.SGE{{Addr: address(e.mem) + uint64(off), Length: uint32(n), LKey: e.mr.LKey}}
}

func (e *end) remote(off int) uint64 { return address(e.mem) + uint64(off) }

func newEnd(t testing.TB, name string, bytes int, config verbs.QPConfig) *end {
	t.Helper()
	e := &end{}
	var err error
	e.dev, err = verbs.Open(name)
	check(t, err)
	t.Cleanup(func() { check(t, e.dev.Close()) })
	e.pd, err = e.dev.AllocPD()
	check(t, err)
	t.Cleanup(func() { check(t, e.pd.Close()) })
	e.cq, err = e.dev.CreateCQ(256)
	check(t, err)
	t.Cleanup(func() { check(t, e.cq.Close()) })
	e.mem = memory(t, bytes)
	e.mr, err = e.pd.Register(e.mem,
		verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic|verbs.WindowBind)
	check(t, err)
	t.Cleanup(func() { check(t, e.mr.Close()) })
	config.SendCQ = e.cq
	config.SendDepth, config.RecvDepth = max(config.SendDepth, 64), max(config.RecvDepth, 64)
	e.qp, err = e.pd.CreateQP(config)
	check(t, err)
	t.Cleanup(func() { check(t, e.qp.Close()) })
	info, err := verbs.ReadDevice(name)
	check(t, err)
	gid, err := verbs.SelectGID(&info.Ports[0], netip.Addr{}, netip.Addr{})
	check(t, err)
	e.loc = verbs.Local{Port: 1, GIDIndex: gid.Index}
	return e
}

func connected(t testing.TB, bytes int, config verbs.QPConfig) (a, b *end) {
	t.Helper()
	// The machine of these tests stands still at times. Nothing that should arrive waits for less than seconds.
	return connectedBy(t, bytes, config, verbs.ConnectOptions{Timeout: 17, Retries: 6})
}

// connectedBy gives up a request as soon as o says.
func connectedBy(t testing.TB, bytes int, config verbs.QPConfig, o verbs.ConnectOptions) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, names[0], bytes, config), newEnd(t, names[1], bytes, config)
	pa, err := a.qp.Endpoint(a.loc)
	check(t, err)
	pb, err := b.qp.Endpoint(b.loc)
	check(t, err)
	o.Access = verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic
	check(t, a.qp.Connect(a.loc, pb, o))
	check(t, b.qp.Connect(b.loc, pa, o))
	return a, b
}

func (e *end) send(t testing.TB, list ...verbs.SendRequest) {
	t.Helper()
	n, err := e.qp.PostSend(list)
	if err != nil || n != len(list) {
		t.Fatalf("posted %d of %d: %v", n, len(list), err)
	}
}

func (e *end) recv(t testing.TB, list ...verbs.RecvRequest) {
	t.Helper()
	n, err := e.qp.PostRecv(list)
	if err != nil || n != len(list) {
		t.Fatalf("posted %d of %d: %v", n, len(list), err)
	}
}

// next waits for one completion.
func (e *end) next(t testing.TB) verbs.Completion {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var c [1]verbs.Completion
	if _, err := e.cq.WaitPoll(ctx, c[:]); err != nil {
		t.Fatal(err)
	}
	return c[0]
}

func (e *end) ok(t testing.TB, id uint64) verbs.Completion {
	t.Helper()
	c := e.next(t)
	if c.Err() != nil || c.ID != id {
		t.Fatalf("completion of %d: %v; expected %d", c.ID, c.Err(), id)
	}
	return c
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*13) ^ byte(i>>8) ^ seed
	}
}

func TestDevices(t *testing.T) {
	list, err := verbs.Devices()
	check(t, err)
	for _, name := range names {
		if !slices.Contains(list, name) {
			t.Fatalf("no %q among %v", name, list)
		}
	}
	d, err := verbs.Open(names[0])
	check(t, err)
	defer d.Close()
	a, err := d.Attributes()
	check(t, err)
	if a.Ports != 1 || a.MaxQP == 0 || a.MaxSGE < verbs.MaxSGE || a.MaxMRBytes == 0 || a.MaxMW == 0 || !a.WindowType2 {
		t.Errorf("%+v", a)
	}
	if a.OnDemand || a.ImplicitMemory {
		t.Errorf("rxe of this kernel has no on-demand paging: %+v", a)
	}
	p, err := d.Port(1)
	check(t, err)
	if p.State != verbs.PortActive || p.Link != verbs.Ethernet || p.ActiveMTU != verbs.MTU4096 || p.MaxMessage == 0 {
		t.Errorf("%+v", p)
	}
	if _, err := d.Port(9); err == nil {
		t.Error("port 9 exists")
	}
	info, err := verbs.ReadDevice(names[0])
	check(t, err)
	gid, err := verbs.SelectGID(&info.Ports[0], netip.MustParseAddr(os.Getenv("RXE_IP0")),
		netip.MustParseAddr(os.Getenv("RXE_IP1")))
	check(t, err)
	if same, err := d.GID(1, gid.Index); err != nil || same != gid.Addr || gid.NetDev != "rxenet0" {
		t.Errorf("GID %+v, by the device %v, %v", gid, same, err)
	}
	if _, err := verbs.Open("no such device"); !errors.Is(err, verbs.ErrUnavailable) {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestTransfers(t *testing.T) {
	const n = 1 << 20
	a, b := connected(t, n, verbs.QPConfig{InlineBytes: 128})
	fill(a.mem, 1)
	empty := make([]byte, n)
	for _, c := range []struct {
		name string
		req  verbs.SendRequest
		recv bool
		imm  uint32
		want []byte // of b's memory
	}{
		{"SEND", verbs.SendRequest{Op: verbs.OpSend, Count: 1, SGE: a.sge(0, 5000)}, true, 0, a.mem[:5000]},
		{"SEND with immediate", verbs.SendRequest{Op: verbs.OpSendImm, Imm: 0xdeadbeef, Count: 1, SGE: a.sge(7, 9)}, true,
			0xdeadbeef, a.mem[7:16]},
		{"WRITE", verbs.SendRequest{Op: verbs.OpWrite, Remote: b.remote(0), RKey: b.mr.RKey, Count: 1, SGE: a.sge(0, n)},
			false, 0, a.mem},
		{"WRITE with immediate", verbs.SendRequest{
			Op: verbs.OpWriteImm, Imm: 77, Remote: b.remote(0), RKey: b.mr.RKey, Count: 1, SGE: a.sge(100, 70000),
		}, true, 77, a.mem[100:70100]},
		{"empty WRITE with immediate", verbs.SendRequest{Op: verbs.OpWriteImm, Imm: 78, Remote: b.remote(0), RKey: b.mr.RKey},
			true, 78, empty[:1]},
		{"inline", verbs.SendRequest{
			Op: verbs.OpWrite, Flags: verbs.Inline, Remote: b.remote(0), RKey: b.mr.RKey, Count: 1, SGE: a.sge(33, 100),
		}, false, 0, a.mem[33:133]},
		{"two pieces", verbs.SendRequest{Op: verbs.OpWrite, Remote: b.remote(0), RKey: b.mr.RKey, Count: 2,
			SGE: [verbs.MaxSGE]verbs.SGE{a.sge(0, 100)[0], a.sge(100, 200)[0]}}, false, 0, a.mem[:300]},
	} {
		t.Run(c.name, func(t *testing.T) {
			clear(b.mem)
			if c.recv {
				b.recv(t, verbs.RecvRequest{ID: 9, Count: 1, SGE: b.sge(0, n)})
			}
			c.req.ID, c.req.Flags = 5, c.req.Flags|verbs.Signaled
			a.send(t, c.req)
			a.ok(t, 5)
			if c.recv {
				got := b.ok(t, 9)
				if c.imm != 0 && (got.Imm != c.imm || got.Flags&verbs.HasImm == 0) {
					t.Errorf("immediate %#x, flags %d", got.Imm, got.Flags)
				}
				if c.imm != 78 && int(got.Bytes) != len(c.want) {
					t.Errorf("%d bytes were announced", got.Bytes)
				}
			}
			if !bytes.Equal(b.mem[:len(c.want)], c.want) {
				t.Error("the bytes differ")
			}
		})
	}
	t.Run("READ", func(t *testing.T) {
		fill(b.mem, 5)
		a.send(t, verbs.SendRequest{
			ID: 6, Op: verbs.OpRead, Flags: verbs.Signaled, Remote: b.remote(4096), RKey: b.mr.RKey, Count: 1,
			SGE: a.sge(0, 100000),
		})
		a.ok(t, 6)
		if !bytes.Equal(a.mem[:100000], b.mem[4096:104096]) {
			t.Error("the bytes differ")
		}
	})
	t.Run("atomic operations", func(t *testing.T) {
		word := (*uint64)(unsafe.Pointer(&b.mem[0]))
		old := (*uint64)(unsafe.Pointer(&a.mem[0]))
		*word = 40
		a.send(t, verbs.SendRequest{
			ID: 1, Op: verbs.OpFetchAdd, Flags: verbs.Signaled, Remote: b.remote(0), RKey: b.mr.RKey, Compare: 2, Count: 1,
			SGE: a.sge(0, 8),
		})
		a.ok(t, 1)
		if *word != 42 || *old != 40 {
			t.Errorf("fetch and add: %d, old %d", *word, *old)
		}
		a.send(t, verbs.SendRequest{
			ID: 2, Op: verbs.OpCompareSwap, Flags: verbs.Signaled, Remote: b.remote(0), RKey: b.mr.RKey, Compare: 42, Swap: 7,
			Count: 1, SGE: a.sge(0, 8),
		})
		a.ok(t, 2)
		if *word != 7 || *old != 42 {
			t.Errorf("compare and swap: %d, old %d", *word, *old)
		}
	})
}

// Completions of a batch come in order; unsignalled requests give none.
func TestBatch(t *testing.T) {
	a, b := connected(t, 1<<16, verbs.QPConfig{SendDepth: 128, RecvDepth: 128})
	const n = 100 // more than the C side handles at once
	var recvs []verbs.RecvRequest
	var sends []verbs.SendRequest
	for i := range n {
		recvs = append(recvs, verbs.RecvRequest{ID: uint64(i)})
		s := verbs.SendRequest{
			ID: uint64(i), Op: verbs.OpWriteImm, Imm: uint32(i), Remote: b.remote(i), RKey: b.mr.RKey, Count: 1,
			SGE: a.sge(i, 1),
		}
		if i%2 == 1 {
			s.Flags = verbs.Signaled
		}
		sends = append(sends, s)
	}
	fill(a.mem, 3)
	b.recv(t, recvs...)
	a.send(t, sends...)
	for i := 1; i < n; i += 2 {
		a.ok(t, uint64(i))
	}
	for i := range n {
		if c := b.ok(t, uint64(i)); c.Imm != uint32(i) || c.Kind != verbs.WorkRecvImm {
			t.Fatalf("message %d: %+v", i, c)
		}
	}
	if !bytes.Equal(a.mem[:n], b.mem[:n]) {
		t.Error("the bytes differ")
	}
}

func TestSharedReceiveQueue(t *testing.T) {
	b := newEnd(t, names[1], 1<<16, verbs.QPConfig{})
	srq, err := b.pd.CreateSRQ(16, 1)
	check(t, err)
	defer func() { check(t, srq.Close()) }()
	o := verbs.ConnectOptions{Timeout: 17}
	for i := range 2 {
		a := newEnd(t, names[0], 1<<12, verbs.QPConfig{})
		qp, err := b.pd.CreateQP(verbs.QPConfig{SendCQ: b.cq, SendDepth: 4, SRQ: srq})
		check(t, err)
		defer func() { check(t, qp.Close()) }()
		pa, err := a.qp.Endpoint(a.loc)
		check(t, err)
		pb, err := qp.Endpoint(b.loc)
		check(t, err)
		check(t, a.qp.Connect(a.loc, pb, o))
		check(t, qp.Connect(b.loc, pa, o))
		_, err = srq.PostRecv([]verbs.RecvRequest{{ID: uint64(i), Count: 1, SGE: b.sge(0, 100)}})
		check(t, err)
		fill(a.mem, byte(i))
		a.send(t, verbs.SendRequest{Op: verbs.OpSend, Flags: verbs.Signaled, Count: 1, SGE: a.sge(0, 100)})
		a.ok(t, 0)
		if c := b.ok(t, uint64(i)); c.QP != qp.Number() || c.Bytes != 100 || !bytes.Equal(a.mem[:100], b.mem[:100]) {
			t.Errorf("queue pair %d: %+v", i, c)
		}
	}
}

// A window's key works while it is bound, for its range only.
func TestWindow(t *testing.T) {
	a, b := connected(t, 1<<16, verbs.QPConfig{})
	w, err := b.pd.AllocMW()
	check(t, err)
	check(t, b.qp.Bind(1, w, b.mr, b.remote(4096), 4096, verbs.RemoteWrite))
	b.ok(t, 1)
	fill(a.mem, 8)
	a.send(t, verbs.SendRequest{
		ID: 2, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: b.remote(4096), RKey: w.RKey, Count: 1, SGE: a.sge(0, 4096),
	})
	a.ok(t, 2)
	if !bytes.Equal(a.mem[:4096], b.mem[4096:8192]) {
		t.Error("the bytes differ")
	}
	b.send(t, verbs.SendRequest{ID: 3, Op: verbs.OpLocalInvalidate, Flags: verbs.Signaled, Imm: w.RKey})
	b.ok(t, 3)
	check(t, w.Close())
	a.send(t, verbs.SendRequest{
		ID: 4, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: b.remote(4096), RKey: w.RKey, Count: 1, SGE: a.sge(0, 8),
	})
	if c := a.next(t); c.Status != verbs.StatusRemoteAccess {
		t.Errorf("a write with a dead key: %v", c.Err())
	}
}

func TestErrors(t *testing.T) {
	a, b := connected(t, 1<<16, verbs.QPConfig{})
	if b.pd.SupportsDMABuf() {
		t.Error("rxe takes dma-bufs")
	}
	if _, err := b.pd.RegisterDMABuf(-1, 0, 4096, 0, verbs.LocalWrite); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("dma-buf: %v", err)
	}
	if _, err := b.pd.RegisterRange(4096, 1<<20, verbs.LocalWrite); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("memory that is not mapped: %v", err)
	}
	if err := b.pd.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing a domain in use: %v", err)
	}
	a.send(t, verbs.SendRequest{
		ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: b.remote(0), RKey: b.mr.RKey + 1, Count: 1, SGE: a.sge(0, 8),
	})
	if c := a.next(t); !errors.Is(c.Err(), &verbs.StatusError{Status: verbs.StatusRemoteAccess}) {
		t.Errorf("a write with a wrong key: %v", c.Err())
	}
	if s, err := a.qp.State(); err != nil || s != verbs.StateError {
		t.Errorf("afterwards the queue pair is in %v, %v", s, err)
	}
	a.send(t, verbs.SendRequest{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled})
	if c := a.next(t); c.Status != verbs.StatusFlushed {
		t.Errorf("a request after the failure: %v", c.Err())
	}
}

// What is outstanding comes back when a side fails its queue pair, and the other side notices.
func TestFail(t *testing.T) {
	a, b := connectedBy(t, 1<<16, verbs.QPConfig{}, verbs.ConnectOptions{Timeout: 10, Retries: 4})
	b.recv(t, verbs.RecvRequest{ID: 1}, verbs.RecvRequest{ID: 2})
	check(t, b.qp.Fail())
	for id := range uint64(2) {
		if c := b.next(t); c.Status != verbs.StatusFlushed || c.ID != id+1 {
			t.Errorf("%d: %v", c.ID, c.Err())
		}
	}
	a.send(t, verbs.SendRequest{
		ID: 3, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: b.remote(0), RKey: b.mr.RKey, Count: 1, SGE: a.sge(0, 8),
	})
	if c := a.next(t); c.Status != verbs.StatusRetries {
		t.Errorf("%v", c.Err())
	}
}

func TestEvents(t *testing.T) {
	a := newEnd(t, names[0], 4096, verbs.QPConfig{})
	link := func(state string) {
		t.Helper()
		if out, err := exec.Command("ip", "link", "set", "rxenet0", state).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	until := func(want verbs.EventType) {
		t.Helper()
		for {
			e, err := a.dev.NextEvent(ctx)
			if err != nil {
				t.Fatalf("no event %d: %v", want, err)
			}
			if e.Type == want {
				if e.Port != 1 || e.Name == "" {
					t.Errorf("%+v", e)
				}
				return
			}
		}
	}
	link("down")
	until(verbs.EventPortDown)
	link("up")
	until(verbs.EventPortActive)
	short, stop := context.WithTimeout(ctx, time.Millisecond)
	defer stop()
	for {
		if _, err := a.dev.NextEvent(short); err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			return
		}
	}
}

func TestNoAllocation(t *testing.T) {
	a, b := connected(t, 1<<16, verbs.QPConfig{})
	recvs := make([]verbs.RecvRequest, 8)
	sends := make([]verbs.SendRequest, 8)
	for i := range sends {
		sends[i] = verbs.SendRequest{
			Op: verbs.OpWriteImm, Flags: verbs.Signaled, Remote: b.remote(0), RKey: b.mr.RKey, Count: 1, SGE: a.sge(0, 8),
		}
	}
	done := make([]verbs.Completion, 16)
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := b.qp.PostRecv(recvs); err != nil {
			t.Fatal(err)
		}
		if _, err := a.qp.PostSend(sends[1:]); err != nil {
			t.Fatal(err)
		}
		_, n, err := a.qp.PostSpin(sends[:1], done, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []*verbs.CQ{a.cq, b.cq} {
			for n < len(sends) {
				k, err := q.Poll(done)
				if err != nil {
					t.Fatal(err)
				}
				n += k
			}
			n = 0
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations a round", allocs)
	}
}
