//go:build !client

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server"
	"scuda.dev/scuda/server/spawner"
)

// workerFlags are the options about how workers are started, of `scuda -l` and of `scuda spawner`.
var workerFlags = []string{
	"worker-uids", "worker-folder", "worker-cgroup", "worker-memory", "worker-pids", "worker-cpu-weight",
}

type workerOptions struct {
	uids, folder, cgroup string
	memory               config.Size
	pids, weight         int
}

func (o *workerOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.uids, "worker-uids", "auto",
		"`RANGE` FIRST-LAST of user ids, one for each tenant's workers, or none (auto: "+spawner.DefaultRange.String()+
			" where the server is root)")
	f.StringVar(&o.folder, "worker-folder", "",
		"`FOLDER` for the folders of tenants, with what the driver compiled for them, or none (default: "+rootFolder+
			", for another user than root ~/.cache/scuda/workers)")
	f.StringVar(&o.cgroup, "worker-cgroup", spawner.CgroupAuto,
		"`FOLDER` of the control group (version 2) with those of workers, auto (the server's own, if it is delegated) "+
			"or none")
	f.Var(&o.memory, "worker-memory", "`SIZE` of a worker's memory at most, 0: no limit; takes a control group")
	f.Lookup("worker-memory").DefValue = "0" // so that help does not name it as a default
	f.IntVar(&o.pids, "worker-pids", 0, "`N` threads of a worker at most, 0: no limit; takes a control group")
	f.IntVar(&o.weight, "worker-cpu-weight", 0,
		"`WEIGHT` of each worker when processors are short, 1 to 10000, 0: as everybody; takes a control group")
}

// rootFolder is where root's workers have the folders of tenants: their users reach it.
const rootFolder = "/var/cache/scuda-workers"

// config gives what the options say to a process that may, or may not, start other users' processes.
func (o *workerOptions) config(root bool) (c spawner.Config, err error) {
	switch {
	case o.uids != "auto":
		if c.UIDs, err = spawner.ParseRange(o.uids); err != nil {
			return c, fmt.Errorf("--worker-uids: %w", err)
		}
		if !root && !c.UIDs.Empty() {
			return c, errors.New("--worker-uids: only root starts processes of other users")
		}
	case root:
		c.UIDs = spawner.DefaultRange // or the former one, when the folder is known
	}
	if o.pids < 0 || o.weight < 0 || o.weight > 10000 {
		return c, errors.New("--worker-pids cannot be negative, --worker-cpu-weight is 1 to 10000")
	}
	c.Cgroup = o.cgroup
	c.Limits = spawner.Limits{Memory: uint64(o.memory), Processes: o.pids, CPUWeight: o.weight}
	if o.cgroup == spawner.CgroupNone && c.Limits != (spawner.Limits{}) {
		return c, errors.New("--worker-memory, --worker-pids and --worker-cpu-weight take a control group: " +
			"leave --worker-cgroup none out")
	}
	switch {
	case o.folder == "none":
	case o.folder != "":
		c.Folder, err = filepath.Abs(o.folder)
	case !c.UIDs.Empty():
		c.Folder = rootFolder
	default:
		if cache, err := os.UserCacheDir(); err == nil {
			c.Folder = filepath.Join(cache, "scuda", "workers")
		}
	}
	if o.uids == "auto" && root {
		c.UIDs = spawner.UsualRange(c.Folder)
	}
	return c, err
}

// newSpawner is the process that starts the workers of a server that is not root.
func newSpawner() *cobra.Command {
	var o workerOptions
	var connect, log, inherited string
	cmd := &cobra.Command{
		Use:   "spawner --connect SOCKET",
		Short: "Start the workers of a server that is not root",
		Long: `Start and end the worker processes of a server (scuda serve ADDR --spawner SOCKET), each as the user of its
tenant. Needs root, of whose rights CAP_SETUID, CAP_SETGID and CAP_KILL are enough. It starts nothing but its own
program, and ends nothing but what it has started. A server that is root starts one by itself.`,
		Example: "  scuda spawner --connect /run/scuda/spawner --worker-uids 2100000000-2100009999",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if inherited != "" {
				return spawner.Inherited(cmd.Context(), inherited)
			}
			if err := applyEnv(cmd.Flags()); err != nil {
				return err
			}
			if connect == "" {
				return usage(errors.New("no server: give its --spawner SOCKET as --connect SOCKET"))
			}
			c, err := o.config(os.Geteuid() == 0)
			if err != nil {
				return usage(err)
			}
			logger, err := config.OpenLog(log, config.LogText, cmd.ErrOrStderr())
			if err != nil {
				return usage(fmt.Errorf("--log: %w", err))
			}
			return spawner.Dial(cmd.Context(), connect, c, logger)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&connect, "connect", "", "`SOCKET` of the server")
	o.flags(f)
	f.StringVar(&log, "log", "info", "`LEVEL` debug, info, warn or error, and optionally ,file=PATH")
	f.StringVar(&inherited, spawner.InheritFlag, "", "")
	_ = f.MarkHidden(spawner.InheritFlag)
	withEnv(f, append(workerFlags, "log")...)
	return cmd
}

// readWorkers reads the server's options about workers.
func (o *serveOptions) readWorkers(c *server.Config) (err error) {
	if c.Workers, err = o.workers.config(os.Geteuid() == 0); err != nil {
		return err
	}
	c.Spawner, c.SameUser = o.spawner, o.workers.uids == "none"
	c.StateDir, _ = o.stateFolder() // without a home the server keeps no state, and says so when it has some
	return nil
}
