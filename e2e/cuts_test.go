package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scuda.dev/scuda/transport/chaos"
)

// Settings of tests that break connections, before TestMain takes them away.
var (
	cutStride = setting("SCUDA_CUT_STRIDE", 401) // bytes between two cuts of TestEveryByte
	cutCount  = setting("SCUDA_CUTS", 0)         // cuts of TestResume at least
	cutLong   = os.Getenv("SCUDA_CUTS") != ""    // also what takes long
)

func setting(name string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return usual
}

// harmed runs a program through a proxy of its own, and gives its output and what happened to its connections.
func (s *server) harmed(
	ctx context.Context, cfg chaos.Config, more []string, name string, args ...string,
) (string, *chaos.Proxy, error) {
	p, err := chaos.Listen("127.0.0.1:0", s.addr, cfg)
	if err != nil {
		return "", &chaos.Proxy{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx) }()
	c := exec.CommandContext(ctx, program(name), append([]string{kernels}, args...)...)
	c.Env = append(os.Environ(), append(clientEnv(p.Address()), more...)...)
	text, err := c.Output()
	cancel()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		err = fmt.Errorf("%w\n%s", err, e.Stderr)
	}
	return string(text), p, errors.Join(err, <-done)
}

var oneBulk = []string{"SCUDA_BULK=1"}

// recorded gives what a program prints whose connections nothing happens to, and what they carry. The server has the
// program's modules from then on.
func (s *server) recorded(t *testing.T, name string, args ...string) (string, []chaos.Traffic) {
	t.Helper()
	s.run(t, name, args...)
	text, p, err := s.harmed(t.Context(), chaos.Config{}, oneBulk, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return text, p.Carried()
}

// each runs a program for each of the harms, three at a time: it prints what it does without them.
func (s *server) each(t *testing.T, want string, harms []func() chaos.Config, name string, args ...string) {
	t.Helper()
	var next, cuts atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range 3 {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(harms) && !t.Failed(); i = int(next.Add(1)) - 1 {
				got, p, err := s.harmed(t.Context(), harms[i](), oneBulk, name, args...)
				n := p.Cuts()
				cuts.Add(int64(n))
				if err != nil || got != want {
					t.Errorf("%s behind %d harms, with the %d-th of %d: %v\n%s", name, n, i, len(harms), err, got)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d harms in %d sessions, %v", cuts.Load(), len(harms), time.Since(began))
	if int(cuts.Load()) < len(harms)/2 { // some sessions are shorter than the recorded one, not many
		t.Errorf("only %d of %d sessions were harmed", cuts.Load(), len(harms))
	}
}

// to is a configuration that harms one connection, and no other.
func to(connection int, h chaos.Harm) func() chaos.Config {
	return func() chaos.Config {
		return chaos.Config{Harm: func(n int) chaos.Harm {
			if n == connection {
				return h
			}
			return chaos.Harm{}
		}}
	}
}

// cutsFrom are cuts of a connection at each stride of both its directions, from a byte to another one.
func cutsFrom(n int, c chaos.Traffic, first, last, stride int) (harms []func() chaos.Config) {
	for way, bytes := range map[chaos.Way]int{chaos.Up: c.Up, chaos.Down: c.Down} {
		for at := first; at <= min(bytes, last); at += stride {
			harms = append(harms, to(n, chaos.Harm{Kind: chaos.Cut, Way: way, Bytes: at}))
		}
	}
	return harms
}

// A session that is cut at any byte of any of its connections, in either direction, ends as one that is not. Of the
// contents of big copies not every byte is tried, but every byte of what stands before them.
func TestEveryByte(t *testing.T) {
	s := serve(t, "--grace", "30s")
	const all, handshake = 1 << 30, 1200
	contents := min(19_997*cutStride, 700_001)
	t.Run("small", func(t *testing.T) {
		want, carried := s.recorded(t, "counted", "1")
		t.Log(carried)
		var harms []func() chaos.Config
		for n, c := range carried {
			harms = append(harms, cutsFrom(n, c, 0, all, cutStride)...)
		}
		s.each(t, want, harms, "counted", "1")
	})
	t.Run("big", func(t *testing.T) {
		want, carried := s.recorded(t, "counted", "2", "big")
		t.Log(carried)
		var harms []func() chaos.Config
		for n, c := range carried {
			if n > 0 {
				harms = append(harms, cutsFrom(n, c, 0, handshake, cutStride)...)
			}
			harms = append(harms, cutsFrom(n, c, handshake, all, contents)...)
		}
		s.each(t, want, harms, "counted", "2", "big")
	})
}

// With TLS the first connection may be cut in each step of its handshake, and in the greeting behind it.
func TestEveryByteTLS(t *testing.T) {
	const handshake = 4500 // bytes, of both handshakes
	s, fingerprint := serveTLS(t, "--grace", "30s")
	t.Setenv("SCUDA_FINGERPRINT", fingerprint)
	want, carried := s.recorded(t, "counted", "1")
	t.Log(carried)
	s.each(t, want, cutsFrom(0, carried[0], 0, handshake, cutStride), "counted", "1")
}

// A client that comes back may lose the new connection as well, in each step of its handshake.
func TestCutAgain(t *testing.T) {
	const handshake = 900 // bytes, of hello and welcome
	s := serve(t, "--grace", "30s")
	want, _ := s.recorded(t, "counted", "20")
	for _, kind := range []chaos.Kind{chaos.Cut, chaos.Half} {
		t.Run(kind.String(), func(t *testing.T) {
			var harms []func() chaos.Config
			for _, way := range []chaos.Way{chaos.Up, chaos.Down} {
				for at := 0; at < handshake; at += cutStride {
					if kind == chaos.Half && way == chaos.Down {
						continue // nothing tells the client: see TestSilentPaths
					}
					harms = append(harms, func() chaos.Config {
						var lost atomic.Bool
						return chaos.Config{Harm: func(n int) chaos.Harm {
							switch {
							case n == 0:
								return chaos.Harm{Kind: chaos.Cut, Way: chaos.Up, Bytes: 9000}
							case n > 1 && !lost.Swap(true): // 1 is the callback connection
								return chaos.Harm{Kind: kind, Way: way, Bytes: at}
							}
							return chaos.Harm{}
						}}
					})
				}
			}
			s.each(t, want, harms, "counted", "20")
		})
	}
}

// Programs whose connections are cut behind any byte, again and again, end as those do that lose none.
func TestResume(t *testing.T) {
	s := serve(t)
	names := []string{"compute", "copies", "streams", "graph", "graph_nodes", "graph_captured", "captures", "ordering",
		"threads", "progress", "callbacks", "managed", "mapped", "print", "upload_seen", "ipc", "counted"}
	want := make(map[string]string)
	for _, name := range names {
		want[name] = s.prints(t, name)
	}
	var total atomic.Int64
	for round := uint64(0); round == 0 || int(total.Load()) < cutCount; round++ {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			for _, name := range names {
				t.Run(name, func(t *testing.T) {
					if name != hurried {
						beside(t)
					}
					seed := 1000*round + uint64(len(name))
					got, p, err := s.harmed(t.Context(), chaos.Config{Harm: mostlyCut(seed)}, nil, name, timesOf(name)...)
					n := p.Cuts()
					if err != nil || got != want[name] {
						t.Errorf("behind %d cuts, seed %d: %v\n%s", n, seed, err, got)
					}
					total.Add(int64(n))
				})
			}
		})
		if t.Failed() {
			break
		}
	}
	t.Logf("%d cuts", total.Load())
}

// timesOf are more arguments of a program.
func timesOf(name string) []string {
	if name == "counted" {
		return []string{"30", "big"}
	}
	return nil
}

// mostlyCut cuts connections behind 6 KB to 1 MB of either direction, or now and then leaves one end untold.
func mostlyCut(seed uint64) func(int) chaos.Harm {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(7, seed))
	return func(int) chaos.Harm {
		mu.Lock()
		defer mu.Unlock()
		h := chaos.Harm{Kind: chaos.Cut, Way: chaos.Up << random.IntN(2)}
		h.Bytes = 6000 + random.IntN(1<<(10+random.IntN(11))) // more than a welcome has
		if random.IntN(8) == 0 {
			h.Kind, h.Way = chaos.Half, chaos.Up // the client is told
		}
		return h
	}
}
