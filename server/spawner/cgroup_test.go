package spawner

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// control makes files like those of a control group's folder. What the kernel does with them is its own.
func control(t *testing.T, folder string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func content(t *testing.T, folder, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCgroups(t *testing.T) {
	top := t.TempDir()
	control(t, top, "cgroup.subtree_control", "cgroup.procs")
	own := filepath.Join(top, "spawner")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	control(t, own, "cgroup.procs")
	me := strconv.Itoa(os.Getpid())
	if err := os.WriteFile(filepath.Join(top, "cgroup.procs"), []byte("1\n"+me+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := openCgroups(top, Limits{Memory: 1 << 30, Processes: 500, CPUWeight: 50})
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, top, "cgroup.subtree_control"); got != "+memory +pids +cpu" {
		t.Errorf("controllers %q", got)
	}
	if got := content(t, own, "cgroup.procs"); got != me {
		t.Errorf("the spawner's own group has %q", got)
	}
	folder := filepath.Join(top, "worker-1")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	control(t, folder, "memory.max", "memory.oom.group", "pids.max", "cpu.weight", "cgroup.procs")
	release, err := g.place(77)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"memory.max": "1073741824", "memory.oom.group": "1", "pids.max": "500", "cpu.weight": "50", "cgroup.procs": "77",
	} {
		if got := content(t, folder, name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "memory.events"), []byte("oom 1\noom_kill 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if why := release(); why != "it took more than its 1073741824 bytes of memory (--worker-memory)" {
		t.Errorf("%q", why)
	}
}

func TestNoCgroup(t *testing.T) {
	var none *cgroups
	release, err := none.place(1)
	if err != nil || release() != "" {
		t.Errorf("%v", err)
	}
	if _, err := openCgroups(CgroupNone, Limits{}); !errors.Is(err, errCgroupNone) {
		t.Error(err)
	}
	if _, err := openCgroups(t.TempDir(), Limits{}); err == nil {
		t.Error("any folder is a control group")
	}
	for text, want := range map[string]string{
		"0::/a/b\n": "/a/b", "4:memory:/x\n0::/\n": "/", "4:memory:/x\n": "", "": "",
	} {
		if got, ok := ownCgroup(text); got != want || ok != (want != "") {
			t.Errorf("%q: %q", text, got)
		}
	}
	// what was asked for by name is there or is an error
	for _, cfg := range []Config{{Cgroup: t.TempDir()}, {Cgroup: CgroupNone, Limits: Limits{Memory: 1}}} {
		if _, err := NewLocal(cfg, quiet); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// A group of the kernel's, where it has the second version mounted and lets this process make one.
func TestRealCgroup(t *testing.T) {
	mount, err := cgroupMount()
	if err != nil {
		t.Skip(err)
	}
	top := filepath.Join(mount, "scuda-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(top, 0o755); err != nil {
		t.Skip(err)
	}
	defer os.Remove(top)
	l, err := NewLocal(Config{Cgroup: top}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer os.Remove(filepath.Join(top, "spawner"))
	w := start(t, l, Order{})
	folder := filepath.Join(top, "worker-1")
	if got := content(t, folder, "cgroup.procs"); got != strconv.Itoa(w.PID)+"\n" {
		t.Errorf("the group has %q, the worker is %d", got, w.PID)
	}
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = w.Wait()
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group is left: %v", err)
	}
}
