package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/server/admin"
)

// check is a line of a doctor's report.
type check struct {
	Server string `json:"server,omitempty"` // that it is of, where several are looked at
	What   string `json:"what"`
	State  string `json:"state"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

// States of a check.
const (
	good   = "ok"
	noted  = "note"    // programs run, not as well as they could
	failed = "FAIL"    // programs do not run
	unseen = "unknown" // something before it failed
)

// checks is a report.
type checks []check

func (c *checks) add(state, what, found, remedy string) {
	*c = append(*c, check{What: what, State: state, Found: found, Remedy: remedy})
}

// judge adds a check that is fine or is not.
func (c *checks) judge(ok bool, otherwise, what, found, remedy string) {
	if ok {
		c.add(good, what, found, "")
	} else {
		c.add(otherwise, what, found, remedy)
	}
}

// of says that the checks behind the first ones are of a server, where several are looked at.
func (c checks) of(first int, server string, servers int) {
	for i := first; i < len(c) && servers > 1; i++ {
		c[i].Server = server
	}
}

func (c checks) print(out io.Writer) {
	colours := map[string]string{good: green, noted: yellow, failed: red}
	for _, k := range c {
		mark := fmt.Sprintf("%-7s", k.State)
		if colour, ok := colours[k.State]; ok {
			mark = paint(out, colour, mark)
		}
		fmt.Fprintf(out, "%s %-14s %s\n", mark, k.What, k.Found)
		if k.Remedy != "" {
			fmt.Fprintf(out, "%-22s → %s\n", "", k.Remedy)
		}
	}
}

func (c checks) failures() (n int) {
	for _, k := range c {
		if k.State == failed {
			n++
		}
	}
	return n
}

var errSick = errors.New("not everything is well")

func newDoctor() *cobra.Command {
	var address, tokenFile, socket string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything that programs need, and say what to do",
		Long: `Check the way to the server, the credential, versions, the client's libraries and what this machine gives
them; one check a line, with the remedy below it. It ends with status 1 if programs cannot run as it is. "note" is
what is slower or missing without harm. On a machine that serves and for which no server is configured, it looks at
the server of this machine, over its admin socket. Several servers are looked at one after the other.`,
		SuggestFor: []string{"check", "diagnose", "health"},
		Args:       noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyEnv(cmd.Flags()); err != nil {
				return err
			}
			var c checks
			servers, here := c.server(cmd.Context(), address, socket)
			if len(servers) == 0 && !here {
				c.connection(cmd.Context(), "", tokenFile)
			}
			for i, server := range servers {
				before := len(c)
				if i > 0 {
					c.add(good, "server", server, "")
				}
				c.connection(cmd.Context(), server, tokenFile)
				c.of(before, server, len(servers))
			}
			c.libraries()
			c.preload(os.Environ())
			c.machine()
			for _, server := range append(servers, "")[:max(1, len(servers))] {
				before := len(c)
				c.rdma(cmd.Context(), server)
				c.of(before, server, len(servers))
			}
			if asJSON {
				if err := writeJSON(cmd.OutOrStdout(), c); err != nil {
					return err
				}
			} else {
				c.print(cmd.OutOrStdout())
			}
			if n := c.failures(); n > 0 {
				return fmt.Errorf("%w: %d of %d checks failed", errSick, n, len(c))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "server", "",
		"look at this server (`HOST:PORT` or name), or several with commas between, instead of the configured one")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "`FILE` with the token")
	cmd.Flags().StringVar(&socket, "admin", admin.Auto,
		"`SOCKET` of this machine's server, at which to look where no other is configured (auto: that of its one server)")
	withEnv(cmd.Flags(), "admin")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
