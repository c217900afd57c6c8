package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/rdma"
)

const pings = 21 // the median counts

type infoFacts struct {
	Server      string       `json:"server"`
	Source      string       `json:"source"` // where the address comes from
	Kind        string       `json:"gpu"`    // real or sim
	Driver      string       `json:"driver"`
	CUDA        string       `json:"cuda"` // the newest CUDA version that the driver supports
	Version     string       `json:"server_version"`
	Tenant      string       `json:"tenant,omitempty"` // whom the server sees in us
	Admin       bool         `json:"administrator"`    // that tenant administers the server
	TLS         bool         `json:"tls"`
	Client      string       `json:"client_version"`
	SameAPI     bool         `json:"same_api"`
	RoundTripUS float64      `json:"round_trip_us"`
	Sessions    *infoLoad    `json:"sessions"`   // null: the server does not say
	BigCopies   string       `json:"big_copies"` // how they travel
	Faults      string       `json:"faults"`     // how those of unified memory are seen here
	Devices     []infoDevice `json:"devices"`
	NoLoad      string       `json:"no_load,omitempty"` // why the devices have no load
	Error       string       `json:"-"`                 // of one of several servers: why it says nothing else
}

// infoLoad is how full the server is.
type infoLoad struct {
	Taken    int     `json:"taken"`   // of CUDA, with those that wait for a worker
	Places   int     `json:"places"`  // 0: no limit
	Waiting  int     `json:"waiting"` // programs in the queue for such a place
	Away     int     `json:"away"`    // of all, that wait for their clients
	Mine     int     `json:"of_this_tenant"`
	Uptime   float64 `json:"server_uptime_seconds"`
	Draining bool    `json:"draining"` // it takes no new ones
}

type infoDevice struct {
	Name       string `json:"name"`
	UUID       string `json:"uuid"`
	PCI        string `json:"pci_bus_id"`
	Memory     uint64 `json:"memory_bytes"`
	Capability string `json:"compute_capability"`
	Load       *load  `json:"load"` // null: NVML does not know it
}

func newInfo() *cobra.Command {
	var asJSON bool
	var address, tokenFile string
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the server, its GPUs, versions and the round trip",
		Long: `Ask the configured server what it is. Of several (SCUDA_SERVER=gpu1,gpu2) each has a section, and --json prints
a list. One that does not answer is named, and the exit status says so.

` + exitHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyEnv(cmd.Flags()); err != nil {
				return err
			}
			servers, source, err := serversAsked(address)
			if err != nil {
				return err
			}
			list := askEach(servers, func(server string) (*infoFacts, error) {
				f, err := askInfo(cmd.Context(), server, tokenFile)
				if err != nil {
					return &infoFacts{Server: server, Source: source, Error: err.Error()}, err
				}
				f.Source = source
				return f, nil
			})
			failed := failures(list)
			if len(list) == 1 && failed != nil {
				return failed
			}
			out := cmd.OutOrStdout()
			if asJSON && len(list) == 1 {
				return writeJSON(out, list[0].answer)
			}
			var all []any
			for i, a := range list {
				switch {
				case asJSON && a.err != nil:
					all = append(all, map[string]string{"server": a.server, "source": source, "error": a.answer.Error})
				case asJSON:
					all = append(all, a.answer)
				default:
					if i > 0 {
						fmt.Fprintln(out)
					}
					a.answer.print(out)
				}
			}
			if asJSON {
				if err := writeJSON(out, all); err != nil {
					return err
				}
			}
			return failed
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&address, "server", "",
		"ask this server (`HOST:PORT` or name), or several with commas between, instead of the configured one")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "`FILE` with the token")
	withEnv(cmd.Flags(), "token-file")
	return cmd
}

// askInfo asks a server for everything.
func askInfo(ctx context.Context, server, tokenFile string) (*infoFacts, error) {
	to, err := target(server, tokenFile)
	if err != nil {
		return nil, err
	}
	c, w, err := askOf(ctx, to, transport.KindInfo)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	trips := make([]time.Duration, pings)
	for i := range trips {
		if trips[i], err = ping(c, uint64(i)); err != nil {
			return nil, &exitError{exitUnreachable, fmt.Errorf("%s shook hands, then did not answer a ping: %w", server, err)}
		}
	}
	slices.Sort(trips)
	facts := gather(w, trips[len(trips)/2])
	facts.Server = to.Address
	_, facts.TLS = c.(*transport.TLSConn)
	facts.addLoad(ctx, to)
	facts.BigCopies = bigCopies(ctx, to.Address, w)
	facts.Faults = pager()
	return facts, nil
}

func gather(w *transport.Welcome, trip time.Duration) *infoFacts {
	f := &infoFacts{
		Kind: w.GPU, Driver: w.Driver, CUDA: fmt.Sprintf("%d.%d", w.DriverVersion/1000, w.DriverVersion%1000/10),
		Version: w.Version, Tenant: w.Tenant, Admin: w.Admin, Client: release.Version(), SameAPI: w.Digest == cuda.Digest,
		RoundTripUS: float64(trip.Nanoseconds()) / 1e3, Devices: []infoDevice{},
	}
	if l := w.Load; l != nil {
		f.Sessions = &infoLoad{l.Sessions, l.Places, l.Waiting, l.Away, l.Mine, l.Uptime, l.Draining}
	}
	for i := range w.Devices {
		d := &w.Devices[i]
		f.Devices = append(f.Devices, infoDevice{
			Name: d.Name, UUID: d.UUIDText(), PCI: d.PCIBusID,
			Memory: d.TotalMem,
			Capability: fmt.Sprintf("%d.%d", d.Attributes[cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR],
				d.Attributes[cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR]),
		})
	}
	return f
}

// addLoad asks how busy the GPUs are. A server without NVML cannot say it, which is no reason to fail.
func (f *infoFacts) addLoad(ctx context.Context, to transport.Target) {
	var uuids []string
	for _, d := range f.Devices {
		uuids = append(uuids, d.UUID)
	}
	loads, err := askLoad(ctx, to, uuids)
	if err != nil {
		f.NoLoad = err.Error()
	}
	for i, l := range loads {
		f.Devices[i].Load = l
	}
}

func (f *infoFacts) print(out io.Writer) {
	if f.Error != "" {
		fmt.Fprintf(out, "server      %s (from %s)\nerror       %s\n", f.Server, f.Source, f.Error)
		return
	}
	driver := "NVIDIA driver " + f.Driver
	if f.Kind == "sim" {
		driver = "simulated GPU"
	}
	fmt.Fprintf(out, "server      %s (from %s)\n", f.Server, f.Source)
	fmt.Fprintf(out, "connection  %s, as tenant %s%s\n", map[bool]string{true: "TLS 1.3", false: "without TLS"}[f.TLS],
		cmp.Or(f.Tenant, "(the server does not say)"), map[bool]string{true: ", an administrator"}[f.Admin])
	fmt.Fprintf(out, "versions    server scuda %s, client scuda %s", f.Version, f.Client)
	if !f.SameAPI {
		fmt.Fprint(out,
			" — built from different API descriptions, sessions will be refused: install the same release on both machines")
	}
	fmt.Fprintf(out, "\ndriver      %s, CUDA %s\n", driver, f.CUDA)
	fmt.Fprintf(out, "round trip  %.1f µs\n", f.RoundTripUS)
	if l := f.Sessions; l != nil {
		more := withoutClient(l.Away)
		switch {
		case l.Draining:
			more += "; it takes no new ones"
		case l.Waiting > 0:
			more += "; " + inQueue(l.Waiting)
		}
		fmt.Fprintf(out, "sessions    %s taken, %d of this tenant; the server is up %s%s\n", taken(l.Taken, l.Places), l.Mine,
			age(l.Uptime), more)
	}
	fmt.Fprintf(out, "big copies  %s\n", f.BigCopies)
	fmt.Fprintf(out, "faults      of unified memory are %s\n", f.Faults)
	for i, d := range f.Devices {
		fmt.Fprintf(out, "GPU %d       %s, %s, compute capability %s, %s, %s\n", i, d.Name, config.Size(d.Memory),
			d.Capability, d.PCI, d.UUID)
		if d.Load != nil {
			fmt.Fprintf(out, "            %s\n", d.Load)
		}
	}
	if f.NoLoad != "" {
		fmt.Fprintf(out, "load        unknown, as the server's NVML does not answer: %s\n", f.NoLoad)
	}
}

// bigCopies says over what big copies travel to a server.
func bigCopies(ctx context.Context, address string, w *transport.Welcome) string {
	over, device, err := config.Path()
	switch {
	case err != nil:
		return err.Error()
	case over == config.TransportTCP:
		return "TCP (SCUDA_TRANSPORT=tcp)"
	case !w.RDMA:
		return "TCP, as the server has no RDMA: " + w.NoRDMA
	}
	local, peer := ends(ctx, address)
	r := rdma.Examine(device, local, peer)
	if r.Why != "" {
		return "TCP, as this machine has no RDMA: " + r.Why
	}
	return "RDMA by " + r.Path
}
