package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/rdma"
)

func newRDMA() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rdma",
		Short: "Look into RDMA, by which big copies travel where there is some",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRDMADoctor())
	return cmd
}

// errNoRDMA is a machine on which the doctor found no RDMA; the report says why.
var errNoRDMA = errors.New("RDMA is not used")

func newRDMADoctor() *cobra.Command {
	var address, device string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say whether RDMA works here, over what, and what to do if not",
		Long: `Look at everything that RDMA needs on this machine: library and kernel, devices and ports, limits,
permission; and say which device, port and address paths to the server would use. Run it on the server's machine as
well. It ends with status 1 where RDMA cannot be used.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if address == "" {
				address, _, err = config.Server()
			} else if address, err = config.Address(address); err != nil {
				err = usage(err)
			}
			if err != nil {
				return err
			}
			local, peer := ends(cmd.Context(), address)
			r := rdma.Examine(device, local, peer)
			if asJSON {
				if err := writeJSON(cmd.OutOrStdout(), r); err != nil {
					return err
				}
			} else {
				printReport(cmd.OutOrStdout(), r, peer)
			}
			if r.Why != "" {
				return fmt.Errorf("%w: %s", errNoRDMA, r.Why)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "server", "",
		"look at the way to this server (`HOST:PORT` or name) instead of the configured one")
	cmd.Flags().StringVar(&device, "device", config.RDMADevice(),
		"`DEVICE`[:PORT[:GIDINDEX]] instead of the one that fits [$SCUDA_RDMA_DEVICE]")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// ends gives the addresses of both ends of a connection to a server; invalid ones where there is no server.
func ends(ctx context.Context, address string) (local, peer netip.Addr) {
	full, err := transport.ParseAddress(address)
	if address == "" || err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", full) // sends nothing
	if err != nil {
		return
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), c.RemoteAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

func printReport(out io.Writer, r *rdma.Report, peer netip.Addr) {
	if peer.IsValid() {
		fmt.Fprintf(out, "the way to %s:\n", peer)
	}
	var list checks
	for _, c := range r.Checks {
		switch {
		case c.Grave:
			list.add(failed, c.What, c.Found, c.Remedy)
		case !c.OK:
			list.add(noted, c.What, c.Found, c.Remedy)
		default:
			list.add(good, c.What, c.Found, c.Remedy)
		}
	}
	list.print(out)
	if r.Why == "" {
		fmt.Fprintf(out, "RDMA can be used: %s\n", r.Path)
	}
}
