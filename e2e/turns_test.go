package e2e

import (
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sharing serves a simulated GPU whose time is shared, and gives programs under leases of the given terms, which are
// ready to begin.
func sharing(t *testing.T, name string, terms ...[]string) (s *server, env []string, list []*process) {
	t.Helper()
	if gpu != "sim" {
		t.Skip("it needs kernels that take turns")
	}
	s, env = administered(t, "--turns", "--gpu", "sim:1,turns=2ms", "--usage-log", filepath.Join(t.TempDir(), "usage"))
	for _, terms := range terms {
		l := told[leased](t, env, append([]string{"lease", "create"}, terms...)...)
		p := s.under(t, l.Credential, name)
		p.await(p.out, "^ready$")
		list = append(list, p)
	}
	return s, env, list
}

var doneLine = regexp.MustCompile(`(?m)^done (\d+)$`)

// counted says how many kernels a program has seen done.
func (p *process) counted(t *testing.T) int {
	t.Helper()
	all := doneLine.FindAllStringSubmatch(p.out.String(), -1)
	if len(all) == 0 {
		return 0
	}
	n, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// race begins both programs, and says how much each has done while the first did so much, after a start that does not
// count: nobody takes turns before both work.
func race(t *testing.T, first, second *process, kernels int) (a, b int) {
	t.Helper()
	for _, p := range []*process{first, second} {
		p.signal(syscall.SIGUSR1)
	}
	const start = 20
	for _, p := range []*process{first, second} {
		p.await(p.out, "^done "+strconv.Itoa(start)+"$")
	}
	a, b = first.counted(t), second.counted(t)
	first.await(first.out, "^done "+strconv.Itoa((a+kernels)/4*4)+"$")
	a, b = first.counted(t)-a, second.counted(t)-b
	for _, p := range []*process{first, second} {
		p.stdin.Close()
		if code := p.wait(patience); code != 0 {
			t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
		}
	}
	return a, b
}

// Three times the share is three times the GPU. Kernels are counted, of which each takes two milliseconds at least.
func TestTurnsByShare(t *testing.T) {
	_, _, p := sharing(t, "turns", []string{"--share", "300"}, []string{"--share", "100"})
	if a, b := race(t, p[0], p[1], 300); a < 2*b || a > 4*b {
		t.Errorf("with three times the share %d kernels beside %d", a, b)
	}
}

// What was given in turns is told by session, while it runs and later, and it goes by the shares.
func TestTurnsAreCounted(t *testing.T) {
	_, env, p := sharing(t, "turns", []string{"--share", "300", "--label", "large"}, []string{"--label", "small"})
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
		return seen["large"].Turn > 2 && seen["small"].Turn > 0
	})
	large, small := seen["large"], seen["small"]
	if large.Turn < 2*small.Turn || large.Turn > 4.5*small.Turn || small.Waited <= large.Waited ||
		large.GPU < large.Turn || large.Share < .3 || large.Share > 1 {
		t.Errorf("%+v", seen)
	}
	for _, p := range p {
		p.stdin.Close()
		if code := p.wait(patience); code != 0 {
			t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
		}
	}
	eventually(t, patience, "records", func() bool {
		seen = by(told[[]figures](t, env, "usage", "--by", "label"))
		return seen["large"].Turn > 2 && seen["small"].Turn > 0
	})
}

// A class that goes first leaves the others little while it works, and not nothing.
func TestTurnsByClass(t *testing.T) {
	_, _, p := sharing(t, "turns", []string{"--class", "low"}, []string{"--class", "high"})
	if low, high := race(t, p[0], p[1], 8); high < 6*low {
		t.Errorf("the high class had %d kernels beside %d of the low one", high, low)
	}
}

// Whoever waits for a turn says so.
func TestTurnsAreSeen(t *testing.T) {
	_, env, p := sharing(t, "turns", []string{"--class", "low"}, []string{"--class", "high"})
	for _, p := range p {
		p.signal(syscall.SIGUSR1)
	}
	for seen := false; !seen; {
		for _, x := range list(t, env) {
			seen = seen || x.State == "turn"
		}
	}
}

// What programs see does not depend on whether they take turns.
func TestTurnsChangeNothing(t *testing.T) {
	plain := serve(t)
	s, env, p := sharing(t, "turns", []string{"--share", "300"})
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
