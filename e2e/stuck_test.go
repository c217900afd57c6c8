package e2e

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// servers are those that tests have started, by their addresses.
var servers sync.Map // of *server

// stuck ends the test, as the program does not do what it has to within a time: it says where the program stands, as
// far as there is a debugger, and has the workers of its servers say it in the servers' logs.
func (p *process) stuck(within time.Duration, what string) {
	p.t.Helper()
	stacks := p.stacks()
	for _, e := range p.cmd.Env {
		list, ok := strings.CutPrefix(e, "SCUDA_SERVER=")
		for address := range strings.SplitSeq(list, ",") {
			if s, found := servers.Load(address); ok && found {
				s.(*server).sayStacks()
			}
		}
	}
	p.t.Fatalf("%s did not %s within %v\nstdout:\n%s\nstderr:\n%s%s", p.name, what, within, p.out, p.err, stacks)
}

// stacks is where the program's threads stand; "" where no debugger is installed.
func (p *process) stacks() string {
	gdb, err := exec.LookPath("gdb")
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	text, err := exec.CommandContext(ctx, gdb, "-q", "-batch", "-p", strconv.Itoa(p.cmd.Process.Pid), "-ex",
		"thread apply all backtrace 16").CombinedOutput()
	if err != nil {
		return "\nno stacks: " + err.Error()
	}
	return "\nstacks:\n" + string(text)
}

// sayStacks ends the server's workers, which are programs in Go: they say where each goroutine stands.
func (s *server) sayStacks() {
	said := s.err.Len()
	for _, pid := range s.workers(s.t) {
		_ = syscall.Kill(pid, syscall.SIGQUIT)
	}
	s.err.until(10*time.Second, func(text string) bool { return strings.Contains(text[said:], "worker crashed") })
}
