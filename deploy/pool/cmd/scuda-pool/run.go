package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/deploy/pool/take"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/transport"
)

// placeTTL is how long a request stays in the queue when its program has died.
const placeTTL = 10 * time.Second

type runOptions struct {
	want  plan.Want
	etcd  etcdOptions
	token string
	lasts time.Duration
	quiet bool
}

func newRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARG...]",
		Short: "Run a program with GPUs of the pool",
		Long: `Wait until a server of the pool has so many free GPUs, take a lease of them, and run a program with it. The
program has SCUDA_SERVER, SCUDA_TOKEN and SCUDA_FINGERPRINT set; run it by scuda run, unless scuda's libraries are in
its place already. No other program of the pool has these GPUs while it runs. When it ends they are given back. When
scuda-pool is killed they are free after --lease at the latest, and the program is told to end (SIGTERM); likewise where
the lease is lost.

All GPUs of a program are of one server, unless --servers lets them be of several: then of as few as have so many free
ones. A program has a lease of each of its servers, or none, and their GPUs as if all were of one machine; but they do
not reach each other's memory, and copies between servers go by way of the program.

The servers have to know you: your token or certificate, as scuda login or SCUDA_TOKEN_FILE has it, is that of a tenant
of each.

The exit status is the program's; 125: it was not started; 126, 127: it cannot be run, or is not there.`,
		Example: "  scuda-pool run --gpus 2 --kind h200 --memory 40GiB -- scuda run -- python3 train.py\n" +
			"  scuda-pool run --gpus 8 --servers 4 -- scuda run -- python3 train.py",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("no program given: scuda-pool run -- PROGRAM [ARG...]"))
			}
			return nil
		},
		RunE: o.run,
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.SortFlags = false
	f.IntVar(&o.want.GPUs, "gpus", 1, "`N` GPUs")
	f.IntVar(&o.want.Servers, "servers", 1, "the GPUs are of `N` servers at most")
	f.StringVar(&o.want.Kind, "kind", "", "GPUs whose product name has this `TEXT` in it, such as h200; default: any")
	f.Var(&o.want.Memory, "memory", "each GPU has at least this `SIZE` of memory")
	f.Lookup("memory").DefValue = "0"
	f.StringVar(&o.token, "token-file", "", "`FILE` with your token for the servers [$SCUDA_TOKEN_FILE]")
	f.DurationVar(&o.lasts, "lease", time.Minute, "`TIME` after which the GPUs are free when nobody renews the lease")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not say what is waited for")
	o.etcd.flags(f)
	return cmd
}

// The bounds of a lease: it is renewed three times in it.
const leastLease, mostLease = 3 * time.Second, time.Hour

func (o *runOptions) run(cmd *cobra.Command, args []string) error {
	switch {
	case o.want.GPUs < 1 || o.want.GPUs > lease.MostGPUs:
		return usage(fmt.Errorf("--gpus: %d; it is 1 to %d", o.want.GPUs, lease.MostGPUs))
	case o.want.Servers < 1 || o.want.Servers > config.MostServers:
		return usage(fmt.Errorf("--servers: %d; it is 1 to %d", o.want.Servers, config.MostServers))
	case o.lasts < leastLease || o.lasts > mostLease:
		return usage(fmt.Errorf("--lease: %v; it is %v to %v", o.lasts, leastLease, mostLease))
	}
	program, err := exec.LookPath(args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return notRun(args[0], err)
	}
	code, err := o.start(cmd, program, args)
	if e := (*exitError)(nil); err != nil && !errors.As(err, &e) && !errors.Is(err, context.Canceled) {
		return &exitError{exitRun, err}
	} else if err == nil && code != 0 {
		return &exitError{code, nil}
	}
	return err
}

func notRun(program string, err error) error {
	code := exitNotRunnable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	return &exitError{code, fmt.Errorf("cannot run %s: %w", program, err)}
}

func (o *runOptions) start(cmd *cobra.Command, program string, args []string) (code int, err error) {
	note := cmd.ErrOrStderr()
	to := take.Options{Want: o.want, Lasts: o.lasts, TTL: placeTTL, Who: who(args[0]), Note: note,
		Dial: func(s *plan.Server) (take.Admin, error) { return dial(s.Address, o.token, s.Fingerprint) }}
	if o.quiet {
		to.Note = io.Discard
	}
	pool, err := o.etcd.open()
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	taken, err := take.Take(cmd.Context(), pool, to)
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, bad := range taken.Give(context.Background()) {
			fmt.Fprintln(note, "scuda-pool:", bad)
		}
	}()
	return supervise(taken, program, args, note)
}

// who says for people who asks.
func who(program string) string {
	host, _ := os.Hostname()
	return transport.Printable(fmt.Sprintf("%s@%s %s", config.User(), host, filepath.Base(program)))
}

// supervise runs the program and keeps its leases, and gives its exit status.
func supervise(t *take.Taken, program string, args []string, note io.Writer) (int, error) {
	c := exec.Command(program)
	c.Args, c.Env = args, environment(os.Environ(), t)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Without this process nobody renews the leases. The thread is the one that main has for itself.
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := c.Start(); err != nil {
		return 0, notRun(args[0], err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	lost := make(chan error, len(t.Leases))
	go func() {
		t.Keep(ctx, func(err error) { lost <- err })
		close(lost)
	}()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	kept, told := lost, false
	for {
		select {
		case s := <-signals:
			// A terminal has told the program as well of what is typed.
			if s == syscall.SIGTERM || s == syscall.SIGHUP {
				_ = c.Process.Signal(s)
			}
		case err, more := <-kept:
			switch {
			case !more:
				kept = nil
			case told: // of another lease; who is told twice may end at once
				fmt.Fprintf(note, "scuda-pool: %v\n", err)
			default:
				told = true
				fmt.Fprintf(note, "scuda-pool: %v; the program is told to end\n", err)
				_ = c.Process.Signal(syscall.SIGTERM)
			}
		case err := <-ended:
			cancel()
			for bad := range lost { // at the same moment
				fmt.Fprintf(note, "scuda-pool: %v\n", bad)
			}
			return status(err)
		}
	}
}

// status is the exit status of a program that has ended.
func status(err error) (int, error) {
	e, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return 0, err
	}
	if w, ok := e.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal()), nil
	}
	return e.ExitCode(), nil
}

// environment is that in which a program uses its leases. Lists have an element for each server, in the same order.
func environment(env []string, t *take.Taken) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains([]string{"SCUDA_SERVER", "SCUDA_SPREAD", "SCUDA_TOKEN", "SCUDA_TOKEN_FILE",
			"SCUDA_FINGERPRINT", "SCUDA_POOL_LEASE", "SCUDA_POOL_GPUS"}, name)
	})
	var servers, tokens, fingerprints, ids, gpus []string
	for _, l := range t.Leases {
		servers, tokens = append(servers, l.Server.Address), append(tokens, l.Credential)
		fingerprints, ids = append(fingerprints, l.Fingerprint), append(ids, l.ID)
		gpus = append(gpus, l.GPUs...)
	}
	env = append(env, "SCUDA_SERVER="+config.Join(servers), "SCUDA_TOKEN="+strings.Join(tokens, ","),
		"SCUDA_POOL_LEASE="+strings.Join(ids, ","), "SCUDA_POOL_GPUS="+strings.Join(gpus, ","))
	if slices.ContainsFunc(fingerprints, func(f string) bool { return f != "" }) {
		env = append(env, "SCUDA_FINGERPRINT="+strings.Join(fingerprints, ","))
	}
	return env
}
