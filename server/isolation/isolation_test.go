package isolation

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What is applied cannot be taken back, so each trial has a process of its own: this test's program with a variable
// that says what to do.
const trialEnv = "SCUDA_TEST_ISOLATION"

func TestMain(m *testing.M) {
	if trial := os.Getenv(trialEnv); trial != "" {
		runtime.LockOSThread()
		mode, what, _ := strings.Cut(trial, ":")
		var err error
		switch mode {
		case "files":
			own, foreign, _ := strings.Cut(what, ":")
			err = tryFiles(own, foreign)
		case "listen":
			err = listen()
		case "abstract":
			fmt.Print(reach(what))
		case "nothing":
		default:
			err = try(Mode(mode), what)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// forbidden makes the call of a rule with arguments that it forbids, and that do nothing where they are allowed.
func forbidden(r Rule) error {
	var args [6]uintptr
	for i := range args {
		args[i] = ^uintptr(0) // no pointer, no descriptor, no process
	}
	switch {
	case r.When == If:
		args[r.Arg], args[1] = uintptr(r.Value), 0
	case r.When == UnlessHas:
		args[r.Arg] = 0 // a process without a signal at its end
	case r.Value == OwnPID:
		args[r.Arg] = uintptr(unix.Getppid())
		args[1], args[2] = 0, 0
	case r.When == Unless:
		args[r.Arg] = uintptr(unix.Getppid())
		args[1], args[2], args[3] = uintptr(unix.RLIMIT_CORE), 0, 0
	}
	if r.Name == "fork" || r.Name == "vfork" || r.Name == "clone3" {
		args = [6]uintptr{}
	}
	_, _, err := syscall.RawSyscall6(uintptr(r.Call), args[0], args[1], args[2], args[3], args[4], args[5])
	if err == 0 {
		return nil
	}
	return err
}

func try(mode Mode, what string) error {
	report := Apply(mode, Base)
	if err := report.Check(mode); err != nil {
		return err
	}
	n, err := strconv.Atoi(what)
	if err == nil {
		return forbidden(Forbidden(Base)[n])
	}
	switch what {
	case "work":
		return errors.Join(work(), refused())
	case "report":
		fmt.Println(report)
	}
	return nil
}

// refused makes every call that is answered with an error instead of death.
func refused() error {
	want := map[Action]error{Refuse: unix.EPERM, Absent: unix.ENOSYS}
	var failed error
	for _, r := range Forbidden(Base) {
		if r.Action == Kill {
			continue
		}
		if err := forbidden(r); !errors.Is(err, want[r.Action]) {
			failed = errors.Join(failed, fmt.Errorf("%s: %w, not %w", r.Name, err, want[r.Action]))
		}
	}
	return failed
}

// work is what workers do after their driver was opened.
func work() error {
	done := make(chan error)
	for range 8 { // threads, which the filter holds for too
		go func() {
			runtime.LockOSThread()
			_, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if errors.Is(err, unix.EPERM) {
				err = nil
			}
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			return fmt.Errorf("a thread may open a socket: %w", err)
		}
	}
	if err := unix.Tgkill(unix.Getpid(), unix.Gettid(), 0); err != nil {
		return fmt.Errorf("a signal to itself: %w", err)
	}
	fd, err := unix.MemfdCreate("x", 0)
	if err != nil {
		return err
	}
	if _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil || nnp != 1 {
		return fmt.Errorf("no_new_privs is %d, %w", nnp, err)
	}
	if dump, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dump != 0 {
		return fmt.Errorf("dumpable is %d, %w", dump, err)
	}
	return unix.Close(fd)
}

// trial runs a process of this program.
func trial(t *testing.T, mode Mode, what string) (*os.ProcessState, string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run=^$")
	c.Env = append(os.Environ(), trialEnv+"="+string(mode)+":"+what)
	out, _ := c.CombinedOutput() // the state says how it ended
	return c.ProcessState, string(out)
}

// Every row of the table that is to end the process does.
func TestKill(t *testing.T) {
	for i, r := range Forbidden(Base) {
		if r.Action != Kill {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			state, out := trial(t, Require, strconv.Itoa(i))
			if s, ok := state.Sys().(syscall.WaitStatus); !ok || !s.Signaled() || s.Signal() != unix.SIGSYS {
				t.Errorf("%v: %s", state, out)
			}
		})
	}
}

// Everything else is refused on every thread, and what workers need goes on.
func TestRefuseAndWork(t *testing.T) {
	if state, out := trial(t, Require, "work"); !state.Success() {
		t.Errorf("%v: %s", state, out)
	}
}

func TestReport(t *testing.T) {
	for mode, want := range map[Mode]string{
		Auto:    "given: no_new_privs, dumpable, seccomp; missing: nothing\n",
		Require: "given: no_new_privs, dumpable, seccomp; missing: nothing\n",
		Log:     "given: no_new_privs, dumpable, seccomp in the log only; missing: nothing\n",
		Off:     "given: nothing; missing: no_new_privs (switched off), dumpable (switched off), seccomp (switched off)\n",
	} {
		if state, out := trial(t, mode, "report"); !state.Success() || out != want {
			t.Errorf("%s: %v: %s", mode, state, out)
		}
	}
}

func TestParseMode(t *testing.T) {
	for in, want := range map[string]Mode{"": Auto, "auto": Auto, "require": Require, "log": Log, "off": Off} {
		if got, err := ParseMode(in); got != want || err != nil {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	if _, err := ParseMode("some"); err == nil {
		t.Error("an unknown mode is read")
	}
}

// The table names each call once, and a profile takes away no right that the base has.
func TestTable(t *testing.T) {
	names := map[string]bool{}
	for _, r := range Forbidden(Base) {
		if names[r.Name] {
			t.Errorf("%s stands twice", r.Name)
		}
		names[r.Name] = true
	}
	for p, may := range map[Profile][]string{
		RDMA: {"socket"}, NCCL: {"socket", "listen", "connect"}, Profiling: {"perf_event_open"},
		AllProfiles: {"socket", "listen", "connect", "perf_event_open"},
	} {
		left := Forbidden(p)
		for _, r := range left {
			if !names[r.Name] || slices.Contains(may, r.Name) {
				t.Errorf("%v forbids %s", p, r.Name)
			}
		}
		if len(left) != len(names)-len(may) {
			t.Errorf("%d rules for %v, %d for %v", len(left), p, len(names), Base)
		}
		if len(Files(p)) < len(Files(Base)) {
			t.Errorf("%v may open less than %v", p, Base)
		}
	}
}

func TestProfileNames(t *testing.T) {
	for p, want := range map[Profile]string{
		Base: "base", RDMA: "base+rdma", Profiling | NCCL: "base+profile+nccl", AllProfiles: "base+rdma+profile+nccl",
	} {
		if got := p.String(); got != want {
			t.Errorf("%d: %s, not %s", p, got, want)
		}
	}
	for text, want := range map[string]Profile{
		"base": Base, "profile": Profiling, "nccl": NCCL, "profile,nccl": Profiling | NCCL, "nccl,profile": Profiling | NCCL,
	} {
		if got, err := ParseProfiles(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "rdma", "nccl,rdma", "base,nccl", "nccl,", "profile nccl", "all"} {
		if got, err := ParseProfiles(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// What is missing is an error where everything is required, and the error says what to do.
func TestCheck(t *testing.T) {
	var r Report
	r.Note(FileAccess, nil)
	if err := r.Check(Require); err != nil {
		t.Error(err)
	}
	r.Note(Users, errors.New("not root"))
	for _, m := range []Mode{Auto, Log, Off} {
		if err := r.Check(m); err != nil {
			t.Errorf("%s: %v", m, err)
		}
	}
	err := r.Check(Require)
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "uid (not root): start the server as root") {
		t.Error(err)
	}
}
