//go:build !client

package main

import (
	"os"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/server"
	"scuda.dev/scuda/server/spawner"
)

func init() {
	if len(os.Args) == 2 && os.Args[1] == "worker" { // this is the first thread yet, whose name is the process's
		spawner.SetName()
	}
}

// newWorker is the process that serves one client; the server starts it with a socket in place, people do not.
func newWorker() *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Short:  "Serve one client (started by scuda serve)",
		Hidden: true,
		Args:   noArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return server.Worker(cmd.Context()) },
	}
}
