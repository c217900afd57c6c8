//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSlurm is about real daemons: Debian's slurmctld with two slurmd, and two servers with the simulated GPU.
func TestSlurm(t *testing.T) {
	c := up(t)
	for _, part := range []struct {
		name string
		test func(*cluster)
	}{
		{"gres", gres}, {"refusals", refusals}, {"batch", batch}, {"ranks", ranks}, {"nodes", nodes}, {"array", array},
		{"cancel", cancelled}, {"requeue", requeued}, {"node failure", nodeFailure}, {"silent server", silentServer},
		{"burst buffer", burstBuffer}, {"two hundred", twoHundred}, {"tutorial", tutorial},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			of := *c
			of.T = t
			part.test(&of)
			of.idle()
		}) {
			t.FailNow() // what is left of it would fail the others
		}
	}
}

var isGPU = regexp.MustCompile(`(?m)^GPU \d: .+ \(UUID: (GPU-[0-9a-f-]+)\)$`)

// A job that asks as for a node's GPU sees one, and what it used is accounted by its number.
func gres(c *cluster) {
	if out := c.as(ada, "srun", "--gres=scuda:1", "nvidia-smi", "-L"); len(isGPU.FindAllString(out, -1)) != 1 {
		c.Errorf("nvidia-smi says\n%s", out)
	}
	if out := c.as(ada, "srun", "--gres=scuda:2", "nvidia-smi", "-L"); len(isGPU.FindAllString(out, -1)) != 2 {
		c.Errorf("nvidia-smi says\n%s", out)
	}
	if out := c.as(ada, "srun", "-L", "scuda:2", "gpu.py"); !strings.Contains(out, "gpus=2 ") {
		c.Errorf("by licences alone: %s", out)
	}
	out := c.as(ada, "srun", "--gres=scuda:1", "sh", "-c", "gpu.py && echo job=$SLURM_JOB_ID$SCUDA_TOKEN")
	m := regexp.MustCompile(`(?s)^gpus=1 first=\w+ server=\S+\ndone\njob=(\d+)$`).FindStringSubmatch(out)
	if m == nil {
		c.Fatalf("the program says\n%s", out)
	}
	c.until("the usage of the job", func() bool {
		used := ""
		for _, server := range []string{"a", "b"} {
			used += c.run("scuda", "usage", "--by", "label", "--admin", c.in(server+".admin"))
		}
		return strings.Contains(used, "slurm/lab/"+m[1]+" ")
	})
	if out := c.as(ada, "srun", "sh", "-c", "printenv SCUDA_SERVER LD_PRELOAD; true"); out != "" {
		c.Errorf("a job without GPUs has\n%s", out)
	}
}

// What cannot be had is said when it is asked for.
func refusals(c *cluster) {
	for ask, want := range map[string]string{
		"--gres=scuda:h200:1": "scuda: write --gres=scuda:N, with a number",
		"--gres=scuda:5":      "icense", // there are four
	} {
		if out, err := c.try(ada, "srun", ask, "true"); err == nil || !strings.Contains(out, want) {
			c.Errorf("%s: %v, %s", ask, err, out)
		}
	}
	if out, err := c.try(ada, "srun", "--gres=scuda:1", "-L", "scuda:2", "true"); err == nil ||
		!strings.Contains(out, "scuda: --gres=scuda:1 on 1 nodes takes 1 licences scuda, not 2") {
		c.Errorf("%v, %s", err, out)
	}
	// Three on one node: no server has so many, though there are licences. The job says so, and the node stays.
	if out, err := c.try(ada, "srun", "--gres=scuda:3", "true"); err == nil ||
		!strings.Contains(out, "scuda: this job has no GPU: no server has a place for 3 GPUs: "+c.servers[0]) {
		c.Errorf("%v, %s", err, out)
	}
}

func (c *cluster) sbatch(as string, args ...string) (job string) {
	c.Helper()
	return c.as(as, "sbatch", append([]string{"--parsable", "--output=" + c.in("work/%x-%A-%a-%j")}, args...)...)
}

// out waits for a line of a job's output, and gives all of it.
func (c *cluster) out(name, want string) (text string) {
	c.Helper()
	c.until(name+" says "+want, func() bool {
		files, _ := filepath.Glob(c.in("work/" + name + "-*"))
		text = ""
		for _, f := range files {
			b, _ := os.ReadFile(f)
			text += string(b)
		}
		return strings.Contains(text, want)
	})
	return text
}

// While a job runs there is its lease, whose credential nobody else can read, whatever the job is called.
func batch(c *cluster) {
	hold := c.in("work/hold")
	c.put("work/hold", "", 0o644)
	job := c.sbatch(ada, "-J", `evil|1 Licenses=scuda:4 $(touch x)`, "--gres=scuda:1", "--output="+c.in("work/batch-1"),
		"--wrap", `echo token=$SCUDA_TOKEN_FILE; srun --gres=scuda:1 gpu.py `+hold)
	out := c.out("batch", "gpus=1 ")
	if got := strings.Join(c.leases(), " "); got != job {
		c.Errorf("the leases are of %q, not %s", got, job)
	}
	token := regexp.MustCompile(`token=(\S+)`).FindStringSubmatch(out)[1]
	if said, err := c.try(ben, "cat", token); err == nil || !strings.Contains(said, "denied") {
		c.Errorf("somebody else reads %s: %v", token, err)
	}
	if said := c.as(ada, "cat", token); !strings.HasPrefix(said, "scuda-lease-") {
		c.Errorf("its user reads %q", said)
	}
	if st, err := os.Stat(token); err != nil || st.Mode().Perm() != 0o400 {
		c.Error(st, err)
	}
	if said := c.run("scuda", "ps", "--json", "--admin", c.in("a.admin")); !strings.Contains(said,
		`"tenant": "slurm-`+ada+`"`) {
		c.Errorf("its session is\n%s", said)
	}
	if err := os.Remove(hold); err != nil {
		c.Error(err)
	}
	c.out("batch", "done")
}

// Each task of a node has a GPU of its own, unless its user wants all of them.
func ranks(c *cluster) {
	out := c.as(ada, "srun", "-N1", "-n2", "--gres=scuda:2", "gpu.py")
	first := regexp.MustCompile(`gpus=1 first=(\w+)`).FindAllStringSubmatch(out, -1)
	if len(first) != 2 || first[0][1] == first[1][1] {
		c.Errorf("two tasks say\n%s", out)
	}
	out = c.as(ada, "env", variableBind+"=none", "srun", "-N1", "-n2", "--gres=scuda:2", "gpu.py")
	if strings.Count(out, "gpus=2 ") != 2 {
		c.Errorf("without binding they say\n%s", out)
	}
}

// Each node of a job has a lease; the second one is on the server that has places.
func nodes(c *cluster) {
	out := c.as(ada, "srun", "-N2", "--gres=scuda:2", "gpu.py")
	if strings.Count(out, "gpus=2 ") != 2 || !strings.Contains(out, "server="+c.servers[0]) ||
		!strings.Contains(out, "server="+c.servers[1]) {
		c.Errorf("two nodes say\n%s", out)
	}
}

// The tasks of an array wait for places, and the leases are those of the jobs that run.
func array(c *cluster) {
	c.put("work/array-hold", "", 0o644)
	c.sbatch(ada, "-J", "array", "--array=1-6", "--gres=scuda:1", "--wrap", "gpu.py "+c.in("work/array-hold"))
	c.until("four of six run", func() bool { return strings.Count(c.out("array", "gpus=1 "), "gpus=1 ") == 4 })
	running := strings.Fields(c.run("squeue", "--noheader", "--states=RUNNING", "-o", "%A"))
	if leases := c.leases(); len(running) != 4 || len(leases) != 4 {
		c.Errorf("%q run, %q have leases", running, leases)
	} else {
		for _, job := range running {
			if !strings.Contains(" "+strings.Join(leases, " ")+" ", " "+job+" ") {
				c.Errorf("%s runs without a lease: %q", job, leases)
			}
		}
	}
	if out := c.run("squeue", "--noheader", "--states=PENDING", "-r", "-o", "%r"); strings.Count(out, "Licenses") == 0 {
		c.Errorf("the others wait for %s", out)
	}
	if err := os.Remove(c.in("work/array-hold")); err != nil {
		c.Error(err)
	}
	c.until("all are done", func() bool { return strings.Count(c.out("array", "done"), "done\n") == 6 })
}

// held starts a job that holds a GPU until its file is gone.
func (c *cluster) held(name string, args ...string) (job string) {
	c.Helper()
	c.put("work/"+name+".hold", "", 0o644)
	job = c.sbatch(ada, append([]string{"-J", name, "--open-mode=append", "--output=" + c.in("work/"+name+"-out"),
		"--gres=scuda:1", "--wrap", "gpu.py " + c.in("work/"+name+".hold")}, args...)...)
	c.out(name, "gpus=1 ")
	return job
}

func (c *cluster) letGo(name string) {
	c.Helper()
	if err := os.Remove(c.in("work/" + name + ".hold")); err != nil {
		c.Fatal(err)
	}
}

// A cancelled job's lease is gone, and its session.
func cancelled(c *cluster) {
	job := c.held("cancel")
	c.as(ada, "scancel", job)
	c.idle()
	c.until("its session is over", func() bool {
		return c.run("scuda", "ps", "--admin", c.in("a.admin")) == "no sessions"
	})
}

// A job that is started again has one lease, a new one.
func requeued(c *cluster) {
	job := c.held("requeue", "--requeue", "--begin=now")
	c.run("scontrol", "requeue", job)
	c.until("it waits", func() bool {
		return c.run("squeue", "--noheader", "-o", "%T %r", "-j", job) == "PENDING BeginTime"
	})
	c.run("scontrol", "update", "jobid="+job, "starttime=now") // Slurm waits for two minutes
	c.until("it has begun again", func() bool { return strings.Count(c.out("requeue", "gpus=1 "), "gpus=1 ") == 2 })
	if got := strings.Join(c.leases(), " "); got != job {
		c.Errorf("the leases are of %q, not %s", got, job)
	}
	c.letGo("requeue")
	c.out("requeue", "done")
}

// A node that fails leaves no lease: the controller gives it back.
func nodeFailure(c *cluster) {
	job := c.held("failure", "-w", "n2", "--no-requeue")
	c.signal("n2", syscall.SIGSTOP) // it answers nobody, and runs no epilog
	c.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
	c.until("its lease is gone", func() bool { return len(c.leases()) == 0 })
	c.until("the job has failed", func() bool {
		return strings.Contains(c.run("scontrol", "show", "job", job), "JobState=NODE_FAIL")
	})
	c.stop("n2", syscall.SIGKILL)
	c.letGo("failure")
	c.start("n2", "slurmd", "-D", "-N", "n2")
	c.run("scontrol", "update", "nodename=n2", "state=resume")
	// What the epilog would have cleared on the node is cleared when the next prolog of that job comes, or by hand.
	if err := os.RemoveAll(c.in("run/n2/" + job)); err != nil {
		c.Error(err)
	}
}

// A server that does not answer costs a job its part of the time. Where none answers the job says so, its node stays in
// service, and what is left on a server is swept when that answers again.
func silentServer(c *cluster) {
	job := c.held("silent")
	c.signal("a", syscall.SIGSTOP)
	if out := c.as(ada, "srun", "--gres=scuda:1", "gpu.py"); !strings.Contains(out, "server="+c.servers[1]) {
		c.Errorf("with one server it says\n%s", out)
	}
	c.signal("b", syscall.SIGSTOP)
	out, err := c.try(ada, "srun", "--gres=scuda:1", "true")
	if err == nil || strings.Count(out, "scuda did not answer in time") < 2 {
		c.Errorf("with none: %v\n%s", err, out)
	}
	c.signal("b", syscall.SIGCONT)
	c.run("scancel", job)
	c.until("the job is over", func() bool { return c.run("squeue", "--noheader") == "" })
	if out := c.run("sinfo", "--noheader", "-N", "-o", "%T"); out != "idle\nidle" {
		c.Errorf("the nodes are %s", out)
	}
	c.signal("a", syscall.SIGCONT)
	c.until("the server answers", func() bool {
		_, err := c.try("", "scuda", "lease", "list", "--admin", c.in("a.admin"))
		return err == nil
	})
	said := c.run("scuda", "slurm", "sweep", "--cluster", "lab", "--config", c.in("etc/slurm.yaml"))
	if !strings.Contains(said, "(slurm/lab/"+job+")") {
		c.Errorf("sweep says %q", said)
	}
}

// The controller takes the lease of a job with a burst buffer, and nothing runs on the nodes for it.
func burstBuffer(c *cluster) {
	out := c.as(ada, "srun", "--bb=#SCUDA pool=scuda capacity=1", "gpu.py")
	if !strings.Contains(out, "gpus=1 ") {
		c.Errorf("it says\n%s", out)
	}
	script := c.in("work/bb.sh")
	c.put("work/bb.sh", "#!/bin/sh\n#SCUDA pool=scuda capacity=2\ngpu.py "+c.in("work/bb.hold")+"\n", 0o755)
	c.put("work/bb.hold", "", 0o644)
	job := c.sbatch(ada, "--output="+c.in("work/bb-out"), script)
	c.out("bb", "gpus=2 ")
	if got := strings.Join(c.leases(), " "); got != job {
		c.Errorf("the leases are of %q, not %s", got, job)
	}
	c.as(ada, "scancel", job)
	c.idle()
}

// Two hundred jobs come and go while the controller is restarted; each had its GPU, and nothing is left.
func twoHundred(c *cluster) {
	const jobs = 200
	began := time.Now()
	c.sbatch(ada, "-J", "many", fmt.Sprintf("--array=1-%d", jobs), "--gres=scuda:1", "--wrap", "gpu.py")
	for _, after := range []int{jobs / 4, jobs / 2} {
		c.counted("many", after)
		c.stop("slurmctld", syscall.SIGTERM)
		c.start("slurmctld", "slurmctld", "-D")
	}
	c.counted("many", jobs)
	c.idle()
	if text := c.out("many", "done"); strings.Count(text, "gpus=1 ") != jobs || strings.Contains(text, "no GPU") {
		c.Errorf("the jobs say\n%s", text)
	}
	c.Logf("%d jobs in %v", jobs, time.Since(began).Round(time.Second))
}

// counted waits until so many jobs have said that they are done. It is an error if none does for a while.
func (c *cluster) counted(name string, want int) {
	c.Helper()
	last, since := 0, time.Now()
	for {
		n := strings.Count(c.out(name, ""), "done\n")
		if n >= want {
			return
		}
		if n > last {
			last, since = n, time.Now()
		}
		if time.Since(since) > patience {
			c.Fatalf("%d of %d jobs are done, and no other comes", n, want)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// tutorial does what the pages say: blocks of kind slurm as a user, those of kind "slurm root" as root.
func tutorial(c *cluster) {
	fill := strings.NewReplacer("/etc/scuda/slurm.yaml", c.in("etc/slurm.yaml"), "/run/scuda/admin-14833.sock",
		c.in("a.admin"))
	for page, want := range map[string]int{"tutorials/slurm.md": 5, "slurm.md": 3} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			c.Fatal(err)
		}
		found := regexp.MustCompile("(?ms)^```(slurm|slurm root)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
		if len(found) < want {
			c.Errorf("%s: %d blocks", page, len(found))
		}
		for _, m := range found {
			who := map[string]string{"slurm": ada}[m[1]]
			out, err := c.try(who, "bash", "-euo", "pipefail", "-c", fill.Replace(m[2]))
			if err != nil {
				c.Errorf("%s: %v\n%s\n%s", page, err, m[2], out)
			}
			c.Logf("%s%s", m[2], out)
		}
	}
}
