package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sharing serves a simulated GPU whose time is shared, and gives programs under leases of the given terms, which are
// ready to launch kernels, batch by batch.
func sharing(t *testing.T, batch int, terms ...[]string) (s *server, env []string, list []*process) {
	t.Helper()
	if gpu != "sim" {
		t.Skip("it needs kernels that take turns")
	}
	s, env = administered(t, "--turns", "--gpu", "sim:1,turns=2ms", "--usage-log", filepath.Join(t.TempDir(), "usage"))
	for _, terms := range terms {
		l := told[leased](t, env, append([]string{"lease", "create"}, terms...)...)
		p := s.under(t, l.Credential, "turns", strconv.Itoa(batch))
		p.await(p.out, "^ready$")
		list = append(list, p)
	}
	return s, env, list
}

// counted says how many calls two programs under way have had carried out, which are as many kernels: of all that they
// do, the server counts this itself, at one time for both.
func counted(t *testing.T, env []string, p []*process) (a, b int) {
	t.Helper()
	calls := map[int]int{}
	for _, x := range told[[]struct{ PID, Calls int }](t, env, "ps") {
		calls[x.PID] = x.Calls
	}
	return calls[p[0].cmd.Process.Pid], calls[p[1].cmd.Process.Pid]
}

// race begins both programs, and says how many kernels each had run while the first had so many, after a start that
// does not count: nobody takes turns before both work.
func race(t *testing.T, env []string, p []*process, kernels int) (a, b int) {
	t.Helper()
	fromA, fromB := counted(t, env, p)
	for _, p := range p {
		p.signal(syscall.SIGUSR1)
	}
	const few = 8 // more calls than there are before the first kernel
	begun := false
	eventually(t, patience, fmt.Sprintf("%d kernels", kernels), func() bool {
		a, b = counted(t, env, p)
		if !begun && a >= fromA+few && b >= fromB+few {
			begun, fromA, fromB = true, a, b
		}
		return begun && a-fromA >= kernels
	})
	return a - fromA, b - fromB
}

// giveWay ends programs that take turns, of which nothing must be lost.
func giveWay(t *testing.T, list ...*process) {
	t.Helper()
	for _, p := range list {
		p.stdin.Close()
	}
	for _, p := range list {
		if code := p.wait(patience); code != 0 {
			t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
		}
	}
}

// Three times the share is several times the kernels, of which each takes two milliseconds at least. It is not three
// times exactly: turns are of time, and on a busy machine the first part of each passes before a worker knows of its
// turn. Who has the smaller share has the shorter turns, of which that is more. (The tests of server/turn have a
// machine without other work, and the exact parts.) Without turns both would have as many.
func TestTurnsByShare(t *testing.T) {
	_, env, p := sharing(t, 512, []string{"--share", "300"}, []string{"--share", "100"})
	if a, b := race(t, env, p, 400); 2*a < 3*b || 50*b < a {
		t.Errorf("with three times the share %d kernels beside %d", a, b)
	}
}

// What was given in turns is told by session, while it runs and later, and it goes by the shares: who has three
// quarters of the time while both work has it for longer than it waits.
func TestTurnsAreCounted(t *testing.T) {
	_, env, p := sharing(t, 64, []string{"--share", "300", "--label", "large"}, []string{"--label", "small"})
	for _, p := range p {
		p.signal(syscall.SIGUSR1)
	}
	type figures struct {
		Label  string  `json:"lease_label"`
		Key    string  `json:"key"`
		GPU    float64 `json:"gpu_seconds"`
		Share  float64 `json:"gpu_share"`
		Turn   float64 `json:"turn_seconds"`
		Waited float64 `json:"turn_wait_seconds"`
	}
	by := func(list []figures) map[string]figures {
		m := map[string]figures{}
		for _, f := range list {
			m[f.Label+f.Key] = f
		}
		return m
	}
	var seen map[string]figures
	eventually(t, patience, "sessions that have had turns for a while", func() bool {
		seen = by(told[[]figures](t, env, "ps"))
		return seen["large"].Turn > 2 && seen["small"].Turn > 0 && seen["small"].Waited > 1
	})
	// Sessions are looked at once a second, each at times of its own, so they are not compared with each other. How much
	// of a turn the GPU has work is up to the processor.
	if x := seen["large"]; 2*x.Turn < 3*x.Waited || x.GPU <= 0 || x.Share <= 0 || x.Share > 1 {
		t.Errorf("%+v", seen)
	}
	giveWay(t, p...)
	eventually(t, patience, "records", func() bool {
		seen = by(told[[]figures](t, env, "usage", "--by", "label"))
		return seen["large"].Turn > 2 && seen["small"].Turn > 0
	})
}

// A class that goes first leaves the others little while it works, and not nothing. It hands over all that it has,
// which is two batches: when it begins a third, its GPU has run the first.
func TestTurnsByClass(t *testing.T) {
	const batch = 512
	_, env, p := sharing(t, batch, []string{"--class", "high"}, []string{"--class", "low"})
	_, low := race(t, env, p, 2*batch+16)
	if batch < 3*low {
		t.Errorf("the high class had %d kernels beside %d of the low one", batch, low)
	}
	_, before := counted(t, env, p)
	eventually(t, patience, "work of the low class beside the high one", func() bool {
		_, now := counted(t, env, p)
		return now > before
	})
}

// Whoever waits for a turn says so.
func TestTurnsAreSeen(t *testing.T) {
	_, env, p := sharing(t, 64, []string{"--class", "low"}, []string{"--class", "high"})
	for _, p := range p {
		p.signal(syscall.SIGUSR1)
	}
	eventually(t, patience, "a session that waits for its turn", func() bool {
		return slices.ContainsFunc(list(t, env), func(x listed) bool { return x.State == "turn" })
	})
}

// What programs see does not depend on whether they take turns.
func TestTurnsChangeNothing(t *testing.T) {
	plain := serve(t)
	s, env, p := sharing(t, 64, []string{"--share", "300"})
	p[0].signal(syscall.SIGUSR1)
	l := told[leased](t, env, "lease", "create", "--share", "3000")
	for _, name := range []string{"streams", "ordering", "callbacks", "host"} {
		t.Run(name, func(t *testing.T) {
			beside := s.under(t, l.Credential, name)
			beside.stdin.Close()
			if code := beside.wait(patience); code != 0 {
				t.Fatalf("exit status %d\n%s%s", code, beside.out, beside.err)
			}
			if diff := cmp.Diff(lines(plain.run(t, name)), lines(beside.out.String())); diff != "" {
				t.Errorf("alone (-), in turns (+):\n%s", diff)
			}
		})
	}
}
