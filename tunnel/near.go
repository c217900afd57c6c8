package tunnel

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/bar"
)

// Errors of the near side.
var (
	ErrCommand  = errors.New("the program that leads to the other machine cannot be started")
	ErrNotThere = errors.New("the other machine was not reached")
	ErrServer   = errors.New("no server there")
)

// Wish is what the near side is to do.
type Wish struct {
	Way    Way      `json:"way"`
	Folder string   `json:"folder"` // for the copy there; "": the user's cache
	Copies []Copy   `json:"copies"`
	Serve  []string `json:"serve"`
	Direct bool     `json:"direct"`
}

// Report is what the near side found: an address with the token that the server there asks for, or an error. The
// address is on loopback, where the near side carries connections, or that of the server itself.
type Report struct {
	Address string `json:"address"`
	Direct  bool   `json:"direct"` // it is the server's, which has the key of Ready
	Token   string `json:"token"`
	Error   string `json:"error"`
	Ready   Ready  `json:"ready"`
}

// Times of ends.
const (
	patience = 5 * time.Second // for what ends by itself
	lastWord = 2 * time.Second // for the exit status behind the end of the output
)

// Carry is the near side: it reads a [Wish], answers with a [Report], and carries connections until the program ends or
// the other side does. The program is given as a pidfd; talk is closed when it begins.
//
// It and what it starts stay in the program's process group, because ssh may ask for a password on its terminal. What
// the terminal, or timeout(1), sends to that group is meant for the program, which may go on: neither takes notice.
func Carry(ctx context.Context, talk io.ReadWriteCloser, program *os.File) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGTSTP, syscall.SIGPIPE)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		awaitExit(int(program.Fd()))
		runtime.KeepAlive(program)
		cancel(errProgram)
	}()
	var w Wish
	if err := json.NewDecoder(talk).Decode(&w); err != nil {
		return fmt.Errorf("what is to be done: %w", err)
	}
	n := &near{wish: w, token: rand.Text() + rand.Text()}
	err := n.run(ctx, func(r Report) error {
		defer talk.Close()
		return json.NewEncoder(talk).Encode(r)
	})
	if !n.reported && err != nil && !errors.Is(err, errProgram) {
		_ = json.NewEncoder(talk).Encode(Report{Error: err.Error()})
		return nil
	}
	if errors.Is(err, errProgram) {
		return nil
	}
	return err
}

// errProgram is the ordinary end.
var errProgram = errors.New("the program has ended")

// awaitExit waits for the end of the process of a pidfd. While a program is executed by another thread than the first,
// old kernels may say so too early.
func awaitExit(pidfd int) {
	for again := false; ; {
		p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		timeout := -1
		if again {
			timeout = 0
		}
		n, err := unix.Poll(p, timeout)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil, n > 0 && again:
			return
		case n > 0:
			again = true
			time.Sleep(10 * time.Millisecond)
		default:
			again = false
		}
	}
}

// near is a near side under way.
type near struct {
	wish     Wish
	token    string
	reported bool
	cmd      *exec.Cmd
	in       *os.File // the command's standard output
	out      *os.File // and its input
	said     *tail    // its standard error
	exited   chan struct{}
	leave    sync.Once
}

func (n *near) run(ctx context.Context, report func(Report) error) error {
	if err := n.start(); err != nil {
		return err
	}
	defer n.end(patience)
	unhook := context.AfterFunc(ctx, func() { n.end(0) }) // wakes the dialog
	m := newMux(n.in, n.out)
	err := n.meet(m)
	if !unhook() {
		return context.Cause(ctx)
	}
	if err != nil {
		return n.explain(err)
	}
	ready := make(chan Ready, 1)
	m.note = func(b []byte) error {
		var r Ready
		if err := json.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("%w: %w", ErrHello, err)
		}
		select {
		case ready <- r:
		default: // it says why it ends
			return fmt.Errorf("%w: %s", ErrServer, r.Error)
		}
		return nil
	}
	running := make(chan error, 1)
	go func() { running <- m.run(ctx) }()
	var r Ready
	select {
	case r = <-ready:
	case err := <-running:
		select {
		case r = <-ready: // its last word
		default:
			return n.explain(err)
		}
	}
	if means := cause(r.Error); means != "" {
		return fmt.Errorf("%w: %s: %s", ErrServer, means, r.Error)
	} else if r.Error != "" {
		return fmt.Errorf("%w: %s (for options of the server there: --serve-flags)", ErrServer, r.Error)
	}
	if n.wish.Direct {
		at, err := reach(ctx, r.Addresses, r.Fingerprint)
		if err == nil {
			return n.watch(ctx, running, report, Report{Address: at, Direct: true, Token: n.token, Ready: r})
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fmt.Fprintf(os.Stderr, "scuda: connections to %s go through %s: %v\n", n.wish.Way.Word, n.wish.Way.Command[0], err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	go accept(l, m)
	return n.watch(ctx, running, report, Report{Address: l.Addr().String(), Token: n.token, Ready: r})
}

// watch tells the program, and waits until it ends or the other side does.
func (n *near) watch(ctx context.Context, running <-chan error, report func(Report) error, r Report) error {
	n.reported = true
	if err := report(r); err != nil {
		return err
	}
	err := <-running
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("the connection to %s is gone, and with it the server: %w", n.wish.Way.Word, err)
}

func accept(l net.Listener, m *mux) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptor is free, say
			time.Sleep(50 * time.Millisecond)
		default:
			go m.open(c.(*net.TCPConn))
		}
	}
}

// start starts the command.
func (n *near) start() error {
	way := n.wish.Way
	path, err := exec.LookPath(way.Command[0])
	if err != nil {
		return fmt.Errorf("%w: %w; install it (on Debian: apt install %s)", ErrCommand, err,
			map[string]string{"ssh": "openssh-client", "docker": "docker.io", "podman": "podman"}[way.Command[0]])
	}
	theirIn, out, err := os.Pipe()
	if err != nil {
		return err
	}
	in, theirOut, err := os.Pipe()
	if err != nil {
		theirIn.Close()
		out.Close()
		return err
	}
	n.cmd = exec.Command(path, way.arguments(script)...)
	n.said = &tail{to: os.Stderr}
	n.cmd.Stdin, n.cmd.Stdout, n.cmd.Stderr = theirIn, theirOut, n.said
	n.cmd.WaitDelay = lastWord // where what it started keeps its standard error
	err = n.cmd.Start()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return fmt.Errorf("%w: %w", ErrCommand, err)
	}
	n.in, n.out, n.exited = in, out, make(chan struct{})
	go func() {
		_ = n.cmd.Wait() // its state says it
		close(n.exited)
	}()
	return nil
}

// end ends the command: it ends by itself when its input does, unless the network is gone.
func (n *near) end(after time.Duration) {
	n.leave.Do(func() {
		n.out.Close()
		n.in.Close()
		t := time.NewTimer(after)
		defer t.Stop()
		select {
		case <-n.exited:
		case <-t.C:
			_ = n.cmd.Process.Kill()
			<-n.exited
		}
	})
}

// meet gets the far side to run, and greets it.
func (n *near) meet(m *mux) error {
	progress := bar.New(os.Stderr)
	defer progress.End()
	d := dialog{in: m.in, out: n.out, copies: n.wish.Copies, folder: n.wish.Folder, progress: func(done, all int64) {
		if all == 0 {
			fmt.Fprintf(progress, "scuda: copying itself to %s, once\n", n.wish.Way.Word)
		}
		progress.Step(done, all, fmt.Sprintf("of %.0f MiB", float64(all)/(1<<20)))
	}}
	if err := d.run(); err != nil {
		return err
	}
	hello, err := appendLine(nil, Hello{Token: n.token, Serve: n.wish.Serve, Direct: n.wish.Direct})
	if err != nil {
		return err
	}
	_, err = n.out.Write(hello)
	return err
}

// explain says why the connection ended before there was a server.
func (n *near) explain(err error) error {
	ended := errors.Is(err, ErrEnded) || errors.Is(err, syscall.EPIPE)
	if !ended && !errors.Is(err, ErrFolder) && !errors.Is(err, ErrCopy) && !errors.Is(err, ErrRun) {
		return err
	}
	t := time.NewTimer(lastWord)
	defer t.Stop()
	select {
	case <-n.exited:
	case <-t.C:
		if ended {
			return fmt.Errorf("%w: %s is silent; see whether it answers: %s", ErrNotThere, n.wish.Way.Word, n.wish.Way.trial())
		}
	}
	means := cause(n.said.String())
	switch {
	case !ended && means != "":
		return fmt.Errorf("%w: %s", err, means)
	case !ended:
		return err
	case means == "":
		means = "what it says stands above"
	}
	return fmt.Errorf("%w: %s ended with %s before a server ran on %s: %s; this has to work first: %s", ErrNotThere,
		n.wish.Way.Command[0], n.cmd.ProcessState, n.wish.Way.Word, means, n.wish.Way.trial())
}
