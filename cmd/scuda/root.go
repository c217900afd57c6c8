package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// onLoopback is what `scuda -l` without an address means.
const onLoopback = "127.0.0.1"

func newRoot() *cobra.Command {
	var serve serveOptions
	root := &cobra.Command{
		Use:   "scuda [HOST:PORT]",
		Short: "Run CUDA programs on a GPU elsewhere",
		Long: `scuda lets a program that was written for an NVIDIA GPU run, unmodified, on a machine that has none;
its calls are carried out by a GPU on another machine.

On the machine with the GPU:      scuda -l 0.0.0.0:14833 --token-file FILE
On the machine without, once:     scuda HOST:PORT
and then:                         scuda run -- python3 train.py

` + exitHelp,
		Example: `  scuda -l 127.0.0.1:0 --gpu sim     # serve a simulated GPU on a free port
  scuda gpu1.example.org:14833       # use that server from now on
  scuda run -- nvidia-smi`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(fmt.Errorf("one HOST:PORT at most, not %q; to run a program: scuda run -- %s", args,
					strings.Join(args, " ")))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			insecure := cmd.Flags().Changed("insecure") // by hand, not by the environment
			if err := applyEnv(cmd.Flags()); err != nil {
				return err
			}
			if cmd.Flags().Changed("listen") {
				if len(args) == 1 { // scuda -l ADDR: an option with an optional value leaves ADDR to the arguments
					if serve.listen != onLoopback {
						return usage(fmt.Errorf("two addresses, %s and %s", serve.listen, args[0]))
					}
					serve.listen = args[0]
				}
				return serve.run(cmd)
			}
			var stray []string
			for _, name := range serveFlags {
				if f := cmd.Flags().Lookup(name); f.Changed && name != "token-file" && name != "log" && name != "insecure" {
					stray = append(stray, "--"+name)
				}
			}
			switch {
			case len(stray) > 0:
				return usage(fmt.Errorf("%s belongs to serving: add -l ADDR", strings.Join(stray, ", ")))
			case len(args) == 0:
				return cmd.Help()
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 && !strings.ContainsAny(args[0], ".:") {
				return usage(fmt.Errorf("no command %q; did you mean %s?", args[0], strings.Join(near, " or ")))
			}
			return remember(cmd.Context(), people{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()}, args[0],
				serve.tokenFile, insecure)
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	serve.flags(root.Flags())
	root.AddCommand(newRun(), newBench(), newPerf(), newTrace(), newExporter(), newInfo(), newCA(), newRDMA(),
		newVersion(), newWorker(), newSpawner())
	root.InitDefaultCompletionCmd()
	return root
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(errors.New("no arguments expected, got " + strings.Join(args, " ")))
	}
	return nil
}
