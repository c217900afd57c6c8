package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

func newTrace() *cobra.Command {
	var address, tokenFile string
	var asJSON bool
	var probes probeOptions
	var line timelineOptions
	cmd := &cobra.Command{
		Use: "trace [flags] -- PROGRAM [ARG...]\n  scuda trace --kernels -o FILE [flags] -- PROGRAM [ARG...]\n" +
			"  scuda trace --ebpf [flags] [-p PID | -- PROGRAM [ARG...]]",
		Short: "Run a program and say where it waited for the GPU",
		Long: `Run a program as 'scuda run' does, and afterwards say on standard error what its threads stood still for:
synchronisation (an answer that tells of the GPU's work), other answers (a round trip each), bytes of copies, upload
of modules, and the server's queue (the program was ahead of the server by the whole command ring). Asynchronous
calls cost the program next to nothing and are only counted. Every process of the program is reported. Where it had
lost a connection there is a line for its outages: how often and how long, and how many bytes it sent again. That time
is in those of the calls which waited meanwhile.

With --kernels the server records what its GPU does meanwhile. FILE becomes a timeline for Perfetto and Chrome
(https://ui.perfetto.dev): the program's calls and what they waited for, ranges of NVTX, bytes by transport, commands on
the server, kernels and copies, and idle times of the GPU with their causes: the program, the network, the server, or
another session. A table says why the GPU was idle, and --html writes a page. A process keeps 256 MiB of it at most, in
files beside FILE while the program runs; what was kept stays when a process is killed.

With --ebpf every call of the driver libraries, NVIDIA's or scuda's, is measured by probes in the kernel: of a
program, of a running process, or of all processes until interrupted. The program need not use scuda. On a terminal
the table is live. Needs root and Linux 5.15, better 6.6 or newer.`,
		Example: `  scuda trace -- python3 train.py
  scuda trace --kernels -o trace.json --html trace.html -- python3 train.py
  scuda trace --ebpf -- python3 train.py
  scuda trace --ebpf -p 1234 --folded stalls.txt`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := probes.check(cmd, args); err != nil {
				return err
			}
			if err := line.check(probes.on); err != nil {
				return err
			}
			if len(args) == 0 && !probes.on {
				return usage(errors.New("no program given: scuda trace -- PROGRAM [ARG...]"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if probes.on {
				probes.asJSON = asJSON
				return probes.run(cmd, args, address, tokenFile)
			}
			env, err := clientEnv(os.Environ(), address, tokenFile)
			if err != nil {
				return &exitError{exitRun, err}
			}
			folder, err := os.MkdirTemp("", "scuda-trace-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(folder)
			if line.on {
				defer func() { os.RemoveAll(line.folder) }()
				if env, err = line.begin(env); err != nil {
					return err
				}
			}
			p := exec.CommandContext(cmd.Context(), args[0], args[1:]...)
			p.Stdin, p.Stdout, p.Stderr = os.Stdin, os.Stdout, os.Stderr
			p.Env = setEnv(env, "SCUDA_TRACE", filepath.Join(folder, "t"))
			began := time.Now()
			ended := p.Run()
			var status *exec.ExitError
			if ended != nil && !errors.As(ended, &status) {
				return notRun(args[0], ended)
			}
			if err := reportTraces(cmd.ErrOrStderr(), folder, time.Since(began), asJSON); err != nil {
				return err
			}
			if line.on {
				if err := line.end(cmd.ErrOrStderr()); err != nil {
					return err
				}
			}
			if status != nil {
				return &exitError{max(status.ExitCode(), 1), fmt.Errorf("%s: %w", args[0], ended)}
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false)
	probes.flags(cmd)
	line.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	cmd.Flags().StringVar(&address, "server", "", "use this server (`HOST:PORT` or name) instead of the configured one")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "`FILE` with the token [$SCUDA_TOKEN_FILE]")
	return cmd
}

// trace is what shim/front/base/trace.c writes.
type trace struct {
	PID     int          `json:"pid"`
	NS      int64        `json:"ns"`
	Counts  []traceCount `json:"counts"`
	Managed managed      `json:"managed"`
}

// managed is what happened in unified memory: faults, bytes that moved, those of them that came with waits, and
// pinnings of thrashing blocks.
type managed struct {
	Faults   int64 `json:"faults"`
	ToHost   int64 `json:"to_host"`
	ToDevice int64 `json:"to_device"`
	Pushed   int64 `json:"pushed"`
	Pinned   int64 `json:"pinned"`
}

type traceCount struct {
	Kind  string `json:"kind"`
	Op    uint16 `json:"op"`
	N     int64  `json:"n"`
	NS    int64  `json:"ns"`
	Most  int64  `json:"most"`
	Bytes int64  `json:"bytes"`
}

// stall is a line of the report.
type stall struct {
	Why     string        `json:"why"`
	Call    string        `json:"call"`
	Count   int64         `json:"count"`
	Time    time.Duration `json:"ns"`
	Longest time.Duration `json:"longest_ns"`
	Bytes   int64         `json:"bytes,omitempty"`
}

// waits are the calls whose answers tell of the GPU's work.
var waits = map[uint16]bool{
	cuda.OpCuCtxSynchronize: true, cuda.OpCuCtxSynchronize_v2: true, cuda.OpCuStreamSynchronize: true,
	cuda.OpCuStreamQuery:      true,
	cuda.OpCuEventSynchronize: true, cuda.OpCuEventQuery: true, cuda.OpCuEventElapsedTime: true,
	cuda.OpCuEventElapsedTime_v2: true,
	cuda.OpCuMemFree_v2:          true, wire.OpCopyD2H: true,
}

// outage is the kind of what is counted of connections that were lost, and of no call.
const outage = "outage"

func (c *traceCount) call() string {
	if c.Kind == outage {
		return "-"
	}
	return operation(c.Op)
}

func operation(op uint16) string {
	if op >= wire.OpLaunch {
		return wire.OpName(op)
	}
	return cuda.OpName(op)
}

func (c *traceCount) why() string {
	switch {
	case c.Kind == outage:
		return outage
	case c.Kind == "answer" && waits[c.Op]:
		return "synchronisation"
	case c.Kind == "answer":
		return "answer"
	case c.Kind == "data":
		return "bytes"
	case c.Kind == "module":
		return "module upload"
	}
	return "server queue"
}

// stalls gives the report's lines, the longest first, and the number of calls that were sent.
func (t *trace) stalls() (lines []stall, sent int64) {
	for i := range t.Counts {
		c := &t.Counts[i]
		if c.Op == wire.OpProfile || c.Op == wire.OpProfileRead || c.Op == wire.OpProfileNumber {
			continue // of a profiler, or of --kernels
		}
		if c.Kind == "sent" {
			sent += c.N
			continue
		}
		lines = append(lines, stall{c.why(), c.call(), c.N, time.Duration(c.NS), time.Duration(c.Most), c.Bytes})
	}
	slices.SortFunc(lines, func(a, b stall) int { return cmp.Compare(b.Time, a.Time) })
	return lines, sent
}

// readTraces gives what the processes of a program have left in the folder of its traces.
func readTraces(folder string) (list []trace, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "t.*"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var t trace
		if err := json.Unmarshal(b, &t); err != nil {
			return nil, fmt.Errorf("trace of a process: %w", err)
		}
		list = append(list, t)
	}
	return list, nil
}

func reportTraces(w io.Writer, folder string, took time.Duration, asJSON bool) error {
	traces, err := readTraces(folder)
	if err != nil {
		return err
	}
	if len(traces) == 0 && !asJSON {
		_, err = fmt.Fprintln(w, "scuda trace: no process of the program used the GPU, or none ended by itself")
		return err
	}
	type process struct {
		PID     int           `json:"pid"`
		Time    time.Duration `json:"ns"`
		Sent    int64         `json:"sent"`
		Stalls  []stall       `json:"stalls"`
		Managed *managed      `json:"managed,omitempty"`
	}
	var all []process
	for i := range traces {
		t := &traces[i]
		lines, sent := t.stalls()
		p := process{t.PID, time.Duration(t.NS), sent, lines, nil}
		if t.Managed != (managed{}) {
			p.Managed = &t.Managed
		}
		all = append(all, p)
	}
	if asJSON {
		return json.NewEncoder(w).Encode(all)
	}
	for _, p := range all {
		if err := writeTrace(w, p.PID, p.Time, p.Sent, p.Stalls); err != nil {
			return err
		}
		if m := p.Managed; m != nil {
			fmt.Fprintf(w,
				"unified memory: %d faults; %d bytes came, %d of them with waits; %d bytes went; %d times a thrashing block "+
					"was pinned\n", m.Faults, m.ToHost, m.Pushed, m.ToDevice, m.Pinned)
		}
	}
	_, err = fmt.Fprintf(w, "the program took %v\n", took.Round(time.Millisecond))
	return err
}

func writeTrace(w io.Writer, pid int, lasted time.Duration, sent int64, lines []stall) error {
	sums := map[string]time.Duration{}
	var all time.Duration
	for _, l := range lines {
		if l.Why == outage {
			continue // calls waited meanwhile, or nothing did
		}
		sums[l.Why] += l.Time
		all += l.Time
	}
	fmt.Fprintf(w, "\nscuda trace: process %d: %v with the GPU, %d calls sent; its threads stood still for %v\n", pid,
		lasted.Round(time.Microsecond), sent, all.Round(time.Microsecond))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, why := range []string{"synchronisation", "bytes", "module upload", "server queue", "answer"} {
		if sums[why] > 0 {
			fmt.Fprintf(t, "%v\t%s\t%s\t\n", sums[why].Round(time.Microsecond), share(sums[why], lasted), why)
		}
	}
	fmt.Fprintln(t, "\t\t\t\ntime\tshare\tcount\teach\tlongest\tbytes\twhy\tcall\t")
	for i, l := range lines {
		if i == 20 {
			break
		}
		fmt.Fprintf(t, "%v\t%s\t%d\t%v\t%v\t%d\t%s\t%s\t\n", l.Time.Round(time.Microsecond), share(l.Time, lasted), l.Count,
			(l.Time / time.Duration(l.Count)).Round(100*time.Nanosecond), l.Longest.Round(100*time.Nanosecond), l.Bytes, l.Why,
			l.Call)
	}
	return t.Flush()
}

func share(part, of time.Duration) string {
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(max(of, 1)))
}
