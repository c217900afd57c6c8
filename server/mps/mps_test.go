package mps_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"scuda.dev/scuda/server/mps"
	"scuda.dev/scuda/server/mps/mpstest"
)

func TestMain(m *testing.M) {
	mpstest.Main()
	goleak.VerifyTestMain(m)
}

func control(t *testing.T) *mps.Control {
	t.Helper()
	home, err := os.MkdirTemp("", "mps") //nolint:usetesting // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	folder, err := mps.FolderIn(home)
	if err != nil {
		t.Fatal(err)
	}
	return &mps.Control{Program: mpstest.Install(t), Folder: folder}
}

// keep keeps a daemon; end ends it and gives what Keep said.
func keep(t *testing.T, c *mps.Control) (end func() error, ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, over := make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		over <- mps.Keep(ctx, c, func() error { close(ready); return nil })
	}()
	select {
	case <-ready:
	case err := <-over:
		t.Fatal(err)
	}
	t.Cleanup(cancel)
	return func() error { cancel(); return <-over }, over
}

func commands(t *testing.T, c *mps.Control) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.Folder, mpstest.Commands))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// A client is taken leave of while it lives, by the server that has it; others are left alone.
func TestTerminate(t *testing.T) {
	c := control(t)
	end, _ := keep(t, c)
	victim := exec.CommandContext(t.Context(), "sleep", "600")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = victim.Process.Kill(); _ = victim.Wait() }()
	if had, err := mps.Terminate(t.Context(), c, victim.Process.Pid); had || err != nil {
		t.Errorf("nobody's client: %v, %v", had, err)
	}
	text := "17\n" + strconv.Itoa(victim.Process.Pid) + "\n"
	if err := os.WriteFile(filepath.Join(c.Folder, mpstest.Clients), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if had, err := mps.Terminate(t.Context(), c, victim.Process.Pid); !had || err != nil {
		t.Errorf("%v, %v", had, err)
	}
	want := "terminate_client " + strconv.Itoa(mpstest.Server) + " " + strconv.Itoa(victim.Process.Pid) + " alive"
	if got := commands(t, c); got[len(got)-1] != want {
		t.Errorf("the last command was %q, not %q", got[len(got)-1], want)
	}
	if _, err := c.Ask(t.Context(), "get_server_list\nquit"); !errors.Is(err, mps.ErrAnswer) {
		t.Errorf("two commands at once: %v", err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if got := commands(t, c); !strings.HasPrefix(got[len(got)-1], "quit") {
		t.Errorf("it ended by %q", got[len(got)-1])
	}
	if _, err := mps.Servers(t.Context(), c); err == nil {
		t.Error("it answers after its end")
	}
}

// A daemon that ends by itself, cannot start, or is left over from before.
func TestKeep(t *testing.T) {
	c := control(t)
	_, over := keep(t, c)
	if _, err := c.Ask(t.Context(), "quit"); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err == nil || !strings.Contains(err.Error(), "the MPS daemon has ended") {
		t.Errorf("it ended by itself: %v", err)
	}
	left := exec.CommandContext(t.Context(), c.Program, "-f")
	left.Env = append(os.Environ(), c.Env()...)
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := mps.Servers(t.Context(), c); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	end, _ := keep(t, c)
	if err := left.Wait(); err != nil {
		t.Errorf("the one from before: %v", err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(c.Folder, mpstest.Broken), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := mps.Keep(t.Context(), c, func() error { t.Error("it is ready"); return nil })
	if err == nil || !strings.Contains(err.Error(), "it is broken") {
		t.Errorf("a broken one: %v", err)
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		share uint32
		quota uint64
		gpus  int
		want  []string
	}{
		{100, 0, 1, nil}, {300, 0, 1, nil},
		{25, 0, 1, []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}}, {0, 1, 0, nil},
		{100, 20<<30 + 1, 2, []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=21505M,1=21505M"}},
	} {
		if got := mps.LimitsOf(c.share, c.quota).Env(c.gpus); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestFolder(t *testing.T) {
	for _, bad := range []string{"", "/", "relative", "/" + strings.Repeat("x", 100)} {
		if f, err := mps.FolderIn(bad); !errors.Is(err, mps.ErrFolder) {
			t.Errorf("%.20q: %q, %v", bad, f, err)
		}
	}
}

func TestNumbers(t *testing.T) {
	for text, want := range map[string][]int{"": nil, "1\n22\n": {1, 22}} {
		if got, err := mps.Numbers(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"Unknown command", "-1", "0", "1.5"} {
		if _, err := mps.Numbers(text); !errors.Is(err, mps.ErrAnswer) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
