package spawner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/server/isolation"
)

// A spawner is a child of a server that was started as root ([Launch]), or a service of its own, which connects to the
// server's socket ([Listen], [Dial]): so the server needs no right to reach it, and a spawner that comes again is
// found.

// inheritedFD is the socket of a spawner that the server has started.
const inheritedFD = 3

// InheritFlag is the option with which the server starts a spawner: its value is the configuration.
const InheritFlag = "inherit"

// Launch starts a spawner as a child process, which keeps the capabilities that it needs and no others. It is started
// again when it has ended. The caller is root.
func Launch(cfg Config, program ...string) (*Remote, error) {
	if len(program) == 0 {
		program = []string{"/proc/self/exe", "spawner"}
	}
	// Workers lock memory for the GPU and the network card; they cannot raise the limit themselves.
	unlimited := &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, unlimited) // where root may not, it stays as it was
	r := &Remote{renew: func() (*Client, error) { return launch(cfg, program) }}
	if _, err := r.Facts(); err != nil {
		return nil, err
	}
	return r, nil
}

func launch(cfg Config, program []string) (*Client, error) {
	if err := closeInherited(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program[0], append(program[1:], "--"+InheritFlag, string(text))...)
	cmd.Args[0], cmd.Env = "scuda", kept(os.Environ())
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals from the terminal are the server's
	isolation.OnThread(func() {
		if err = keepCapabilities(unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL); err == nil {
			err = cmd.Start()
		}
	})
	theirs.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the spawner: %w", err), ours.sock.Close())
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its line says that it is gone
		close(ended)
	}()
	c, err := newClient(ours)
	if err != nil {
		<-ended // without its line it ends
		return nil, err
	}
	c.ended = ended
	return c, nil
}

// keepCapabilities takes all others from what the calling thread starts.
func keepCapabilities(keep ...int) error {
	for c := 0; ; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // there are no more
		}
		kept := err != nil || has == 0
		for _, k := range keep {
			kept = kept || k == c
		}
		if kept {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("give up capability %d: %w", c, err)
		}
	}
}

// Inherited is the main program of a spawner that [Launch] has started.
func Inherited(ctx context.Context, config string) error {
	var cfg Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return fmt.Errorf("--%s is for the server, not for people: %w", InheritFlag, err)
	}
	unix.CloseOnExec(inheritedFD)
	f := os.NewFile(inheritedFD, "supervisor")
	if f == nil {
		return fmt.Errorf("--%s is for the server, not for people", InheritFlag)
	}
	l, err := lineOf(f)
	if err != nil {
		return err
	}
	local, err := NewLocal(cfg, cfg.logger())
	if err != nil {
		return errors.Join(err, l.sock.Close())
	}
	defer local.Close()
	return serve(ctx, l, local, newKeeper(false, cfg.logger())) // its socket leads to one supervisor
}

// Listen waits for spawners that connect to a socket. It returns once the first is there, or with an error when
// patience is over. Only root's are taken.
func Listen(ctx context.Context, path string, patience time.Duration, log *slog.Logger) (*Remote, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the spawner's socket: %w", err)
	}
	sock, err := (&net.ListenConfig{}).Listen(ctx, "unixpacket", path)
	if err == nil {
		err = os.Chmod(path, 0o666) // a spawner that has no rights over files is to reach it; who connects is looked at
	}
	if err != nil {
		return nil, fmt.Errorf("the spawner's socket: %w", err)
	}
	r := &Remote{none: fmt.Errorf("%w: nothing is connected to %s; start scuda-spawner.service, or scuda spawner "+
		"--connect %s as root", ErrLost, path, path)}
	first := make(chan struct{})
	came := sync.OnceFunc(func() { close(first) })
	go func() {
		var lines door.Lines // anybody may connect, as often as they like
		for {
			c, err := sock.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			var client *Client
			if err == nil {
				client, err = admit(c.(*net.UnixConn))
			} else { // out of descriptors, for now
				time.Sleep(retry)
			}
			if err != nil {
				if missed, ok := lines.Allow(); ok {
					log.Warn("refused a spawner", "error", err, "left_out", missed)
				}
				continue
			}
			log.Info("a spawner has connected", "users", client.facts.UIDs.String())
			r.set(client)
			came()
		}
	}()
	context.AfterFunc(ctx, func() { sock.Close() })
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-first:
		return r, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-t.C:
		sock.Close()
		return nil, r.none
	}
}

// admit takes a spawner of root's, or of the server's own user.
func admit(c *net.UnixConn) (*Client, error) {
	l := line{c}
	uid, err := l.peerUID()
	if err == nil && uid != 0 && int(uid) != os.Geteuid() {
		err = fmt.Errorf("it is of user %d, not of root", uid)
	}
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(sendLimit))
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	client, err := newClient(l)
	if err != nil {
		return nil, err
	}
	return client, c.SetReadDeadline(time.Time{})
}

// retry is how often a spawner looks for its server.
const retry = 500 * time.Millisecond

// Dial is the main program of a spawner that is a service of its own: it serves the server that listens at path, and
// the one after it, to which it gives what is kept. Workers are of the program as it is when a server comes: it may
// have been upgraded with the server.
func Dial(ctx context.Context, path string, cfg Config, log *slog.Logger) error {
	local, err := NewLocal(cfg, log)
	if err != nil {
		return err
	}
	defer local.Close()
	k := newKeeper(true, log)
	for ctx.Err() == nil {
		c, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", path)
		if err == nil {
			log.Info("serving a server's workers", "socket", path)
			local.renew()
			if err := serve(ctx, line{c.(*net.UnixConn)}, local, k); err != nil {
				log.Error("the server is served no more", "error", err)
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	return nil
}
