package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long something may take on a machine with other work.
const patience = time.Minute

// process is a program that was started, and what it has said.
type process struct {
	*testing.T
	cmd   *exec.Cmd
	mu    sync.Mutex
	said  bytes.Buffer
	more  chan struct{} // something was said
	ended chan struct{}
	err   error // once it has ended
}

func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
	return p.said.Write(text)
}

func (p *process) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// await waits for a line, and gives its parts.
func (p *process) await(line string) []string {
	p.Helper()
	after, is := time.After(patience), regexp.MustCompile("(?m)"+line)
	for {
		if m := is.FindStringSubmatch(p.String()); m != nil {
			return m
		}
		select {
		case <-p.more:
		case <-p.ended:
			if m := is.FindStringSubmatch(p.String()); m != nil {
				return m
			}
			p.Fatalf("%q has ended, and did not say %s:\n%s", p.cmd.Args, line, p)
		case <-after:
			p.Fatalf("%q does not say %s:\n%s", p.cmd.Args, line, p)
		}
	}
}

// over waits for its end.
func (p *process) over() error {
	p.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.Fatalf("%q does not end:\n%s", p.cmd.Args, p)
	}
	return p.err
}

// client is a machine of the cluster, and the server beside it.
type client struct {
	*testing.T
	folder      string
	env         []string
	address     string // of the server
	fingerprint string
}

func (c *client) in(name string) string { return filepath.Join(c.folder, name) }

// begin starts a program in a group of its own, which is gone when the test has ended.
func (c *client) begin(env []string, program string, args ...string) *process {
	c.Helper()
	p := &process{T: c.T, more: make(chan struct{}, 1), ended: make(chan struct{})}
	path := program
	if !strings.Contains(program, "/") { // as Nomad, by the path that the task has
		for _, folder := range filepath.SplitList(c.in("bin") + ":" + os.Getenv("PATH")) {
			if _, err := os.Stat(filepath.Join(folder, program)); err == nil {
				path = filepath.Join(folder, program)
				break
			}
		}
	}
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir, p.cmd.Env = c.folder, append(slices.Clone(c.env), env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	c.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
	})
	return p
}

// run is begin with a program that has to succeed.
func (c *client) run(program string, args ...string) string {
	c.Helper()
	p := c.begin(nil, program, args...)
	if err := p.over(); err != nil {
		c.Fatalf("%s %q: %v\n%s", program, args, err, p)
	}
	return p.String()
}

// up does what the page says of the server, with one simulated GPU, and makes a folder of a client's.
func up(t *testing.T) *client {
	t.Helper()
	build, err := filepath.Abs("../../../build")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(build, "scuda")); err != nil {
		t.Fatalf("%v; run make build", err)
	}
	c := &client{T: t, folder: t.TempDir()}
	for _, name := range []string{"bin", "state"} {
		if err := os.Mkdir(c.in(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c.env = []string{"HOME=" + c.folder, "PATH=" + c.in("bin") + ":" + os.Getenv("PATH")}
	if err := os.Symlink(filepath.Join(build, "scuda"), c.in("bin/scuda")); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("../../slurm/testdata/gpu.py")
	if err != nil {
		t.Fatal(err)
	}
	// The jobs call it without a word, so what it waits for is always the same.
	text := strings.Replace(string(program), "len(sys.argv) > 1 and os.path.exists(sys.argv[1])",
		fmt.Sprintf("os.path.exists(%q)", c.in("hold")), 1)
	if err := os.WriteFile(c.in("train.py"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, b := range page(t) {
		switch b.kind {
		case "sh":
			c.run("bash", "-euo", "pipefail", "-c", b.text)
		case "sh server":
			words := strings.Fields(b.text)
			if len(words) < 3 || words[0] != "scuda" || words[1] != "serve" {
				t.Fatalf("not the command of a server: %s", b.text)
			}
			s := c.begin(nil, "scuda", append([]string{"serve", "127.0.0.1:0", "--tls", "always", "--gpu", "sim:1",
				"--drain", "0", "--cache-dir", "none", "--state-dir", c.in("state"), "--admin", c.in("admin.sock")},
				words[3:]...)...)
			c.address = s.await(`^listening on (\S+)$`)[1]
			c.fingerprint = s.await(`^fingerprint (\S+)$`)[1]
			s.await("admin interface")
		}
	}
	if c.address == "" {
		t.Fatal("the page starts no server")
	}
	return c
}

// job is one of the page's.
func (c *client) job(name string) string {
	c.Helper()
	for _, b := range page(c.T) {
		if b.kind == "hcl job" && strings.Contains(b.text, "job \""+name+"\" {") {
			return strings.NewReplacer("gpu1.example.org:14833", c.address, "sha256:…", c.fingerprint,
				"/etc/nomad.d/batch.token", c.in("batch.token")).Replace(b.text)
		}
	}
	c.Fatalf("the page has no job %q", name)
	return ""
}

// allocation is a job that has a place on the client.
type allocation struct {
	*client
	id    string
	env   []string
	tasks map[string]task
}

func (c *client) place(id, job string) *allocation {
	c.Helper()
	folder := c.in(id)
	if err := os.Mkdir(folder, 0o700); err != nil {
		c.Fatal(err)
	}
	runtime := map[string]string{"NOMAD_ALLOC_ID": id, "NOMAD_ALLOC_DIR": folder}
	a := &allocation{client: c, id: id, tasks: of(c.T, job, runtime)}
	for name, value := range runtime {
		a.env = append(a.env, name+"="+value)
	}
	return a
}

// start starts a task.
func (a *allocation) start(name, hook string) *process {
	a.Helper()
	of, there := a.tasks[name]
	if !there || of.hook != hook {
		a.Fatalf("there is no task %s with the hook %q: %+v", name, hook, a.tasks)
	}
	return a.begin(append(slices.Clone(a.env), of.env...), of.command, of.args...)
}

// done is start with a task that has to succeed.
func (a *allocation) done(name, hook string) {
	a.Helper()
	p := a.start(name, hook)
	if err := p.over(); err != nil {
		a.Fatalf("task %s: %v\n%s", name, err, p)
	}
}

// leases are the labels of those that the server has.
func (c *client) leases() (labels []string) {
	c.Helper()
	var list []struct{ Label string }
	if err := json.Unmarshal([]byte(c.run("scuda", "lease", "list", "--json", "--admin", c.in("admin.sock"))),
		&list); err != nil {
		c.Fatal(err)
	}
	for _, l := range list {
		labels = append(labels, l.Label)
	}
	return labels
}

func (c *client) has(labels ...string) {
	c.Helper()
	if got := c.leases(); !slices.Equal(got, labels) {
		c.Errorf("the leases are %q, not %q", got, labels)
	}
}

func (c *client) hold(is bool) {
	c.Helper()
	err := os.WriteFile(c.in("hold"), nil, 0o600)
	if !is {
		err = os.Remove(c.in("hold"))
	}
	if err != nil {
		c.Fatal(err)
	}
}

// A job has a GPU to itself for as long as it runs, the next waits for it, and nothing is left of one that is stopped.
func TestJob(t *testing.T) {
	c := up(t)
	job := c.job("train")
	first, second := c.place("alloc-1", job), c.place("alloc-2", job)
	c.hold(true)
	first.done("lease", "prestart")
	c.has("alloc-1")
	main := first.start("main", "")
	main.await(`^gpus=1 first=\w+ server=` + regexp.QuoteMeta(c.address) + `$`)

	// No GPU is free for the other one, whose task is started again and again.
	waits := second.start("lease", "prestart")
	if err := waits.over(); err == nil || !strings.Contains(waits.String(), "a GPU is leased already") {
		t.Errorf("there is one GPU, and a second job has it: %v\n%s", err, waits)
	}
	c.hold(false)
	main.await("^done$")
	if err := main.over(); err != nil {
		t.Errorf("%v\n%s", err, main)
	}
	first.done("return", "poststop")
	c.has()

	// The whole allocation is started again: one lease. Then it is stopped, as by nomad job stop.
	c.hold(true)
	second.done("lease", "prestart")
	second.done("lease", "prestart")
	c.has("alloc-2")
	main = second.start("main", "")
	main.await("^gpus=1 ")
	if err := main.cmd.Process.Signal(second.tasks["main"].kill); err != nil {
		t.Fatal(err)
	}
	if err := main.over(); err == nil {
		t.Errorf("the program goes on:\n%s", main)
	}
	second.done("return", "poststop")
	c.has()
	if said := c.run("scuda", "ps", "--admin", c.in("admin.sock")); strings.TrimSpace(said) != "no sessions" {
		t.Error(said)
	}
}

// What still runs under a lease that is given back has no GPU any more.
func TestReturnEndsSessions(t *testing.T) {
	c := up(t)
	a := c.place("alloc-1", c.job("train"))
	c.hold(true)
	a.done("lease", "prestart")
	main := a.start("main", "")
	main.await("^gpus=1 ")
	a.done("return", "poststop")
	if err := main.over(); err == nil || strings.Contains(main.String(), "done") {
		t.Errorf("it has ended: %v\n%s", err, main)
	}
	c.has()
}

// With a pool the job is one task, which has a lease while it runs. The pool of this test is on one machine and has no
// certificates; deploy/pool tries those.
func TestJobInAPool(t *testing.T) {
	c := up(t)
	if text, err := exec.CommandContext(t.Context(), "go", "-C", "../../pool", "build", "-o", c.in("bin/scuda-pool"),
		"./cmd/scuda-pool").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	c.env = append(c.env, "SCUDA_FINGERPRINT="+c.fingerprint)
	p := c.begin(nil, "scuda-pool", "serve", "--data", c.in("pool"), "--server", c.address, "--admin", c.in("admin.sock"))
	p.await("the server is announced")
	a := c.place("alloc-1", c.job("train-in-a-pool"))
	of := a.tasks["main"]
	for i, e := range of.env {
		if name, _, _ := strings.Cut(e, "="); name == "SCUDA_POOL" {
			of.env[i] = "SCUDA_POOL=unix://" + c.in("pool/etcd.sock")
		} else if strings.HasPrefix(name, "SCUDA_POOL_") {
			of.env[i] = name + "="
		}
	}
	c.hold(true)
	main := a.start("main", "")
	main.await("^gpus=1 ")
	if got := c.leases(); len(got) != 1 {
		t.Errorf("the leases are %q", got)
	}
	if err := main.cmd.Process.Signal(of.kill); err != nil {
		t.Fatal(err)
	}
	if err := main.over(); err == nil {
		t.Errorf("the program goes on:\n%s", main)
	}
	c.has()
}
