package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
)

const statusPatience = 6 * time.Second // longer than it takes to see that nobody answers

// serverStatus is what `scuda status` tells of a server.
type serverStatus struct {
	Name        string  `json:"name"`
	Server      string  `json:"server"`
	Used        bool    `json:"used"`
	State       string  `json:"state"` // ok, unreachable, refused
	Error       string  `json:"error,omitempty"`
	Tenant      string  `json:"tenant,omitempty"`
	Profile     string  `json:"profile,omitempty"` // what our sessions may do there
	GPUs        string  `json:"gpus,omitempty"`
	Version     string  `json:"server_version,omitempty"`
	RoundTripUS float64 `json:"round_trip_us,omitempty"`

	err error
}

func newStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask all remembered servers how they are",
		Long: `Ask all remembered servers, at once, whether they answer and what they have. The exit status is that of the
server which programs use (*); of several, that of the first that failed.

` + exitHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := askAll(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				if err := writeJSON(out, list); err != nil {
					return err
				}
			} else if len(list) > 0 {
				t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
				fmt.Fprintln(t, "\tNAME\tSERVER\tSTATE\tTENANT\tPROFILE\tGPUS\tROUND TRIP\tVERSION")
				for _, s := range list {
					trip := "-"
					if s.State == good {
						trip = seconds(s.RoundTripUS * 1e-6)
					}
					row := []string{
						map[bool]string{true: "*"}[s.Used], s.Name, s.Server, s.State, cmp.Or(s.Tenant, "-"), cmp.Or(s.Profile, "-"),
						cmp.Or(s.GPUs, "-"), trip, cmp.Or(s.Version, "-"),
					}
					fmt.Fprintln(t, strings.Join(row, "\t"))
				}
				if err := t.Flush(); err != nil {
					return err
				}
			}
			none := true
			for _, s := range list {
				if s.Used && s.err != nil {
					return s.err
				}
				none = none && !s.Used
			}
			if none {
				return config.ErrNoServer
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// askAll asks the remembered servers, and the one that is used.
func askAll(ctx context.Context) ([]serverStatus, error) {
	saved, _, err := remembered()
	if err != nil {
		return nil, err
	}
	list := []serverStatus{}
	for _, s := range saved {
		list = append(list, serverStatus{Name: s.Name, Server: s.Server, Used: s.Used})
	}
	now, _, err := config.Configured()
	if err != nil {
		return nil, err
	}
	for _, server := range now {
		if !slices.ContainsFunc(list, func(s serverStatus) bool { return s.Server == server }) {
			list = append(list, serverStatus{Name: "-", Server: server, Used: true})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	var asked sync.WaitGroup
	for i := range list {
		asked.Go(func() { list[i].ask(ctx) })
	}
	asked.Wait()
	return list, nil
}

func (s *serverStatus) ask(ctx context.Context) {
	c, w, err := ask(ctx, s.Server, "", transport.KindInfo)
	if err == nil {
		defer c.Close()
		var trip time.Duration
		if trip, err = ping(c, 1); err == nil {
			s.State, s.Tenant, s.Profile, s.GPUs, s.Version = good, w.Tenant, w.Profile, devices(w), w.Version
			s.RoundTripUS = float64(trip.Nanoseconds()) / 1e3
			return
		}
		err = &exitError{exitUnreachable, err}
	}
	s.State, s.Error, s.err = "unreachable", err.Error(), err
	if e := (*exitError)(nil); errors.As(err, &e) && e.code == exitRefused {
		s.State = "refused"
	}
}
