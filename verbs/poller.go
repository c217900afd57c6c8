package verbs

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poller lets a goroutine wait for one of the library's descriptors without holding a thread: it has a duplicate of the
// descriptor, which Go's own poller watches.
type poller struct {
	file *os.File
	raw  syscall.RawConn

	mu    sync.Mutex
	woken bool
}

var errWoken = errors.New("woken")

func newPoller(fd int, name string) (*poller, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	p := &poller{file: os.NewFile(uintptr(dup), name)}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.file.Close()
		return nil, err
	}
	return p, nil
}

var past = time.Unix(1, 0)

// wait calls try until it gives something other than EAGAIN, or ctx ends, or wake is called (nil).
func (p *poller) wait(ctx context.Context, try func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(past) })
	defer stop()
	var result error
	err := p.raw.Read(func(uintptr) bool {
		p.mu.Lock()
		woken := p.woken
		p.mu.Unlock()
		if woken || ctx.Err() != nil {
			result = errWoken
			return true
		}
		result = try()
		return !errors.Is(result, unix.EAGAIN) && !errors.Is(result, unix.EINTR)
	})
	if ctx.Err() != nil {
		p.reset()
		return ctx.Err()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(result, errWoken) {
		p.reset()
		return nil
	}
	if err != nil {
		return err
	}
	return result
}

// wake ends the present or the next wait.
func (p *poller) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.woken = true
	_ = p.file.SetReadDeadline(past)
}

func (p *poller) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.woken = false
	_ = p.file.SetReadDeadline(time.Time{})
}

func (p *poller) close() { _ = p.file.Close() }
