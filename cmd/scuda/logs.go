package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/server/admin"
)

// errNoLog is a server whose log nobody keeps where it could be found.
var errNoLog = errors.New("the server's log is not kept")

func newLogs() *cobra.Command {
	var socket string
	var lines int
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Show the log of the server of this machine",
		Long: `Show the end of the log of the server of this machine: of a service by journalctl, with that of the process
which starts its workers, else the file to which the server's standard error goes. A server that runs on a terminal, or
with --log LEVEL,file=PATH, has its log there.

` + exitHelp,
		Example:    "  sudo scuda logs -f\n  sudo scuda logs -n 1000 | grep level=ERROR",
		SuggestFor: []string{"log", "journal"},
		Args:       noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyEnv(cmd.Flags()); err != nil {
				return err
			}
			if lines < 0 {
				return usage(errors.New("--lines is 0 or more"))
			}
			c, err := admin.Dial(cmd.Context(), socket)
			if err != nil {
				return adminError(err)
			}
			defer c.Close()
			st, err := c.Status(cmd.Context())
			if err != nil {
				return adminError(err)
			}
			args, err := reader(fmt.Sprintf("/proc/%d", st.PID), lines, follow)
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
	f.StringVar(&socket, "admin", admin.Auto, "`SOCKET` of the server (auto: that of the one server of this machine)")
	f.IntVarP(&lines, "lines", "n", 100, "show `N` lines")
	f.BoolVarP(&follow, "follow", "f", false, "go on with what comes, until Ctrl-C")
	withEnv(f, "admin")
	return cmd
}

// reader is the command that shows the log of a process, which proc is in /proc.
func reader(proc string, lines int, follow bool) ([]string, error) {
	n := strconv.Itoa(lines)
	if text, err := os.ReadFile(path.Join(proc, "cgroup")); err == nil {
		if unit, users := unitOf(string(text)); unit != "" {
			by := "--unit"
			if users {
				by = "--user-unit"
			}
			args := []string{"journalctl", "--output", "cat", "--quiet", "--lines", n, by, unit}
			if unit == "scuda.service" {
				args = append(args, by, "scuda-spawner.service") // which starts its workers
			}
			if follow {
				args = append(args, "--follow")
			}
			return args, nil
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
	if follow {
		return []string{"tail", "-n", n, "-F", name}, nil
	}
	return []string{"tail", "-n", n, name}, nil
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
