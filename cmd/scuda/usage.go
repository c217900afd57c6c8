package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/admin"
	record "scuda.dev/scuda/server/usage"
)

// longestAgo is as far as --since looks back.
const longestAgo = 100 * 365 * 24 * time.Hour

func newUsage() *cobra.Command {
	var since, by, state string
	var logs []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Say what sessions have used of a server's GPUs",
		Long: `Say what sessions have used of a server's GPUs, as its usage log has it. With --log or --state-dir, and where
no server can be asked, the logs on this machine are read.
` + adminHelp + `
A session is in the log when it has ended; one that runs, up to the last full hour of it. GPU TIME is the time that
there was work for GPUs, a guess, which is marked by ~. MEMORY is bytes times hours, as far as the server knows what
sessions have: by a limit (--max-vram), or from the driver where it offers metrics. IN and OUT are bytes that were
copied to GPUs and from them. With turns on GPUs (--turns) TURNS is the part of GPU TIME that was given by shares
and classes, and is no guess; WAITED is how long sessions waited for their turns. Beyond 10000 tenants, sessions or
labels they are (others). Of several servers (--server gpu1,gpu2) each has rows of its own, which name it.

--json prints a list, and of each tenant, session, label or day:

  server                 which server says so, where several were asked
  key                    the tenant, the session's id, the label of the lease (such as a job's; without one:
                         (none)), or the day (of this machine's clock)
  tenant, program        of a session; the program is what the client says
  sessions               how many there were
  seconds                that they were open
  gpu_seconds            that they used GPUs; estimated: whether that is a guess
  memory_byte_seconds    bytes of GPU memory times seconds
  copied_to_gpu_bytes, copied_to_host_bytes, calls
  turn_seconds           of gpu_seconds, that were given in turns; turn_wait_seconds: that sessions waited for them

` + exitHelp,
		Example: "  scuda usage --since 7d\n  scuda usage --since 2026-01-01 --by day --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := applyEnv(cmd.Flags()); err != nil {
				return err
			}
			if !slices.Contains(record.By(), by) {
				return usage(fmt.Errorf("--by %.40q is none of %s", by, strings.Join(record.By(), ", ")))
			}
			from, err := parseSince(since, time.Now())
			if err != nil {
				return usage(err)
			}
			servers := make([]asked[*admin.Usage], 1)
			if len(logs) == 0 && state == "" {
				servers, err = askUsage(cmd, from, by)
			} else {
				servers[0].answer, err = readUsage(cmd.Context(), logs, state, from, by)
			}
			if err != nil {
				return err
			}
			failed := failures(servers)
			servers = slices.DeleteFunc(slices.Clone(servers), func(a asked[*admin.Usage]) bool { return a.err != nil })
			if len(servers) == 0 {
				return failed
			}
			sums := []serverSum{}
			for _, a := range servers {
				if a.answer.Bad > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "scuda: %d lines of the usage log are no records\n", a.answer.Bad)
				}
				for _, s := range a.answer.Sums {
					sums = append(sums, serverSum{a.server, s})
				}
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), sums)
			} else {
				err = printUsage(cmd.OutOrStdout(), by, sums)
			}
			return errors.Join(err, failed)
		},
	}
	cmd.Flags().StringVar(&since, "since", "7d", "`TIME` to look back, such as 90m, 24h or 7d, or a day: 2026-01-31")
	cmd.Flags().StringVar(&by, "by", "tenant", "`WHAT` to add up by: tenant, session, label (of the lease) or day")
	cmd.Flags().StringArrayVar(&logs, "log", nil,
		"read the `FILE` that scuda serve's --usage-log names, and ask no server; may be given again")
	cmd.Flags().StringVar(&state, "state-dir", "",
		"read all logs in the `FOLDER` of the server's state, and ask no server (default: ~/.local/state/scuda)")
	adminFlag(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	withEnv(cmd.Flags(), "state-dir")
	return cmd
}

// serverSum is what was used of a server; "" is the one that was asked, or a log.
type serverSum struct {
	Server string `json:"server,omitempty"`
	record.Sum
}

// errLocalNoUsage is this machine's server, which keeps no log.
var errLocalNoUsage = errors.New("no usage log")

// askUsage asks the servers. Where there is none to ask, or that of this machine keeps no log, those in the state
// folder are read.
func askUsage(cmd *cobra.Command, from time.Time, by string) ([]asked[*admin.Usage], error) {
	servers, err := askAdmins(cmd, func(c *admin.Client) (*admin.Usage, error) {
		u, err := c.Usage(cmd.Context(), from, by)
		if c.Local() && errors.Is(err, admin.ErrNoUsage) {
			err = errLocalNoUsage
		}
		return u, err
	})
	switch named := cmd.Flag("admin").Value.String() != admin.Auto; {
	case err == nil && (len(servers) > 1 || !errors.Is(servers[0].err, errLocalNoUsage)):
		if len(servers) == 1 {
			servers[0].server = ""
		}
		return servers, nil
	case err != nil && !errors.Is(err, admin.ErrSwitched) && (named || !errors.Is(err, admin.ErrNoServer)):
		return nil, err
	}
	u, err := readUsage(cmd.Context(), nil, "", from, by)
	return []asked[*admin.Usage]{{answer: u}}, err
}

// readUsage reads logs: those that are named, else those of a state folder.
func readUsage(ctx context.Context, logs []string, state string, from time.Time, by string) (*admin.Usage, error) {
	if len(logs) == 0 {
		var err error
		if logs, err = usageLogs(state); err != nil {
			return nil, err
		}
	}
	sums, bad := record.NewAdder(by), 0
	for _, path := range logs {
		n, err := record.Records(ctx, path, from, sums.Add)
		if bad += n; errors.Is(err, fs.ErrPermission) {
			return nil, &exitError{exitRefused, fmt.Errorf("%w; use sudo", err)}
		} else if err != nil {
			return nil, err
		}
	}
	return &admin.Usage{Sums: sums.Sums(), Bad: bad}, nil
}

// usageLogs are the logs of the servers that keep their state in a folder.
func usageLogs(folder string) ([]string, error) {
	if folder == "" {
		var err error
		if folder, err = config.StateFolder(); err != nil {
			return nil, err
		}
	}
	logs, err := filepath.Glob(filepath.Join(folder, "usage-*.jsonl"))
	if err == nil && len(logs) == 0 {
		err = fmt.Errorf("no server has written a usage log in %s; --log FILE names one, --state-dir another folder", folder)
	}
	return logs, err
}

// parseSince reads how far to look back, or from which day on.
func parseSince(s string, now time.Time) (time.Time, error) {
	if day, err := time.ParseInLocation(time.DateOnly, s, time.Local); err == nil {
		return day, nil
	}
	var d time.Duration
	if number, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return time.Time{}, fmt.Errorf("--since %.40q: write 90m, 24h, 7d or 2026-01-31", s)
		}
		d = time.Duration(n) * 24 * time.Hour
	} else if n, err := time.ParseDuration(s); err == nil && n >= 0 {
		d = n
	} else {
		return time.Time{}, fmt.Errorf("--since %.40q: write 90m, 24h, 7d or 2026-01-31", s)
	}
	return now.Add(-min(d, longestAgo)), nil
}

// printUsage prints a table.
func printUsage(out io.Writer, by string, sums []serverSum) error {
	if len(sums) == 0 {
		fmt.Fprintln(out, "nothing was used in that time")
		return nil
	}
	columns := []column{{name: strings.ToUpper(by)}, {name: "SESSIONS", right: true}, {name: "OPEN", right: true},
		{name: "GPU TIME", right: true}, {name: "MEMORY", right: true}, {name: "IN", right: true},
		{name: "OUT", right: true}, {name: "CALLS", right: true}}
	turns := slices.ContainsFunc(sums, func(s serverSum) bool { return s.Turn > 0 || s.Waited > 0 })
	if turns {
		columns = append(columns, column{name: "TURNS", right: true}, column{name: "WAITED", right: true})
	}
	if by == "session" {
		columns[1] = column{name: "TENANT", soft: true}
		columns = slices.Insert(columns, 2, column{name: "PROGRAM", soft: true})
	}
	var rows [][]string
	for i := range sums {
		s := &sums[i]
		row := []string{s.Key, strconv.Itoa(s.Sessions), age(s.Seconds), map[bool]string{true: "~"}[s.Estimated] + age(s.GPU),
			fmt.Sprint(config.Size(s.Memory/3600)) + "·h", fmt.Sprint(config.Size(s.ToDevice)),
			fmt.Sprint(config.Size(s.ToHost)), strconv.FormatUint(s.Calls, 10)}
		if turns {
			row = append(row, age(s.Turn), age(s.Waited))
		}
		if by == "session" {
			row[1] = s.Tenant
			row = slices.Insert(row, 2, s.Program)
		}
		rows = append(rows, row)
	}
	if slices.ContainsFunc(sums, func(s serverSum) bool { return s.Server != "" }) {
		columns = slices.Insert(columns, 0, column{name: "SERVER"})
		for i := range rows {
			rows[i] = slices.Insert(rows[i], 0, sums[i].Server)
		}
	}
	return writeTable(out, 0, columns, rows)
}
