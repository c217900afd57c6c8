// Command scuda-pool gives programs GPUs of several servers, without a cluster manager: servers are announced in etcd,
// programs wait in one queue, and have a lease of a server for as long as they run. See docs/pool.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scuda.dev/scuda/deploy/pool/store"
)

// version is set by the build.
var version = "dev"

// Exit codes, as scuda run has them.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitRun         = 125 // the program was not started
	exitNotRunnable = 126
	exitNotFound    = 127
	exitInterrupted = 130
)

// exitError is an error with an exit code; without an error nothing is said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprint(e.err) }
func (e *exitError) Unwrap() error { return e.err }

func usage(err error) error { return &exitError{exitUsage, err} }

func main() {
	runtime.LockOSThread() // a program that is started ends with the thread that started it (run.go)
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	e, coded := errors.AsType[*exitError](err)
	switch {
	case coded && e.err == nil:
		return e.code
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	fmt.Fprintln(os.Stderr, "scuda-pool:", err)
	if coded {
		return e.code
	}
	return exitFailure
}

func newRoot() *cobra.Command {
	cmd := &cobra.Command{
		Use: "scuda-pool", Short: "GPUs of several scuda servers, given out in turn", Version: version,
		SilenceUsage: true, SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	cmd.AddCommand(newServe(), newAnnounce(), newRun(), newStatus())
	return cmd
}

// etcdOptions say where the pool's etcd is.
type etcdOptions struct {
	where string
	store.Options
}

func (o *etcdOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.where, "etcd", os.Getenv("SCUDA_POOL"),
		"`URL` of the pool's etcd, https://HOST:PORT or unix:///PATH; several with commas between them [$SCUDA_POOL]")
	f.StringVar(&o.Cert, "etcd-cert", os.Getenv("SCUDA_POOL_CERT"),
		"`FILE` with the certificate for it [$SCUDA_POOL_CERT]")
	f.StringVar(&o.Key, "etcd-key", os.Getenv("SCUDA_POOL_KEY"), "`FILE` with its key [$SCUDA_POOL_KEY]")
	f.StringVar(&o.CA, "etcd-ca", os.Getenv("SCUDA_POOL_CA"), "`FILE` with the authorities of etcd's own [$SCUDA_POOL_CA]")
}

func (o *etcdOptions) open() (*store.Pool, error) {
	if o.where != "" {
		o.Endpoints = strings.Split(o.where, ",")
	}
	p, err := store.Open(o.Options)
	if errors.Is(err, store.ErrSetting) {
		return nil, usage(err)
	}
	return p, err
}

func logger() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }
