package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/transport"
)

func newPS() *cobra.Command {
	var asJSON, wide bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the sessions of a server",
		Long: `List the sessions of a server, the oldest first; of several (--server gpu1,gpu2) those of all, with a column
that says which server has each. A server that does not answer is named, and the exit status says so.
` + adminHelp + `
MEMORY is of GPUs: what counts against the session's limit, and the limit; without a limit what the driver says
that the session's process has, contexts included. GPU% is the part of the last five seconds in which it used GPUs,
as far as is known: of sessions that use one together, each counts in full, but where they take turns. STATE is
busy (something was done for it in the last second, or waits to be done), turn (it waits for its turn on a GPU),
idle, open (it uses NVML), away (it has lost a connection and waits for its client to come back; AWAY says how long
it has, and LEFT how long it will, before it ends) or ending. LEASE is there where a session has one: its label,
else its id. A program in CLIENT, PROGRAM and PID is what the client says. Columns that a narrow terminal has no
room for are left out, unless --wide is given. Programs that wait for a place (--max-queue of scuda serve) are
counted below.

--json prints a list, and of each session:

  server           which server has it, where several were asked
  id, kind         its id, and cuda or nvml
  state            busy, turn, idle, open, away or ending
  tenant           in whose name it runs
  user, host       as the client says; address: where its connection comes from; tls: whether it has TLS
  program, pid     as the client says
  worker_pid       the process that serves it; 0 for who is no administrator
  profile          what it may do beside using GPUs
  opened           when it began; age_seconds, idle_seconds: since then, since its last command
  calls            carried out so far; null for NVML
  away             of one that waits for its client: since, seconds (since then), until; else null
  gpus             those on which it has memory: index, uuid, memory_bytes
  counted_bytes    what counts against its limit; null without one
  quota_bytes      its limit of GPU memory, 0: none
  lease            the id of its lease, "": none; lease_label: what its maker calls it
  share, class     what it is worth beside others (scuda lease create --help)
  gpu_seconds      that it used GPUs, as scuda usage says it; gpu_share: the part of the last five seconds
  turn_seconds     of GPUs, that it got in turns (scuda serve --turns); turn_wait_seconds: that it waited for them

` + exitHelp,
		Example:    "  scuda ps\n  sudo scuda ps --json | jq -r '.[] | select(.idle_seconds > 3600) | .id'",
		SuggestFor: []string{"sessions", "processes"},
		Args:       noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			servers, err := askAdmins(cmd, func(c *admin.Client) (s serverSessions, err error) {
				if s.list, err = c.Sessions(cmd.Context()); err != nil || asJSON {
					return s, err
				}
				st, err := c.Status(cmd.Context())
				if err == nil {
					s.waiting = st.Waiting
				}
				return s, err
			})
			if err != nil {
				return err
			}
			failed := failures(servers)
			if failed != nil && !slices.ContainsFunc(servers, func(a asked[serverSessions]) bool { return a.err == nil }) {
				return failed
			}
			out, width := cmd.OutOrStdout(), 0
			if !wide {
				width = columns(out)
			}
			if err := printSessions(out, asJSON, width, servers); err != nil {
				return err
			}
			return failed
		},
	}
	adminFlag(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&wide, "wide", false, "print all columns in full, however wide the terminal is")
	return cmd
}

// serverSessions are a server's sessions, and how many programs wait for a place.
type serverSessions struct {
	list    []admin.Session
	waiting int
}

// printSessions prints the sessions of servers that answered.
func printSessions(out io.Writer, asJSON bool, width int, servers []asked[serverSessions]) error {
	type placed struct {
		Server string `json:"server,omitempty"`
		admin.Session
	}
	list := []placed{}
	var sessions []admin.Session
	for _, a := range servers {
		if a.err != nil {
			continue
		}
		for _, s := range a.answer.list {
			p := placed{Session: s}
			if len(servers) > 1 {
				p.Server = a.server
			}
			list, sessions = append(list, p), append(sessions, s)
		}
	}
	if asJSON {
		return writeJSON(out, list)
	}
	if len(list) == 0 {
		fmt.Fprintln(out, "no sessions")
	} else {
		columns, rows := sessionTable(sessions)
		if len(servers) > 1 {
			columns = slices.Insert(slices.Clone(columns), 0, column{name: "SERVER"})
			for i := range rows {
				rows[i] = slices.Insert(rows[i], 0, list[i].Server)
			}
		}
		if err := writeTable(out, width, columns, rows); err != nil {
			return err
		}
	}
	for _, a := range servers {
		switch {
		case a.answer.waiting == 0:
		case len(servers) > 1:
			fmt.Fprintf(out, "%s: %s\n", a.server, inQueue(a.answer.waiting))
		default:
			fmt.Fprintln(out, inQueue(a.answer.waiting))
		}
	}
	return nil
}

// sessionColumns are those of a table of sessions.
var sessionColumns = []column{
	{name: "SESSION"}, {name: "TENANT", soft: true, spare: 3}, {name: "CLIENT", soft: true},
	{name: "PROGRAM", soft: true}, {name: "PID", right: true, spare: 4}, {name: "GPU", spare: 2},
	{name: "GPU%", right: true, spare: 6},
	{name: "MEMORY", right: true}, {name: "CALLS", right: true, spare: 5}, {name: "STATE", spare: 1},
	{name: "AGE", right: true},
}

// sessionTable is a table of sessions, with what came of turns where some took them, and their leases where some have
// one.
func sessionTable(list []admin.Session) (columns []column, rows [][]string) {
	columns, rows = withTurns(sessionColumns, sessionRows(list), list)
	columns, rows = withAway(columns, rows, list)
	if !slices.ContainsFunc(list, func(s admin.Session) bool { return s.Lease != "" }) {
		return columns, rows
	}
	columns = append(slices.Clone(columns), column{name: "LEASE", soft: true, spare: 8})
	for i := range list {
		s := &list[i]
		rows[i] = append(rows[i], cmp.Or(transport.Printable(s.Label), s.Lease, "-"))
	}
	return columns, rows
}

// withTurns adds what came of sessions' turns, where some took them.
func withTurns(columns []column, rows [][]string, list []admin.Session) ([]column, [][]string) {
	if !slices.ContainsFunc(list, func(s admin.Session) bool { return s.Turn > 0 || s.TurnWait > 0 }) {
		return columns, rows
	}
	columns = append(slices.Clone(columns), column{name: "TURNS", right: true, spare: 7},
		column{name: "WAITED", right: true, spare: 7})
	for i := range list {
		turns, waits := "-", "-"
		if list[i].Kind == admin.KindCUDA {
			turns, waits = age(list[i].Turn), age(list[i].TurnWait)
		}
		rows[i] = append(rows[i], turns, waits)
	}
	return columns, rows
}

// withAway adds how long sessions have waited for their clients, and how long they will, where some do.
func withAway(columns []column, rows [][]string, list []admin.Session) ([]column, [][]string) {
	if !slices.ContainsFunc(list, func(s admin.Session) bool { return s.Away != nil }) {
		return columns, rows
	}
	columns = append(slices.Clone(columns), column{name: "AWAY", right: true}, column{name: "LEFT", right: true})
	for i := range list {
		away, left := "-", "-"
		if w := list[i].Away; w != nil {
			away, left = age(w.Seconds), age(max(0, w.Until.Sub(w.Since).Seconds()-w.Seconds))
		}
		rows[i] = append(rows[i], away, left)
	}
	return columns, rows
}

// callsColumn is where they have the calls.
var callsColumn = slices.IndexFunc(sessionColumns, func(c column) bool { return c.name == "CALLS" })

// sessionRows are the rows of such a table.
func sessionRows(list []admin.Session) (rows [][]string) {
	digits := unambiguous(list)
	for i := range list {
		s := &list[i]
		calls := "-"
		if s.Calls != nil {
			calls = strconv.FormatUint(*s.Calls, 10)
		}
		pid := "-"
		if s.PID != 0 {
			pid = strconv.Itoa(s.PID)
		}
		rows = append(rows, []string{
			s.ID[:min(digits, len(s.ID))], transport.Printable(s.Tenant), clientName(s),
			cmp.Or(transport.Printable(s.Program), "-"), pid, gpuNumbers(s), gpuPart(s), memoryText(s), calls,
			s.State, age(s.Age),
		})
	}
	return rows
}

// shortID is how much of an id is shown at least.
const shortID = 8

// unambiguous is how much of their ids tells sessions apart.
func unambiguous(list []admin.Session) int {
	for digits := shortID; ; digits++ {
		seen, clash, longer := map[string]bool{}, false, false
		for _, s := range list {
			id := s.ID[:min(digits, len(s.ID))]
			clash, longer = clash || seen[id], longer || len(s.ID) > digits
			seen[id] = true
		}
		if !clash || !longer {
			return digits
		}
	}
}

// clientName is USER@HOST, as far as it is known.
func clientName(s *admin.Session) string {
	host := transport.Printable(cmp.Or(s.Host, s.Address))
	if s.User == "" {
		return cmp.Or(host, "-")
	}
	return transport.Printable(s.User) + "@" + host
}

// gpuNumbers are the numbers of the GPUs on which a session has memory.
func gpuNumbers(s *admin.Session) string {
	var numbers []string
	for _, u := range s.GPUs {
		numbers = append(numbers, strconv.Itoa(u.Index))
	}
	return cmp.Or(strings.Join(numbers, ","), "-")
}

// gpuPart is the part of the time of late in which a session used GPUs.
func gpuPart(s *admin.Session) string {
	if s.Kind != admin.KindCUDA {
		return "-"
	}
	return fmt.Sprintf("%.0f", 100*s.GPUShare)
}

// memoryText says what a session has of GPU memory, and what it may have.
func memoryText(s *admin.Session) string {
	bytes, known := s.Memory()
	text := "-"
	if known {
		text = config.Size(bytes).String()
	}
	if s.Quota > 0 {
		text += " of " + config.Size(s.Quota).String()
	}
	return text
}

// age writes a time as short as people want it.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second)).Truncate(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// completeSession completes the id of a session.
func completeSession(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return completeByAsking(cmd, (*admin.Client).Sessions, func(s *admin.Session) string {
		return cobra.CompletionWithDesc(s.ID, clientName(s)+" "+transport.Printable(s.Program))
	})
}

// completeByAsking completes what a server lists. A server that does not answer soon completes nothing.
func completeByAsking[T any](
	cmd *cobra.Command, ask func(*admin.Client, context.Context) ([]T, error), word func(*T) string,
) (words []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	cmd.SetContext(ctx)
	c, err := administer(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	list, err := ask(c, ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for i := range list {
		words = append(words, word(&list[i]))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
