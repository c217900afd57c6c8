package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/server/admin"
)

// killed is what `scuda kill` tells of a session that it has ended.
type killed struct {
	ID      string `json:"id"`
	Tenant  string `json:"tenant"`
	Program string `json:"program"`
	Reason  string `json:"reason"`
}

func newKill() *cobra.Command {
	var reason string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "kill SESSION...",
		Short: "End sessions of a server",
		Long: `End sessions of a server; a SESSION is an id of scuda ps, or its beginning.
` + adminHelp + `
The session's program prints the reason on its standard error. From then on its calls answer error 46
(CUDA_ERROR_DEVICE_UNAVAILABLE), and those of NVML answer NVML_ERROR_GPU_IS_LOST. The command returns when the session
has ended and its GPU memory is free. If one SESSION is wrong, none is ended.

--json prints a list of what was ended: id, tenant, program, reason.

` + exitHelp,
		Example: `  scuda kill 73b52c8e --reason "the machine is upgraded at noon; please start again then"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("which session? scuda kill SESSION; scuda ps lists them"))
			}
			return nil
		},
		SuggestFor:        []string{"end", "terminate"},
		ValidArgsFunction: completeSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(reason) > admin.MaxReason {
				return usage(fmt.Errorf("--reason has %d bytes; %d are the most", len(reason), admin.MaxReason))
			}
			c, err := administer(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			list, err := c.Sessions(cmd.Context())
			if err != nil {
				return adminError(err)
			}
			var chosen []*admin.Session
			for _, word := range args {
				s, err := admin.Find(list, word)
				if err != nil {
					return adminError(err)
				}
				chosen = append(chosen, s)
			}
			out, ended := cmd.OutOrStdout(), []killed{}
			for _, s := range chosen {
				if err := c.End(cmd.Context(), s.ID, reason); err != nil && !errors.Is(err, admin.ErrNoSession) {
					return adminError(fmt.Errorf("session %s: %w", s.ID, err))
				}
				ended = append(ended, killed{s.ID, s.Tenant, s.Program, reason})
				if !asJSON {
					fmt.Fprintf(out, "ended %s, %s of %s\n", s.ID, s.Program, clientName(s))
				}
			}
			if asJSON {
				return writeJSON(out, ended)
			}
			return nil
		},
	}
	adminFlag(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` that the program prints")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
