package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/internal/release"
)

// onLoopback is where a server listens that was told no address.
const onLoopback = "127.0.0.1"

// The groups of the help text.
const (
	groupUse     = "use"
	groupServe   = "serve"
	groupMeasure = "measure"
)

func newRoot() *cobra.Command {
	var serve serveOptions
	root := &cobra.Command{
		Use:     "scuda",
		Short:   "Run CUDA programs on a GPU elsewhere",
		Version: release.Version(),
		Long: `scuda lets a program that was written for an NVIDIA GPU run, unmodified, on a machine that has none;
its calls are carried out by a GPU on another machine.

  on the machine with the GPU:    scuda serve 0.0.0.0:14833 --token-file FILE
  on the machine without, once:   scuda login HOST:PORT
  and then:                       scuda run -- python3 train.py

` + exitHelp,
		Example: `  scuda serve --gpu sim              # serve a simulated GPU to programs on this machine
  scuda login gpu1.example.org       # use that server from now on
  scuda run -- nvidia-smi`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("listen"):
				return serve.start(cmd, args)
			case len(args) > 0 && !isAddress(args[0]):
				return unknown(cmd, args[0])
			case len(args) > 1:
				return usage(fmt.Errorf("one HOST:PORT at most, not %q; to run a program: scuda run -- %s", args,
					strings.Join(args, " ")))
			}
			var stray []string
			for _, name := range serveFlags {
				if f := cmd.Flags().Lookup(name); f.Changed && name != "token-file" && name != "log" && name != "insecure" {
					stray = append(stray, "--"+name)
				}
			}
			switch {
			case len(stray) > 0:
				return usage(fmt.Errorf("%s belongs to serving: scuda serve %s", strings.Join(stray, ", "), stray[0]))
			case len(args) == 0:
				return cmd.Help()
			}
			o := loginOptions{tokenFile: serve.tokenFile, insecure: serve.insecure}
			return o.runAll(cmd.Context(), atTerminal(cmd), args[0])
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if err := serve.flagsElsewhere(cmd); err != nil {
			return err
		}
		return usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	root.SetVersionTemplate(versionLine())
	serve.flags(root.Flags())
	for _, name := range serveFlags { // those of `scuda serve`, which scuda -l takes, too
		root.Flags().Lookup(name).Hidden = true
	}
	root.AddGroup(&cobra.Group{ID: groupUse, Title: "Use a GPU elsewhere:"},
		&cobra.Group{ID: groupServe, Title: "Serve the GPUs of this machine:"},
		&cobra.Group{ID: groupMeasure, Title: "Measure:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
		}
		root.AddCommand(commands...)
	}
	add(groupUse, newLogin(), newServers(), newUse(), newLogout(), newRun(), newDemo(), newInfo(), newStatus(),
		newDoctor(), newEnv(), newCDI())
	add(groupServe, newServe(), newService(), newToken(), newCA(), newLease(), newSlurm(), newPS(), newTop(), newKill(),
		newDrain(), newUsage(), newLogs())
	add(groupMeasure, newTrace(), newBench(), newPerf(), newExporter(), newRDMA(), newChaos())
	root.AddCommand(newVersion(), newUpgrade(), newWorker(), newSpawner(), newMan(), newBundle(), newNear(), newFar())
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	strict(root)
	complete(root)
	fitHelp(root)
	return root
}

// strict lets cobra's own commands treat a word that they do not know as ours do.
func strict(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				if of, rest, err := cmd.Root().Find(args); err != nil || len(rest) > 0 {
					return unknown(of, rest[0])
				}
				return nil
			}
		case "completion":
			cmd.Args, cmd.RunE = noArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		}
	}
}

// isAddress says whether a word can only be a server's address: HOST:PORT, an IP address, a name with a dot, or
// several servers.
func isAddress(word string) bool {
	return strings.ContainsAny(word, ".:,") && !strings.ContainsAny(word, " /")
}

// noArgs is for commands that have none. A word behind one with commands of its own is a mistyped one of those.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasAvailableSubCommands():
		return unknown(cmd, args[0])
	}
	return usage(errors.New("no arguments expected, got " + strings.Join(args, " ")))
}

// unknown is the error of a word that is no command.
func unknown(cmd *cobra.Command, word string) error {
	text := fmt.Sprintf("unknown command %q for %q", word, cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if len(word) < 4 {
		cmd.SuggestionsMinimumDistance = 1
	}
	near := cmd.SuggestionsFor(word)
	slices.Sort(near)
	near = slices.Compact(near)
	switch {
	case len(near) > 0:
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	default:
		text += fmt.Sprintf("; see %s --help", cmd.CommandPath())
	}
	if cmd.HasParent() {
		return usage(errors.New(text))
	}
	if s, err := config.Find(word); err == nil {
		text += fmt.Sprintf(" (to use the server %s: scuda use %s)", s.Name, s.Name)
	} else if len(near) == 0 && config.CheckServerName(word) == nil {
		text += fmt.Sprintf(" (if it is a server: scuda login %s)", word)
	}
	return usage(errors.New(text))
}
