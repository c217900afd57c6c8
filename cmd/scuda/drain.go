package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/internal/bar"
	"scuda.dev/scuda/server/admin"
)

// lookAgain is how often a server that is drained is asked what is left.
const lookAgain = 500 * time.Millisecond

func newDrain() *cobra.Command {
	var undo, wait, asJSON bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Let a server take no new sessions",
		Long: `Let a server take no new sessions, which only an administrator may; those that it has go on. Programs that
start meanwhile are told that it is drained, /readyz answers 503, and scuda_draining is 1. --undo takes it back, and so
does a restart.
` + adminHelp + `
--wait waits until the last session has ended. --json prints what is left when the command ends:

  draining       whether the server takes no new sessions
  cuda_sessions  taken: so many are left; limit: how many there may be, 0: no limit
  nvml_sessions  the same for programs that use NVML
  version, address, pid, started, uptime_seconds

` + exitHelp,
		Example: "  scuda drain --wait --timeout 1h && systemctl restart scuda",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case undo && wait:
				return usage(errors.New("either --undo or --wait"))
			case timeout < 0 || timeout > 0 && !wait:
				return usage(errors.New("--timeout belongs to --wait, and cannot be negative"))
			}
			c, err := administer(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			st, err := c.Drain(cmd.Context(), !undo)
			if err == nil && wait {
				st, err = emptied(cmd, c, st, timeout)
			}
			if err != nil {
				return adminError(err)
			}
			out := cmd.OutOrStdout()
			switch left := st.CUDA.Taken + st.NVML.Taken; {
			case asJSON:
				return writeJSON(out, st)
			case undo:
				fmt.Fprintln(out, "the server takes new sessions")
			case left == 0:
				fmt.Fprintln(out, "the server takes no new sessions, and has none")
			default:
				fmt.Fprintf(out, "the server takes no new sessions, and has %s; scuda ps lists them\n", sessions(left))
			}
			return nil
		},
	}
	adminFlag(cmd)
	f := cmd.Flags()
	f.BoolVar(&undo, "undo", false, "let it take new sessions again")
	f.BoolVar(&wait, "wait", false, "wait until the last session has ended")
	f.DurationVar(&timeout, "timeout", 0, "`TIME` that is waited at most; then the exit status is 1 (default: no limit)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func sessions(n int) string {
	if n == 1 {
		return "1 session"
	}
	return fmt.Sprintf("%d sessions", n)
}

// errLeft says that a server was not empty in time.
var errLeft = errors.New("sessions are left")

// emptied waits until a server has no session.
func emptied(cmd *cobra.Command, c *admin.Client, st *admin.Status, timeout time.Duration) (*admin.Status, error) {
	ctx := cmd.Context()
	if timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = limited
	}
	progress := bar.New(cmd.ErrOrStderr())
	defer progress.End()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for most := 0; ; {
		left := st.CUDA.Taken + st.NVML.Taken
		if left == 0 {
			return st, nil
		}
		most = max(most, left)
		progress.Step(int64(most-left), int64(most), sessions(left)+" left")
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, tooLate(cmd.Context(), left, timeout)
		}
		var err error
		if st, err = c.Status(ctx); err != nil {
			if ctx.Err() != nil {
				return nil, tooLate(cmd.Context(), left, timeout)
			}
			return nil, err
		}
		if !st.Draining {
			return nil, fmt.Errorf("%w: somebody lets the server take new ones again", errLeft)
		}
	}
}

// tooLate says why the wait has ended; the server goes on being drained.
func tooLate(ctx context.Context, left int, timeout time.Duration) error {
	if ctx.Err() != nil {
		return interrupted(fmt.Errorf("%s left; the server takes no new ones (scuda drain --undo)", sessions(left)))
	}
	return fmt.Errorf("%w after %v: %d; scuda ps lists them, scuda kill ends them", errLeft, timeout, left)
}
