package executor

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// held is a GPU whose driver does not return for a while.
type held struct {
	quick
	inside, leave chan struct{}
}

func (h held) CuMemFree_v2(cuda.CUdeviceptr) cuda.CUresult {
	h.inside <- struct{}{}
	<-h.leave
	return 0
}

// While the executor is in the driver, the client gets signs of life if it asks for something, and nothing else; and
// the executor's own answer once it is back.
func TestSignsOfLife(t *testing.T) {
	h := held{inside: make(chan struct{}), leave: make(chan struct{})}
	c := connect(t, func(cfg *Config) { cfg.GPU, cfg.Beat = h, 5*time.Millisecond })
	c.mu.Lock()
	c.keepLog = true
	c.mu.Unlock()
	signs := func() (n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range c.log {
			if m.Type == transport.MsgAlive && m.Seq == 0 {
				n++
			}
		}
		return n
	}
	ch := c.start(0, cuda.OpCuMemFree_v2, 0, words(1), nil)
	<-h.inside
	time.Sleep(30 * time.Millisecond) // nobody asks: a sign would come within this time
	if n := signs(); n != 0 {
		t.Errorf("%d signs of life that nobody asked for", n)
	}
	ping := transport.CommandHeader{Size: 40, Op: wire.OpPing, Seq: 1, Thread: transport.CoreThread}
	c.wmu.Lock()
	c.write(frame(append(ping.Append(nil), make([]byte, 8)...)))
	c.wmu.Unlock()
	for began := time.Now(); signs() < 3; time.Sleep(time.Millisecond) {
		if time.Since(began) > deadline {
			t.Fatal("no sign of life")
		}
	}
	close(h.leave)
	c.await(ch)
	c.must(wire.OpPing, words(0))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.log {
		if m.Type == transport.MsgAlive && m.Seq == 1 {
			return
		}
	}
	t.Error("the ping was not answered")
}

// A client whose machine is gone is a time-out.
func TestGoneIsATimeOut(t *testing.T) {
	c := connect(t)
	c.session.pulse.gone.Store(true)
	c.session.Stop()
	if err := c.wait(); !errors.Is(err, unix.ETIMEDOUT) || !errors.Is(err, ErrGone) {
		t.Error(err)
	}
}
