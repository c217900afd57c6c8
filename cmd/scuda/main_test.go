package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"scuda": func() {
		systemdRuns = os.Getenv("SYSTEMD_RUNS")
		main()
	}})
}

// The scripts test the command line without a server; package e2e has those with one.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			root, err := filepath.Abs("../..")
			if err != nil {
				return err
			}
			e.Setenv("ROOT", root)
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_CONFIG_HOME", e.WorkDir+"/config")
			e.Setenv("SYSTEMD_RUNS", e.WorkDir+"/systemd")
			e.Setenv("CLOSED", "127.0.0.1:1") // nobody listens there, and no listener is given this port
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits CODE PROGRAM ARGS... runs a program that must end with the exit code; what it printed is matched with stdout
// and stderr.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		got = e.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, not %d", got, want)
	}
}

func TestListEnvironment(t *testing.T) {
	env := []string{"A=1", "LD_PRELOAD=/x/libx.so", "B=2"}
	env = prependEnv(env, "LD_PRELOAD", "/lib/libscuda.so")
	env = prependEnv(env, "LD_PRELOAD", "/lib/libscuda.so") // a second time changes nothing
	env = prependEnv(env, "LD_LIBRARY_PATH", "/lib")
	env = setEnv(env, "A", "")
	want := "B=2 LD_PRELOAD=/lib/libscuda.so:/x/libx.so LD_LIBRARY_PATH=/lib"
	if got := strings.Join(env, " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLibFolder(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("SCUDA_LIB", folder)
	if _, err := libFolder(); !errors.Is(err, errNoLibraries) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(folder+"/libscuda.so", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := libFolder(); got != folder || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}
