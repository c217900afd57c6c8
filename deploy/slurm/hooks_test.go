package slurm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests' program is also what they have in the place of scuda: a server is a file of leases in a folder.
func TestMain(m *testing.M) {
	if folder := os.Getenv("SCUDA_FAKE"); folder != "" {
		if err := fake(folder, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "scuda:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func fake(folder string, args []string) error {
	options := map[string]string{}
	var words []string
	for i := 0; i < len(args); i++ {
		if name, ok := strings.CutPrefix(args[i], "--"); ok && name != "json" {
			i++
			options[name] = args[i]
		} else if !ok {
			words = append(words, args[i])
		}
	}
	file := filepath.Join(folder, filepath.Base(options["server"]+options["admin"]))
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	if _, err := os.Stat(file + ".silent"); err == nil {
		time.Sleep(time.Minute) // it is killed
	}
	if text, err := os.ReadFile(file + ".refuses"); err == nil {
		return errors.New(string(text))
	}
	list := []Lease{}
	if err := json.NewDecoder(f).Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var answer any = list
	switch words[1] {
	case "create":
		n, err := strconv.Atoi(options["gpus"])
		if err != nil {
			return err
		}
		id := fmt.Sprintf("id%d", time.Now().UnixNano())
		l := Lease{ID: id, Label: options["label"], GPUs: make([]string, n), Created: time.Now()}
		list = append(list, l)
		l.Credential = "scuda-lease-" + id
		answer = l
	case "revoke":
		kept := []Lease{}
		for _, l := range list {
			if l.ID != words[2] {
				kept = append(kept, l)
			}
		}
		if len(kept) == len(list) {
			return errors.New("there is no such lease: " + words[2])
		}
		list, answer = kept, []struct{}{{}}
	}
	if words[1] == "create" {
		if err := os.WriteFile(file+".said", []byte(strings.Join(args, " ")), 0o600); err != nil {
			return err
		}
	}
	if os.Remove(file+".frees") == nil { // after this answer
		list = []Lease{}
	}
	text, err := json.Marshal(list)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(text, 0)
	}
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(answer))
}

// lab is a site with fake servers a and b, and one job.
type lab struct {
	*testing.T
	site   *Site
	folder string
	log    bytes.Buffer
}

func newLab(t *testing.T, places ...int) *lab {
	t.Helper()
	folder := t.TempDir()
	l := &lab{T: t, folder: folder, site: &Site{
		Licence: "scuda", Tenant: "slurm-%u", Grace: Duration(time.Minute),
		Longest: Duration(time.Hour), Timeout: Duration(10 * time.Minute), Bind: BindRank, Mode: ModeNode,
		Folder: filepath.Join(folder, "run"), Squeue: filepath.Join(folder, "squeue"),
		Environment: map[string]string{"SCUDA_FAKE": folder}}}
	var err error
	if l.site.Scuda, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	for i, n := range places {
		l.site.Servers = append(l.site.Servers, Server{Address: string(rune('a'+i)) + ":1", Places: n,
			Fingerprint: "sha256:f"})
	}
	l.put("squeue", "#!/bin/sh\ncat "+filepath.Join(folder, "jobs")+"\n", 0o755)
	l.jobs("4711|RUNNING|1|scuda:1|5:00")
	return l
}

func (l *lab) put(name, text string, mode os.FileMode) {
	l.Helper()
	if err := os.WriteFile(filepath.Join(l.folder, name), []byte(text), mode); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) jobs(lines ...string) { l.put("jobs", strings.Join(lines, "\n")+"\n", 0o644) }

func (l *lab) hook(vars ...string) *Hook {
	l.Helper()
	h, err := FromEnv(l.site, &l.log, env(append([]string{"SLURM_JOB_ID=4711", "SLURMD_NODENAME=n1",
		"SLURM_CLUSTER_NAME=lab", "SLURM_JOB_UID=" + strconv.Itoa(os.Getuid()), "SLURM_JOB_USER=ada"}, vars...)...))
	if err != nil {
		l.Fatal(err)
	}
	return h
}

// env gives variables of which the last counts.
func env(vars ...string) func(string) string {
	return func(name string) (value string) {
		for _, v := range vars {
			if n, text, _ := strings.Cut(v, "="); n == name {
				value = text
			}
		}
		return value
	}
}

func (l *lab) leases(server int) []Lease {
	l.Helper()
	list, err := l.site.leases(l.Context(), &l.site.Servers[server], "lab")
	if err != nil {
		l.Fatal(err)
	}
	return list
}

func (l *lab) prolog(vars ...string) {
	l.Helper()
	if err := l.hook(vars...).Prolog(l.Context()); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) task(vars ...string) (string, error) {
	l.Helper()
	var out strings.Builder
	err := l.hook(vars...).TaskProlog(&out, env(vars...), "/lib/scuda")
	return out.String(), err
}

// A job has one lease from its prolog to its epilog, whichever of them is run twice.
func TestLife(t *testing.T) {
	l := newLab(t, 1)
	l.hook().Epilog(t.Context()) // without a prolog
	l.prolog()
	l.prolog()
	list := l.leases(0)
	if len(list) != 1 || list[0].Label != "slurm/lab/4711" {
		t.Fatalf("%+v", list)
	}
	token := filepath.Join(l.folder, "run/n1/4711/token")
	text, err := os.ReadFile(token)
	st, err2 := os.Stat(token)
	if err != nil || err2 != nil || st.Mode().Perm() != 0o400 || string(text) != "scuda-lease-"+list[0].ID+"\n" {
		t.Errorf("%q, %v, %v, %v", text, st, err, err2)
	}
	got, err := l.task("SCUDA_TOKEN=mine", "LD_PRELOAD=/x.so")
	want := "export SCUDA_SERVER=a:1\nexport SCUDA_SLURM_GPUS=1\nexport SCUDA_SLURM_JOB=4711\n" +
		"export SCUDA_FINGERPRINT=sha256:f\nexport SCUDA_TOKEN_FILE=" + token + "\nunset SCUDA_TOKEN\n" +
		"export LD_PRELOAD=/lib/scuda/libscuda.so:/x.so\nexport LD_LIBRARY_PATH=/lib/scuda\n"
	if err != nil || got != want {
		t.Errorf("%v\n%s\nnot\n%s", err, got, want)
	}
	for range 2 {
		l.hook().Epilog(t.Context())
	}
	if list := l.leases(0); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if left, _ := os.ReadDir(filepath.Join(l.folder, "run/n1")); len(left) != 0 {
		t.Error(left)
	}
}

// What the lease is asked to be.
func TestTerms(t *testing.T) {
	l := newLab(t, 4)
	l.site.Memory, l.site.Share, l.site.Class = "20GiB", 300, "low"
	l.jobs("4712|RUNNING|1|scuda:1|5:00", "4711|RUNNING|2|matlab:1,scuda:4|1:00:00")
	l.prolog()
	list := l.leases(0)
	if len(list) != 1 || len(list[0].GPUs) != 2 {
		t.Fatalf("%+v\n%s", list, l.log.String())
	}
	said, err := os.ReadFile(filepath.Join(l.folder, "a:1.said"))
	want := "lease create --server a:1 --json --tenant slurm-ada --for 1h1m0s --gpus 2 --label slurm/lab/4711 " +
		"--memory 40GiB --share 300 --class low"
	if err != nil || string(said) != want {
		t.Errorf("%v\n%s\nnot\n%s", err, said, want)
	}
	l.site.Servers[0].Admin = filepath.Join(l.folder, "a:1") // a socket
	l.prolog("SLURM_JOB_RESTART_COUNT=1")
	if said, err = os.ReadFile(filepath.Join(l.folder, "a:1.said")); err != nil ||
		!strings.HasPrefix(string(said), "lease create --admin "+l.folder) {
		t.Errorf("%s, %v", said, err)
	}
}

// A job that is started again has a lease of its own; the one before is given back.
func TestRequeue(t *testing.T) {
	l := newLab(t, 1)
	l.prolog()
	before := l.leases(0)
	l.prolog("SLURM_JOB_RESTART_COUNT=1")
	if now := l.leases(0); len(now) != 1 || now[0].ID == before[0].ID {
		t.Errorf("%+v %+v", before, now)
	}
}

// Servers are asked in their order. One that has no place or refuses is passed.
func TestOrder(t *testing.T) {
	l := newLab(t, 1, 1, 1)
	l.put("a:1.refuses", "unknown host a", 0o600)
	l.jobs("1|RUNNING|1|scuda:1|5:00", "2|RUNNING|1|scuda:1|5:00")
	l.prolog("SLURM_JOB_ID=1")
	l.prolog("SLURM_JOB_ID=2")
	if c, d := l.leases(1), l.leases(2); len(c) != 1 || len(d) != 1 || c[0].Label != "slurm/lab/1" {
		t.Errorf("%+v %+v\n%s", c, d, l.log.String())
	}
}

// The place of a job that has just ended comes free a moment after its licence.
func TestComesFree(t *testing.T) {
	l := newLab(t, 1)
	l.put("a:1", `[{"id":"x","label":"slurm/lab/1","gpus":["u"]}]`, 0o600)
	l.put("a:1.frees", "", 0o600)
	l.prolog()
	if list := l.leases(0); len(list) != 1 || list[0].Label != "slurm/lab/4711" {
		t.Errorf("%+v\n%s", list, l.log.String())
	}
}

// Jobs that come at once have no more places than there are, and each has one where there are enough.
func TestAtOnce(t *testing.T) {
	l := newLab(t, 2, 2)
	var hooks []*Hook
	var lines []string
	for i := range 4 {
		lines = append(lines, fmt.Sprintf("%d|RUNNING|1|scuda:1|5:00", i+1))
		hooks = append(hooks, l.hook(fmt.Sprintf("SLURM_JOB_ID=%d", i+1)))
	}
	l.jobs(lines...)
	done := make(chan error)
	for _, h := range hooks {
		h.Log = new(strings.Builder)
		go func() { done <- h.Prolog(context.Background()) }()
	}
	for range hooks {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if a, b := l.leases(0), l.leases(1); len(a) != 2 || len(b) != 2 {
		t.Errorf("%+v %+v", a, b)
	}
}

// A job that gets no lease fails with the reason, and its node stays in service.
func TestNoLease(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*lab)
		says    string
	}{
		"refused": {func(l *lab) { l.put("a:1.refuses", "no\nhost\x1b[2J", 0o600) },
			"no server has a place for 1 GPUs: a:1: no host [2J"},
		"silent": {func(l *lab) {
			l.site.Timeout = Duration(time.Second)
			l.put("a:1.silent", "", 0o600)
		}, "did not answer in time"},
		"too many": {func(l *lab) { l.jobs("4711|RUNNING|1|scuda:2|5:00") }, "1 of 1 are left, and 2"},
		"uneven": {func(l *lab) { l.jobs("4711|RUNNING|2|scuda:3|5:00") },
			"it has 3 licences scuda for 2 nodes; ask for --gres=scuda:N"},
		"no controller": {func(l *lab) {
			l.site.Timeout = Duration(time.Second)
			l.put("squeue", "#!/bin/sh\necho no controller >&2; exit 1\n", 0o755)
		}, "asking Slurm's controller: "},
		"user": {func(l *lab) { l.site.Tenant = "%u" }, "cannot be part of a tenant's"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1)
			c.prepare(l)
			user := "ada"
			if name == "user" {
				user = "DOM\\ada $(reboot)"
			}
			l.prolog("SLURM_JOB_USER=" + user)
			out, err := l.task()
			if !errors.Is(err, ErrTask) || !strings.HasPrefix(out, "print scuda: this job has no GPU: ") ||
				!strings.Contains(out, c.says) || strings.Count(out, "\n") != 1 {
				t.Errorf("%v, %q", err, out)
			}
			l.hook().Epilog(t.Context())
			if left, _ := os.ReadDir(filepath.Join(l.folder, "run/n1")); len(left) != 0 {
				t.Error(left)
			}
		})
	}
}

// Who asks for no GPU is left alone, and whose partition has none is not even asked about.
func TestOthers(t *testing.T) {
	l := newLab(t, 1)
	l.jobs("4711|RUNNING|1|(null)|5:00")
	l.prolog()
	l.site.Partitions = []string{"gpu"}
	l.put("squeue", "#!/bin/sh\nexit 1\n", 0o755)
	l.prolog("SLURM_JOB_PARTITION=all")
	if out, err := l.task(); err != nil || out != "" || l.log.Len() > 0 {
		t.Error(out, err, l.log.String())
	}
	// what a job with a lease left in the environment of one that it submitted goes
	if out, err := l.task("SCUDA_SLURM_JOB=1"); err != nil || !strings.Contains(out, "unset SCUDA_TOKEN_FILE\n") {
		t.Error(out, err)
	}
}

// Each task of a node has GPUs of its own.
func TestBind(t *testing.T) {
	l := newLab(t, 4)
	h := l.hook()
	for _, c := range []struct {
		gpus              int
		tasks, rank, wish string
		want              string
	}{
		{4, "4", "2", "", "2"}, {4, "2(x2)", "1", "", "2,3"}, {2, "4", "3", "", "1"}, {4, "1", "0", "", ""},
		{1, "4", "3", "", ""}, {4, "4", "2", "none", ""}, {4, "", "0", "", ""}, {4, "4", "x", "", ""},
	} {
		got := h.bound(c.gpus, env("SLURM_NODEID=0", "SLURM_LOCALID="+c.rank, "SLURM_STEP_TASKS_PER_NODE="+c.tasks,
			variableBind+"="+c.wish))
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// The controller ends all leases of a job, and of jobs that are gone; others stay.
func TestEndAndSweep(t *testing.T) {
	l := newLab(t, 8, 8)
	lease := func(job string) string { return `{"id":"x` + job + `","label":"` + job + `","gpus":["u"]}` }
	l.put("a:1", "["+strings.Join([]string{lease("slurm/lab/4711"), lease("slurm/lab/47"), lease("slurm/other/9"),
		lease("mine"), lease("slurm/lab/x")}, ",")+"]", 0o600)
	l.put("b:1", "["+lease("slurm/lab/4711")+","+lease("slurm/lab/8")+"]", 0o600)
	if err := l.hook().End(t.Context()); err != nil {
		t.Fatal(err)
	}
	labels := func(server int) (all []string) {
		for _, x := range l.leases(server) {
			all = append(all, x.Label)
		}
		return all
	}
	if a, b := labels(0), labels(1); strings.Join(a, " ") != "slurm/lab/47 slurm/lab/x" || len(b) != 1 {
		t.Error(a, b)
	}
	l.jobs("8|RUNNING|1|scuda:1|5:00", "47|COMPLETED|1|scuda:1|5:00")
	if ended, err := l.site.Sweep(t.Context(), "lab"); err != nil || len(ended) != 1 || ended[0].Label != "slurm/lab/47" {
		t.Errorf("%+v, %v", ended, err)
	}
	if a, b := labels(0), labels(1); len(a) != 1 || len(b) != 1 {
		t.Error(a, b)
	}
}

// The controller's own leases: the credential stays in a file of its own until the job has it.
func TestSetup(t *testing.T) {
	l := newLab(t, 2)
	h := l.hook()
	for range 2 {
		if err := h.Setup(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
	}
	list := l.leases(0)
	var out strings.Builder
	err := h.Paths(&out, "/lib/scuda")
	want := "SCUDA_SERVER=a:1\nSCUDA_SLURM_GPUS=2\nSCUDA_SLURM_JOB=4711\nSCUDA_FINGERPRINT=sha256:f\nSCUDA_TOKEN=" +
		"scuda-lease-" + list[0].ID + "\nLD_PRELOAD=/lib/scuda/libscuda.so\n"
	if err != nil || len(list) != 1 || out.String() != want {
		t.Errorf("%+v, %v\n%s", list, err, out.String())
	}
	task, err := l.task("SCUDA_SLURM_JOB=4711", "SCUDA_SLURM_GPUS=2", "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_NODEID=0",
		"SLURM_LOCALID=1")
	if err != nil || !strings.Contains(task, "export CUDA_VISIBLE_DEVICES=1\n") || strings.Contains(task, "unset") {
		t.Error(task, err)
	}
	if err := h.End(t.Context()); err != nil || len(l.leases(0)) != 0 {
		t.Error(err)
	}
	if err := h.Paths(&out, ""); err == nil {
		t.Error("a job that is over has paths")
	}
	if err := h.Setup(t.Context(), 0); !errors.Is(err, ErrJob) {
		t.Error(err)
	}
}

func TestFromEnv(t *testing.T) {
	good := []string{"SLURM_JOB_ID=1", "SLURM_JOB_UID=0", "SLURM_CLUSTER_NAME=lab", "SLURMD_NODENAME=n1"}
	if _, err := FromEnv(&Site{}, nil, env(good...)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"SLURM_JOB_ID=", "SLURM_JOB_ID=../1", "SLURM_JOB_UID=-1", "SLURM_CLUSTER_NAME=a/b",
		"SLURMD_NODENAME=..", "SLURMD_NODENAME=a/b"} {
		if _, err := FromEnv(&Site{}, nil, env(append(good, bad)...)); err == nil {
			t.Error(bad)
		}
	}
}
