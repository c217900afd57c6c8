package nccl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scuda.dev/scuda/api/nccl"
)

// simulated is the simulation's NCCL.
func simulated(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../build/sim/libnccl.so.2")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: run make build first", err)
	}
	return path
}

// The library is opened once; ids are new each time; without a driver there is no rank, and the library says so.
func TestLibrary(t *testing.T) {
	t.Setenv("NCCL_ALGO", "Tree") // the operator's
	t.Setenv("NCCL_PROTO", "")
	if err := os.Unsetenv("NCCL_PROTO"); err != nil {
		t.Fatal(err)
	}
	l := New(simulated(t))
	for range 2 {
		if version, err := l.Open([]string{"NCCL_ALGO=Ring", "NCCL_PROTO=LL"}); version != 23007 || err != nil {
			t.Fatalf("version %d, %v", version, err)
		}
	}
	if got := os.Getenv("NCCL_ALGO") + os.Getenv("NCCL_PROTO"); got != "TreeLL" {
		t.Errorf("the environment has %q", got)
	}
	var a, b nccl.ID
	if r := l.UniqueID(&a); r != nccl.Success {
		t.Fatal(r)
	}
	if r := l.UniqueID(&b); r != nccl.Success || a == b || a == (nccl.ID{}) {
		t.Errorf("%v, ids %x and %x", r, a, b)
	}
	var comm nccl.Comm
	if r := l.InitRank(&comm, 1, 0, []nccl.ID{a}, nil); r != nccl.UnhandledCudaError || comm != 0 || l.LastError() == "" {
		t.Errorf("a rank without a driver: %v, %#x, %q", r, comm, l.LastError())
	}
	if r := l.Group(nil); r != nccl.Success {
		t.Error(r)
	}
}

// What is no NCCL, or scuda's own, is refused with its reason and the remedy.
func TestOtherLibraries(t *testing.T) {
	own, err := filepath.Abs("../../build/lib/libnccl.so.2")
	if err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		"/nowhere/libnccl.so.2": "No such file", "libm.so.6": "ncclGetVersion", own: "scuda's own",
	} {
		_, err := New(path).Open(nil)
		if !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "--nccl FILE") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if l := New(""); l.path != Default {
		t.Errorf("the default is %q", l.path)
	}
}
