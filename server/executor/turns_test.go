package executor

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/turn"
	"scuda.dev/scuda/transport"
)

// slow is a GPU that completes nothing until it is told to.
type slow struct {
	quick
	launched *atomic.Int64
	through  *atomic.Bool
}

func newSlow() slow { return slow{launched: new(atomic.Int64), through: new(atomic.Bool)} }

func (s slow) CuLaunchKernel(
	_ cuda.CUfunction, _, _, _, _, _, _, _ uint32, _ cuda.CUstream, _, _ unsafe.Pointer,
) cuda.CUresult {
	s.launched.Add(1)
	return 0
}

func (s slow) CuEventQuery(cuda.CUevent) cuda.CUresult {
	if s.through.Load() {
		return 0
	}
	return cuda.CUDA_ERROR_NOT_READY
}

func (s slow) CuStreamQuery(cuda.CUstream) cuda.CUresult { return s.CuEventQuery(0) }

// A session whose turn it is not keeps work back, and goes on with all else: what was under way comes down, and the
// client hears that the session lives.
func TestTurnIsAwaited(t *testing.T) {
	slot := new(turn.Slot)
	c := connect(t, func(cfg *Config) { cfg.Turn, cfg.Beat = slot, 5*time.Millisecond })
	d := c.alloc(64)
	c.upload(d, bytes.Repeat([]byte{1}, 64), 0, 0)
	c.sync(0)
	until(t, "it says what it handed over", func() bool { return slot.Read().Handed != 0 }) // when it has nothing to do
	if seen := slot.Read(); seen.Doing != 0 || seen.GPUs != 1 {
		t.Errorf("while nobody asks it says %+v", seen)
	}
	slot.Tell(turn.Report | turn.Wait)
	c.must(wire.OpPing, words(0))
	c.must(cuda.OpCuCtxSynchronize, nil)
	if doing := slot.Read().Doing; doing != 0 {
		t.Errorf("it has nothing to do, and says %b", doing)
	}
	c.mu.Lock()
	c.keepLog = true
	c.mu.Unlock()
	c.upload(d, bytes.Repeat([]byte{2}, 64), 0, 0)
	dst := make([]byte, 64)
	ch := c.startDownload(0, dst, d, 0)
	until(t, "it wants to go on", func() bool { return slot.Read().Doing&turn.Wants != 0 })
	ping := transport.CommandHeader{Size: 40, Op: wire.OpPing, Seq: 1, Thread: transport.CoreThread}
	c.wmu.Lock()
	c.write(frame(append(ping.Append(nil), make([]byte, 8)...)))
	c.wmu.Unlock()
	until(t, "it lives", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.log) > 0 && c.log[0].Type == transport.MsgAlive
	})
	if answered(ch) {
		t.Error("it did not wait")
	}
	slot.Tell(turn.Report)
	if c.await(ch); dst[0] != 2 {
		t.Errorf("the upload before brought %d", dst[0])
	}
	until(t, "it is idle", func() bool { return slot.Read().Doing == 0 })
	slot.Tell(0)
	if got := c.download(d, 64, 0); got[63] != 2 {
		t.Errorf("afterwards: %d", got[63])
	}
}

// A session ends while it waits for its turn.
func TestTurnOfASessionThatEnds(t *testing.T) {
	slot := new(turn.Slot)
	c := connect(t, func(cfg *Config) { cfg.Turn = slot })
	d := c.alloc(64)
	slot.Tell(turn.Report | turn.Wait)
	c.upload(d, make([]byte, 64), 0, 0)
	until(t, "it wants to go on", func() bool { return slot.Read().Doing&turn.Wants != 0 })
	c.session.Stop()
	if err := c.wait(); err == nil {
		t.Error("it ended in order")
	}
}

// What is captured hands nothing to the GPU.
func TestTurnOfACapture(t *testing.T) {
	slot := new(turn.Slot)
	c := connect(t, func(cfg *Config) { cfg.Turn = slot })
	d, st := c.alloc(64), c.stream(0)
	slot.Tell(turn.Report | turn.Wait)
	c.must(cuda.OpCuStreamBeginCapture_v2, words(st, uint64(cuda.CU_STREAM_CAPTURE_MODE_RELAXED)))
	c.must(cuda.OpCuMemsetD8Async, words(d, 1, 64, st))
}

// Where others may get the turn, the GPU has little work at a time, and the supervisor knows that it has some.
func TestTurnIsPaced(t *testing.T) {
	const launches = 100
	slot, g := new(turn.Slot), newSlow()
	c := connect(t, func(cfg *Config) { cfg.Turn, cfg.GPU = slot, g })
	all := quickLaunches(c, launches, func(int) uint32 { return 1 })
	slot.Tell(turn.Report | turn.Pace)
	c.write(c.again(all...))
	ch := c.start(0, wire.OpPing, 0, words(0), nil)
	until(t, "as much as it may have", func() bool { return g.launched.Load() >= 24 })
	for range 100 {
		time.Sleep(10 * time.Microsecond) // more would come now
	}
	if n := g.launched.Load(); n >= launches/2 || answered(ch) { // with those that pacePatience lets through
		t.Errorf("the GPU has %d launches", n)
	}
	if doing := slot.Read().Doing; doing != turn.Busy {
		t.Errorf("it says %b", doing)
	}
	slot.Tell(turn.Report | turn.Pace | turn.Wait)
	until(t, "its turn is over", func() bool { return slot.Read().Doing == turn.Busy|turn.Wants })
	slot.Tell(0) // the rest, though the GPU has completed nothing
	c.await(ch)
	if n := g.launched.Load(); n != launches {
		t.Errorf("%d launches of %d", n, launches)
	}
	until(t, "nobody asks what it does", func() bool { return slot.Read().Doing == 0 })
	g.through.Store(true)
}

// Beside a higher class the GPU runs dry before it gets more.
func TestBesideAHigherClassTheGPURunsDry(t *testing.T) {
	const launches = 100
	slot, g := new(turn.Slot), newSlow()
	c := connect(t, func(cfg *Config) { cfg.Turn, cfg.GPU = slot, g })
	all := quickLaunches(c, launches, func(int) uint32 { return 1 })
	slot.Tell(turn.Report | turn.Pace | turn.Brief)
	c.write(c.again(all...))
	ch := c.start(0, wire.OpPing, 0, words(0), nil)
	until(t, "as much as it may have", func() bool { return g.launched.Load() >= 8 })
	for range 100 {
		time.Sleep(10 * time.Microsecond) // more would come now
	}
	if n := g.launched.Load(); n >= 24 || answered(ch) { // with those that pacePatience lets through
		t.Errorf("the GPU has %d launches", n)
	}
	g.through.Store(true)
	c.await(ch)
	if n := g.launched.Load(); n != launches {
		t.Errorf("%d launches of %d", n, launches)
	}
}

// What the GPU has may wait for what is kept back.
func TestPaceIsNotForEver(t *testing.T) {
	for _, word := range []turn.Word{turn.Report | turn.Pace, turn.Report | turn.Pace | turn.Brief} {
		slot, g := new(turn.Slot), newSlow()
		c := connect(t, func(cfg *Config) { cfg.Turn, cfg.GPU = slot, g })
		all := quickLaunches(c, 27, func(int) uint32 { return 1 })
		slot.Tell(word)
		c.write(c.again(all...))
		until(t, "all has been handed over", func() bool { return g.launched.Load() == 27 })
		g.through.Store(true)
	}
}

// The number of launches between two marks follows the time that they take.
func TestPaceFollowsTheTime(t *testing.T) {
	var p turns
	for _, step := range []struct {
		took  time.Duration
		every int
		long  bool
	}{
		{time.Millisecond, 4, false}, {time.Millisecond, 2, false}, {time.Millisecond, 1, false},
		{time.Millisecond, 1, true}, {workAtATime, 1, false}, {0, 2, false}, {workAtATime / 3, 4, false},
	} {
		if p.every == 0 {
			p.every = 8
		}
		if p.learn(step.took); p.every != step.every || p.long != step.long {
			t.Errorf("after %v: %d, long %v; want %+v", step.took, p.every, p.long, step)
		}
	}
	p.brief = true // what was brief enough is not any more
	for _, every := range []int{2, 1, 1} {
		if p.learn(workAtATime); p.every != every {
			t.Errorf("beside a higher class: %d", p.every)
		}
	}
	if !p.long {
		t.Error("beside a higher class, a quarter of a millisecond is not long")
	}
	for range 20 {
		p.learn(0)
	}
	if p.every != mostBetween {
		t.Errorf("%d between two marks", p.every)
	}
}
