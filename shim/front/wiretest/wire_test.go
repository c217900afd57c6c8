package wiretest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var folder string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if folder, err = os.MkdirTemp("", "wiretest"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	cases, err := filepath.Glob("testdata/cases*.c")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	library := filepath.Join(folder, "libcuda.so.1")
	common := []string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I..", "-I../../include"}
	builds := [][]string{
		{"sh", "../../build-cuda.sh", library},
		append([]string{"cc", "-shared", "-fPIC", "-o", filepath.Join(folder, "recorder.so"), "testdata/recorder.c"},
			common...),
		append([]string{
			"cc", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", filepath.Join(folder, "driver.so"), "testdata/driver.c",
		}, common...),
		slices.Concat([]string{"cc", "-o", filepath.Join(folder, "cases")}, cases, common,
			[]string{library, "-ldl", "-lpthread"}),
	}
	for _, args := range builds {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil || len(out) > 0 {
			fmt.Fprintf(os.Stderr, "%v: %v\n%s", args, err, out)
			return 1
		}
	}
	return m.Run()
}

// runCase runs one case in a process of its own; what it writes to stderr comes back.
func runCase(t *testing.T, name string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(folder, "cases"), name)
	cmd.WaitDelay = time.Second
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LD_LIBRARY_PATH=" + folder,
		"SCUDA_CORE=" + filepath.Join(folder, "recorder.so")}, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || !strings.HasSuffix(string(out), name+" ok\n") {
		t.Fatalf("%v\n%s%s", err, out, &stderr)
	}
	return stderr.String()
}

// TestWire runs each case of testdata/cases*.c against the recording core.
func TestWire(t *testing.T) {
	tests := []struct {
		name string
		env  []string
	}{
		{name: "launch"}, {name: "launch_refusals"}, {name: "launch_attributes"}, {name: "async"}, {name: "ring"},
		{name: "handles"},
		{name: "uploads"}, {name: "downloads"}, {name: "capture"}, {name: "contexts"}, {name: "primary"}, {name: "pointers"},
		{name: "modules"}, {name: "jit"}, {name: "names"}, {name: "occupancy"}, {name: "sticky"}, {name: "threads"},
		{name: "lost"},
		{name: "mapped"}, {name: "progress"}, {name: "logs"}, {name: "host_functions"}, {name: "attributes"},
		{name: "rectangles"}, {name: "fork"},
		{name: "blocking", env: []string{"SCUDA_LAUNCH_BLOCKING=1"}},
		{name: "visible", env: []string{"CUDA_VISIBLE_DEVICES=2,GPU-00010203,9,1"}},
		{name: "visible_none", env: []string{"CUDA_VISIBLE_DEVICES="}},
		{name: "visible_twice", env: []string{"CUDA_VISIBLE_DEVICES=1,1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			runCase(t, tt.name, append(tt.env, "SCUDA_SERVER=recorder:1")...)
		})
	}
}

// TestConfigured: which mode the settings lead to.
func TestConfigured(t *testing.T) {
	write := func(t *testing.T, text string) string {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "scuda"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "scuda/host"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "XDG_CONFIG_HOME=" + dir
	}
	driver := "SCUDA_REAL_LIBCUDA=" + filepath.Join(folder, "driver.so")
	none := "SCUDA_REAL_LIBCUDA=/nonexistent"
	self := "SCUDA_REAL_LIBCUDA=" + filepath.Join(folder, "libcuda.so.1")
	tests := []struct {
		name, want string
		env        func(t *testing.T) []string
	}{
		{"variable", "is_remote", func(*testing.T) []string { return []string{"SCUDA_SERVER=recorder", driver} }},
		{"host file", "is_remote", func(t *testing.T) []string {
			return []string{write(t, "# comment\n\n recorder:1 # here\n"), driver}
		}},
		{"host file of comments", "is_native", func(t *testing.T) []string {
			return []string{write(t, "# recorder:1\n"), driver}
		}},
		{"variable set to nothing", "is_native", func(t *testing.T) []string {
			return []string{write(t, "recorder:1\n"), "SCUDA_SERVER=", driver}
		}},
		{"nothing but a driver", "is_native", func(*testing.T) []string { return []string{driver} }},
		{"nothing", "is_none", func(*testing.T) []string { return []string{none} }},
		{"only itself", "is_none", func(*testing.T) []string { return []string{self} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { runCase(t, tt.want, tt.env(t)...) })
	}
}

// TestNoCore: a missing core is one clear line and CUDA_ERROR_SYSTEM_NOT_READY.
func TestNoCore(t *testing.T) {
	text := runCase(t, "not_ready", "SCUDA_SERVER=recorder:1", "SCUDA_CORE=/nonexistent/core.so")
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, "/nonexistent/core.so") ||
		!strings.Contains(text, "SCUDA_CORE") {
		t.Errorf("said %q", text)
	}
}
