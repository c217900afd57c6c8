//go:build !client

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/internal/bar"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/perf"
)

func newPerf() *cobra.Command {
	cmd := &cobra.Command{
		Use: "perf", Short: "Measure a whole suite, compare results, write reports", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPerfRun(), newPerfCompare(), newPerfReport(), newPerfMerge())
	return cmd
}

func newPerfRun() *cobra.Command {
	var quick bool
	var suiteFile, out string
	var repetitions int
	var entries []string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Measure and write a result",
		Long: `Measure what a suite describes (docs/performance.md): single calls, copies of 4 B to 1 GiB, unified memory
and many clients at once, of one party or of several with shares and classes; natively where this machine has a GPU,
over servers of its own on the loopback interface (TCP, and RDMA where there is a device), on the simulated GPU, and
with 0.1, 1 and 10 ms of delay. What cannot be measured here is listed in the result.

Exit status: 0, or 1 when something failed that should have worked, or 130 when it was interrupted (SIGINT, SIGTERM);
the result is written all the same.`,
		Example: "  scuda perf run --quick -o result.json\n  scuda perf report result.json --html report.html",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bench, err := measuring("scuda-bench")
			if err != nil {
				return err
			}
			load, err := measuring("scuda-load")
			if err != nil {
				return err
			}
			suite := perf.Default()
			if suiteFile != "" {
				text, err := os.ReadFile(suiteFile)
				if err != nil {
					return err
				}
				if suite, err = perf.ParseSuite(text); err != nil {
					return usage(fmt.Errorf("%s: %w", suiteFile, err))
				}
			}
			if len(entries) > 0 {
				if suite, err = suite.Only(entries); err != nil {
					return usage(err)
				}
			}
			if quick {
				suite = suite.QuickVersion()
			}
			if repetitions > 0 {
				suite.Repetitions = repetitions
			}
			progress := bar.New(cmd.ErrOrStderr())
			o := perf.Options{
				Suite: suite, Quick: quick, Scuda: release.Version(), Open: openSite, Progress: progress.Step, Bench: bench,
				Load: load,
			}
			r, err := perf.Run(cmd.Context(), o)
			progress.End()
			if err != nil {
				return err
			}
			if out == "" {
				err = r.Write(cmd.OutOrStdout())
			} else {
				err = writeFile(out, r.Write)
			}
			if err == nil && r.Partial {
				return interrupted(errors.New("the result has what was measured until then"))
			}
			if failed := r.Failed(); err == nil && failed != nil {
				return &exitError{
					1, fmt.Errorf("not everything could be measured, though this machine has what it takes: %w", failed),
				}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&quick, "quick", false, "a short suite on the simulated GPU, within two minutes")
	f.StringArrayVar(&entries, "entry", nil, "only the suite's entry `NAME`; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("entry", completeEntry) // there is such an option, and no other completion of it
	f.StringVar(&suiteFile, "suite", "", "`FILE` that describes the suite, instead of scuda's own")
	f.StringVarP(&out, "output", "o", "", "`FILE` for the result, instead of standard output")
	f.IntVar(&repetitions, "repetitions", 0, "`N` repetitions, instead of the suite's")
	return cmd
}

func newPerfCompare() *cobra.Command {
	var threshold float64
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "compare OLD NEW",
		Short: "Compare two results",
		Long: `Compare the results of two runs. A measure has changed if the Mann-Whitney test says so (p < 0.05), the
95 % bootstrap interval of the ratio excludes 1 and the medians differ by more than the threshold. What became slower
or faster by no more than the machine itself (its multiplications, system calls, copies and TCP round trips, which
are timed among the rest) is neither worse nor better: the verdict is "machine".

Exit status: 0 nothing is worse, 1 something is worse or the results cannot be read.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage(errors.New("which results? scuda perf compare OLD NEW"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			old, err := perf.ReadResult(args[0])
			if err != nil {
				return err
			}
			now, err := perf.ReadResult(args[1])
			if err != nil {
				return err
			}
			if old.Machine.Host != now.Machine.Host || old.Machine.Processor != now.Machine.Processor {
				fmt.Fprintln(cmd.ErrOrStderr(), "note: the results are of different machines")
			}
			changes := perf.Compare(old, now, threshold)
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), changes)
			} else {
				err = perf.WriteChanges(cmd.OutOrStdout(), changes, all)
			}
			if err != nil {
				return err
			}
			if perf.Regressed(changes) {
				return &exitError{1, errors.New("something became worse")}
			}
			return nil
		},
	}
	cmd.Flags().Float64Var(&threshold, "threshold", 0.05, "differences up to this `SHARE` of the old value do not count")
	cmd.Flags().BoolVar(&all, "all", false, "list what is the same as well")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print all of it as JSON")
	return cmd
}

func newPerfReport() *cobra.Command {
	var html, markdown, against string
	cmd := &cobra.Command{
		Use:   "report RESULT",
		Short: "Write a result as a page",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(errors.New("which result? scuda perf report RESULT"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := perf.ReadResult(args[0])
			if err != nil {
				return err
			}
			var changes []perf.Change
			if against != "" {
				old, err := perf.ReadResult(against)
				if err != nil {
					return err
				}
				changes = perf.Compare(old, r, 0.05)
			}
			if html != "" {
				if err := writeFile(html, func(w io.Writer) error { return perf.HTML(w, r, changes) }); err != nil {
					return err
				}
			}
			if markdown != "" {
				return writeFile(markdown, func(w io.Writer) error { return perf.Markdown(w, r) })
			}
			if html == "" {
				return perf.Markdown(cmd.OutOrStdout(), r)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&html, "html", "", "write one self-contained page with plots to `FILE`")
	cmd.Flags().StringVar(&markdown, "markdown", "", "write Markdown to `FILE` instead of standard output")
	cmd.Flags().StringVar(&against, "against", "", "`RESULT` to compare with, in the page")
	return cmd
}

func newPerfMerge() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "merge RESULT...",
		Short: "Put the results of a suite's parts together",
		Long: "Put results together that were measured on one machine with `scuda perf run --entry`. Of a measure that " +
			"several have, the last counts.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("which results? scuda perf merge RESULT [RESULT]"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var list []*perf.Result
			for _, path := range args {
				r, err := perf.ReadResult(path)
				if err != nil {
					return err
				}
				list = append(list, r)
			}
			all, err := perf.Merge(list...)
			if err != nil {
				return err
			}
			if out == "" {
				return all.Write(cmd.OutOrStdout())
			}
			return writeFile(out, all.Write)
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` for the result, instead of standard output")
	return cmd
}

// completeEntry completes the name of an entry of scuda's own suite.
func completeEntry(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
	for _, e := range perf.Default().Entries {
		names = append(names, e.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
