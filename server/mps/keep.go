package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Times of a daemon: to answer for the first time, and to end when it is asked to.
const (
	startTime = 20 * time.Second
	endTime   = 5 * time.Second
	askAgain  = 50 * time.Millisecond
)

// Keep runs a daemon until ctx is done or it ends by itself, which is an error. ready is called when it answers. A
// daemon that somebody left behind in the folder is ended first. The calling goroutine has to stay on its thread: the
// daemon ends with that.
func Keep(ctx context.Context, c *Control, ready func() error) error {
	if err := os.MkdirAll(filepath.Join(c.Folder, "log"), 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrFolder, err)
	}
	_, _ = c.Ask(ctx, "quit -t 1") // usually there is none
	p := exec.Command(c.Program, "-f")
	p.Env = append(os.Environ(), c.Env()...)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said := &tail{}
	p.Stdout, p.Stderr, p.WaitDelay = said, said, time.Second
	if err := p.Start(); err != nil {
		return fmt.Errorf("start an MPS daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	over := func(err error) error {
		if err == nil {
			err = errors.New("exit status 0")
		}
		return fmt.Errorf("the MPS daemon has ended: %w: %s", err, said)
	}
	late, look := time.NewTimer(startTime), time.NewTicker(askAgain)
	defer late.Stop()
	defer look.Stop()
	for {
		if _, err := Servers(ctx, c); err == nil {
			break
		}
		select {
		case err := <-ended:
			return over(err)
		case <-late.C:
			_ = p.Process.Kill()
			<-ended //nolint:errcheck // it was killed
			return fmt.Errorf("%w within %v: %s", ErrAnswer, startTime, said)
		case <-ctx.Done():
			_ = p.Process.Kill()
			<-ended //nolint:errcheck // it was killed
			return ctx.Err()
		case <-look.C:
		}
	}
	if err := ready(); err != nil {
		_ = p.Process.Kill()
		<-ended //nolint:errcheck // it was killed
		return err
	}
	select {
	case err := <-ended:
		return over(err)
	case <-ctx.Done():
	}
	_, _ = c.Ask(context.WithoutCancel(ctx), "quit -t 1") // it ends below if this fails
	select {
	case <-ended: //nolint:errcheck // it was asked to
	case <-time.After(endTime):
		_ = p.Process.Kill()
		<-ended //nolint:errcheck // it was killed
	}
	return nil
}

// tail keeps the last of what somebody writes, for errors.
type tail struct{ text []byte }

const mostTail = 500

func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b...)
	if n := len(t.text) - mostTail; n > 0 {
		t.text = append(t.text[:0], t.text[n:]...)
	}
	return len(b), nil
}

func (t *tail) String() string { return string(t.text) }
