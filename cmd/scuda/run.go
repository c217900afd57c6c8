package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/bundle"
	"scuda.dev/scuda/config"
)

// errNoLibraries is a scuda without its client libraries.
var errNoLibraries = errors.New("the client libraries are missing")

func newRun() *cobra.Command {
	var address, tokenFile, spread string
	var on onOptions
	var pool poolOptions
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARG...]",
		Short: "Run a program on the server's GPU",
		Long: `Run a program with scuda's libraries in place of the NVIDIA driver's. The program replaces scuda, so
signals, the exit status and the terminal are its own. What is done is no more than setting LD_PRELOAD,
LD_LIBRARY_PATH and, if asked, SCUDA_SERVER.

With several servers (--server gpu1,gpu2), the program has the GPUs of all, and nvidia-smi shows them
(docs/operations.md says what differs from one machine).

With --spread, each rank of a program with several has a server of a list: torchrun's, Open MPI's, MPICH's or Slurm's
(docs/nccl.md).

With --on, no server has to run on the other machine. scuda logs in there by ssh, as you do, copies itself into your
cache there the first time, and starts a server that serves this program alone and ends with it. The program's
connections go through ssh, or with --direct to the machine itself, under TLS with a key that comes by ssh.

With --gpus, a pool of servers chooses one, or up to as many as --servers says (scuda-pool, which has to be installed).

` + exitHelp,
		Example: "  scuda run -- python3 train.py\n  scuda run --server gpu1:14833 -- nvidia-smi\n" +
			"  scuda run --on me@gpu1 -- python3 train.py\n" +
			"  scuda run --spread gpu1,gpu2 -- torchrun --nproc-per-node 2 train.py",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("no program given: scuda run -- PROGRAM [ARG...]"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if on.word == "" && on.direct {
				return usage(errors.New("--direct goes with --on"))
			}
			if on.word != "" && (address != "" || tokenFile != "") {
				return usage(errors.New("--on starts a server of its own: leave --server and --token-file out"))
			}
			if spread != "" && (on.word != "" || address != "" || pool.gpus != 0) {
				return usage(errors.New("--spread names the servers: leave --server, --on and --gpus out"))
			}
			switch {
			case pool.gpus == 0 && (pool.servers != 0 || pool.kind != "" || pool.memory > 0):
				return usage(errors.New("--servers, --kind and --gpu-memory go with --gpus"))
			case pool.gpus < 0:
				return usage(fmt.Errorf("--gpus: %d; write how many", pool.gpus))
			case pool.gpus > 0 && (on.word != "" || address != ""):
				return usage(errors.New("--gpus has the pool choose a server: leave --server and --on out"))
			case pool.gpus > 0:
				return pool.run(tokenFile, args)
			}
			program, err := exec.LookPath(args[0])
			if err != nil && !errors.Is(err, exec.ErrDot) {
				return notRun(args[0], err)
			}
			var env []string
			if on.word != "" {
				env, err = on.environment(cmd.Context(), os.Environ())
			} else {
				env, err = spreadEnv(os.Environ(), spread, address, tokenFile)
			}
			if e := (*exitError)(nil); errors.As(err, &e) {
				return err
			} else if err != nil {
				return &exitError{exitRun, err}
			}
			if why := unreached(program); why != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "scuda: warning: %s does not use the server's GPU: %s\n", args[0], why)
			}
			return notRun(args[0], unix.Exec(program, args, env))
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&address, "server", "",
		"use this server (`HOST:PORT` or name), or several with commas between, instead of the configured one")
	cmd.Flags().StringVar(&spread, "spread", "", "give each rank of a program a server of this `LIST` (HOST:PORT,…)")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "`FILE` with the token [$SCUDA_TOKEN_FILE]")
	on.flags(cmd.Flags())
	pool.flags(cmd.Flags())
	return cmd
}

func notRun(program string, err error) error {
	code := exitNotRunnable
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	return &exitError{code, fmt.Errorf("cannot run %s: %w", program, err)}
}

// spreadEnv is [clientEnv], for a program whose ranks have servers of a list; where that is empty, for the server.
func spreadEnv(env []string, list, address, tokenFile string) ([]string, error) {
	if list == "" {
		return clientEnv(env, address, tokenFile)
	}
	servers, err := config.Spread(list)
	if err != nil {
		return nil, usage(fmt.Errorf("--spread: %w", err))
	}
	return clientEnv(setEnv(env, "SCUDA_SPREAD", strings.Join(servers, ",")), servers[0], tokenFile)
}

// clientEnv is the environment in which a program uses the server.
func clientEnv(env []string, address, tokenFile string) ([]string, error) {
	lib, err := libFolder()
	if err != nil {
		return nil, err
	}
	if address != "" {
		servers, err := config.List(address)
		if err != nil {
			return nil, err
		}
		env = setEnv(env, "SCUDA_SERVER", config.Join(servers))
	} else if configured, _, err := config.Configured(); err != nil {
		return nil, err
	} else if len(configured) == 0 {
		return nil, config.ErrNoServer
	}
	if tokenFile != "" {
		if tokenFile, err = filepath.Abs(tokenFile); err != nil {
			return nil, err
		}
		env = setEnv(setEnv(env, "SCUDA_TOKEN", ""), "SCUDA_TOKEN_FILE", tokenFile)
	}
	return preloaded(env, lib)
}

// preloaded adds the client libraries to an environment.
func preloaded(env []string, lib string) ([]string, error) {
	if err := checkLibName(lib); err != nil {
		return nil, err
	}
	env = prependEnv(env, "LD_PRELOAD", filepath.Join(lib, "libscuda.so"))
	return prependEnv(env, "LD_LIBRARY_PATH", lib), nil
}

// libFolder finds the client libraries: beside the program (as in build/), where an installation has them, among
// which the program itself may lie, or in the program itself.
func libFolder() (string, error) {
	if folder := os.Getenv("SCUDA_LIB"); folder != "" {
		return checkLib(folder)
	}
	bin, err := ownFolder()
	if err != nil {
		return "", err
	}
	folders := []string{filepath.Join(bin, "lib"), filepath.Join(bin, "../lib/scuda"), bin}
	for _, folder := range folders {
		if found, err := checkLib(folder); err == nil {
			return found, nil
		}
	}
	if folder, err := carried(); err == nil {
		return checkLib(folder)
	} else if !errors.Is(err, bundle.ErrNone) {
		return "", fmt.Errorf("%w: %w", errNoLibraries, err)
	}
	return "", fmt.Errorf("%w: libscuda.so is neither in %s; set SCUDA_LIB to its folder, or install scuda anew",
		errNoLibraries, strings.Join(folders, " nor in "))
}

// errNoTool is a scuda without a program that comes with it.
var errNoTool = errors.New("a part of scuda is missing")

// tool finds a program that comes with scuda: beside it, or, as in build/, beside the folder that SCUDA_LIB names.
func tool(name string) (string, error) {
	var folder string
	if lib := os.Getenv("SCUDA_LIB"); lib != "" {
		folder = filepath.Dir(filepath.Clean(lib))
	} else {
		var err error
		if folder, err = ownFolder(); err != nil {
			return "", err
		}
	}
	file := filepath.Join(folder, name)
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("%w: %w; install scuda anew, or build it with 'make build'", errNoTool, err)
	}
	return file, nil
}

func ownFolder() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", err
	}
	return filepath.Dir(self), nil
}

func checkLib(folder string) (string, error) {
	if _, err := os.Stat(filepath.Join(folder, "libscuda.so")); err != nil {
		return "", fmt.Errorf("%w: %w", errNoLibraries, err)
	}
	return filepath.Abs(folder)
}

// errLibName is a folder of libraries whose name cannot stand in a list of the dynamic loader's.
var errLibName = errors.New("the dynamic loader cannot be told the folder of the client libraries")

func checkLibName(folder string) error {
	if i := strings.IndexAny(folder, " \t\n:;$"); i >= 0 {
		return fmt.Errorf("%w: %s has %q in its name; move it, or copy its files to another folder and set SCUDA_LIB to that",
			errLibName, folder, folder[i])
	}
	return nil
}

// unreached says why the dynamic loader will not give a program our libraries; "" where it will, as far as can be told.
func unreached(program string) string {
	if info, err := os.Stat(program); err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		return "it runs with the rights of its owner, so it takes no libraries from its caller"
	}
	f, err := elf.Open(program)
	if err != nil { // a script, or nothing that can be run
		return ""
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return ""
	}
	return "it is linked statically; programs that it starts do, if they are not"
}

func setEnv(env []string, name, value string) []string {
	out := make([]string, 0, len(env)+1)
	for _, e := range env {
		if !strings.HasPrefix(e, name+"=") {
			out = append(out, e)
		}
	}
	if value == "" {
		return out
	}
	return append(out, name+"="+value)
}

// prependEnv puts a folder or library first in a list; a second scuda run inside the first changes nothing.
func prependEnv(env []string, name, value string) []string {
	for _, e := range env {
		if old, ok := strings.CutPrefix(e, name+"="); ok && old != "" {
			if old == value || strings.HasPrefix(old, value+":") {
				return env
			}
			value += ":" + old
		}
	}
	return setEnv(env, name, value)
}
