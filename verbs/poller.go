package verbs

import (
	"context"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// poller waits for one of the library's descriptors. A wait holds its thread: the kernel wakes that by itself, where a
// goroutine would have to wait for the runtime's poller, too. One goroutine may wait at a time.
//
// A timer ends waits early, not an eventfd: in the client the program may have closed the descriptor and given its
// number to a file of its own, where setting a timer fails and writing would not.
type poller struct {
	fd int // the library's

	mu    sync.Mutex
	bell  int  // guarded by mu: a timer; it rings when somebody calls wake, or a wait's context ends; -1: closed
	woken bool // guarded by mu
}

func newPoller(fd int) (*poller, error) {
	bell, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &poller{fd: fd, bell: bell}, nil
}

// wait calls try until it gives something other than EAGAIN, or ctx ends, or wake is called (nil).
func (p *poller) wait(ctx context.Context, try func() error) error {
	stop := context.AfterFunc(ctx, p.ring)
	defer stop()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		bell, woken := p.takeWake()
		if woken {
			return nil
		}
		if err := try(); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if err := p.sleep(bell); err != nil {
			return err
		}
	}
}

// sleep returns when there may be something for try, or the bell has rung.
func (p *poller) sleep(bell int) error {
	fds := [...]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}, {Fd: int32(bell), Events: unix.POLLIN}}
	if _, err := unix.Ppoll(fds[:], nil, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("ppoll", err)
	}
	if (fds[0].Revents|fds[1].Revents)&unix.POLLNVAL != 0 {
		return os.ErrClosed
	}
	if fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 && fds[0].Revents&unix.POLLIN == 0 {
		return os.NewSyscallError("ppoll", unix.EIO)
	}
	if fds[1].Revents != 0 {
		p.set(0) // who rang is looked at after this
	}
	return nil
}

// wake ends the present or the next wait.
func (p *poller) wake() {
	p.mu.Lock()
	p.woken = true
	p.mu.Unlock()
	p.ring()
}

func (p *poller) takeWake() (bell int, woken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	woken, p.woken = p.woken, false
	return p.bell, woken
}

func (p *poller) ring() { p.set(1) }

// set lets the bell ring after so many nanoseconds, or takes a ring back (0).
func (p *poller) set(ns int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bell >= 0 {
		_ = unix.TimerfdSettime(p.bell, 0, &unix.ItimerSpec{Value: unix.Timespec{Nsec: ns}}, nil)
	}
}

// close gives the timer back. Nobody waits any more.
func (p *poller) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = unix.Close(p.bell)
	p.bell = -1
}
