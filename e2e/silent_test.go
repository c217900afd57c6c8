package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/transport/chaos"
)

// silent is how long it takes at most on a quiet machine until a silent connection is left (transport.SilentBeats).
const silent = 15 * time.Second

// A connection of which one end alone is told that it has ended, whose bytes vanish, or are held up, in one direction
// or both, is left, and the program goes on over another one. What was held up comes to nobody then. The cases wait at
// the same time, ten of them.
func TestSilentPaths(t *testing.T) {
	t.Parallel() // it mostly waits
	s := serve(t)
	want, _ := s.recorded(t, "counted", "100", "big")
	harms := map[string]chaos.Harm{
		"the client is told":  {Kind: chaos.Half, Way: chaos.Up},
		"the server is told":  {Kind: chaos.Half, Way: chaos.Down},
		"nothing comes there": {Kind: chaos.Swallow, Way: chaos.Up},
		"nothing comes back":  {Kind: chaos.Swallow, Way: chaos.Down},
		"nothing comes":       {Kind: chaos.Swallow, Way: chaos.Both},
	}
	stalls := []time.Duration{time.Second}
	if cutLong {
		stalls = []time.Duration{time.Second, 5 * time.Second, silent - time.Second, 20 * time.Second, 50 * time.Second}
	}
	for _, way := range []chaos.Way{chaos.Up, chaos.Down, chaos.Both} {
		for _, d := range stalls {
			harms[fmt.Sprintf("%v %v", d, way)] = chaos.Harm{Kind: chaos.Stall, Way: way, For: d}
		}
	}
	var all sync.WaitGroup
	turns := make(chan struct{}, 10) // as many at a time
	for name, h := range harms {
		for connection, bytes := range []int{30_000, 2500, 1_000_000} { // main, callback, bulk
			if connection > 0 && !cutLong && name != "nothing comes" {
				continue
			}
			all.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				h := h
				h.Bytes = bytes
				got, p, err := s.harmed(t.Context(), to(connection, h)(), oneBulk, "counted", "100", "big")
				// on a busy machine the bulk connection may come late, and have little to carry
				if err != nil || got != want || p.Cuts() != 1 && connection != 2 {
					t.Errorf("%s, connection %d: %d harms: %v\n%s", name, connection, p.Cuts(), err, got)
				}
			})
		}
	}
	all.Wait()
}

// halfway is a program that has done half of its work, behind a proxy; the rest it does when its input ends.
func (s *server) halfway(t *testing.T) (*process, *chaos.Proxy) {
	t.Helper()
	p := s.through(t, chaos.Config{})
	c := start(t, clientEnv(p.Address()), program("counted"), kernels, "60", "half")
	c.await(c.out, "^half$")
	return c, p
}

// ends waits for such a program's end, which is to be as if nothing had been.
func (c *process) ends() {
	c.t.Helper()
	if code := c.wait(patience); code != 0 || !strings.Contains(c.out.String(), "60 rounds") {
		c.t.Errorf("exit status %d\n%s%s", code, c.out, c.err)
	}
}

// long lets time pass where there is much of it: longer than any silence that is borne of who is not stopped.
func long(t *testing.T) {
	t.Helper()
	if !cutLong {
		return
	}
	select {
	case <-time.After(2 * silent):
	case <-t.Context().Done():
	}
}

// A program that is stopped may lose its connections meanwhile. It goes on if it is continued within the grace, however
// long it was silent; later the session is gone, and it learns that from its next call.
func TestStoppedProgram(t *testing.T) {
	s := serve(t)
	c, p := s.halfway(t)
	c.signal(syscall.SIGSTOP)
	p.Break(chaos.Half, chaos.Up) // if the server saw all of them closed it would take the program for killed
	c.stdin.Close()
	long(t)
	c.signal(syscall.SIGCONT)
	c.ends()

	s = serve(t, "--grace", "1s")
	c, p = s.halfway(t)
	c.signal(syscall.SIGSTOP)
	p.Cut()
	c.stdin.Close()
	eventually(t, patience, "the session is over", func() bool { return s.closed() == 1 })
	c.signal(syscall.SIGCONT)
	if code := c.wait(patience); code != 1 || !strings.Contains(c.err.String(), "got 46") {
		t.Errorf("exit status %d\n%s%s", code, c.out, c.err)
	}
	// by what the server saw of it first: closed connections, or a time that is over
	c.await(c.err, "does not have the session any more|the client has not come back within 1s")
}

// Nothing comes through in either direction, on the connections that there are nor on those that are made meanwhile,
// for longer than a silent connection is borne. Then all of it comes, late.
func TestBlackHole(t *testing.T) {
	t.Parallel() // it mostly waits
	s := serve(t)
	c, p := s.halfway(t)
	p.Hold(chaos.Both)
	c.stdin.Close()
	c.await(c.err, "is lost; trying again")
	long(t)
	p.Hold(0)
	c.ends()
}

// A worker is stopped for longer than its client bears. What has come to it meanwhile does no harm when it goes on.
func TestStoppedWorker(t *testing.T) {
	t.Parallel() // it mostly waits
	s := serve(t)
	c, _ := s.halfway(t)
	workers := s.workers(t)
	for _, pid := range workers {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	c.stdin.Close()
	c.await(c.err, "is lost; trying again")
	long(t)
	for _, pid := range workers {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	c.ends()
}

// peak is the most memory that a process has had, in bytes.
func peak(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			n, _ := strconv.Atoi(f[1])
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// What is kept for connections that may be lost does not grow with their cuts: at its most a session's client and
// worker need no more memory than in a session without, but for the windows of its three connections.
func TestCutsMemory(t *testing.T) {
	const window = 12 << 20 // of each connection, at each end: what is kept, and what is read ahead
	rounds := "60"
	if cutLong {
		rounds = "1000"
	}
	measure := func(cfg chaos.Config) (client, worker, cuts int) {
		s := serve(t, "--warm", "1")
		p := s.through(t, cfg)
		c := start(t, clientEnv(p.Address(), oneBulk...), program("counted"), kernels, rounds,
			"big", "stay")
		c.await(c.out, "^"+rounds+" rounds")
		for _, pid := range s.workers(t) {
			worker = max(worker, peak(t, pid))
		}
		client, cuts = peak(t, c.cmd.Process.Pid), p.Cuts()
		c.stdin.Close()
		if code := c.wait(patience); code != 0 {
			t.Errorf("exit status %d\n%s%s", code, c.out, c.err)
		}
		return client, worker, cuts
	}
	client, worker, _ := measure(chaos.Config{})
	c, w, cuts := measure(chaos.Config{Harm: mostlyCut(1)})
	t.Logf("without cuts: client %d MiB, worker %d MiB; with %d: %d and %d", client>>20, worker>>20, cuts, c>>20, w>>20)
	if cuts == 0 || c > client+3*window || w > worker+3*window {
		t.Errorf("%d cuts cost a client %d KiB, its worker %d KiB", cuts, (c-client)>>10, (w-worker)>>10)
	}
}
