package isolation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// enclosed runs this test's program under Landlock with a trial; it is started as workers are, from a thread of its
// own.
func enclosed(t *testing.T, p Profile, more []FileRule, env ...string) string {
	t.Helper()
	if err := Landlock(); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	more = append(more, FileRule{Path: exe, Access: Run})
	c := exec.Command(exe, "-test.run=^$")
	c.Env = append(os.Environ(), env...)
	var out []byte
	OnThread(func() {
		if err = Enclose(p, more); err == nil {
			out, err = c.CombinedOutput()
		}
	})
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// tryFiles does with the files of its environment what an enclosed process may do, and what it may not.
func tryFiles(own, foreign string) error {
	var failed []error
	note := func(err error) { failed = append(failed, err) }
	denied := func(what string, err error) {
		if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
			note(fmt.Errorf("%s: %w, not denied", what, err))
		}
	}
	_, err := os.ReadFile(foreign)
	denied("read a foreign file", err)
	denied("write a foreign file", os.WriteFile(foreign, []byte("mine"), 0o600))
	denied("remove a foreign file", os.Remove(foreign))
	_, err = os.ReadDir(filepath.Dir(foreign))
	denied("list a foreign folder", err)
	denied("write to a program", os.WriteFile("/usr/scuda-test", nil, 0o600))
	denied("make a file", os.WriteFile("/scuda-test", nil, 0o600))
	_, err = os.Open(fmt.Sprintf("/proc/%d/mem", os.Getppid()))
	denied("read the memory of another process", err)
	denied("signal another process", unix.Kill(os.Getppid(), 0))
	if abi, _ := landlockABI(); abi >= 4 {
		_, err = net.Dial("tcp", "127.0.0.1:1")
		denied("connect", err)
		denied("listen", listen())
	}

	name := filepath.Join(own, "file")
	note(os.WriteFile(name, []byte("mine"), 0o600))
	note(os.WriteFile(name, []byte("m"), 0o600)) // shortens it
	note(os.Mkdir(filepath.Join(own, "folder"), 0o700))
	note(os.Rename(name, filepath.Join(own, "folder", "file")))
	note(os.RemoveAll(filepath.Join(own, "folder")))
	for _, readable := range []string{"/proc/self/maps", "/proc/self/status", "/proc/meminfo", "/etc/ld.so.cache"} {
		_, err := os.ReadFile(readable)
		note(err)
	}
	_, err = os.ReadDir("/usr/lib")
	note(err)
	note(os.WriteFile(os.DevNull, []byte("gone"), 0))
	note(unix.Tgkill(unix.Getpid(), unix.Gettid(), 0))
	done := make(chan error)
	go func() { // a thread that was there before or not
		runtime.LockOSThread()
		_, err := os.ReadFile(foreign)
		done <- err
	}()
	denied("read a foreign file on another thread", <-done)
	fd, err := unix.MemfdCreate("x", 0)
	note(err)
	_, err = os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd))
	note(err)
	return errors.Join(failed...)
}

// listen makes a TCP socket that listens. Of MPTCP's, which Go prefers, Landlock knows nothing; seccomp does.
func listen() error {
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	l, err := c.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	return l.Close()
}

func TestEnclose(t *testing.T) {
	own, foreign := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(foreign, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	out := enclosed(t, Base, []FileRule{{Path: own, Access: Write}, {Path: "/not/there", Access: Write}},
		trialEnv+"=files:"+own+":"+foreign)
	if out != "" {
		t.Error(out)
	}
	if b, err := os.ReadFile(foreign); err != nil || string(b) != "secret" {
		t.Errorf("the foreign file is %q, %v", b, err)
	}
}

// What a session makes with NCCL goes over the network.
func TestNCCLConnects(t *testing.T) {
	if out := enclosed(t, NCCL, nil, trialEnv+"=listen:"); out != "" {
		t.Error(out)
	}
}

// reach connects to an abstract socket of another process.
func reach(name string) error {
	c, err := net.Dial("unix", name)
	if err != nil {
		return err
	}
	return c.Close()
}

// Workers hand each other GPU memory through abstract sockets, those with NCCL and no others.
func TestNCCLReachesOtherWorkers(t *testing.T) {
	if abi, err := landlockABI(); err != nil || abi < 6 {
		t.Fatalf("Landlock's version is %d, %v; 6 is needed", abi, err)
	}
	name := fmt.Sprintf("@scuda-test-%d", os.Getpid())
	l, err := net.Listen("unix", name) //nolint:noctx // nothing that could wait
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for profile, want := range map[Profile]string{
		NCCL: "<nil>", Base: "dial unix " + name + ": connect: operation not permitted",
	} {
		if out := enclosed(t, profile, nil, trialEnv+"=abstract:"+name); out != want {
			t.Errorf("profile %v: %s, want %s", profile, out, want)
		}
	}
}

// The thread alone is enclosed, not the process that starts workers.
func TestEnclosesNobodyElse(t *testing.T) {
	foreign := filepath.Join(t.TempDir(), "file")
	enclosed(t, Base, nil, trialEnv+"=nothing:")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Error(err)
	}
}

// Each version of Landlock handles what it knows.
func TestHandled(t *testing.T) {
	last := handled(leastABI)
	for abi := leastABI + 1; abi <= 9; abi++ {
		a := handled(abi)
		if a.Handled_access_fs&last.Handled_access_fs != last.Handled_access_fs || a.Scoped&last.Scoped != last.Scoped {
			t.Errorf("version %d handles less than %d", abi, abi-1)
		}
		last = a
	}
	if last.Scoped == 0 || last.Handled_access_net == 0 {
		t.Error("the newest version handles no signals, or no network")
	}
	for _, r := range Files(AllProfiles) {
		if !strings.HasPrefix(r.Path, "/") {
			t.Errorf("%s is no path", r.Path)
		}
		if _, err := filepath.Match(r.Path, "x"); err != nil {
			t.Errorf("%s: %v", r.Path, err)
		}
	}
}
