package executor

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/handle"
	"scuda.dev/scuda/sim"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/rdma/gpudirect"
)

// exporter is a simulated GPU that exports dma-bufs and does not order a card's writes by itself.
type exporter struct {
	cuda.GPU
	fd      int
	flushed atomic.Int32
}

func (e *exporter) CuDeviceGetAttribute(v *int32, a cuda.CUdevice_attribute, dev cuda.CUdevice) cuda.CUresult {
	switch a {
	case cuda.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, cuda.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
		*v = 1
		return cuda.CUDA_SUCCESS
	}
	return e.GPU.CuDeviceGetAttribute(v, a, dev)
}

func (e *exporter) CuMemGetHandleForAddressRange(
	p unsafe.Pointer, _ cuda.CUdeviceptr, _ uint64, _ cuda.CUmemRangeHandleType, _ uint64,
) cuda.CUresult {
	fd, err := unix.FcntlInt(uintptr(e.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return cuda.CUDA_ERROR_UNKNOWN
	}
	*(*int32)(p) = int32(fd)
	return cuda.CUDA_SUCCESS
}

func (e *exporter) CuFlushGPUDirectRDMAWrites(
	cuda.CUflushGPUDirectRDMAWritesTarget, cuda.CUflushGPUDirectRDMAWritesScope,
) cuda.CUresult {
	e.flushed.Add(1)
	return cuda.CUDA_SUCCESS
}

// fakeCard takes dma-bufs, or nothing; its trials find direct ways twice as fast.
type fakeCard struct {
	refuses bool
	open    atomic.Int32
}

type fakeKey struct{ c *fakeCard }

func (k fakeKey) Close() error { k.c.open.Add(-1); return nil }

func (c *fakeCard) SupportsDMABuf() bool { return !c.refuses }
func (c *fakeCard) RegisterDMABuf(fd int, _, _ uint64) (gpudirect.Key, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return nil, err
	}
	c.open.Add(1)
	return fakeKey{c}, nil
}
func (c *fakeCard) RegisterAddress(uint64, uint64) (gpudirect.Key, error) { return nil, unix.EFAULT }
func (c *fakeCard) Trial(k gpudirect.Key) (float64, error) {
	if k == nil {
		return 20e9, nil
	}
	return 40e9, nil
}

// copyingCard is one whose trials copy to the GPU as those of a real card do.
type copyingCard struct {
	fakeCard
	gpu   gpudirect.Copier
	tried chan struct{} // closed by the first trial that is over
	once  sync.Once
}

func (c *copyingCard) Trial(k gpudirect.Key) (float64, error) {
	addr, free, err := c.gpu.Scratch(largeBytes)
	if err != nil {
		return 0, err
	}
	defer free()
	if err := c.gpu.Write(addr, make([]byte, largeBytes)); err != nil {
		return 0, err
	}
	c.once.Do(func() { close(c.tried) })
	return c.fakeCard.Trial(k)
}

// Trials between GPU and card hold up nobody: the connection that work of the GPU waits for is attached behind RDMA's,
// by the same thread. And where the driver does not hold them up itself, they do not wait for the program's work.
func TestTrialsBehindBusyStream(t *testing.T) {
	for _, tt := range []struct {
		name, hold string
		before     bool // the trials are over while the stream is still busy
	}{
		{"the driver waits only where it has to", "", true},
		{"the driver waits wherever it can", sim.HoldAll, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gpu, err := sim.Open(sim.Config{MemoryBytes: 64 << 20, Hold: tt.hold, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := gpu.Close(); err != nil {
					t.Error(err)
				}
			})
			card := &copyingCard{tried: make(chan struct{})}
			before := openCard
			openCard = func(_ string, _, _ netip.Addr, gpu gpudirect.Copier) (gpudirect.Card, func(), error) {
				card.gpu = gpu
				return card, func() {}, nil
			}
			t.Cleanup(func() { openCard = before })
			c := connect(t, func(cfg *Config) {
				cfg.GPU, cfg.RDMASlots, cfg.GPUDirect = &exporter{GPU: gpu, fd: 0}, leastRDMASlots, DirectAuto
			})
			c.hostFunc(0, 1, func() {})
			if r, _ := c.call(cuda.OpCuStreamQuery, words(0)); r != cuda.CUDA_ERROR_NOT_READY {
				t.Fatalf("the stream is not busy: %v", r)
			}
			fd, other := fdPair(t)
			defer other.Close()
			control := fileConn(t, fd)
			fd, second := fdPair(t)
			defer second.Close()
			another := fileConn(t, fd)
			if err := c.session.AttachRDMA(lineOf(t, control)); err != nil {
				t.Fatal(err)
			}
			if tt.before {
				until(t, "the trials are over", func() bool {
					select {
					case <-card.tried:
						return true
					default:
						return false
					}
				})
				if r, _ := c.call(cuda.OpCuStreamQuery, words(0)); r != cuda.CUDA_ERROR_NOT_READY {
					t.Errorf("the stream was not busy: %v", r)
				}
			}
			c.openCallback()
			c.sync(0)
			until(t, "there is a link", c.session.copies.path.there.Load)
			if err := c.session.AttachRDMA(lineOf(t, another)); err == nil {
				t.Error("a second control connection was taken")
			}
		})
	}
}

// straight is a link whose card reads and writes a simulated GPU's memory. It gives every third chunk of downloads
// back, and refuses every fifth.
type straight struct {
	s      *Session
	placed int
	mu     sync.Mutex
	got    []byte // of downloads
	freed  chan uint32
}

func (l *straight) State() bulk.State                { return bulk.Up }
func (l *straight) ChunkBytes() int                  { return largeBytes }
func (l *straight) Want(uint32, uint64, uint64) bool { return true }
func (l *straight) Forget(uint32, uint64)            {}
func (l *straight) Close()                           {}
func (l *straight) Release(slots ...uint32) {
	for _, s := range slots {
		l.freed <- s
	}
}

func (l *straight) Register([]byte) (bulk.Region, error) { return nil, nil }

func (l *straight) Send(p bulk.Piece, _ bulk.Region) error {
	l.placed++
	if l.placed%5 == 0 {
		return bulk.ErrDown
	}
	if l.placed%3 == 0 {
		go (*pathHandler)(&l.s.copies.path).Sent(p, false)
		return nil
	}
	l.mu.Lock()
	copy(l.got[p.Chunk().Offset:], gpuBytes(p.Addr(), p.N))
	l.mu.Unlock()
	(*pathHandler)(&l.s.copies.path).Sent(p, true)
	return nil
}

// fallback is a bulk connection that stores chunks where those of the link are.
type fallback struct {
	*straight
	chunks int
}

func (f *fallback) Send(p bulk.Piece, _ bulk.Region) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chunks++
	copy(f.got[p.Chunk().Offset:], p.Data())
	return nil
}

// gpuBytes is memory of the simulated GPU, which lies in this process.
func gpuBytes(addr uint64, n int) []byte {
	return hostMemory(*(*unsafe.Pointer)(unsafe.Pointer(&addr)), n)
}

// directSession is a session whose GPU and card are invented, and a context in it.
func directSession(t *testing.T, card *fakeCard, wish GPUDirect) (*Session, *exporter, *context) {
	t.Helper()
	fd, err := unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	gpu := &exporter{GPU: openSim(t), fd: fd}
	before := openCard
	openCard = func(string, netip.Addr, netip.Addr, gpudirect.Copier) (gpudirect.Card, func(), error) {
		return card, func() {}, nil
	}
	t.Cleanup(func() { openCard = before; _ = unix.Close(fd) })
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	conn, err := transport.NewConn(fds[0], "nobody")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	const base, count = 0x10_0000_0000, 1 << 10
	s, err := New(Config{Conn: conn, GPU: gpu, RDMASlots: leastRDMASlots, GPUDirect: wish,
		Hello: transport.Hello{
			ClientBase: base, ClientSlots: count, ServerBase: base + count*handle.SlotBytes, ServerSlots: count,
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Free)
	gpu.ThreadInit()
	real := alloc[cuda.CUcontext](&s.arena)
	if r := errors.Join(nonzero(gpu.CuInit(0)), nonzero(gpu.CuDevicePrimaryCtxRetain(real, 0)), s.addContext(base, *real),
		nonzero(s.enter(base))); r != nil {
		t.Fatal(r)
	}
	return s, gpu, s.contexts[base]
}

// Chunks go between card and GPU without a copy in the host's memory; those that the card cannot carry are fetched and
// go over TCP.
func TestDirectSlots(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	card := &fakeCard{}
	s, gpu, ctx := directSession(t, card, DirectAuto)
	d, err := s.copies.path.chooseDirect(netip.Addr{}, netip.Addr{}, leastRDMASlots*largeBytes)
	if err != nil {
		t.Fatal(err)
	}
	// chooseDirect left no context current on this thread.
	s.entered, s.enteredOK = nil, false
	if r := s.enter(ctx.handle); r != cuda.CUDA_SUCCESS {
		t.Fatal(r)
	}
	if d.method != gpudirect.DMABuf || d.FD < 0 || !d.flush || card.open.Load() != 0 {
		t.Errorf("%+v, %d registrations of trials are left", d, card.open.Load())
	}
	if p := d.Part(3<<20, 1<<20); p.Addr != d.Addr+3<<20 || p.Offset != 3<<20 || p.Bytes != 1<<20 || p.FD != d.FD {
		t.Errorf("a part: %+v", p)
	}
	s.copies.path.direct = d
	ups := s.copies.path.lay()
	const n = 9<<20 + 77
	link := &straight{s: s, got: make([]byte, n), freed: make(chan uint32, 64)}
	for i := range ups {
		link.freed <- uint32(i)
	}
	s.copies.path.use(link)
	tcp := &fallback{straight: link}
	s.copies.bulk.out.Fallback()
	fed := make(chan struct{})
	go func() { defer close(fed); _ = s.copies.bulk.out.Feed(tcp) }()
	s.copies.bulk.ready.Store(true)

	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7 ^ i>>11)
	}
	p := alloc[cuda.CUdeviceptr](&s.arena)
	if r := gpu.CuMemAlloc_v2(p, n); r != cuda.CUDA_SUCCESS {
		t.Fatal(r)
	}
	dst := *p
	feed := func(seq uint64) {
		for off := 0; off < n; off += largeBytes {
			slot, k := <-link.freed, min(largeBytes, n-off)
			copy(gpuBytes(uint64(s.copies.path.slots[slot].gpu), k), data[off:])
			(*pathHandler)(&s.copies.path).Arrived(bulk.Chunk{Seq: seq, Offset: uint64(off), Bytes: uint32(k)}, int(slot))
		}
	}
	upload := func(seq uint64) *incoming {
		return &incoming{
			cmd: command{
				CommandHeader: transport.CommandHeader{
					Context: ctx.handle, Flags: transport.FlagBulk | transport.FlagTransfer, Seq: seq,
				},
			}, left: n, st: &ctx.legacy, ctx: ctx, dst: dst,
		}
	}
	go feed(8)
	b := upload(8)
	if err := errors.Join(s.copies.uploads.receive(b), nonzero(b.result), nonzero(gpu.CuCtxSynchronize())); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(gpuBytes(uint64(dst), n), data) {
		t.Error("an upload arrived changed")
	}
	if f := gpu.flushed.Load(); f < n/largeBytes {
		t.Errorf("the GPU was told of %d writes", f)
	}

	// What nobody wants leaves its slots, too.
	go feed(9)
	b = upload(9)
	b.result, b.st, b.ctx = cuda.CUDA_ERROR_INVALID_HANDLE, nil, nil
	copied := gpu.flushed.Load()
	if err := s.copies.uploads.receive(b); err != nil || b.result != cuda.CUDA_ERROR_INVALID_HANDLE {
		t.Fatal(err, b.result)
	}
	for s.pending() {
		s.poll()
	}
	if len(link.freed) != ups || gpu.flushed.Load() != copied {
		t.Errorf("%d of %d slots were given back", len(link.freed), ups)
	}

	tr := &transfer{id: transport.FirstTransfer, seq: 10, beside: true, link: true}
	if r, err := s.copies.downloads.download(&ctx.legacy, tr, dst, n); errors.Join(err, nonzero(r)) != nil {
		t.Fatal(r, err)
	}
	for s.pending() {
		s.poll()
		s.copies.downloads.endings = nil
	}
	until(t, "all of the download", func() bool {
		link.mu.Lock()
		defer link.mu.Unlock()
		return bytes.Equal(link.got, data)
	})
	s.copies.bulk.fail(errCallbackClosed)
	<-fed
	if tcp.chunks < 3 {
		t.Errorf("%d chunks went over TCP", tcp.chunks)
	}
	if !bytes.Equal(link.got, data) {
		t.Error("a download arrived changed")
	}
	if i := slices.IndexFunc(s.copies.path.down, func(sl *slot) bool { return !sl.free.Load() }); i >= 0 {
		t.Errorf("slot %d was not given back", i)
	}
}

// Where no direct way is better, or none is wanted, slots lie in the host's memory, and the reason is known.
func TestDirectRefused(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, c := range []struct {
		name string
		card *fakeCard
		wish GPUDirect
		why  string
	}{
		{"switched off", &fakeCard{}, DirectNever, "switched off"},
		{"the card takes none", &fakeCard{refuses: true}, DirectAuto, "the card's driver takes none"},
		{"demanded in vain", &fakeCard{refuses: true}, DirectAlways, "the card's driver takes none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _, _ := directSession(t, c.card, c.wish)
			d, err := s.copies.path.chooseDirect(netip.Addr{}, netip.Addr{}, 1<<20)
			if d != nil || err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}
