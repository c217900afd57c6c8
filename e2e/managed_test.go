package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// How faults of unified memory reach scuda: settings of SCUDA_PAGER. Without userfaultfd the first is the last.
var pagers = []string{"uffd", "sigsegv"}

// A thousand random programs against a plain model, half of them in each way.
func TestManagedRandom(t *testing.T) {
	const programs, each = 500, 250
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
			for _, what := range []string{"handlers", "child", "calls", "unwaited", "cycles"} {
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
