package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
)

// errNoPool is a scuda without the program that gives out GPUs of a pool.
var errNoPool = errors.New("scuda-pool is not installed")

// poolOptions are those of `scuda run` that ask a pool for GPUs. scuda knows nothing of pools: another program does it,
// so that what it needs is not in everybody's client.
type poolOptions struct {
	gpus, servers int
	kind          string
	memory        config.Size
}

func (o *poolOptions) flags(f *pflag.FlagSet) {
	f.IntVar(&o.gpus, "gpus", 0, "wait for `N` GPUs of the pool (scuda-pool, $SCUDA_POOL), and have them to itself")
	f.IntVar(&o.servers, "servers", 0, "with --gpus: they are of `N` servers at most, and not all of one")
	f.StringVar(&o.kind, "kind", "", "with --gpus: those whose product name has this `TEXT` in it")
	f.Var(&o.memory, "gpu-memory", "with --gpus: each has at least this `SIZE` of memory")
	f.Lookup("gpu-memory").DefValue = "0"
}

// run has scuda-pool take the GPUs, and run the program by this scuda.
func (o *poolOptions) run(tokenFile string, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return &exitError{exitRun, err}
	}
	program := filepath.Join(filepath.Dir(self), "scuda-pool")
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("scuda-pool"); err != nil {
			return &exitError{exitRun, fmt.Errorf("%w: it is neither beside %s nor in PATH; 'make pool' builds it, and "+
				"docs/pool.md says what it does; or choose a server yourself (--server)", errNoPool, self)}
		}
	}
	words := []string{program, "run", "--gpus", strconv.Itoa(o.gpus)}
	if o.servers != 0 {
		words = append(words, "--servers", strconv.Itoa(o.servers))
	}
	if o.kind != "" {
		words = append(words, "--kind", o.kind)
	}
	if o.memory > 0 {
		words = append(words, "--memory", strconv.FormatUint(uint64(o.memory), 10))
	}
	if tokenFile != "" {
		words = append(words, "--token-file", tokenFile)
	}
	words = append(append(words, "--", self, "run", "--"), args...)
	return notRun(program, unix.Exec(program, words, os.Environ()))
}
