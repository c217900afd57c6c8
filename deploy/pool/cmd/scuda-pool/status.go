package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/transport"
)

// poolStatus is what `scuda-pool status --json` prints.
type poolStatus struct {
	Servers []serverStatus `json:"servers"`
	Queue   []plan.Request `json:"queue"`
}

type serverStatus struct {
	plan.Server
	Free []string `json:"free"` // UUIDs
}

func newStatus() *cobra.Command {
	var e etcdOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the servers, their GPUs, who has them, and who waits",
		Long: `Show the servers that are in the pool, each GPU with who has it, and those who wait, in the order in which they
are served. --json prints servers (address, fingerprint, draining, gpus, leases, free) and queue (id, tenant, who,
since, gpus, servers, kind, memory_bytes).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := e.open()
			if err != nil {
				return err
			}
			defer p.Close()
			st, err := p.See(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), &st)
			}
			return show(cmd.OutOrStdout(), &st)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	e.flags(cmd.Flags())
	return cmd
}

func writeJSON(w io.Writer, st *plan.State) error {
	free := st.Free()
	out := poolStatus{[]serverStatus{}, append([]plan.Request{}, st.Sorted()...)}
	for _, s := range st.Servers {
		out.Servers = append(out.Servers, serverStatus{s, append([]string{}, free[s.Address]...)})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

func show(w io.Writer, st *plan.State) error {
	if len(st.Servers) == 0 {
		fmt.Fprintln(w, "no server is in the pool; scuda-pool announce brings one in")
	}
	free := st.Free()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(st.Servers) > 0 {
		fmt.Fprintln(t, "SERVER\tGPU\tKIND\tMEMORY\tHAS IT")
	}
	for i := range st.Servers {
		s := &st.Servers[i]
		for _, g := range s.GPUs {
			has := "free"
			if !slices.Contains(free[s.Address], g.UUID) {
				has = holder(st, s, g.UUID)
			} else if s.Draining {
				has = "free, and the server drains"
			}
			fmt.Fprintf(t, "%s\t%.12s\t%s\t%v\t%s\n", transport.Printable(s.Address), transport.Printable(g.UUID),
				transport.Printable(g.Name), g.Memory, transport.Printable(has))
		}
	}
	if len(st.Queue) > 0 {
		fmt.Fprintln(t, "\nQUEUE\tTENANT\tWANTS\tSINCE\tWHO")
	}
	for i, r := range st.Sorted() {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\n", i+1, transport.Printable(r.Tenant), transport.Printable(r.Want.String()),
			r.Since.Local().Format(time.TimeOnly), transport.Printable(r.Who))
	}
	return t.Flush()
}

// holder says who has a GPU.
func holder(st *plan.State, s *plan.Server, uuid string) string {
	for _, h := range st.Held {
		if h.Server == s.Address && slices.Contains(h.GPUs, uuid) {
			return fmt.Sprintf("%s: %s", h.Tenant, h.Who)
		}
	}
	for _, l := range s.Leases {
		if len(l.GPUs) == 0 || slices.Contains(l.GPUs, uuid) {
			return fmt.Sprintf("%s: lease %s %s", l.Tenant, l.ID, l.Label)
		}
	}
	return "somebody"
}
