package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/internal/bar"
)

const benchRoundTrip = "a round trip over plain TCP"

type benchOptions struct {
	address, tokenFile string
	rounds, conns      int
	asJSON, remoteOnly bool
}

func newBench() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the driver's calls here and over scuda",
		Long: `Measure single calls of the CUDA driver over scuda and, where this machine has a GPU, natively, in turns,
and what plain TCP connections between two processes do. Without a configured server a server of its own is started
on the loopback interface. The figures are medians over the rounds; an interruption ends it with
those of the rounds until then.`,
		Example: "  scuda bench\n  scuda bench --server gpu1:14833 --rounds 3 --json > result.json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.rounds < 1 || o.conns < 1 {
				return usage(errors.New("--rounds and --connections have to be 1 at least"))
			}
			r, err := o.measure(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.asJSON {
				err = writeJSON(cmd.OutOrStdout(), r)
			} else {
				err = r.table(cmd.OutOrStdout())
			}
			if err == nil && r.Rounds < o.rounds {
				return interrupted(fmt.Errorf("%d of %d rounds were measured", r.Rounds, o.rounds))
			}
			return err
		},
	}
	cmd.AddCommand(newProxy(), newSyscalls())
	f := cmd.Flags()
	f.StringVar(&o.address, "server", "", "use this server (`HOST:PORT` or name) instead of the configured one")
	f.StringVar(&o.tokenFile, "token-file", "", "`FILE` with the token [$SCUDA_TOKEN_FILE]")
	f.IntVar(&o.rounds, "rounds", 5, "`N` rounds of native and remote measurements")
	f.IntVar(&o.conns, "connections", 4, "compare with `N` plain TCP connections")
	f.BoolVar(&o.asJSON, "json", false, "print the result as JSON")
	f.BoolVar(&o.remoteOnly, "remote-only", false, "leave the native measurements out")
	return cmd
}

// benchResult is the result: seconds by measure.
type benchResult struct {
	Server      string             `json:"server"`
	Rounds      int                `json:"rounds"`
	Connections int                `json:"connections"`
	Native      map[string]float64 `json:"native,omitempty"`
	Remote      map[string]float64 `json:"remote"`
	TCP         map[string]float64 `json:"tcp"`
	Measures    []string           `json:"measures"` // in their order
}

func (o *benchOptions) measure(ctx context.Context, log io.Writer) (*benchResult, error) {
	program, err := measuring("scuda-bench")
	if err != nil {
		return nil, err
	}
	if o.address == "" {
		if configured, _, err := config.Server(); err != nil {
			return nil, err
		} else if configured == "" {
			var stop func()
			if o.address, stop, err = ownServer(ctx, os.Environ(), "--log", "error"); err != nil {
				return nil, err
			}
			defer stop()
		}
	}
	remote, err := clientEnv(os.Environ(), o.address, o.tokenFile)
	if err != nil {
		return nil, err
	}
	native := setEnv(os.Environ(), "SCUDA_SERVER", "")
	r := &benchResult{Server: o.address, Rounds: o.rounds, Connections: o.conns}
	progress := bar.New(log)
	defer progress.End()
	step := func(round, part int, what string) {
		parts := 3
		if o.remoteOnly {
			parts, part = 2, part-1
		}
		progress.Step(int64(parts*round+part), int64(parts*o.rounds),
			fmt.Sprintf("round %d of %d, %s", round+1, o.rounds, what))
	}
	var n, m, t []map[string]float64
	for i := range o.rounds {
		if !o.remoteOnly {
			step(i, 0, "natively")
			v, _, err := runBench(ctx, native, program)
			if err != nil {
				fmt.Fprintln(progress, "no native measurements:", err)
				o.remoteOnly = true
			} else {
				n = append(n, v)
			}
		}
		step(i, 1, "over scuda")
		v, order, err := runBench(ctx, remote, program)
		var plain map[string]float64
		if err == nil {
			step(i, 2, "plain TCP")
			plain, _, err = runBench(ctx, remote, program, "tcp", strconv.Itoa(o.conns))
		}
		if ctx.Err() != nil && i > 0 { // what was measured is not lost
			r.Rounds = i
			break
		}
		if err != nil {
			return nil, err
		}
		m, t, r.Measures = append(m, v), append(t, plain), order
	}
	r.Native, r.Remote, r.TCP = medians(n), medians(m), medians(t)
	return r, nil
}

// runBench runs the program once; order is that in which it printed its measures.
func runBench(
	ctx context.Context, env []string, program string, args ...string,
) (v map[string]float64, order []string, err error) {
	p := exec.CommandContext(ctx, program, args...)
	p.Env = env
	var text strings.Builder
	p.Stderr = &text
	out, err := p.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w: %s", filepath.Base(program), err, strings.TrimSpace(text.String()))
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return nil, nil, err
	}
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		token, err := d.Token()
		if err != nil {
			return v, order, nil
		}
		if name, ok := token.(string); ok {
			order = append(order, name)
		}
	}
}

func medians(rounds []map[string]float64) map[string]float64 {
	if len(rounds) == 0 {
		return nil
	}
	result := map[string]float64{}
	for name := range maps.Keys(rounds[0]) {
		var v []float64
		for _, r := range rounds {
			v = append(v, r[name])
		}
		slices.Sort(v)
		result[name] = v[len(v)/2]
	}
	return result
}

// table prints the result for people.
func (r *benchResult) table(w io.Writer) error {
	head := []string{"measure", "over scuda", "of plain TCP"}
	if r.Native != nil {
		head = []string{"measure", "native", "over scuda", "ratio", "of plain TCP"}
	}
	rows := [][]string{head}
	for _, name := range r.Measures {
		row := []string{name, quantity(name, r.Remote[name])}
		if r.Native != nil {
			native, ratio := "-", "-"
			if v, ok := r.Native[name]; ok {
				native, ratio = quantity(name, v), fmt.Sprintf("%.2f", r.Remote[name]/v)
			}
			row = []string{name, native, row[1], ratio}
		}
		tcp := "-"
		size, rest, _ := strings.Cut(name, " MiB ")
		if v, ok := r.TCP[size+" MiB over plain TCP"]; ok && rest != "" {
			tcp = fmt.Sprintf("%.2f", v/r.Remote[name])
		}
		rows = append(rows, append(row, tcp))
	}
	printColumns(w, rows)
	fmt.Fprintf(w, "\nPlain TCP between two processes of this machine: round trip %s", seconds(r.TCP[benchRoundTrip]))
	for _, size := range []float64{16, 256} {
		if v := r.TCP[fmt.Sprintf("%.0f MiB over plain TCP", size)]; v > 0 {
			fmt.Fprintf(w, ", %.0f MiB over %d connections %s (%.1f GB/s)", size, r.Connections, seconds(v), size*1048576/v/1e9)
		}
	}
	_, err := fmt.Fprintln(w, ".")
	return err
}

// printColumns prints rows of equally many columns: names at the left, then figures, whose ends are below each other.
func printColumns(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for _, row := range rows {
		fmt.Fprintf(w, "%-*s", widths[0], row[0])
		for i, text := range row[1:] {
			fmt.Fprintf(w, "  %*s", widths[i+1], text)
		}
		fmt.Fprintln(w)
	}
}

// quantity is a value of a measure with its unit: seconds where its name does not say anything else.
func quantity(name string, v float64) string {
	if strings.HasSuffix(name, "(MiB)") {
		return fmt.Sprintf("%.1f MiB", v)
	}
	return seconds(v)
}

func seconds(v float64) string {
	switch {
	case v < 1e-6:
		return fmt.Sprintf("%.0f ns", v*1e9)
	case v < 1e-3:
		return fmt.Sprintf("%.1f µs", v*1e6)
	}
	return fmt.Sprintf("%.1f ms", v*1e3)
}

// measuring finds a program that measures: beside the libraries, where an installation has it, or as [tool] does.
func measuring(name string) (string, error) {
	if lib, err := libFolder(); err == nil {
		if file := filepath.Join(lib, name); exists(file) {
			return file, nil
		}
	}
	return tool(name)
}
