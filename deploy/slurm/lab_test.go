//go:build slurm

package slurm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The users whose jobs run. Debian has both.
const (
	ada = "nobody"
	ben = "games"
)

// patience is how long something may take on a machine with other work.
const patience = 3 * time.Minute

// cluster is a controller, two nodes and two servers with two simulated GPUs each, all on this machine's loopback.
type cluster struct {
	*testing.T
	folder  string
	daemons map[string]*daemon
	servers []string // addresses
}

// daemon is a program that runs until it is ended.
type daemon struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

const slurmConf = `ClusterName=lab
SlurmctldHost=$HOST(127.0.0.1)
SlurmUser=root
AuthInfo=socket=$DIR/munge/socket
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool-%n
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmdPidFile=$DIR/slurmd-%n.pid
SlurmctldPort=$PORT0
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
KillWait=5
BurstBufferType=burst_buffer/lua
SchedulerParameters=sched_interval=5,bf_interval=5
# what deploy/slurm asks for
GresTypes=scuda
Licenses=scuda:4
JobSubmitPlugins=lua
Prolog=$DIR/etc/prolog
Epilog=$DIR/etc/epilog
TaskProlog=$DIR/etc/task-prolog
EpilogSlurmctld=$DIR/etc/epilog-slurmctld
PrologFlags=Alloc
PrologEpilogTimeout=120
NodeName=n1 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$PORT1 CPUs=4 Gres=scuda:no_consume:64
NodeName=n2 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$PORT2 CPUs=4 Gres=scuda:no_consume:64
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=1:00:00 DefaultTime=10
`

func (c *cluster) in(name string) string { return filepath.Join(c.folder, name) }

func (c *cluster) put(name, text string, mode os.FileMode) {
	c.Helper()
	if err := os.WriteFile(c.in(name), []byte(text), mode); err != nil {
		c.Fatal(err)
	}
}

// up starts everything. It is gone when the test has ended.
func up(t *testing.T) *cluster {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("slurmd wants to be root")
	}
	folder, err := os.MkdirTemp("/tmp", "scuda-slurm-") //nolint:usetesting // users have to reach it
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{T: t, folder: folder, daemons: map[string]*daemon{}}
	t.Cleanup(c.down)
	for _, name := range []string{"", "etc", "bin", "bin/lib", "munge", "state", "spool-n1", "spool-n2", "work"} {
		if err := errors.Join(os.MkdirAll(c.in(name), 0o755), os.Chmod(c.in(name), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(c.in("work"), 0o777); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	c.run("sh", "-c", fmt.Sprintf("cd %s && cp ../../build/scuda testdata/gpu.py testdata/nvidia-smi %[2]s/ && "+
		"cp -P ../../build/lib/* %[2]s/lib/", here, c.in("bin")))
	t.Setenv("PATH", c.in("bin")+":"+os.Getenv("PATH"))
	c.serve("a", "--tls", "always")
	c.serve("b")
	c.configure()
	c.start("munged", "runuser", "-u", "munge", "--", "/usr/sbin/munged", "--foreground", "--socket="+c.in("munge/socket"),
		"--pid-file="+c.in("munge/pid"), "--log-file="+c.in("munge/log"), "--seed-file="+c.in("munge/seed"))
	c.until("munge answers", func() bool { return exec.Command("munge", "-n", "-S", c.in("munge/socket")).Run() == nil })
	c.start("slurmctld", "slurmctld", "-D")
	c.start("n1", "slurmd", "-D", "-N", "n1")
	c.start("n2", "slurmd", "-D", "-N", "n2")
	c.idle()
	return c
}

// serve starts a server with two GPUs.
func (c *cluster) serve(name string, args ...string) {
	c.Helper()
	c.put(name+".token", "the token of a test's tenant", 0o600)
	d := c.start(name, c.in("bin/scuda"), append([]string{"serve", "127.0.0.1:0", "--gpu", "sim:2",
		"--sim-memory", "256MiB", "--token-file", c.in(name + ".token"), "--admin", c.in(name + ".admin"),
		"--state-dir", c.in(name + ".state"), "--cache-dir", c.in(name + ".cache"), "--drain", "0", "--warm",
		"1"}, args...)...)
	address := c.said(d, "listening on ")
	c.servers = append(c.servers, address)
	text := "- address: " + address + "\n  places: 2\n  admin: " + c.in(name+".admin") + "\n"
	if len(args) > 0 {
		text += "  fingerprint: " + c.said(d, "fingerprint ") + "\n"
	}
	f, err := os.OpenFile(c.in("etc/slurm.yaml"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		c.Fatal(err)
	}
	defer f.Close()
	if len(c.servers) == 1 {
		text = "folder: " + c.in("run") + "\ntimeout: 60s\nmemory-per-gpu: 64MiB\nlibraries: " + c.in("bin/lib") +
			"\nservers:\n" + text
	}
	if _, err := f.WriteString(text); err != nil {
		c.Fatal(err)
	}
}

// said waits for a line that begins so, and gives the rest.
func (c *cluster) said(d *daemon, begins string) (rest string) {
	c.Helper()
	c.until(begins, func() bool {
		f, err := os.Open(d.log)
		if err != nil {
			return false
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if word, ok := strings.CutPrefix(lines.Text(), begins); ok {
				rest = word
				return true
			}
		}
		return false
	})
	return rest
}

// configure writes Slurm's files: those of this folder, with the names of this cluster.
func (c *cluster) configure() {
	c.Helper()
	host, err := os.Hostname()
	if err != nil {
		c.Fatal(err)
	}
	host, _, _ = strings.Cut(host, ".")
	words := []string{"$DIR", c.folder, "$HOST", host, "/usr/bin/scuda", c.in("bin/scuda"), "/etc/scuda/slurm.yaml",
		c.in("etc/slurm.yaml"), "slurm --config", "slurm --cluster lab --config", "local places = 8", "local places = 2"}
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			c.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		words = append(words, "$PORT"+strconv.Itoa(i), port)
		defer l.Close()
	}
	fill := strings.NewReplacer(words...)
	c.put("etc/slurm.conf", fill.Replace(slurmConf), 0o644)
	c.put("etc/gres.conf", "NodeName=n[1-2] Name=scuda Count=64 Flags=CountOnly\n", 0o644)
	c.put("etc/cgroup.conf", "CgroupPlugin=cgroup/v1\n", 0o644)
	for _, name := range []string{"prolog", "epilog", "task-prolog", "epilog-slurmctld", "job_submit.lua",
		"burst_buffer.lua", "burst_buffer.conf"} {
		text, err := os.ReadFile(name)
		if err != nil {
			c.Fatal(err)
		}
		c.put("etc/"+name, fill.Replace(string(text)), 0o755)
	}
	c.run("chown", "munge:", c.in("munge"))
}

func (c *cluster) env(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.in("etc/slurm.conf"), "HOME="+c.in("work"))
	cmd.Dir = c.in("work")
	return cmd
}

// start starts a daemon, which ends with this process whatever happens to it.
func (c *cluster) start(name, program string, args ...string) *daemon {
	c.Helper()
	d := &daemon{cmd: c.env(exec.Command(program, args...)), log: c.in(name + ".log"), done: make(chan struct{})}
	log, err := os.OpenFile(d.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		c.Fatal(err)
	}
	defer log.Close()
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	go func() { _ = d.cmd.Wait(); close(d.done) }()
	c.daemons[name] = d
	return d
}

func (c *cluster) signal(name string, s syscall.Signal) { _ = c.daemons[name].cmd.Process.Signal(s) }

// stop ends a daemon.
func (c *cluster) stop(name string, s syscall.Signal) {
	d := c.daemons[name]
	delete(c.daemons, name)
	_ = d.cmd.Process.Signal(syscall.SIGCONT)
	_ = d.cmd.Process.Signal(s)
	select {
	case <-d.done:
	case <-time.After(20 * time.Second):
		_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
		<-d.done
	}
}

// down ends the jobs and then all daemons, and removes the folder.
func (c *cluster) down() {
	if c.Failed() {
		for _, name := range []string{"slurmctld", "n1", "n2", "a", "b"} {
			text, _ := os.ReadFile(c.in(name + ".log"))
			c.Logf("%s:\n%s", name, text[max(0, len(text)-6000):])
		}
	}
	if c.daemons["slurmctld"] != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_ = c.env(exec.CommandContext(ctx, "scancel", "--signal=KILL", "--full", "--user=root,"+ada+","+ben)).Run()
		for ctx.Err() == nil {
			out, err := c.env(exec.CommandContext(ctx, "squeue", "--noheader")).Output()
			if err != nil || len(out) == 0 {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	for _, name := range []string{"n1", "n2", "slurmctld", "a", "b", "munged"} {
		if c.daemons[name] != nil {
			c.stop(name, syscall.SIGTERM)
		}
	}
	if err := os.RemoveAll(c.folder); err != nil {
		c.Error(err)
	}
}

// run runs a command to its end, and gives what it says.
func (c *cluster) run(program string, args ...string) string {
	c.Helper()
	out, err := c.try("", program, args...)
	if err != nil {
		c.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}

// as runs a user's command.
func (c *cluster) as(name, program string, args ...string) string {
	c.Helper()
	out, err := c.try(name, program, args...)
	if err != nil {
		c.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}

// try runs a command of a user's; "": root's.
func (c *cluster) try(name, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	cmd := c.env(exec.CommandContext(ctx, program, args...))
	if name != "" {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		cmd.Env = append(cmd.Env, "USER="+name)
	}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// until waits for something.
func (c *cluster) until(what string, ok func() bool) {
	c.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("did not come: %s", what)
		}
	}
}

// idle waits until both nodes are in service and nothing is left of jobs: in the queue, on the servers, on the nodes.
func (c *cluster) idle() {
	c.Helper()
	var why string
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		nodes, _ := c.try("", "sinfo", "--noheader", "-N", "-o", "%N=%T")
		queue, _ := c.try("", "squeue", "--noheader")
		left, _ := filepath.Glob(c.in("run/*/*"))
		leases := c.leases()
		if nodes == "n1=idle\nn2=idle" && queue == "" && len(left) == 0 && len(leases) == 0 {
			return
		}
		why = fmt.Sprintf("nodes %q\nqueue %s\nleft %q\nleases %q", nodes, queue, left, leases)
		if time.Now().After(end) {
			c.Fatalf("something is left:\n%s", why)
		}
	}
}

// leases are the labels of all that the servers have.
func (c *cluster) leases() (labels []string) {
	c.Helper()
	for _, name := range []string{"a", "b"} {
		labels = append(labels, c.leasesOf(name)...)
	}
	return labels
}

func (c *cluster) leasesOf(server string) (labels []string) {
	c.Helper()
	site, err := ReadSite(c.in("etc/slurm.yaml"))
	if err != nil {
		c.Fatal(err)
	}
	site.Scuda = c.in("bin/scuda")
	list, err := site.leases(c.Context(), &Server{Admin: c.in(server + ".admin")}, "lab")
	if err != nil {
		c.Fatal(err)
	}
	for _, l := range list {
		labels = append(labels, strings.TrimPrefix(l.Label, "slurm/lab/"))
	}
	return labels
}
