package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/transport"
)

// leaseFields is the part of a help text that says what a lease's JSON has.
const leaseFields = `
  id, label        its id, and what its maker calls it
  tenant           in whose name its sessions run
  gpus             UUIDs of the GPUs that its sessions see; []: all
  memory_bytes     quota of GPU memory for its sessions together, 0: the tenant's
  sessions         of CUDA at once, 0: as many as the tenant may have
  share, class     a weight, and low, normal or high
  exclusive        true if no other lease has these GPUs; else it is left out
  created, expires
  open_sessions    of CUDA, at the moment
  left_seconds     until it expires
  own              its tenant made it, and no administrator
`

func newLease() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lease",
		Short: "Say who may use what of a server, and for how long",
		Long: `Make, list and revoke leases. A lease lets programs of a tenant use a part of a server until it expires. Its
credential is a token that opens sessions under this lease and nothing else, so a job or a container gets that, and not
the token of its tenant.
` + adminHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLeaseCreate(), newLeaseList(), newLeaseShow(), newLeaseRevoke())
	return cmd
}

// leaseOptions are those of `scuda lease create`.
type leaseOptions struct {
	want   admin.LeaseRequest
	lasts  time.Duration
	out    string
	asJSON bool
}

func newLeaseCreate() *cobra.Command {
	var o leaseOptions
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a lease, and print its credential",
		Long: `Make a lease, and print its credential, or write it to a file that nobody else can read. Nobody can ask for it
again. An administrator makes any; a tenant makes leases of its own, within what it may have itself: not more GPUs,
memory, sessions, share or class. Such a lease ends with the credential that it was made with. Programs use it as
their token: in SCUDA_TOKEN, or in a file that SCUDA_TOKEN_FILE names. What is said of the lease beside that goes to
standard error.

What is left out is as the tenant has it without a lease. The limits of the tenant hold as well. The queue for places
goes by --share and --class, and so does the work of programs that run at the same time, where the server has turns
(--turns); programs under a tenant's own leases take the tenant's turns.
` + adminHelp + `
--json prints credential (without --output), file (with it), kept (the lease outlives the server), and of the lease:
` + leaseFields + `
` + exitHelp,
		Example: `  scuda lease create --tenant vision --memory 20GiB --sessions 1 --for 8h --label "job 4711"
  SCUDA_TOKEN=$(scuda lease create --for 30m) scuda run -- python3 train.py`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	adminFlag(cmd)
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.want.Tenant, "tenant", "", "`NAME` of the tenant; may be left out where the server has only one")
	f.DurationVar(&o.lasts, "for", 8*time.Hour, "`TIME` until it expires")
	f.Var(&o.want.Memory, "memory", "`SIZE` of the GPU memory that its sessions may have together; 0: the tenant's")
	f.Lookup("memory").DefValue = "0"
	f.Uint32Var(&o.want.Sessions, "sessions", 0, "`N` programs at once, 0: as many as the tenant may have")
	f.StringVar(&o.want.GPUs, "gpus", "",
		"`WHICH` GPUs its sessions see: UUIDs with commas between them, N, KIND or KIND:N (those that are leased least)")
	f.BoolVar(&o.want.Exclusive, "exclusive", false, "no other lease has these GPUs; goes with --gpus")
	f.Uint32Var(&o.want.Share, "share", 0, fmt.Sprintf("`WEIGHT` beside others of its class, 1 to %d (usually %d)",
		lease.MostShare, lease.UsualShare))
	f.StringVar(&o.want.Class, "class", "", "`CLASS` low, normal or high")
	f.StringVar(&o.want.Label, "label", "", "`TEXT` by which people know it")
	f.StringVarP(&o.out, "output", "o", "", "write the credential to this `FILE`, which must not be there yet")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

// grantedFacts are what `scuda lease create --json` prints.
type grantedFacts struct {
	admin.Lease
	Kept       bool   `json:"kept"`
	Credential string `json:"credential,omitempty"`
	File       string `json:"file,omitempty"`
}

func (o *leaseOptions) run(cmd *cobra.Command) error {
	if o.want.Class != "" {
		if err := oneOf("class", o.want.Class); err != nil {
			return err
		}
	}
	if _, err := lease.ParseWish(o.want.GPUs); err != nil {
		return usage(err)
	}
	if o.out != "" { // before there is a lease whose credential nobody has
		if _, err := os.Lstat(o.out); err == nil {
			return fmt.Errorf("%s is there already, and stays as it is", o.out)
		}
	}
	c, err := administer(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	o.want.Seconds = o.lasts.Seconds()
	g, err := c.Grant(cmd.Context(), &o.want)
	if err != nil {
		return adminError(err)
	}
	facts := grantedFacts{Lease: g.Lease, Kept: g.Kept}
	if o.out == "" {
		facts.Credential = g.Credential
	} else if facts.File, err = o.write(g.Credential); err != nil {
		return errors.Join(err, c.Revoke(cmd.Context(), g.ID, "nobody got its credential"))
	}
	if o.asJSON {
		return writeJSON(cmd.OutOrStdout(), facts)
	}
	note := cmd.ErrOrStderr()
	fmt.Fprintf(note, "lease %s of tenant %s holds until %s\n", leaseTitle(&g.Lease), transport.Printable(g.Tenant),
		g.Expires.Local().Format(time.DateTime))
	if o.out == "" {
		fmt.Fprintln(note, "its credential is shown this once; programs have it as SCUDA_TOKEN, or in a file that "+
			"SCUDA_TOKEN_FILE names:")
		fmt.Fprintln(cmd.OutOrStdout(), g.Credential)
	} else {
		fmt.Fprintf(note, "its credential is in %s; programs use it with SCUDA_TOKEN_FILE=%[1]s\n", facts.File)
	}
	if !g.Kept {
		fmt.Fprintln(note, "it ends with the server, which has no folder for its state (--state-dir)")
	}
	return nil
}

func (o *leaseOptions) write(credential string) (path string, err error) {
	if err := writeSecret(o.out, credential); errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("%s is there already, and stays as it is", o.out)
	} else if err != nil {
		return "", err
	}
	return filepath.Abs(o.out)
}

func newLeaseList() *cobra.Command {
	var asJSON, wide bool
	var tenant string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the leases that hold",
		Long: `List the leases of a server that hold, the oldest first. SESSIONS are the programs that run under
each, and how many may.
` + adminHelp + `
--json prints a list, and of each lease:
` + leaseFields + `
` + exitHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := administer(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			list, err := leasesOf(cmd.Context(), c, tenant)
			if err != nil {
				return adminError(err)
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return writeJSON(out, list)
			}
			if len(list) == 0 {
				fmt.Fprintln(out, "no leases")
				return nil
			}
			width := columns(out)
			if wide {
				width = 0
			}
			return writeTable(out, width, leaseColumns, leaseRows(list))
		},
	}
	adminFlag(cmd)
	cmd.Flags().StringVar(&tenant, "tenant", "", "those of the tenant `NAME` only")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&wide, "wide", false, "print all columns in full, however wide the terminal is")
	return cmd
}

// leasesOf gives the leases of a tenant; "": all.
func leasesOf(ctx context.Context, c *admin.Client, tenant string) ([]admin.Lease, error) {
	all, err := c.Leases(ctx)
	list := []admin.Lease{}
	for _, l := range all {
		if tenant == "" || l.Tenant == tenant {
			list = append(list, l)
		}
	}
	return list, err
}

var leaseColumns = []column{
	{name: "LEASE"}, {name: "LABEL", soft: true}, {name: "TENANT", soft: true, spare: 1}, {name: "GPUS", spare: 4},
	{name: "MEMORY", right: true, spare: 3}, {name: "SESSIONS", right: true}, {name: "SHARE", right: true, spare: 5},
	{name: "CLASS", spare: 6}, {name: "LEFT", right: true},
}

func leaseRows(list []admin.Lease) (rows [][]string) {
	for i := range list {
		l := &list[i]
		gpus := "all"
		if len(l.GPUs) > 0 {
			gpus = strconv.Itoa(len(l.GPUs))
		}
		rows = append(rows, []string{l.ID, cmp.Or(transport.Printable(l.Label), "-"), transport.Printable(l.Tenant), gpus,
			leaseMemory(l), leaseSessions(l), strconv.Itoa(int(l.Share)), l.Class.String(), age(l.Left)})
	}
	return rows
}

func leaseMemory(l *admin.Lease) string {
	if l.Memory == 0 {
		return "-"
	}
	return l.Memory.String()
}

func leaseSessions(l *admin.Lease) string {
	if l.Sessions == 0 {
		return strconv.Itoa(l.Open)
	}
	return fmt.Sprintf("%d of %d", l.Open, l.Sessions)
}

// leaseTitle is a lease's id with its label.
func leaseTitle(l *admin.Lease) string {
	if l.Label == "" {
		return l.ID
	}
	return fmt.Sprintf("%s (%s)", l.ID, transport.Printable(l.Label))
}

func newLeaseShow() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show LEASE",
		Short: "Show a lease",
		Long: `Show a lease of a server; LEASE is an id of scuda lease list, its beginning, or a label. Its
credential is not shown: the server does not have it.
` + adminHelp + `
--json prints:
` + leaseFields + `
` + exitHelp,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(errors.New("which lease? scuda lease show LEASE; scuda lease list lists them"))
			}
			return nil
		},
		ValidArgsFunction: completeLease,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := administer(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			list, err := c.Leases(cmd.Context())
			if err != nil {
				return adminError(err)
			}
			l, err := admin.FindLease(list, args[0])
			if err != nil {
				return adminError(err)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), l)
			}
			showLease(cmd.OutOrStdout(), l)
			return nil
		},
	}
	adminFlag(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showLease(out io.Writer, l *admin.Lease) {
	quota := "as its tenant"
	if l.Memory > 0 {
		quota = l.Memory.String() + " for its sessions together"
	}
	for _, row := range [][2]string{
		{"lease", leaseTitle(l)},
		{"tenant", transport.Printable(l.Tenant)},
		{"GPUs", cmp.Or(strings.Join(l.GPUs, ", "), "all")},
		{"memory", quota},
		{"sessions", leaseSessions(l)},
		{"share", strconv.Itoa(int(l.Share))},
		{"class", l.Class.String()},
		{"made by", map[bool]string{true: "its tenant", false: "an administrator"}[l.Own]},
		{"created", l.Created.Local().Format(time.DateTime)},
		{"expires", fmt.Sprintf("%s, in %s", l.Expires.Local().Format(time.DateTime), age(l.Left))},
	} {
		fmt.Fprintf(out, "%-9s %s\n", row[0], row[1])
	}
}

// revokedFacts are what `scuda lease revoke` tells of a lease that it has ended.
type revokedFacts struct {
	ID     string `json:"id"`
	Label  string `json:"label"`
	Tenant string `json:"tenant"`
	Open   int    `json:"ended_sessions"`
	Reason string `json:"reason"`
}

func newLeaseRevoke() *cobra.Command {
	var reason, tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "revoke LEASE...",
		Short: "End leases, and the sessions under them",
		Long: `End leases of a server, and the sessions under them; a LEASE is an id of scuda lease list, its
beginning, or a label. --tenant ends all of a tenant's instead.
` + adminHelp + `
The programs print the reason on their standard error, and their calls fail, as scuda kill says it. The command returns
when the sessions have ended. The credentials open nothing any more. If one LEASE is wrong, none is ended.

--json prints a list of what was ended: id, label, tenant, ended_sessions, reason.

` + exitHelp,
		Example: `  scuda lease revoke 3f2a61bd --reason "the job was cancelled"
  scuda lease revoke --tenant vision`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && tenant == "":
				return usage(errors.New("which lease? scuda lease revoke LEASE; scuda lease list lists them"))
			case len(args) > 0 && tenant != "":
				return usage(errors.New("either LEASE or --tenant"))
			}
			return nil
		},
		ValidArgsFunction: completeLease,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(reason) > admin.MaxReason {
				return usage(fmt.Errorf("--reason has %d bytes; %d are the most", len(reason), admin.MaxReason))
			}
			c, err := administer(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			chosen, err := leasesOf(cmd.Context(), c, tenant)
			if err == nil && tenant == "" {
				chosen, err = namedLeases(chosen, args)
			}
			if err != nil {
				return adminError(err)
			}
			out, ended := cmd.OutOrStdout(), []revokedFacts{}
			for i := range chosen {
				l := &chosen[i]
				if err := c.Revoke(cmd.Context(), l.ID, reason); err != nil && !errors.Is(err, lease.ErrNone) {
					return adminError(fmt.Errorf("lease %s: %w", l.ID, err))
				}
				ended = append(ended, revokedFacts{l.ID, l.Label, l.Tenant, l.Open, reason})
				if !asJSON {
					fmt.Fprintf(out, "revoked %s of tenant %s, which had %s\n", leaseTitle(l), transport.Printable(l.Tenant),
						sessions(l.Open))
				}
			}
			if asJSON {
				return writeJSON(out, ended)
			}
			return nil
		},
	}
	adminFlag(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` that the programs print")
	cmd.Flags().StringVar(&tenant, "tenant", "", "all leases of the tenant `NAME`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func namedLeases(list []admin.Lease, words []string) (chosen []admin.Lease, err error) {
	for _, word := range words {
		l, err := admin.FindLease(list, word)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, *l)
	}
	return chosen, nil
}

// completeLease completes the id of a lease.
func completeLease(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() == "show" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return completeByAsking(cmd, (*admin.Client).Leases, func(l *admin.Lease) string {
		return cobra.CompletionWithDesc(l.ID, transport.Printable(l.Tenant+" "+l.Label))
	})
}
