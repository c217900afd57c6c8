package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scuda.dev/scuda/config"
)

// choices are the values of options that have only these, whichever command they belong to.
var choices = map[string][]string{
	"gpu":         {"auto", "real", "sim", "sim:2", "sim:2,memory=2GiB"},
	"transport":   {"auto", "rdma", "tcp"},
	"gpudirect":   {"auto", "always", "never"},
	"tls":         {"auto", "always"},
	"isolation":   {"auto", "require", "log", "off"},
	"profiles":    {"base", "profile", "nccl", "profile,nccl"},
	"rdma-fabric": {"untrusted", "trusted"},
	"log":         {"debug", "info", "warn", "error"},
	"log-format":  {"text", "json"},
	"counter":     {"strace", "ebpf"},
	"for":         {"sh", "fish", "dockerfile", "jupyter", "vscode"},
}

// complete lets shells complete the values of options, of cmd and of all commands below it.
func complete(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		how := completeServer
		if f.Name != "server" {
			values, ok := choices[f.Name]
			if !ok || f.Value.Type() == "duration" { // trace's --for is a time
				return // files, or nothing that could be known
			}
			how = cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, how); err != nil {
			panic(err) // an option twice
		}
	})
	for _, c := range cmd.Commands() {
		complete(c)
	}
}

// completeServer completes the name of a server.
func completeServer(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.ValidArgsFunction != nil { // there is one already
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := config.Servers()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, s := range list {
		names = append(names, cobra.CompletionWithDesc(s.Name, s.Address))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
