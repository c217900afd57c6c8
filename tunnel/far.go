package tunnel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Server serves as the hello says, until ctx ends. It calls ready once, with the address on loopback at which it
// listens.
type Server func(ctx context.Context, h Hello, ready func(local net.Addr, r Ready)) error

// Serve is the far side. It returns when the input ends, or when there is no server, and closes both.
func Serve(ctx context.Context, in io.ReadCloser, out io.WriteCloser, serve Server) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := sync.OnceFunc(func() {
		in.Close()
		out.Close() // who still writes wakes: where the network is gone, nobody reads
	})
	defer done()
	if _, err := io.WriteString(out, "\n"+wordHere+"\n"); err != nil {
		return err
	}
	m := newMux(in, out)
	line, err := readLine(m.in)
	if err != nil {
		return ended(err)
	}
	h, err := ParseHello([]byte(line))
	if err != nil {
		return err
	}
	local := make(chan net.Addr, 1)
	m.dial = func(ctx context.Context) (conn, error) {
		select {
		case at := <-local:
			local <- at
			var d net.Dialer
			c, err := d.DialContext(ctx, at.Network(), at.String())
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	running := make(chan error, 1)
	go func() {
		err := m.run(ctx)
		cancel(err) // and the server ends
		running <- err
	}()
	err = serve(ctx, h, func(at net.Addr, r Ready) {
		local <- at
		if m.tell(r) != nil {
			cancel(ErrEnded)
		}
	})
	if err != nil && ctx.Err() == nil && m.tell(Ready{Error: err.Error()}) == nil {
		err = nil // the near side says it
	}
	cancel(ErrEnded)
	if cause := <-running; err == nil && !errors.Is(cause, ErrEnded) {
		err = cause
	}
	done()
	m.wait()
	return err
}

func (m *mux) tell(r Ready) error {
	b, err := json.Marshal(r)
	if err == nil && len(b) > maxData {
		b, err = json.Marshal(Ready{Error: fmt.Sprintf("an answer of %d bytes", len(b))})
	}
	if err != nil {
		return err
	}
	return m.send(0, KindNote, b)
}

// Times after which nobody misses a file of the folder of copies.
const (
	unused  = 30 * 24 * time.Hour
	aborted = 24 * time.Hour
)

// Tend marks the copy that runs as used, until the file that it gives is closed, and removes those that have not been
// for long. What cannot be done is left: the next run tries again.
func Tend(program string) (io.Closer, error) {
	f, err := os.Open(program)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	now := time.Now()
	_ = os.Chtimes(program, now, now)
	folder := filepath.Dir(program)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return f, nil //nolint:nilerr // there is nothing to remove
	}
	for _, e := range entries {
		limit := unused
		if strings.HasPrefix(e.Name(), ".new-") {
			limit = aborted
		} else if !isHash(e.Name()) {
			continue
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && now.Sub(info.ModTime()) > limit {
			removeUnused(filepath.Join(folder, e.Name()))
		}
	}
	return f, nil
}

func isHash(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}

// removeUnused removes a copy that does not run.
func removeUnused(path string) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, fs.FileMode(0))
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		os.Remove(path)
	}
}

// Streams gives the far side's input and output, and leaves standard error in the place of standard output: whatever
// else prints does not stand between frames.
func Streams() (in, out *os.File, err error) {
	fds := [2]int{}
	for i, from := range []int{0, 1} {
		if fds[i], err = unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return nil, nil, err
		}
	}
	for _, fd := range fds { // so that closing them wakes who waits
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, nil, err
		}
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(null)
	if err := errors.Join(unix.Dup3(null, 0, 0), unix.Dup3(2, 1, 0)); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "standard input"), os.NewFile(uintptr(fds[1]), "standard output"), nil
}
