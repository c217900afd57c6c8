package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/ebpf"
)

// probeOptions are the options of `scuda trace --ebpf`.
type probeOptions struct {
	on         bool
	pid        int
	libraries  []string
	functions  []string
	perProcess bool
	noSystem   bool
	stall      time.Duration
	folded     string
	interval   time.Duration
	seconds    time.Duration
	asJSON     bool
}

func (o *probeOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.on, "ebpf", false, "measure every call of the driver libraries by probes in the kernel (root)")
	f.IntVarP(&o.pid, "pid", "p", 0, "with --ebpf: measure the process `PID` instead of a program")
	f.StringArrayVar(&o.libraries, "library", nil,
		"with --ebpf: probe this `FILE`; may be given several times (default: those that the process has, else scuda's "+
			"and the machine's)")
	f.StringArrayVar(&o.functions, "function", nil,
		"with --ebpf: only functions that match `PATTERN` (as in 'cuMemcpy*'); may be given several times")
	f.BoolVar(&o.perProcess, "per-process", false, "with --ebpf: figures for each process too")
	f.BoolVar(&o.noSystem, "no-system", false,
		"with --ebpf: leave system calls and time without a CPU out, which cost a little at each system call of the machine")
	f.DurationVar(&o.stall, "stall", 50*time.Microsecond, "with --ebpf --folded: calls of at least this length are stalls")
	f.StringVar(&o.folded, "folded", "",
		"with --ebpf: write the stalls' stacks to `FILE`, one folded stack a line (for flame graphs)")
	f.DurationVar(&o.interval, "interval", time.Second, "with --ebpf: how often the live table is drawn")
	f.DurationVar(&o.seconds, "for", 0, "with --ebpf and no program: end after this time (default: until interrupted)")
}

// check says what does not fit together.
func (o *probeOptions) check(cmd *cobra.Command, args []string) error {
	if !o.on {
		for _, name := range []string{"pid", "library", "function", "per-process", "no-system", "stall", "folded", "interval",
			"for"} {
			if cmd.Flags().Changed(name) {
				return usage(fmt.Errorf("--%s belongs to --ebpf", name))
			}
		}
		return nil
	}
	switch {
	case o.pid < 0:
		return usage(fmt.Errorf("--pid %d: no such process", o.pid))
	case o.pid != 0 && len(args) > 0:
		return usage(errors.New("either --pid or a program, not both"))
	case o.interval <= 0:
		return usage(errors.New("--interval must be positive"))
	}
	for _, pattern := range o.functions {
		if _, err := path.Match(pattern, ""); err != nil {
			return usage(fmt.Errorf("--function %s: %w", pattern, err))
		}
	}
	return nil
}

// run measures a process, a program, or the machine, and reports.
func (o *probeOptions) run(cmd *cobra.Command, args []string, address, tokenFile string) error {
	options, err := o.options(len(args) > 0)
	if err != nil {
		return err
	}
	probes, err := ebpf.Attach(options)
	if err != nil {
		return err
	}
	defer probes.Close()
	w := cmd.OutOrStdout()
	if len(args) > 0 {
		w = cmd.ErrOrStderr() // the other one is the program's
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "scuda trace: %d functions probed in %v (%s)\n", probes.Count(),
		probes.Took().Round(time.Millisecond), probes.Method())
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var ended error
	switch {
	case len(args) > 0:
		ended, err = o.program(ctx, probes, args, address, tokenFile, w)
	case o.pid != 0:
		err = o.watch(ctx, probes, processEnd(ctx, o.pid), w)
	default:
		err = o.watch(ctx, probes, nil, w)
	}
	if err != nil {
		return err
	}
	if err := o.report(probes, w); err != nil {
		return err
	}
	return ended
}

func (o *probeOptions) options(program bool) (ebpf.Options, error) {
	out := ebpf.Options{
		Libraries: o.libraries, PID: o.pid, Follow: program, PerProcess: o.perProcess, OffCPU: !o.noSystem,
		SystemCalls: !o.noSystem,
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if o.folded != "" {
		out.Stall = max(o.stall, 1)
	}
	if len(o.functions) > 0 {
		out.Functions = func(name string) bool {
			for _, pattern := range o.functions {
				if ok, _ := path.Match(pattern, name); ok {
					return true
				}
			}
			return false
		}
	}
	if out.Libraries == nil && o.pid == 0 {
		out.Libraries = allLibraries()
	}
	return out, nil
}

// allLibraries are scuda's own libraries and the machine's.
func allLibraries() []string {
	var out []string
	if folder, err := libFolder(); err == nil {
		for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
			if file := filepath.Join(folder, name); exists(file) {
				out = append(out, file)
			}
		}
	}
	return append(out, ebpf.Find(0)...)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// processEnd is closed when a process ends.
func processEnd(ctx context.Context, pid int) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return // it has ended
		}
		defer unix.Close(fd)
		for ctx.Err() == nil {
			if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 200); n > 0 {
				return
			}
		}
	}()
	return done
}

// program runs a program, stopped until it is measured. It gives the program's end and what failed.
func (o *probeOptions) program(
	ctx context.Context, probes *ebpf.Probes, args []string, address, tokenFile string, w io.Writer,
) (ended, err error) {
	env := os.Environ()
	if servers, _, err := config.Configured(); err == nil && servers != nil || address != "" {
		if env, err = clientEnv(env, address, tokenFile); err != nil {
			return nil, &exitError{exitRun, err}
		}
	}
	p := exec.CommandContext(ctx, args[0], args[1:]...)
	p.Stdin, p.Stdout, p.Stderr, p.Env = os.Stdin, os.Stdout, os.Stderr, env
	p.Cancel = func() error { return p.Process.Signal(os.Interrupt) }
	if err := probes.Start(p); err != nil {
		return nil, notRun(args[0], err)
	}
	done := make(chan struct{})
	var waited error
	go func() {
		defer close(done)
		waited = p.Wait()
	}()
	err = o.watch(context.WithoutCancel(ctx), probes, done, w)
	<-done
	if status, ok := errors.AsType[*exec.ExitError](waited); ok {
		return &exitError{max(status.ExitCode(), 1), fmt.Errorf("%s: %w", args[0], waited)}, err
	}
	return waited, err
}

// watch draws the live table until done is closed, the context ends, or the time is over.
func (o *probeOptions) watch(ctx context.Context, probes *ebpf.Probes, done <-chan struct{}, w io.Writer) error {
	if o.seconds > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, o.seconds)
		defer stop()
	}
	draw := time.NewTicker(o.interval)
	defer draw.Stop()
	refresh := time.NewTicker(min(o.interval, 200*time.Millisecond))
	defer refresh.Stop()
	live := isTerminal(w) && !o.asJSON
	var last *ebpf.Snapshot
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-done:
			return nil
		case <-refresh.C:
			if o.folded != "" {
				probes.Refresh()
			}
		case <-draw.C:
			if !live {
				continue
			}
			s, err := probes.Read()
			if err != nil {
				return err
			}
			fmt.Fprint(w, "\x1b[H\x1b[2J")
			if err := writeProbes(w, s, last, 25); err != nil {
				return err
			}
			last = s
		}
	}
}

// report writes the final table or document, and the folded stacks.
func (o *probeOptions) report(probes *ebpf.Probes, w io.Writer) error {
	if o.folded != "" {
		probes.Refresh()
	}
	s, err := probes.Read()
	if err != nil {
		return err
	}
	if o.folded != "" {
		f, err := os.Create(o.folded)
		if err != nil {
			return err
		}
		if err := errors.Join(ebpf.WriteFolded(f, s.Stalls), f.Close()); err != nil {
			return err
		}
	}
	if o.asJSON {
		return json.NewEncoder(w).Encode(s)
	}
	return writeProbes(w, s, nil, 1000)
}

// writeProbes writes a snapshot as tables; rates are those since the last one, or since the beginning.
func writeProbes(w io.Writer, s, last *ebpf.Snapshot, rows int) error {
	before := map[string]uint64{}
	elapsed := s.Elapsed
	if last != nil {
		elapsed -= last.Elapsed
		for _, f := range last.Functions {
			before[f.Library+f.Name] = f.Calls
		}
	}
	var sum time.Duration
	libraries := map[string]bool{}
	for _, f := range s.Functions {
		sum += f.Sum
		libraries[f.Library] = true
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\nprobes' own cost: %v for each call; an empty function is seen as %v (entries: %s)\n", s.Floor.Cost,
		s.Floor.Seen, s.Floor.Kind)
	fmt.Fprintln(t, "calls\trate/s\tp50\tp99\tmax\ttotal\tshare\toff CPU\tnow\tMiB\tfunction\t")
	for i, f := range s.Functions {
		if i == rows {
			break
		}
		name := f.Name
		if len(libraries) > 2 {
			name += " " + f.Library
		}
		fmt.Fprintf(t, "%d\t%.0f\t%v\t%v\t%v\t%v\t%s\t%v\t%d\t%.1f\t%s\t\n", f.Calls,
			float64(f.Calls-before[f.Library+f.Name])/max(elapsed.Seconds(), 1e-9),
			short(f.Quantile(0.5)), short(f.Quantile(0.99)), short(f.Max), short(f.Sum), share(f.Sum, sum), short(f.OffCPU),
			f.InFlight, float64(f.Bytes)/(1<<20), name)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(s.Functions) == 0 {
		fmt.Fprintln(w, "no function of a driver library was called")
	}
	if len(s.Processes) > 0 {
		fmt.Fprintln(t, "\t\t\t\t\t\t\t\ncalls\tp50\tp99\tmax\ttotal\tprocess\tname\tfunction\t")
		for i, f := range s.Processes {
			if i == rows {
				break
			}
			fmt.Fprintf(t, "%d\t%v\t%v\t%v\t%v\t%d\t%s\t%s\t\n", f.Calls, short(f.Quantile(0.5)), short(f.Quantile(0.99)),
				short(f.Max), short(f.Sum), f.PID, f.Process, f.Name)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(s.SystemCalls) > 0 {
		fmt.Fprintln(t, "\t\t\t\t\t\ncalls\ttotal\tmean\tmax\tsystem call\tdescriptor\t")
		for i, c := range s.SystemCalls {
			if i == min(rows, 20) {
				break
			}
			fmt.Fprintf(t, "%d\t%v\t%v\t%v\t%s\t%s\t\n", c.Calls, short(c.Sum), short(c.Sum/time.Duration(max(c.Calls, 1))),
				short(c.Max), c.Name, cmp.Or(c.Class, "-"))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if s.Lost != (ebpf.Lost{}) {
		_, err := fmt.Fprintf(w,
			"not measured: %d calls beyond the room for threads, %d nested too deeply, %d returns without a beginning, %d "+
				"stalls beyond the room for stacks\n",
			s.Lost.Threads, s.Lost.Nested, s.Lost.Returns, s.Lost.Stalls)
		return err
	}
	return nil
}

// short rounds to what one wants to read.
func short(d time.Duration) time.Duration {
	switch {
	case d < 10*time.Microsecond:
		return d
	case d < 10*time.Millisecond:
		return d.Round(100 * time.Nanosecond)
	case d < 10*time.Second:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(100 * time.Millisecond)
}
