package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/perf/baseline"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/tunnel"
)

// choices are the values of options that have only these, whichever command they belong to. Another package that reads
// such a value may take more than these; a test compares both.
var choices = map[string][]string{
	"gpu":           {"auto", "real", "sim", "sim:2", "sim:2,memory=2GiB", "sim:preset=small", "sim:preset=h200"},
	"transport":     {string(config.TransportAuto), string(config.TransportRDMA), string(config.TransportTCP)},
	"gpudirect":     {"auto", "always", "never"},
	"tls":           {"auto", "always"},
	"isolation":     {"auto", "require", "log", "off"},
	"profiles":      {"base", "profile", "nccl", "profile,nccl"},
	"fabric":        {"trusted", "untrusted"},
	"rdma-fabric":   {"trusted", "untrusted"},
	"log":           {"debug", "info", "warn", "error"},
	"log-format":    {string(config.LogText), string(config.LogJSON)},
	"counter":       {string(baseline.Strace), string(baseline.Probes)},
	"with":          {withAuto, withPyTorch, withKernels},
	"for":           {"sh", "fish", "dockerfile", "jupyter", "vscode"},
	"class":         lease.Classes,
	"worker-uids":   {"auto", "none"},
	"worker-cgroup": {"auto", "none"},
}

// oneOf says whether a value is one of an option's choices.
func oneOf(option, value string) error {
	all := choices[option]
	if slices.Contains(all, value) {
		return nil
	}
	last := len(all) - 1
	return usage(fmt.Errorf("--%s %s: %s or %s", option, value, strings.Join(all[:last], ", "), all[last]))
}

// complete lets shells complete the values of options and the arguments, of cmd and of all commands below it. What an
// option's value is stands in its help text, between back quotes: only a file is completed with the names of files.
func complete(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		how := completion(f)
		if _, own := cmd.GetFlagCompletionFunc(f.Name); own || how == nil {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, how); err != nil {
			panic(err) // an option twice
		}
	})
	_, arguments, _ := strings.Cut(cmd.Use, " ")
	switch {
	case cmd.ValidArgsFunction != nil:
	case arguments == "", arguments == "[flags]", strings.HasSuffix(arguments, "NAME"),
		strings.HasSuffix(arguments, "[ADDR]"):
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	case strings.HasSuffix(arguments, "HOST:PORT"):
		cmd.ValidArgsFunction = completeServer
	case strings.HasPrefix(arguments, "RESULT"), arguments == "OLD NEW":
		cmd.ValidArgsFunction = cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveFilterFileExt)
	}
	for _, c := range cmd.Commands() {
		complete(c)
	}
}

// completion is how an option's value is completed; nil: as a file, or there is none.
func completion(f *pflag.Flag) cobra.CompletionFunc {
	kind, _ := pflag.UnquoteUsage(f)
	values, closed := choices[f.Name]
	switch {
	case kind == "": // it takes no value
		return nil
	case f.Name == "server":
		return completeServer
	case f.Name == "on":
		return completeHost
	case f.Name == "device", f.Name == "rdma-device":
		return completeRDMADevice
	case closed && f.Value.Type() != "duration": // trace's --for is a time
		return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	case kind == "FILE", kind == "RESULT", kind == "SOCKET":
		return nil
	case kind == "FOLDER":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	}
	return cobra.NoFileCompletions
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

// completeHost completes HOST or USER@HOST from the user's configuration of ssh, and the names of containers and pods.
func completeHost(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	if strings.Contains(word, "://") {
		return tunnel.Containers(cmd.Context(), word), cobra.ShellCompDirectiveNoFileComp
	}
	for _, scheme := range tunnel.Schemes() {
		if word != "" && strings.HasPrefix(scheme, word) {
			return []string{scheme}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	user := word[:strings.LastIndexByte(word, '@')+1]
	hosts := tunnel.Hosts(home)
	for i := range hosts {
		hosts[i] = user + hosts[i]
	}
	return hosts, cobra.ShellCompDirectiveNoFileComp
}

// completeRDMADevice completes the name of a device of this machine.
func completeRDMADevice(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
	devices, _ := filepath.Glob("/sys/class/infiniband/*")
	for _, device := range devices {
		names = append(names, filepath.Base(device))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
