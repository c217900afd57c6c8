package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/perf/baseline"
)

// systemOptions are the options of `scuda bench syscalls`.
type systemOptions struct {
	address, tokenFile string
	counter, base      string
	native, asJSON     bool
}

func newSyscalls() *cobra.Command {
	var o systemOptions
	cmd := &cobra.Command{
		Use:   "syscalls [flags] -- PROGRAM [ARG...]",
		Short: "Count the reads, writes, opens and closes of a program",
		Long: `Run a program, with a server configured as 'scuda run' does, and count the system calls of all its
processes: reads, writes, opens and closes, and how many of them go to files and to the network. Counted with strace
where there is one, else with eBPF (root). With --base another command line, the same program without what is of
interest, is counted first, and the difference is shown.`,
		Example: `  scuda bench syscalls --base 'python3 -c "import torch"' -- ` +
			`python3 -c 'import torch; torch.cuda.is_available()'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("no program given: scuda bench syscalls -- PROGRAM [ARG...]"))
			}
			if o.counter != "" {
				return oneOf("counter", o.counter)
			}
			return nil
		},
		RunE: o.run,
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.counter, "counter", "", "count with `WHAT`: strace or ebpf (default: strace where there is one)")
	f.StringVar(&o.base, "base", "", "count this `COMMAND` line (for sh) first and show what the program adds to it")
	f.BoolVar(&o.native, "native", false, "leave the environment as it is: the machine's own driver")
	f.BoolVar(&o.asJSON, "json", false, "print the counts as JSON")
	f.StringVar(&o.address, "server", "", "use this server (`HOST:PORT` or name) instead of the configured one")
	f.StringVar(&o.tokenFile, "token-file", "", "`FILE` with the token [$SCUDA_TOKEN_FILE]")
	return cmd
}

func (o *systemOptions) run(cmd *cobra.Command, args []string) error {
	env := os.Environ()
	if servers, _, err := config.Configured(); !o.native && (err != nil || servers != nil || o.address != "") {
		if env, err = clientEnv(env, o.address, o.tokenFile); err != nil {
			return err
		}
	}
	count := func(args ...string) (*baseline.Run, error) {
		r, err := baseline.Config{
			Command: args, Env: env, Counter: baseline.Counter(o.counter), Stdout: cmd.ErrOrStderr(), Stderr: cmd.ErrOrStderr(),
		}.Count(cmd.Context())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
		}
		return r, nil
	}
	var result struct {
		Base *baseline.Run `json:"base,omitempty"`
		Run  *baseline.Run `json:"run"`
	}
	var err error
	if o.base != "" {
		if result.Base, err = count("sh", "-c", "exec "+o.base); err != nil {
			return err
		}
	}
	if result.Run, err = count(args...); err != nil {
		return err
	}
	if o.asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "counted with %s\n", result.Run.Counter)
	return result.Run.WriteTable(cmd.OutOrStdout(), result.Base)
}
