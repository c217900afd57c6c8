package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/deploy/slurm"
)

// siteFile is where a site says what Slurm's hooks need to know.
const siteFile = "/etc/scuda/slurm.yaml"

// slurmOptions are those of the verbs of scuda slurm.
type slurmOptions struct {
	file, cluster string
	job           uint32
	uid, gpus     int
}

func newSlurm() *cobra.Command {
	var o slurmOptions
	cmd := &cobra.Command{
		Use:   "slurm",
		Short: "Give Slurm's jobs GPUs of servers",
		Long: `Give Slurm's jobs GPUs of servers: take a lease when a job begins, bring it into the job, and give it back.
Slurm calls these, by the scripts in deploy/slurm; what a site has to decide stands in one file, slurm.yaml.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&o.file, "config", siteFile, "`FILE` of the site")
	verb := func(use, short, long string, run func(*cobra.Command, *slurm.Site) error) *cobra.Command {
		v := &cobra.Command{
			Use: use, Short: short, Long: long + "\n\n" + exitHelp, Args: noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				unix.Umask(0o022)            // daemons have others; a job's user has to reach the job's folder
				if os.Getenv("PATH") == "" { // Slurm's daemons give their scripts none
					if err := os.Setenv("PATH", "/usr/local/bin:/usr/bin:/bin"); err != nil {
						return err
					}
				}
				site, err := slurm.ReadSite(o.file)
				if err != nil {
					return usage(err)
				}
				return run(cmd, site)
			},
		}
		cmd.AddCommand(v)
		return v
	}
	verb("check", "Say whether the site's file is right, and whether the servers answer",
		"Say whether the site's file is right, and whether each server answers who this machine is.", o.check)
	verb("prolog", "Take the lease of a job's node (Prolog= of slurm.conf)",
		"Take the lease of a job's node. Slurm says which by its environment. A job that gets no lease fails with the\n"+
			"reason when its first task is to start.", o.prolog)
	verb("epilog", "Give it back (Epilog=)",
		"Give the lease of a job's node back. It never fails: what is left is given back by end or sweep, or expires.",
		o.epilog)
	verb("task-prolog", "Bring it into a task (TaskProlog=)",
		"Print, for Slurm, what a task has in its environment.", o.taskProlog)
	end := verb("end", "Give all leases of a job back (EpilogSlurmctld=)",
		"Give all leases of a job back, on whatever node they were taken.", o.end)
	setup := verb("setup", "Take the lease of a job on the controller (burst_buffer.lua)",
		"Take the lease of a job on the controller, and keep its credential there.", o.setup)
	paths := verb("paths", "Print the variables of such a job",
		"Print the variables of a job for which setup took a lease.", o.paths)
	sweep := verb("sweep", "Give back the leases of jobs that are gone",
		"Give back the leases of jobs that Slurm does not run any more. They are there where a server could not be\n"+
			"reached when its job ended.", o.sweep)
	for _, v := range []*cobra.Command{end, setup, paths} {
		v.Flags().Uint32Var(&o.job, "job", 0, "`NUMBER` of the job, instead of the one in the environment")
	}
	for _, v := range []*cobra.Command{end, setup, paths, sweep} {
		v.Flags().StringVar(&o.cluster, "cluster", "", "`NAME` of Slurm's cluster, where neither file nor environment say it")
	}
	setup.Flags().IntVar(&o.uid, "uid", -1, "`NUMBER` of the job's user")
	setup.Flags().IntVar(&o.gpus, "gpus", 1, "`N` GPUs")
	return cmd
}

// hook is what Slurm says of a job, by the environment or, where a script does, by options.
func (o *slurmOptions) hook(cmd *cobra.Command, site *slurm.Site) (*slurm.Hook, error) {
	return slurm.FromEnv(site, cmd.ErrOrStderr(), func(name string) string {
		switch {
		case o.job != 0 && name == "SLURM_JOB_ID":
			return strconv.FormatUint(uint64(o.job), 10)
		case o.job != 0 && name == "SLURM_JOB_UID":
			return strconv.Itoa(max(0, o.uid))
		case o.job != 0 && name == "SLURM_JOB_USER":
			if u, err := user.LookupId(strconv.Itoa(o.uid)); err == nil {
				return u.Username
			}
			return ""
		case o.cluster != "" && name == "SLURM_CLUSTER_NAME":
			return o.cluster
		}
		return os.Getenv(name)
	})
}

func (o *slurmOptions) check(cmd *cobra.Command, site *slurm.Site) error {
	var bad error
	for i := range site.Servers {
		said, err := site.Ask(cmd.Context(), &site.Servers[i])
		if err != nil {
			said, bad = err.Error(), &exitError{exitUnreachable, errors.New("not all servers answer")}
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", site.Servers[i].Address, said)
	}
	return bad
}

func (o *slurmOptions) prolog(cmd *cobra.Command, site *slurm.Site) error {
	h, err := o.hook(cmd, site)
	if err != nil {
		return usage(err)
	}
	return h.Prolog(cmd.Context())
}

func (o *slurmOptions) epilog(cmd *cobra.Command, site *slurm.Site) error {
	h, err := o.hook(cmd, site)
	if err != nil {
		return usage(err)
	}
	h.Epilog(cmd.Context())
	return nil
}

func (o *slurmOptions) taskProlog(cmd *cobra.Command, site *slurm.Site) error {
	h, err := o.hook(cmd, site)
	if err != nil {
		return usage(err)
	}
	libraries, err := clientLibraries(site)
	if err != nil {
		return err
	}
	return h.TaskProlog(cmd.OutOrStdout(), os.Getenv, libraries)
}

// clientLibraries is the folder of those that jobs use.
func clientLibraries(site *slurm.Site) (string, error) {
	if site.Libraries != "" {
		return site.Libraries, checkLibName(site.Libraries)
	}
	folder, err := libFolder()
	if err != nil {
		return "", err
	}
	return folder, checkLibName(folder)
}

func (o *slurmOptions) end(cmd *cobra.Command, site *slurm.Site) error {
	if o.job == 0 && !site.Asks(os.Getenv("SLURM_JOB_LICENSES")) {
		return nil
	}
	h, err := o.hook(cmd, site)
	if err != nil {
		return usage(err)
	}
	return h.End(cmd.Context())
}

func (o *slurmOptions) setup(cmd *cobra.Command, site *slurm.Site) error {
	h, err := o.hook(cmd, site)
	if err != nil {
		return usage(err)
	}
	return h.Setup(cmd.Context(), o.gpus)
}

func (o *slurmOptions) paths(cmd *cobra.Command, site *slurm.Site) error {
	h, err := o.hook(cmd, site)
	if err != nil {
		return usage(err)
	}
	libraries := site.Libraries
	if libraries == "" {
		libraries = filepath.Clean(inImage)
	}
	return h.Paths(cmd.OutOrStdout(), libraries)
}

func (o *slurmOptions) sweep(cmd *cobra.Command, site *slurm.Site) error {
	cluster := site.Cluster
	if cluster == "" {
		cluster = o.cluster
	}
	if cluster == "" {
		return usage(errors.New("which cluster? write cluster: into the site's file, or --cluster NAME"))
	}
	ended, err := site.Sweep(cmd.Context(), cluster)
	for _, l := range ended {
		fmt.Fprintf(cmd.OutOrStdout(), "revoked %s (%s)\n", l.ID, l.Label)
	}
	return err
}
