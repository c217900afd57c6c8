package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport/certificate"
	"scuda.dev/scuda/transport/chaos"
)

type chaosOptions struct {
	server string
	every  time.Duration
	away   time.Duration
	kind   chaos.Kind
	way    chaos.Way
	bytes  int
	quiet  bool
}

// newChaos is the command that shows what a program makes of a bad network.
func newChaos() *cobra.Command {
	o := chaosOptions{kind: chaos.Cut, way: chaos.Both}
	cmd := &cobra.Command{
		Use:   "chaos [flags] -- PROGRAM [ARGUMENT...]",
		Short: "Run a program over a network that breaks",
		Long: `Run a program whose connections to the server go through a proxy that breaks them: they are cut at times, or
behind some number of bytes, or held up. The program is to notice nothing but that it takes longer (see --grace of
scuda serve). At its end a line says how many connections were cut. The exit status is the program's.

What happens to the connections (--kind):
  cut      both ends are told: by an end in order, or every other time by a reset
  half     only one end is told, by a reset; the other one hears nothing any more
  stall    bytes wait for the time of --away, in the directions of --way
  swallow  bytes vanish from there on, in the directions of --way, and neither end is told
  corrupt  with --bytes: a bit is changed; without TLS nobody notices, so it needs TLS`,
		Example: `  scuda chaos -- python3 train.py                     # everything is cut once a second
  scuda chaos --every 30s --away 10s -- ./program     # the server cannot be reached for 10 s
  scuda chaos --bytes 100000 --every 0 -- ./program   # each connection is cut behind at most so many bytes
  scuda chaos --kind stall --every 20s --away 5s -- ./program  # nothing comes through for 5 s
  scuda chaos --kind swallow --way down --every 1m -- ./program  # what the server says vanishes`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("which program? scuda chaos [flags] -- PROGRAM [ARGUMENT...]"))
			}
			return nil
		},
		RunE: o.run,
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.server, "server", "", "use this server (`HOST:PORT` or name) instead of the configured one")
	f.DurationVar(&o.every, "every", time.Second, "`TIME` between two breaks of all connections; 0: none")
	f.DurationVar(&o.away, "away", 0, "`TIME` for which the server cannot be reached behind each of them")
	f.Var(&o.kind, "kind", "what happens: cut, half, stall, swallow or corrupt")
	f.Var(&o.way, "way", "to bytes of which direction: up (to the server), down or both")
	f.IntVar(&o.bytes, "bytes", 0, "it happens to each connection behind at most `N` bytes, too; 0: it does not")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "say nothing at the end")
	return cmd
}

func (o *chaosOptions) run(cmd *cobra.Command, args []string) error {
	if min(o.every, o.away) < 0 || o.bytes < 0 {
		return usage(errors.New("--every, --away and --bytes cannot be negative"))
	}
	if o.kind == chaos.Stall && o.away == 0 {
		return usage(errors.New("--kind stall wants --away, the time for which bytes wait"))
	}
	if o.kind == chaos.Corrupt && (o.bytes == 0 || o.every > 0) {
		return usage(errors.New("--kind corrupt wants --bytes and --every 0"))
	}
	to, err := o.target()
	if err != nil {
		return &exitError{exitRun, err}
	}
	cfg := chaos.Config{Every: o.every, Away: o.away, Kind: o.kind, Way: o.way}
	if o.bytes > 0 {
		cfg.Harm = func(int) chaos.Harm {
			return chaos.Harm{Kind: o.kind, Way: o.one(), Bytes: 1 + rand.IntN(o.bytes), For: o.away}
		}
	}
	p, err := chaos.Listen(onLoopback+":0", to, cfg)
	if err != nil {
		return &exitError{exitRun, err}
	}
	env, err := o.env(p.Address(), to)
	if err != nil {
		return &exitError{exitRun, err}
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx) }()
	program := exec.Command(args[0], args[1:]...) //nolint:gosec // it is the user's program
	program.Env = env
	program.Stdin, program.Stdout, program.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 4) // the terminal sends them to the program, too
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT)
	defer signal.Stop(signals)
	err = program.Run()
	cancel()
	if serr := <-served; serr != nil && err == nil {
		err = serr
	}
	if !o.quiet {
		fmt.Fprintf(cmd.ErrOrStderr(), "scuda: %d connections were cut\n", p.Cuts())
	}
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		return &exitError{max(ended.ExitCode(), 1), fmt.Errorf("%s: %w", args[0], err)}
	case err != nil:
		return notRun(args[0], err)
	}
	return nil
}

// one is the direction whose bytes are counted for the next connection.
func (o *chaosOptions) one() chaos.Way {
	if o.way == chaos.Both {
		return chaos.Up << rand.IntN(2)
	}
	return o.way
}

// target is the server's address.
func (o *chaosOptions) target() (string, error) {
	if o.server != "" {
		return config.Address(o.server)
	}
	to, err := config.Target()
	if err == nil && to.Address == "" {
		err = config.ErrNoServer
	}
	return to.Address, err
}

// env is the environment in which the program finds the server behind the proxy, and knows it.
func (o *chaosOptions) env(proxy, server string) ([]string, error) {
	env, err := clientEnv(os.Environ(), proxy, "")
	if err != nil {
		return nil, err
	}
	env = setEnv(env, "SCUDA_TRANSPORT", "tcp") // RDMA would go past the proxy
	if os.Getenv("SCUDA_TOKEN") == "" && os.Getenv("SCUDA_TOKEN_FILE") == "" {
		token, _, err := config.Token(server)
		if err != nil {
			return nil, err
		}
		env = setEnv(env, "SCUDA_TOKEN", string(token))
	}
	if os.Getenv("SCUDA_FINGERPRINT") == "" {
		known, err := config.Known(server)
		if err != nil {
			return nil, err
		}
		if _, err := certificate.ParseFingerprint(known); err == nil { // else it has no TLS
			env = setEnv(env, "SCUDA_FINGERPRINT", known)
		}
	}
	return env, nil
}
