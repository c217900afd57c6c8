package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// ownServer starts a server on a free port of the loopback interface. It ends with this process, if stop has not ended
// it before: the kernel ends it with the thread that started it, so the caller stays on its thread from now on.
func ownServer(ctx context.Context, env []string, options ...string) (address string, stop func(), err error) {
	runtime.LockOSThread()
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := exec.CommandContext(ctx, self, append([]string{"serve", onLoopback + ":0"}, options...)...)
	p.Env, p.SysProcAttr = env, &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	p.Cancel = func() error { return p.Process.Signal(os.Interrupt) }
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		cancel()
		return "", nil, err
	}
	stop = func() {
		cancel()
		_ = p.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !ok {
		stop()
		return "", nil, fmt.Errorf("the server did not start: %w", err)
	}
	return address, stop, nil
}
