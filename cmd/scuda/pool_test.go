package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Programs with GPUs of a pool are run by scuda-pool; where that is not there, or the options do not go together, it is
// said.
func TestPoolOptions(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--gpus", "1"}, exitRun, "scuda-pool is not installed"},
		{[]string{"--gpus", "1", "--server", "a"}, exitUsage, "leave --server and --on out"},
		{[]string{"--gpus", "1", "--on", "a"}, exitUsage, "leave --server and --on out"},
		{[]string{"--gpus", "-1"}, exitUsage, "--gpus: -1"},
		{[]string{"--kind", "h200"}, exitUsage, "go with --gpus"},
		{[]string{"--servers", "2"}, exitUsage, "go with --gpus"},
	} {
		cmd := newRun()
		cmd.SetArgs(append(c.args, "--", "/bin/true"))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		if e, ok := errors.AsType[*exitError](err); !ok || e.code != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
	if os.Getenv("SCUDA_TEST_POOL") != "" {
		cmd := newRun()
		t.Setenv("PATH", os.Getenv("SCUDA_TEST_POOL"))
		cmd.SetArgs([]string{"--gpus", "2", "--servers", "2", "--kind", "h200", "--gpu-memory", "1GiB", "--", "/bin/true",
			"--gpus"})
		t.Fatal(cmd.ExecuteContext(t.Context())) // it is another program by then
	}
	script := "#!/bin/sh\necho \"pool: $@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "scuda-pool"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	again := exec.CommandContext(t.Context(), self, "-test.run", "^TestPoolOptions$")
	again.Env = append(os.Environ(), "SCUDA_TEST_POOL="+bin)
	out, err := again.CombinedOutput()
	want := "pool: run --gpus 2 --servers 2 --kind h200 --memory 1073741824 -- " + self + " run -- /bin/true --gpus\n"
	if err != nil || string(out) != want {
		t.Errorf("%v: %q, not %q", err, out, want)
	}
}
