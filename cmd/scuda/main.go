// Command scuda serves GPUs to other machines and runs programs on GPUs that other machines serve.
//
// One file a verb, named after it. Every option has a variable in the environment, SCUDA_ and its name in capitals;
// env.go joins the two. Exit codes are in exit.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"scuda.dev/scuda/config"
)

func main() { os.Exit(run()) }

func run() int {
	// The first SIGINT or SIGTERM asks for an orderly end, a second one takes its usual effect.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	err := newRoot().ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var e *exitError
	if !errors.As(err, &e) {
		e = &exitError{code: exitFailure, err: err}
		if errors.Is(err, config.ErrSeveral) {
			e.code = exitUsage
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			e.code = exitInterrupted
		}
	}
	fmt.Fprintln(os.Stderr, "scuda:", e.err)
	return e.code
}
