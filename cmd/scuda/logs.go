package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/server/admin"
)

// errNoLog is a server whose log nobody keeps where it could be found.
var errNoLog = errors.New("the server's log is not kept")

// systemdRuns is there where systemd runs: sd_booted(3). Tests have their own.
var systemdRuns = "/run/systemd/system"

// logsOf says what of a log is wanted.
type logsOf struct {
	lines  int // -1: all
	since  time.Time
	follow bool
}

func newLogs() *cobra.Command {
	var socket, since string
	var want logsOf
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Show the log of the server of this machine",
		Long: `Show the end of the log of the server of this machine: of a service by journalctl, with that of the process
which starts its workers, else the file to which the server's standard error goes. Where no server answers and systemd
runs, it is the journal of the units scuda and scuda-spawner. A server that runs on a terminal, or with
--log LEVEL,file=PATH, has its log there.

` + exitHelp,
		Example:    "  sudo scuda logs -f\n  sudo scuda logs --since 1h | grep level=ERROR",
		SuggestFor: []string{"log", "journal"},
		Args:       noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyEnv(cmd.Flags()); err != nil {
				return err
			}
			if want.lines < 0 {
				return usage(errors.New("--lines is 0 or more"))
			}
			if since != "" {
				var err error
				if want.since, err = parseSince(since, time.Now()); err != nil {
					return usage(err)
				}
				if !cmd.Flags().Changed("lines") {
					want.lines = -1
				}
			}
			args, err := showing(cmd.Context(), socket, systemdRuns, want)
			if err != nil {
				return err
			}
			p := exec.CommandContext(cmd.Context(), args[0], args[1:]...)
			p.Stdout, p.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := p.Run(); err != nil && cmd.Context().Err() == nil {
				return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&socket, "admin", admin.Auto, "`SOCKET` of the server (auto: that of the one server of this machine; "+
		"none: ask none, and show the journal)")
	f.IntVarP(&want.lines, "lines", "n", 100, "show `N` lines")
	f.StringVar(&since, "since", "", "show what came since a `TIME`, such as 90m, 24h or 7d ago, or a day: 2026-01-31; "+
		"all lines, unless --lines says how many")
	f.BoolVarP(&want.follow, "follow", "f", false, "go on with what comes, until Ctrl-C")
	withEnv(f, "admin")
	return cmd
}

// showing is the command that shows the log of the server behind a socket. The journal has that of a service which is
// down, too.
func showing(ctx context.Context, socket, systemd string, want logsOf) ([]string, error) {
	pid, err := serverProcess(ctx, socket)
	if err == nil {
		return reader(fmt.Sprintf("/proc/%d", pid), want)
	}
	one := socket != admin.Auto && socket != "" && socket != admin.None
	if one || errors.Is(err, admin.ErrSeveral) {
		return nil, adminError(err)
	}
	if _, none := os.Stat(systemd); none != nil {
		return nil, adminError(fmt.Errorf("%w; where systemd does not run, a server's log goes to its standard error, "+
			"or where --log file= says", err))
	}
	return journal("scuda.service", false, want), nil
}

func serverProcess(ctx context.Context, socket string) (int, error) {
	c, err := admin.Dial(ctx, socket)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return 0, err
	}
	return st.PID, nil
}

// reader is the command that shows the log of a process, which proc is in /proc.
func reader(proc string, want logsOf) ([]string, error) {
	if text, err := os.ReadFile(path.Join(proc, "cgroup")); err == nil {
		if unit, users := unitOf(string(text)); unit != "" {
			return journal(unit, users, want), nil
		}
	}
	name, err := os.Readlink(path.Join(proc, "fd/2"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w; ask as the server's user or as root", errNoLog, err)
	}
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: its standard error is %s; look there, or where --log file= says, or start it as a "+
			"service (scuda service install)", errNoLog, name)
	}
	if !want.since.IsZero() {
		return nil, usage(fmt.Errorf("--since is for a log in the journal, and this one is the file %s; use --lines", name))
	}
	args := []string{"tail", "-n", strconv.Itoa(want.lines)}
	if want.follow {
		args = append(args, "-F")
	}
	return append(args, name), nil
}

// journal is the command that shows what the journal has of a unit of systemd.
func journal(unit string, users bool, want logsOf) []string {
	by := "--unit"
	if users {
		by = "--user-unit"
	}
	args := []string{"journalctl", "--output", "cat", "--quiet", by, unit}
	if unit == "scuda.service" {
		args = append(args, by, "scuda-spawner.service") // which starts its workers
	}
	if !want.since.IsZero() {
		args = append(args, "--since", fmt.Sprintf("@%d", want.since.Unix()))
	}
	if want.lines >= 0 {
		args = append(args, "--lines", strconv.Itoa(want.lines))
	} else {
		args = append(args, "--no-tail") // else --follow begins with the last lines
	}
	if want.follow {
		args = append(args, "--follow")
	}
	return args
}

// unitOf is the systemd service in which a process runs, by its control groups, and whether it is a user's own; "":
// none. A login is no service that serves.
func unitOf(groups string) (unit string, users bool) {
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 || fields[0] != "0" && fields[1] != "name=systemd" {
			continue
		}
		for _, part := range slices.Backward(strings.Split(fields[2], "/")) {
			if strings.HasPrefix(part, "scuda") && strings.HasSuffix(part, ".service") {
				return part, strings.Contains(fields[2], "/user@")
			}
		}
	}
	return "", false
}
