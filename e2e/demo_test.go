package e2e

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// demo starts `scuda demo` as somebody does who has nothing, in folders of his own.
func demo(t *testing.T, env []string, args ...string) (p *process, home, temporary string) {
	t.Helper()
	home, temporary = t.TempDir(), t.TempDir()
	for _, folder := range []string{temporary, filepath.Dir(temporary)} { // for workers with users of their own
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env = append(env, "HOME="+home, "XDG_CONFIG_HOME=", "XDG_CACHE_HOME=", "XDG_STATE_HOME=", "TMPDIR="+temporary)
	return start(t, env, scuda, append([]string{"demo"}, args...)...), home, temporary
}

// leftNothing says whether neither files nor a server of it are there.
func leftNothing(t *testing.T, address string, folders ...string) {
	t.Helper()
	for _, folder := range folders {
		if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
			t.Errorf("left in %s: %v, %v", folder, entries, err)
		}
	}
	if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("somebody listens at %s: %v, %v", address, c, err)
	}
}

var stepLine = regexp.MustCompile(`(?m)^step +(\d+) of \d+  loss (\S+)`)

// TestDemo: without a GPU, a server or settings, a loss falls in the same way each time.
func TestDemo(t *testing.T) {
	var before []string
	for range 2 {
		p, home, temporary := demo(t, []string{"SCUDA_LISTEN=nowhere", "SCUDA_MAX_SESSIONS=-1", "NO_COLOR=1"}, "--with",
			"kernels", "--steps", "20")
		if code := p.wait(patience); code != 0 {
			t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
		}
		out := p.out.String()
		var losses []string
		for _, m := range stepLine.FindAllStringSubmatch(out, -1) {
			losses = append(losses, m[2])
		}
		if len(losses) != 11 || before != nil && !slices.Equal(losses, before) {
			t.Errorf("losses %q, before %q", losses, before)
		}
		before = losses
		first, _ := strconv.ParseFloat(losses[0], 64)
		last, _ := strconv.ParseFloat(losses[len(losses)-1], 64)
		if first < 3 || last > 2.7 {
			t.Errorf("the loss fell from %v to %v", first, last)
		}
		if rows := regexp.MustCompile(`(?m)^ +\d+\.\d\d s +\d+ %  \w`).FindAllString(out, -1); len(rows) != 5 {
			t.Errorf("where the time went: %q in\n%s", rows, out)
		}
		for _, want := range []string{`(?m)^It writes: the laptop [a-z .:]{109}$`, `(?m)^The loss fell from 3\.`} {
			if !regexp.MustCompile(want).MatchString(out) || p.err.String() != "" {
				t.Errorf("%s is not in\n%s%s", want, out, p.err)
			}
		}
		leftNothing(t, regexp.MustCompile(`(?m)^server   (\S+)`).FindStringSubmatch(out)[1], home, temporary)
	}
}

// TestDemoEnds: interrupted, it leaves nothing behind; killed, no server.
func TestDemoEnds(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(s.String(), func(t *testing.T) {
			p, home, temporary := demo(t, nil, "--with", "kernels", "--steps", "100000")
			address := p.await(p.out, `^server   (\S+)`)[1]
			p.await(p.out, `^step`)
			worker, err := net.Dial("tcp", address) // it is closed when the server has ended
			if err != nil {
				t.Fatal(err)
			}
			defer worker.Close()
			p.signal(s)
			code := p.wait(patience)
			if s == syscall.SIGKILL {
				_, _ = worker.Read(make([]byte, 1))
				leftNothing(t, address, home)
				return
			}
			if code != 130 || !regexp.MustCompile(`interrupted: \d+ of 100000 steps`).MatchString(p.err.String()) {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
			leftNothing(t, address, home, temporary)
		})
	}
}

// TestDemoElsewhere: a configured server is used, and --gpu goes before it.
func TestDemoElsewhere(t *testing.T) {
	s := serve(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, `^server   ` + regexp.QuoteMeta(s.addr) + ` \(from SCUDA_SERVER\)|^server   ` + regexp.QuoteMeta(s.addr)},
		{[]string{"--gpu", "sim:name=Mine"}, `^GPU      Mine,`},
	} {
		p, _, _ := demo(t, []string{"SCUDA_SERVER=" + s.addr}, append(c.args, "--with", "kernels", "--steps", "2")...)
		if code := p.wait(patience); code > 1 || !regexp.MustCompile(`(?m)`+c.want).MatchString(p.out.String()) {
			t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
		}
	}
}

// TestDemoPyTorch: where Python says that it has PyTorch, it trains; and what went wrong is told.
func TestDemoPyTorch(t *testing.T) {
	for name, c := range map[string]struct {
		python, args string
		code         int
		want         string
	}{
		"trains": {`case $2 in import*) ;; *) grep -q laptop && printf 'step 1 loss 3\nstep 2 loss 2\nwrites x\n';; esac`,
			"auto", 0, `(?s)PyTorch, which knows.*step 2 of 2  loss 2\.000.*It writes: x`},
		"learns nothing": {`case $2 in import*) ;; *) echo "step 1 loss 3"; echo "step 2 loss 3";; esac`, "pytorch", 1,
			`scuda: the loss did not fall: it was 3\.0000 and is 3\.0000`},
		"breaks": {`case $2 in import*) ;; *) echo "step 1 loss 3"; echo CUDA error >&2; exit 7;; esac`, "pytorch", 1,
			`ended after 1 of 2 steps: exit status 7\nCUDA error`},
		"is not there": {`echo "No module named torch" >&2; exit 1`, "pytorch", 1,
			`scuda: PyTorch cannot train: exit status 1: No module named torch`},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.WriteFile(folder+"/python3", []byte("#!/bin/sh\n"+c.python+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			p, _, _ := demo(t, []string{"PATH=" + folder + ":" + os.Getenv("PATH")}, "--with", c.args, "--steps", "2")
			if code := p.wait(patience); code != c.code ||
				!regexp.MustCompile(c.want).MatchString(p.out.String()+p.err.String()) {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
		})
	}
}
