package executor

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/modcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func hashOf(b []byte) modcache.Hash { return sha256.Sum256(b) }

func TestCopiesOfAllSizes(t *testing.T) {
	c := connect(t)
	st := c.stream(1)
	for _, n := range []int{0, 1, 4, 7, 4096, 4097, maxInline, maxInline + 1, largeBytes, largeBytes + 3,
		20*largeBytes + 5} {
		for _, stream := range []uint64{0, st} {
			data := pattern(n, byte(n)+byte(stream))
			dst := c.alloc(uint64(max(n, 1)))
			c.upload(dst, data, stream, 0)
			same(t, c.download(dst, n, stream), data)
			c.must(cuda.OpCuMemFree_v2, words(dst))
		}
	}
	c.must(cuda.OpCuCtxSynchronize, nil)
}

// An upload by the synchronous form must be seen by work on any stream.
func TestSynchronousUploadIsSeenByNonBlockingStreams(t *testing.T) {
	c := connect(t)
	c.openCallback()
	st := c.stream(1)
	const n = 1 << 20
	dst := c.alloc(n)
	hold := make(chan struct{})
	c.hostFunc(0, 1, func() { <-hold }) // keeps the legacy stream busy
	c.upload(dst, pattern(n, 3), 0, flagSync)
	got := make([]byte, n)
	reply := c.startDownload(7, got, dst, st)
	c.must(wire.OpPing, words(0)) // the download has been enqueued
	close(hold)
	if m := c.await(reply); m.Result != 0 {
		t.Fatal(m.Result)
	}
	same(t, got, pattern(n, 3))
}

// A kernel may wait for uploads to mirrors of pinned memory. They come in their order, on whatever streams they are,
// and none comes behind a program's upload that is behind the kernel.
func TestUploadsToMirrors(t *testing.T) {
	const mirror = flagSync | flagAhead
	c := connect(t)
	c.openCallback()
	one, other := c.stream(1), c.stream(1)
	flags := c.alloc(4 * maxInline)
	hold := make(chan struct{})
	c.hostFunc(one, 1, func() { <-hold })
	c.upload(flags, make([]byte, 4), one, mirror)
	c.upload(flags, words(7)[:4], other, mirror)
	c.must(wire.OpPing, words(0)) // both have been enqueued
	close(hold)
	c.must(cuda.OpCuCtxSynchronize, nil)
	same(t, c.download(flags, 4, 0), words(7)[:4])

	await, offsets := c.function(c.loadModule([]byte(awaiting)), "await", ofModule)
	for i := range uint64(3) {
		params := make([]byte, offsets[1]+4)
		binary.LittleEndian.PutUint64(params, flags+8*i)
		binary.LittleEndian.PutUint32(params[offsets[1]:], uint32(i+8))
		c.launch(await, 0, 1, 1, params)
	}
	c.upload(flags+maxInline, pattern(8, 1), 0, flagSync)
	for i, stream := range []uint64{one, other, one} {
		c.upload(flags+8*uint64(i), words(uint64(i + 8))[:4], stream, mirror)
	}
	c.sync(0)
	same(t, c.download(flags+maxInline, 8, other), pattern(8, 1))
}

// awaiting has a kernel that waits until a word has a value.
const awaiting = `.version 7.0
.target sm_70
.address_size 64
.visible .entry await(.param .u64 p, .param .u32 v) {
.reg .u64 %a; .reg .u32 %x, %v; .reg .pred %q;
ld.param.u64 %a, [p]; ld.param.u32 %v, [v];
again: ld.volatile.global.u32 %x, [%a]; setp.ne.u32 %q, %x, %v; @%q bra again;
ret;
}
` + "\x00"

func TestLaunch(t *testing.T) {
	c := connect(t)
	mod := c.loadModule(kernels(t))
	f, offsets := c.function(mod, "vector_add", ofModule)
	if len(offsets) != 4 {
		t.Fatalf("parameters %v", offsets)
	}
	const n = 1000
	a, b, sum := c.alloc(4*n), c.alloc(4*n), c.alloc(4*n)
	var da, db []byte
	for i := range n {
		da = binary.LittleEndian.AppendUint32(da, math.Float32bits(float32(i)))
		db = binary.LittleEndian.AppendUint32(db, math.Float32bits(float32(3*i)))
	}
	c.upload(a, da, 0, 0)
	c.upload(b, db, 0, 0)
	params := make([]byte, offsets[3]+8)
	for i, v := range []uint64{a, b, sum} {
		binary.LittleEndian.PutUint64(params[offsets[i]:], v)
	}
	binary.LittleEndian.PutUint32(params[offsets[3]:], n)
	c.launch(f, 0, (n+255)/256, 256, params[:offsets[3]+4])
	out := c.download(sum, 4*n, 0)
	for i := range n {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])); v != float32(4*i) {
			t.Fatalf("element %d is %g", i, v)
		}
	}
}

// Parameters that are not there are 0: here the addresses, for nothing to be added at them.
func TestLaunchWithFewParameters(t *testing.T) {
	c := connect(t)
	f, _ := c.function(c.loadModule(kernels(t)), "vector_add", ofModule)
	c.launch(f, 0, 1, 1, make([]byte, 8))
	c.must(cuda.OpCuStreamSynchronize, words(0))
}

func TestLibraryAndKernels(t *testing.T) {
	c := connect(t)
	h := c.putImage(kernels(t))
	lib := c.newHandle()
	c.must(wire.OpLibraryLoad, wire.Bytes(&wire.LibraryLoad{Library: lib, Hash: h}))
	k, offsets := c.function(lib, "saxpy", ofLibrary)
	if len(offsets) == 0 {
		t.Fatal("a kernel without parameters")
	}
	f := c.newHandle()
	c.must(wire.OpGetFunction, wire.Bytes(&wire.GetFunction{Parent: k, Handle: f, Kind: ofKernel}))
	missing := wire.GetFunction{Parent: lib, Handle: c.newHandle(), NameBytes: 5, Kind: ofLibrary}
	c.expect(cuda.CUDA_ERROR_NOT_FOUND, wire.OpGetFunction, append(wire.Bytes(&missing), "nope\x00"...))
}

func TestRefusedImage(t *testing.T) {
	c := connect(t)
	h := c.putImage([]byte(".version 8.0\n.target sm_90\n.address_size 64\nnonsense\x00"))
	r, reply := c.call(wire.OpModuleLoad, wire.Bytes(&wire.ModuleLoad{Module: c.newHandle(), Hash: h}))
	if r == cuda.CUDA_SUCCESS {
		t.Fatal("loaded nonsense")
	}
	if _, _, ok := wire.View[wire.LoadInfo](reply); !ok {
		t.Error("no compiler log with the failure")
	}
	c.expect(cuda.CUDA_ERROR_NOT_FOUND, wire.OpModuleLoad, wire.Bytes(&wire.ModuleLoad{Module: c.newHandle()}))
}

func TestFirstFailureOfUnansweredCallsIsReportedOnce(t *testing.T) {
	c := connect(t)
	c.send(cuda.OpCuEventRecord, words(0xdead, 0))
	c.send(cuda.OpCuStreamWaitEvent, words(0, 0xdead, 0))
	c.must(cuda.OpCuMemAlloc_v2, words(1, 8)) // may not report it
	c.expect(cuda.CUDA_ERROR_INVALID_HANDLE, cuda.OpCuStreamSynchronize, words(0))
	c.expect(cuda.CUDA_SUCCESS, cuda.OpCuStreamSynchronize, words(0))
}

// A thread that waits does not keep others from working.
func TestWaitsDoNotBlockOtherThreads(t *testing.T) {
	c := connect(t)
	c.openCallback()
	busy, free := c.stream(1), c.stream(1)
	hold := make(chan struct{})
	c.hostFunc(busy, 1, func() { <-hold })
	event := c.event()
	c.send(cuda.OpCuEventRecord, words(event, busy))
	waits := []<-chan message{
		c.start(1, cuda.OpCuStreamSynchronize, 0, words(busy), nil),
		c.start(2, cuda.OpCuEventSynchronize, 0, words(event), nil),
		c.start(3, cuda.OpCuCtxSynchronize, 0, nil, nil),
		c.startDownload(4, make([]byte, 100), c.alloc(100), busy),
	}
	dst := c.alloc(4 << 20)
	c.upload(dst, pattern(4<<20, 1), free, 0)
	same(t, c.download(dst, 4<<20, free), pattern(4<<20, 1))
	for _, w := range waits {
		c.unanswered(w)
	}
	close(hold)
	for i, w := range waits {
		if m := c.await(w); m.Result != 0 {
			t.Errorf("wait %d: %d", i, m.Result)
		}
	}
}

// Whoever is told that something is finished finds the data of earlier downloads in place, on whatever stream they
// were.
func TestDownloadsArriveBeforeTheAnswersThatCoverThem(t *testing.T) {
	c := connect(t)
	a, b := c.stream(1), c.stream(1)
	const n = 3 << 20
	src := c.alloc(n)
	for round := range 20 {
		data := pattern(n, byte(round))
		c.upload(src, data, a, 0)
		got := make([]byte, n)
		event := c.event()
		c.asyncDownload(1<<16+uint32(round), got, src, a, flagDone)
		c.send(cuda.OpCuEventRecord, words(event, a))
		c.send(cuda.OpCuStreamWaitEvent, words(b, event, 0))
		c.sync(b)
		c.mu.Lock()
		same(t, got, data)
		c.mu.Unlock()
		until(t, "DONE", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			r, ok := c.done[1<<16+uint32(round)]
			return ok && r == 0
		})
	}
}

func TestDeferredUploadTakesWhatStandsThereWhenItsTurnComes(t *testing.T) {
	c := connect(t)
	c.openCallback()
	st := c.stream(1)
	const n = pullMost + 100
	source := pattern(n, 1)
	c.sources[5] = source
	dst := c.alloc(n)
	c.hostFunc(st, 1, func() {
		c.mu.Lock()
		copy(source, pattern(n, 2))
		c.mu.Unlock()
	})
	c.send(wire.OpCopyH2DPull, wire.Bytes(&wire.CopyH2DPull{Dst: dst, Bytes: n, Stream: st, Source: 5}))
	same(t, c.download(dst, n, st), pattern(n, 2))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped[5] != 1 {
		t.Errorf("the source was released %d times, want once", c.dropped[5])
	}
}

func TestEventThatIsRecordedAnewOrDestroyedWhileSomebodyWaits(t *testing.T) {
	c := connect(t)
	c.openCallback()
	for name, change := range map[string]func(event, other uint64){
		"recorded":  func(event, other uint64) { c.send(cuda.OpCuEventRecord, words(event, other)) },
		"destroyed": func(event, other uint64) { c.send(cuda.OpCuEventDestroy_v2, words(event)) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := c.stream(1), c.stream(1)
			holdA, holdB := make(chan struct{}), make(chan struct{})
			event := c.event()
			c.hostFunc(a, 1, func() { <-holdA })
			c.send(cuda.OpCuEventRecord, words(event, a))
			wait := c.start(1, cuda.OpCuEventSynchronize, 0, words(event), nil)
			change(event, b)
			c.unanswered(wait)
			close(holdA)
			if m := c.await(wait); m.Result != 0 {
				t.Fatal(m.Result)
			}
			c.hostFunc(b, 2, func() { <-holdB })
			close(holdB)
			c.sync(b)
		})
	}
}

func TestPerThreadStreams(t *testing.T) {
	c := connect(t)
	c.openCallback()
	hold := make(chan struct{})
	c.wmu.Lock()
	c.hostFns[1] = func() { <-hold }
	p := wire.HostFunc{Stream: 2, Registration: 1}
	c.write(frame(c.command(9, wire.OpHostFunc, 0, wire.Bytes(&p))))
	c.wmu.Unlock()
	mine := c.start(9, cuda.OpCuStreamSynchronize, 0, words(2), nil)
	if m := c.await(c.start(8, cuda.OpCuStreamSynchronize, 0, words(2), nil)); m.Result != 0 {
		t.Fatal("another thread's stream: ", m.Result)
	}
	select {
	case <-mine:
		t.Fatal("did not wait for its own stream")
	default:
	}
	close(hold)
	if m := c.await(mine); m.Result != 0 {
		t.Fatal(m.Result)
	}
	c.await(c.start(9, wire.OpThreadExit, 0, words(0), nil))
	c.conn.Close()
	if err := c.wait(); !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
	if n := len(c.session.contexts[c.context].perThread); n != 1 {
		t.Errorf("%d per-thread streams left, want thread 8's", n)
	}
}

func TestCaptureAndReplay(t *testing.T) {
	c := connect(t)
	c.openCallback()
	st := c.stream(1)
	const n = 2*largeBytes + 10
	source := pattern(n, 1)
	c.sources[3] = source
	ran := 0
	c.hostFns[4] = func() { ran++ }
	buf := c.alloc(n)
	got := make([]byte, n)

	c.must(cuda.OpCuStreamBeginCapture_v2, words(st, 0))
	c.send(wire.OpCopyH2DPull, wire.Bytes(&wire.CopyH2DPull{Dst: buf, Bytes: n, Stream: st, Source: 3}))
	c.send(wire.OpHostFunc, wire.Bytes(&wire.HostFunc{Stream: st, Registration: 4}))
	c.asyncDownload(1<<16, got, buf, st, 0)
	c.expect(cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuda.OpCuStreamSynchronize, words(st))
	_, _ = c.call(cuda.OpCuStreamEndCapture, words(st, 1)) // invalidated by the synchronisation

	c.must(cuda.OpCuStreamBeginCapture_v2, words(st, 0))
	if m := c.await(c.start(6, cuda.OpCuStreamEndCapture, 0, words(st, 1), nil)); m.Result != int32(
		cuda.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {
		t.Fatalf("another thread ends the capture: %d", m.Result)
	}
	c.expect(cuda.CUDA_ERROR_ILLEGAL_STATE, cuda.OpCuStreamEndCapture, words(st, 1)) // which it did

	c.must(cuda.OpCuStreamBeginCapture_v2, words(st, 0))
	c.send(wire.OpCopyH2DPull, wire.Bytes(&wire.CopyH2DPull{Dst: buf, Bytes: n, Stream: st, Source: 3}))
	c.send(wire.OpHostFunc, wire.Bytes(&wire.HostFunc{Stream: st, Registration: 4}))
	c.asyncDownload(1<<16, got, buf, st, 0)
	info, _, _ := wire.View[wire.CaptureValues](
		c.must(wire.OpCaptureInfo, wire.Bytes(&wire.CaptureInfo{Stream: st, MaxNodes: 8})))
	if info.Status != int32(cuda.CU_STREAM_CAPTURE_STATUS_ACTIVE) || info.Graph == 0 {
		t.Fatalf("capture info %+v", info)
	}
	graph := word(c.must(cuda.OpCuStreamEndCapture, words(st, 1)), 1)
	exec := c.newHandle()
	c.must(cuda.OpCuGraphInstantiateWithFlags, words(exec, graph, 0))
	for round := range 3 {
		c.mu.Lock()
		copy(source, pattern(n, byte(10+round)))
		c.mu.Unlock()
		c.send(cuda.OpCuGraphLaunch, words(exec, st))
		c.sync(st)
		c.mu.Lock()
		same(t, got, pattern(n, byte(10+round)))
		c.mu.Unlock()
	}
	if ran != 3 {
		t.Errorf("the host function ran %d times, want 3", ran)
	}
}

func TestCaptureModesOfThreads(t *testing.T) {
	c := connect(t)
	st := c.stream(1)
	c.must(cuda.OpCuStreamBeginCapture_v2, words(st, uint64(cuda.CU_STREAM_CAPTURE_MODE_GLOBAL)))
	// Prohibited for this thread and every other one in global mode, allowed for one in relaxed mode.
	if m := c.await(c.start(5, wire.OpCaptureMode, 0, wire.Bytes(&wire.CaptureMode{Mode: 2}), nil)); m.Result != 0 {
		t.Fatal(m.Result)
	}
	if m := c.await(c.start(5, cuda.OpCuMemAlloc_v2, 0, words(1, 64), nil)); m.Result != 0 {
		t.Errorf("thread in relaxed mode: %d", m.Result)
	}
	for _, thread := range []uint32{0, 4} {
		if m := c.await(c.start(thread, cuda.OpCuMemAlloc_v2, 0, words(1, 64), nil)); m.Result != int32(
			cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
			t.Errorf("thread %d: %d, want 900", thread, m.Result)
		}
	}
	_, _ = c.call(cuda.OpCuStreamEndCapture, words(st, 1))
	c.alloc(64)
}

func TestPrimaryContextEndsAndComesBack(t *testing.T) {
	c := connect(t)
	st := c.stream(0)
	c.upload(c.alloc(2<<20), pattern(2<<20, 1), st, 0)
	context := c.context
	c.context = 0
	c.must(wire.OpPrimary, wire.Bytes(&wire.Primary{Context: context, Verb: primaryRelease}))
	c.context = context
	c.expect(cuda.CUDA_ERROR_INVALID_CONTEXT, cuda.OpCuMemAlloc_v2, words(1, 8))
	c.context = 0
	c.must(wire.OpPrimary, wire.Bytes(&wire.Primary{Context: context}))
	c.context = context
	c.expect(cuda.CUDA_ERROR_INVALID_HANDLE, cuda.OpCuStreamSynchronize, words(st))
	dst := c.alloc(200 << 20) // the memory from before is free again
	c.upload(dst, pattern(2<<20, 4), 0, 0)
	same(t, c.download(dst, 2<<20, 0), pattern(2<<20, 4))
}

func TestContextsOfTheirOwn(t *testing.T) {
	c := connect(t)
	first := c.context
	second := c.newHandle()
	c.must(cuda.OpCuCtxCreate_v2, words(second, 0, 0))
	c.context = second
	dst := c.alloc(1000)
	c.upload(dst, pattern(1000, 9), 0, 0)
	same(t, c.download(dst, 1000, 0), pattern(1000, 9))
	c.must(cuda.OpCuCtxDestroy_v2, words(second))
	c.expect(cuda.CUDA_ERROR_INVALID_CONTEXT, cuda.OpCuMemAlloc_v2, words(1, 8))
	c.context = first
	c.alloc(10)
	c.expect(cuda.CUDA_ERROR_INVALID_CONTEXT, cuda.OpCuCtxDestroy_v2, words(first))
}

func TestPointerAttributes(t *testing.T) {
	c := connect(t)
	p := c.alloc(4096)
	req := append(wire.Bytes(&wire.PointerAttributes{Pointer: p + 8, Count: 3}), make([]byte, 16)...)
	for i, a := range []cuda.CUpointer_attribute{cuda.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		cuda.CU_POINTER_ATTRIBUTE_CONTEXT, cuda.CU_POINTER_ATTRIBUTE_P2P_TOKENS} {
		binary.LittleEndian.PutUint32(req[16+4*i:], uint32(a))
	}
	reply := c.must(wire.OpPointerAttributes, req)[8:]
	if got := binary.LittleEndian.Uint64(reply[8:]); got != p {
		t.Errorf("range starts at %#x, want %#x", got, p)
	}
	if got := binary.LittleEndian.Uint64(reply[72+8:]); got != c.context {
		t.Errorf("context %#x, want %#x", got, c.context)
	}
	if got := int32(binary.LittleEndian.Uint32(reply[144:])); got != int32(cuda.CUDA_ERROR_NOT_SUPPORTED) {
		t.Errorf("tokens: %d, want 801", got)
	}
}

func TestFaultIsStickyForItsSessionOnly(t *testing.T) {
	a, b := connect(t), connect(t)
	f, offsets := a.function(a.loadModule(kernels(t)), "fault", ofModule)
	a.launch(f, 0, 1, 1, make([]byte, 8*len(offsets)))
	a.expect(cuda.CUDA_ERROR_ILLEGAL_ADDRESS, cuda.OpCuCtxSynchronize, nil)
	a.expect(cuda.CUDA_ERROR_ILLEGAL_ADDRESS, cuda.OpCuMemAlloc_v2, words(1, 8))
	b.upload(b.alloc(100), pattern(100, 1), 0, 0)
	b.must(cuda.OpCuCtxSynchronize, nil)
}

func TestManyThreads(t *testing.T) {
	c := connect(t)
	var wg sync.WaitGroup
	var bufs [16]uint64
	for i := range bufs {
		bufs[i] = c.alloc(1 << 16)
		c.upload(bufs[i], pattern(1<<16, byte(i)), 0, 0)
	}
	for i := range bufs {
		wg.Go(func() {
			for range 50 {
				got := make([]byte, 1<<16)
				if m := c.await(c.startDownload(uint32(i+1), got, bufs[i], 0)); m.Result != 0 {
					t.Error(m.Result)
				}
				c.mu.Lock()
				if string(got) != string(pattern(1<<16, byte(i))) {
					t.Errorf("thread %d got other bytes", i)
				}
				c.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestClientDies(t *testing.T) {
	c := connect(t)
	c.openCallback()
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	c.hostFunc(0, 1, func() { <-never })
	c.asyncDownload(1<<16, make([]byte, 64<<20), c.alloc(64<<20), 0, flagDone) // waits for slots
	until(t, "the download is under way", func() bool { return c.session.Calls() >= 4 })
	c.conn.Close()
	if err := c.wait(); !gone(err) {
		t.Fatal(err)
	}
}

// Copies that wait for a busy stream take more staging memory instead of holding up everything behind them.
func TestCopiesOnABusyStreamDoNotBlockOthers(t *testing.T) {
	c := connect(t)
	c.openCallback()
	busy := c.stream(1)
	const n = 20 * largeBytes
	src, dst := c.alloc(n), c.alloc(n)
	data := pattern(n, 8)
	hold := make(chan struct{})
	c.hostFunc(busy, 1, func() { <-hold })
	c.upload(src, data, busy, 0)
	got := make([]byte, n)
	c.asyncDownload(1<<16, got, src, busy, flagDone)
	c.must(wire.OpPing, words(0))
	c.upload(dst, data, 0, 0)
	same(t, c.download(dst, n, 0), data)
	close(hold)
	c.sync(busy)
	c.mu.Lock()
	same(t, got, data)
	c.mu.Unlock()
}

// A program that does not want the graph of its capture gets an empty answer.
func TestEndOfCaptureWithoutGraph(t *testing.T) {
	c := connect(t)
	st := c.stream(1)
	c.must(cuda.OpCuStreamBeginCapture_v2, words(st, uint64(cuda.CU_STREAM_CAPTURE_MODE_RELAXED)))
	if reply := c.must(cuda.OpCuStreamEndCapture, words(st, 0)); len(reply) != 8 || word(reply, 0) != 0 {
		t.Errorf("answered %x", reply)
	}
	c.must(cuda.OpCuStreamSynchronize, words(st))
}

// The executor's thread asks for short turns where the kernel has such, and keeps the rest of how it is scheduled.
func TestShortTurns(t *testing.T) {
	runtime.LockOSThread() // for ever: the thread ends with the test
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	takeShortTurns()
	after, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := *before
	if before.Runtime != 0 { // else the kernel is older than Linux 6.12
		want.Runtime = uint64(shortTurn)
	}
	if *after != want {
		t.Errorf("%+v became %+v, want %+v", *before, *after, want)
	}
}
