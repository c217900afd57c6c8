package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// How faults of unified memory reach scuda: settings of SCUDA_PAGER. Without userfaultfd the first is the last, before Linux 6.7 the second.
var pagers = []string{"uffd", "uffd-sync", "sigsegv"}

// A thousand random programs against a plain model, a third of them in each way.
func TestManagedRandom(t *testing.T) {
	const programs, each = 340, 170
	s := serve(t)
	for i, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			for n := 0; n < programs; n += each {
				p := start(t, s.env("SCUDA_PAGER="+pager), program("managed_random"), kernels, fmt.Sprint(1+i*programs+n), fmt.Sprint(each))
				if code := p.wait(patience); code != 0 || !strings.Contains(p.out.String(), fmt.Sprintf("%d programs", each)) {
					t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
				}
			}
		})
	}
}

// The patterns with signals instead of userfaultfd; TestPrograms runs them with what the machine has.
func TestManagedBySignal(t *testing.T) {
	s := serve(t)
	p := start(t, s.env("SCUDA_PAGER=sigsegv"), program("managed"), kernels)
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
}

// What happens around a fault: the server goes while the CPU waits, a child touches its parent's memory, the program has handlers of its own.
func TestManagedFaults(t *testing.T) {
	for _, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			s := serve(t)
			env := s.env("SCUDA_PAGER=" + pager)
			for _, what := range []string{"handlers", "child", "calls", "reclaimed", "unwaited", "cycles", "runs", "batches"} {
				p := start(t, env, program("managed_faults"), kernels, what)
				if code := p.wait(patience); code != 0 {
					t.Errorf("%s: exit status %d\n%s%s", what, code, p.out, p.err)
				}
			}
			p := start(t, env, program("managed_faults"), kernels, "lost")
			p.await(p.out, "^ready$")
			s.signal(syscall.SIGKILL)
			if code := p.wait(20 * time.Second); code != 0 || !strings.Contains(p.out.String(), "SIGBUS") {
				t.Errorf("the server was killed: exit status %d\n%s%s", code, p.out, p.err)
			}
			if said := p.err.String(); !strings.Contains(said, "the program gets SIGBUS where it touches it") {
				t.Errorf("what is said when the server was killed: %q", said)
			}
		})
	}
}

// What travels: nothing that only the GPU uses, every byte once for a program that goes through a range, and with few faults; nothing that was discarded;
// what was read before comes without being asked for, as the preferred location has it; and read-mostly memory that kernels only read does not come again.
func TestManagedTraffic(t *testing.T) {
	const large, block = 48 << 20, 64 << 10
	for _, c := range []struct {
		name          string
		faults        int // at most
		fetched, most int // bytes
		sent          int // at most
		noted         int // the same where the kernel notes what is written; 0: no difference
	}{
		{name: "untouched"},
		{name: "in order", faults: 40, fetched: large, most: large},
		{name: "discarded", faults: 40, fetched: block, most: block},
		{name: "read mostly", faults: 200, fetched: large, most: large + 48*block, sent: 32 * block},
		{name: "here and there", faults: 400, fetched: large, most: large + large, sent: large, noted: 48 * block},
		{name: "at the GPU", faults: 3, fetched: 3 * block, most: 3 * block},
		{name: "at the CPU", faults: 1, fetched: 2 * block, most: 2 * block},
	} {
		for _, pager := range pagers {
			t.Run(c.name+"/"+pager, func(t *testing.T) {
				s := serve(t)
				p := start(t, s.env("SCUDA_PAGER="+pager, "SCUDA_LOG=info"), program("managed_faults"), kernels, c.name)
				if code := p.wait(patience); code != 0 {
					t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
				}
				said := regexp.MustCompile(`unified memory: (\d+) faults, (\d+) bytes fetched, (\d+) bytes sent`).FindStringSubmatch(p.err.String())
				if said == nil {
					t.Fatalf("nothing is said of what was moved:\n%s", p.err)
				}
				var faults, fetched, sent int
				if _, err := fmt.Sscan(strings.Join(said[1:], " "), &faults, &fetched, &sent); err != nil {
					t.Fatal(err)
				}
				most := c.sent
				if c.noted > 0 && strings.Contains(p.err.String(), "the kernel notes which pages are written") {
					most = c.noted
				}
				if faults > c.faults || fetched < c.fetched || fetched > c.most || sent > most {
					t.Errorf("%d faults, at most %d wanted; %d bytes fetched, %d to %d wanted; %d bytes sent, at most %d wanted", faults, c.faults, fetched, c.fetched, c.most, sent, most)
				}
			})
		}
	}
}

// System calls on memory that the GPU has: by the kernel's faults, and where those are not to be had by the preloaded library.
func TestManagedCalls(t *testing.T) {
	s := serve(t)
	for _, c := range []struct{ pager, preload, said string }{
		{"uffd", "", ""},
		{"uffd", lib + "/libscuda.so", ""},
		{"uffd-user", lib + "/libscuda.so", ""},
		{"sigsegv", lib + "/libscuda.so", ""},
		{"sigsegv", "", "Bad address"},
	} {
		p := start(t, s.env("SCUDA_PAGER="+c.pager, "LD_PRELOAD="+c.preload), program("managed_calls"), kernels, t.TempDir())
		code := p.wait(patience)
		if fine := code == 0 && p.out.String() == "calls ok\n"; fine != (c.said == "") || !strings.Contains(p.err.String(), c.said) {
			t.Errorf("%+v: exit status %d\n%s%s", c, code, p.out, p.err)
		}
	}
}

// AddressSanitizer, which takes over malloc, much address space and SIGSEGV.
func TestManagedSanitized(t *testing.T) {
	target := sanitized(t, "managed_faults")
	s := serve(t)
	for _, pager := range pagers {
		for _, what := range []string{"handlers", "child", "calls", "unwaited"} {
			p := start(t, s.env("SCUDA_PAGER="+pager, "ASAN_OPTIONS=detect_leaks=0:allow_user_segv_handler=1"), target, kernels, what)
			if code := p.wait(patience); code != 0 {
				t.Errorf("%s, %s: exit status %d\n%s%s", pager, what, code, p.out, p.err)
			}
		}
	}
}

// Python's faulthandler reports the program's own faults, and no others.
func TestManagedPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("python3 is missing: apt-get install python3")
	}
	s := serve(t)
	for _, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			p := start(t, s.env("SCUDA_PAGER="+pager), python, filepath.Join(root, "e2e/programs/managed_python.py"))
			code := p.wait(patience)
			if code == 0 || p.out.String() != "first True\nsecond True True\n" || strings.Count(p.err.String(), "Fatal Python error: Segmentation fault") != 1 {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
		})
	}
}

// More unified memory than the GPU has is refused, and everything goes on.
func TestManagedTooMuch(t *testing.T) {
	s := serve(t)
	if got := s.run(t, "managed_faults", "too much"); got != "" {
		t.Errorf("it said %q", got)
	}
	s.run(t, "managed_faults", "untouched")
}

// `scuda info` names the way that the library takes.
func TestManagedInfo(t *testing.T) {
	s := serve(t)
	for _, pager := range []string{"", "uffd", "uffd-sync", "uffd-user", "sigsegv"} {
		info := start(t, s.env("SCUDA_PAGER="+pager), scuda, "info")
		p := start(t, s.env("SCUDA_PAGER="+pager, "SCUDA_LOG=info"), program("managed_faults"), kernels, "untouched")
		if info.wait(patience) != 0 || p.wait(patience) != 0 {
			t.Fatalf("%s%s", info.err, p.err)
		}
		seen := regexp.MustCompile(`faults +of unified memory are seen by userfaultfd \(uffd\)|seen by userfaultfd \(uffd-user|seen by SIGSEGV`).FindString(info.out.String())
		want := "faults come by SIGSEGV"
		switch {
		case strings.HasSuffix(seen, "(uffd)"):
			want = "faults come by userfaultfd\n"
		case strings.HasSuffix(seen, "(uffd-user"):
			want = "faults come by userfaultfd, user mode"
		}
		if seen == "" || !strings.Contains(p.err.String(), want) {
			t.Errorf("SCUDA_PAGER=%s: info says %q, the library\n%s", pager, seen, p.err)
		}
	}
}
