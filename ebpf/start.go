package ebpf

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts a program and follows it from its first instruction on: it is stopped at its beginning until it is
// followed.
func (p *Probes) Start(program *exec.Cmd) error {
	runtime.LockOSThread() // whoever starts it is its tracer until it is let go
	defer runtime.UnlockOSThread()
	if program.SysProcAttr == nil {
		program.SysProcAttr = &syscall.SysProcAttr{}
	}
	program.SysProcAttr.Ptrace = true
	if err := program.Start(); err != nil {
		return err
	}
	pid := program.Process.Pid
	var status unix.WaitStatus
	_, err := unix.Wait4(pid, &status, 0, nil)
	if err == nil && !status.Stopped() {
		err = fmt.Errorf("it did not start: status %d", status)
	}
	if err == nil {
		err = p.Follow(pid)
	}
	if e := unix.PtraceDetach(pid); err == nil {
		err = e
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", program.Path, err), program.Process.Kill(), program.Wait())
	}
	return nil
}
