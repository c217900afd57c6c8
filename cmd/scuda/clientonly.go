//go:build client

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/tunnel"
)

// This is the program of the client's package: it has no server. Where the server's package is installed as well, the
// whole program lies among the client's libraries, and what is not here is done by it.

var errClientOnly = errors.New("this is the program of the client's package, which has no server; " +
	"install the package scuda-server as well")

// wholeProgram is the program with the server: that of the server's package.
func wholeProgram() (string, error) {
	lib, err := libFolder()
	if err != nil {
		return "", err
	}
	path := filepath.Join(lib, tunnel.Named(runtime.GOARCH))
	if _, err := os.Stat(path); err != nil {
		return "", errClientOnly
	}
	return path, nil
}

// byWhole has the whole program do in the place of this one what it was asked for.
func byWhole(*cobra.Command, []string) error {
	path, err := wholeProgram()
	if err != nil {
		return err
	}
	return fmt.Errorf("cannot start %s: %w", path, unix.Exec(path, os.Args, os.Environ()))
}

// elsewhere is a command of the whole program.
func elsewhere(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short + "; with the package scuda-server", DisableFlagParsing: true,
		Args: cobra.ArbitraryArgs, RunE: byWhole,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			_ = byWhole(cmd, args) // the shell asks the same of it
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

func hidden(use string) *cobra.Command {
	cmd := elsewhere(use, "")
	cmd.Hidden = true
	return cmd
}

func newServe() *cobra.Command {
	return elsewhere("serve", "Serve the GPUs of this machine to programs elsewhere")
}

func newService() *cobra.Command {
	return elsewhere("service", "Serve as a service of this machine (systemd)")
}

func newPerf() *cobra.Command {
	return elsewhere("perf", "Measure a whole suite, compare results, write reports")
}

func newExporter() *cobra.Command {
	return elsewhere("exporter", "Measure the driver's calls on this machine for Prometheus")
}

func newWorker() *cobra.Command  { return hidden("worker") }
func newSpawner() *cobra.Command { return hidden("spawner") }
func newMan() *cobra.Command     { return hidden("man") }
func newFar() *cobra.Command     { return hidden(tunnel.Far) }

// checkServing leaves it to the server what its options are.
func checkServing([]string) error { return nil }

// serveFlags are the options of serving that the root command takes here: those that have a meaning for a client.
var serveFlags = []string{"token-file", "insecure"}

// serveOptions are what scuda -l and scuda HOST:PORT take.
type serveOptions struct {
	listen, tokenFile string
	insecure          bool
}

func (o *serveOptions) flags(f *pflag.FlagSet) {
	f.StringVarP(&o.listen, "listen", "l", "", "serve the GPUs of this machine on `ADDR`")
	f.Lookup("listen").NoOptDefVal = onLoopback
	f.Lookup("listen").Hidden = true
	f.StringVar(&o.tokenFile, "token-file", "", "`FILE` with the token that is presented")
	f.BoolVar(&o.insecure, "insecure", false, "use another machine without TLS or token")
	withEnv(f, serveFlags...)
}

// flagsElsewhere: the options behind -l are the whole program's.
func (o *serveOptions) flagsElsewhere(cmd *cobra.Command) error {
	if o.listen == "" {
		return nil
	}
	return byWhole(cmd, nil)
}

func (o *serveOptions) start(cmd *cobra.Command, args []string) error { return byWhole(cmd, args) }
