package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/perf/delay"
)

// newProxy is the part of bench that makes the server look far away.
func newProxy() *cobra.Command {
	var listen string
	var roundTrip time.Duration
	cmd := &cobra.Command{
		Use:   "proxy [flags] HOST:PORT",
		Short: "Make a server look far away",
		Long: `Forward connections to a server and add to their round trips, without limiting how many bytes are on their
way. Programs that use the printed address as their server run as they would over a longer link.`,
		Example: "  scuda bench proxy --round-trip 10ms 127.0.0.1:14833",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(errors.New("which server? scuda bench proxy [flags] HOST:PORT"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := config.Address(args[0])
			if err != nil {
				return usage(err)
			}
			p, err := delay.Listen(listen, address, roundTrip/2)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), "listening on", p.Address()); err != nil {
				return err
			}
			return p.Serve(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", onLoopback+":0", "`HOST:PORT` to listen on")
	cmd.Flags().DurationVar(&roundTrip, "round-trip", time.Millisecond, "`TIME` to add to a round trip")
	return cmd
}
