package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scuda.dev/scuda/api/wire"
)

// readable is the simulation as libraries, where the users of workers can read it: a clone may lie in a folder of its
// owner alone.
func readable(t *testing.T) string {
	t.Helper()
	from, to := standAlone(t), filepath.Join(programs, "simulation")
	if _, err := os.Stat(to); err == nil {
		return to
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// collectiveServer is a server with the simulated driver as a library, as a real one is, and the simulation's NCCL.
func collectiveServer(t *testing.T, args ...string) *server {
	t.Helper()
	return collectiveServerOf(t, "1", args...)
}

// collectiveServerOf is one with so many GPUs.
func collectiveServerOf(t *testing.T, gpus string, args ...string) *server {
	t.Helper()
	folder := readable(t)
	all := append([]string{"-l", "127.0.0.1:0", "--gpu", "real", "--cache-dir", "none", "--nccl",
		filepath.Join(folder, "libnccl.so.2")}, args...)
	// The worker has two Go runtimes here, its own and the simulated driver's. The one's signal for preemption ends the
	// process when it comes to a thread of the other that is about to end (there was one such end in some 100 runs).
	env := []string{"LD_LIBRARY_PATH=" + folder, "SCUDA_SIM=" + gpus + ",memory=256MiB", "GODEBUG=asyncpreemptoff=1"}
	s := &server{process: start(t, env, scuda, all...)}
	s.addr = s.await(s.out, `^listening on (\S+)$`)[1]
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.err)
		}
	})
	return s
}

// trusted are the options of a server that carries NCCL out.
var trusted = []string{"--fabric", "trusted", "--profiles", "nccl"}

// ranks runs a program of several ranks, each in its environment, and gives them when all have ended well.
func ranks(t *testing.T, what string, env ...[]string) []*process {
	t.Helper()
	return ranksOf(t, "collectives", what, env...)
}

func ranksOf(t *testing.T, name, what string, env ...[]string) []*process {
	t.Helper()
	list := make([]*process, len(env))
	for i := range env {
		list[i] = start(t, env[i], program(name), kernels, what, fmt.Sprint(i), fmt.Sprint(len(env)))
	}
	id := list[0].await(list[0].out, `^[0-9a-f]{256}$`)[0]
	for _, p := range list[1:] {
		fmt.Fprintln(p.stdin, id)
	}
	for i, p := range list {
		if code := p.wait(patience); code != 0 {
			t.Fatalf("%s: rank %d: exit status %d\n%s%s", what, i, code, p.out, p.err)
		}
		p.stdin.Close()
	}
	return list
}

// preloaded is what a program has in its environment that has scuda by LD_PRELOAD alone.
func preloaded(s *server) []string {
	return preloadedFor(s.addr)
}

// preloadedFor is the same for one server or a list of them.
func preloadedFor(list string) []string {
	return clientEnv(list, "LD_PRELOAD="+lib+"/libscuda.so")
}

// Collectives of two to four ranks, on one server and between two, are what they are to be.
func TestCollectives(t *testing.T) {
	a, b := collectiveServer(t, trusted...), collectiveServer(t, trusted...)
	for name, servers := range map[string][]*server{
		"two on one server": {a, a}, "two on two": {a, b}, "four on two": {b, a, a, b}, "one": {b},
	} {
		t.Run(name, func(t *testing.T) {
			var env [][]string
			for _, s := range servers {
				env = append(env, preloaded(s))
			}
			for _, p := range ranks(t, "scuda", env...) {
				for _, refused := range []string{"ncclCommWindowRegister", "ncclGroupSimulateEnd"} {
					if n := strings.Count(p.err.String(), refused+" is not supported by scuda's NCCL"); n != 1 {
						t.Errorf("%s: said %d times\n%s", refused, n, p.err)
					}
				}
			}
		})
	}
}

// Communicators that are parts of others, reductions of the program's own, configurations, and registered buffers.
func TestCommunicators(t *testing.T) {
	a, b := collectiveServer(t, trusted...), collectiveServer(t, trusted...)
	for name, servers := range map[string][]*server{"two on two": {a, b}, "four on two": {a, b, b, a}} {
		t.Run(name, func(t *testing.T) {
			var env [][]string
			for _, s := range servers {
				env = append(env, preloaded(s))
			}
			ranksOf(t, "communicators", "all", env...)
		})
	}
}

// A program's variables reach the NCCL of the servers: one that it does not know fails there. Those that may not are
// named, and what the operator set goes before.
func TestCollectiveSettings(t *testing.T) {
	t.Setenv("NCCL_MIN_NCHANNELS", "4")
	s := collectiveServer(t, trusted...)
	env := append(preloaded(s), "NCCL_ALGO=Ring", "NCCL_PROTO=/tmp/x", "NCCL_MIN_NCHANNELS=64")
	for _, p := range ranks(t, "all", env, env) {
		if said := p.err.String(); !strings.Contains(said, "does not take what these variables say: NCCL_PROTO (") {
			t.Errorf("the client does not name it:\n%s", said)
		}
	}
	p := start(t, append(preloaded(s), "NCCL_ALGO=Star"), program("collectives"), kernels, "all", "0", "1")
	if code := p.wait(patience); code == 0 || !strings.Contains(p.err.String(), "NCCL_ALGO or NCCL_MIN_NCHANNELS") {
		t.Errorf("the server's NCCL takes an algorithm that it does not know: exit status %d\n%s", code, p.err)
	}
}

// Ranks of a launcher have a server each by scuda run --spread, without a script of the user's.
func TestRanksAreSpread(t *testing.T) {
	a, b := collectiveServer(t, trusted...), collectiveServer(t, trusted...)
	list := make([]*process, 2)
	for i := range list {
		env := []string{fmt.Sprintf("RANK=%d", i), "WORLD_SIZE=2", "SCUDA_LOG=debug"}
		list[i] = start(t, env, scuda, "run", "--spread", a.addr+","+b.addr, "--", program("collectives"), kernels, "all",
			fmt.Sprint(i), "2")
	}
	fmt.Fprintln(list[1].stdin, list[0].await(list[0].out, `^[0-9a-f]{256}$`)[0])
	for i, p := range list {
		if code := p.wait(patience); code != 0 {
			t.Fatalf("rank %d: exit status %d\n%s%s", i, code, p.out, p.err)
		}
		own, other := []*server{a, b}[i], []*server{a, b}[1-i]
		if said := p.err.String(); !strings.Contains(said, own.addr) || strings.Contains(said, other.addr) {
			t.Errorf("rank %d does not use its server %s alone:\n%s", i, own.addr, said)
		}
	}
}

// One process has a rank on each of a server's GPUs, begun in one group, and calls for all of them in one group. So it
// is with the GPUs of two servers.
func TestCommunicatorsOfOneProcess(t *testing.T) {
	one, other := collectiveServerOf(t, "2", trusted...), collectiveServerOf(t, "1", trusted...)
	for _, list := range []string{collectiveServerOf(t, "3", trusted...).addr, one.addr + "," + other.addr} {
		p := start(t, preloadedFor(list), program("communicators"), kernels, "several", "0", "3")
		if code := p.wait(patience); code != 0 {
			t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
		}
	}
}

// Calls that are like earlier ones are not waited for: they keep their place among other work, and what is wrong with
// one is the communicator's error. Whoever asks for that error all the time gets one answer for many questions.
func TestCollectivesRepeat(t *testing.T) {
	a, b := collectiveServer(t, trusted...), collectiveServer(t, trusted...)
	file := filepath.Join(t.TempDir(), "trace")
	list := ranks(t, "repeat", append(preloaded(a), "SCUDA_TRACE="+file), preloaded(b), preloaded(a))
	if n := list[0].answers(t, file, []uint16{wire.OpNcclState}); n < 2 || n > 250 {
		t.Errorf("%d of 501 questions for the asynchronous error were asked of the server", n)
	}
}

// A call that waits for a rank that never comes holds nobody up, and ends when it is aborted.
func TestCollectiveIsAborted(t *testing.T) {
	s := collectiveServer(t, trusted...)
	env := preloaded(s)
	first := start(t, env, program("collectives"), kernels, "abort", "0", "2")
	second := start(t, env, program("collectives"), kernels, "abort", "1", "2")
	fmt.Fprintln(second.stdin, first.await(first.out, `^[0-9a-f]{256}$`)[0])
	if code := first.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, first.out, first.err)
	}
	second.stdin.Close()
	if code := second.wait(patience); code != 0 {
		t.Fatalf("the other rank: exit status %d\n%s%s", code, second.out, second.err)
	}
}

// Two ranks in two threads of a process wait for each other, and not for the executor.
func TestCollectivesOfThreads(t *testing.T) {
	s := collectiveServer(t, trusted...)
	p := start(t, preloaded(s), program("collectives"), kernels, "threads", "0", "1")
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
}

// A rank that is lost is an asynchronous error at the others.
func TestCollectivePeerIsLost(t *testing.T) {
	args := append([]string{"--grace", "0"}, trusted...)
	ranks(t, "lose", preloaded(collectiveServer(t, args...)), preloaded(collectiveServer(t, args...)))
}

// A rank that is lost is one also where NCCL cannot notice, and what waits for it ends.
func TestCollectiveRankVanishes(t *testing.T) {
	args := append([]string{"--grace", "0"}, trusted...)
	for _, of := range []string{"vanish", "vanish part"} {
		t.Run(of, func(t *testing.T) {
			ranks(t, of, preloaded(collectiveServer(t, args...)), preloaded(collectiveServer(t, args...)))
		})
	}
}

// Where the server does not carry NCCL out, the program's own goes on, and the log says why; a program without one of
// its own has none.
func TestCollectivesAreRefused(t *testing.T) {
	folder := standAlone(t)
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a network that is not trusted": {[]string{"--profiles", "nccl"}, "scuda serve --fabric trusted"},
		"a tenant without the profile":  {[]string{"--fabric", "trusted"}, "scuda serve --profiles nccl"},
		"no library": {append([]string{"--nccl", "/nowhere/libnccl.so.2"}, trusted...),
			"NCCL cannot be opened on the server: /nowhere/libnccl.so.2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := collectiveServer(t, c.args...)
			own := append(preloaded(s), "SCUDA_LOG=info", "SCUDA_REAL_LIBNCCL="+filepath.Join(folder, "libnccl.so.2"))
			for _, p := range ranks(t, "all", own, own) {
				said := p.err.String()
				if !strings.Contains(said, "NCCL runs in the program, within one server: ") || !strings.Contains(said, c.says) {
					t.Errorf("it does not say %q:\n%s", c.says, said)
				}
			}
			p := start(t, append(preloaded(s), "SCUDA_REAL_LIBNCCL=/nowhere"), program("collectives"), kernels, "all", "0", "1")
			if code := p.wait(patience); code == 0 || !strings.Contains(p.err.String(), "there is no NCCL") ||
				!strings.Contains(p.err.String(), c.says) {
				t.Errorf("exit status %d\n%s", code, p.err)
			}
		})
	}
	t.Run("the simulated GPU", func(t *testing.T) {
		p := start(t, preloaded(serve(t, trusted...)), program("collectives"), kernels, "all", "0", "1")
		if code := p.wait(patience); code == 0 || !strings.Contains(p.err.String(), "--gpu sim has no NCCL") {
			t.Errorf("exit status %d\n%s", code, p.err)
		}
	})
}

// Without a server, calls go to the program's own NCCL.
func TestCollectivesWithoutServer(t *testing.T) {
	folder := standAlone(t)
	env := []string{"LD_PRELOAD=" + lib + "/libnccl.so.2", "LD_LIBRARY_PATH=" + folder, "SCUDA_SIM=memory=256MiB"}
	ranks(t, "all", env, env)
}
