package main

import (
	"github.com/spf13/cobra"

	"scuda.dev/scuda/server"
)

// newWorker is the process that serves one client; the server starts it with a socket in place, people do not.
func newWorker() *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Short:  "Serve one client (started by scuda -l)",
		Hidden: true,
		Args:   noArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return server.Worker(cmd.Context()) },
	}
}
