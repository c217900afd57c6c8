package spawner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/isolation"
)

// TestMain makes the test's program a spawner when Launch starts it as one, and a worker when a spawner does.
func TestMain(m *testing.M) {
	var err error
	switch args := append(os.Args, "", "", ""); args[1] {
	case "spawner":
		err = Inherited(context.Background(), args[3])
	case "dial":
		var cfg Config
		if cfg.UIDs, err = ParseRange(args[3]); err == nil {
			cfg.Cgroup = CgroupNone
			err = Dial(context.Background(), args[2], cfg, quiet)
		}
	case "worker":
		err = work()
	default:
		goleak.VerifyTestMain(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// work is a worker that does what its line says, a word at a time, until the line ends.
func work() error {
	line := os.NewFile(3, "line")
	fmt.Println("worker", unix.Getuid(), unix.Getgid())
	for {
		var b [4096]byte
		n, err := line.Read(b[:])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		word, rest, _ := strings.Cut(string(b[:n]), " ")
		answer := "done"
		fail := func(err error) {
			if err != nil {
				answer = err.Error()
			}
		}
		switch word {
		case "exit":
			os.Exit(7)
		case "env":
			answer = strings.Join(os.Environ(), "\n")
		case "args":
			answer = strings.Join(os.Args, " ")
		case "status":
			text, err := os.ReadFile("/proc/thread-self/status")
			answer = string(text)
			fail(err)
		case "read":
			text, err := os.ReadFile(rest)
			answer = string(text)
			fail(err)
		case "open":
			f, err := os.Open(rest)
			fail(err)
			f.Close()
		case "write":
			fail(os.WriteFile(rest, []byte("mine"), 0o600))
		case "kill":
			pid, err := strconv.Atoi(rest)
			fail(errors.Join(err, unix.Kill(pid, unix.SIGKILL)))
		case "hide":
			fail(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
		}
		if _, err := line.WriteString(answer); err != nil {
			return err
		}
	}
}

// worker is one under test.
type worker struct {
	*Worker
	t    *testing.T
	line *os.File
	says *os.File
}

func begin(t *testing.T, s Starter, o Order) (*worker, error) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer theirs.Close()
	t.Cleanup(func() { ours.Close() })
	says, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	t.Cleanup(func() { says.Close() })
	w, err := s.Start(o, theirs, to)
	if err == nil {
		t.Cleanup(func() { // without its line it ends; the goroutine that waits for it is to be gone after the test
			ours.Close()
			_ = w.Wait()
			_, _ = io.Copy(io.Discard, says) // where the spawner was the first to go
		})
	}
	return &worker{w, t, ours, says}, err
}

func start(t *testing.T, s Starter, o Order) *worker {
	t.Helper()
	w, err := begin(t, s, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *worker) ask(what string) string {
	w.t.Helper()
	var b [16384]byte
	_, err := w.line.Write([]byte(what))
	if err != nil {
		w.t.Fatal(err)
	}
	n, err := w.line.Read(b[:])
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	return string(b[:n])
}

func (w *worker) said() string {
	w.t.Helper()
	b := make([]byte, 4096)
	n, err := w.says.Read(b)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b[:n])
}

// folder gives one that other users reach.
func folder(t *testing.T) string {
	t.Helper()
	top, err := os.MkdirTemp("", "scuda-spawner-") //nolint:usetesting // the parent of TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(top, "workers")
}

var quiet = slog.New(slog.DiscardHandler)

var users = Range{200_000, 200_099}

func launched(t *testing.T, cfg Config) *Remote {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root starts processes of other users")
	}
	cfg.UIDs, cfg.Cgroup = users, CgroupNone
	r, err := Launch(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestLocal(t *testing.T) {
	t.Setenv("SCUDA_TOKEN", "a secret")
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	t.Setenv("CUDA_CACHE_PATH", "/elsewhere")
	l, err := NewLocal(Config{Folder: folder(t), Cgroup: CgroupNone, Env: []string{"MORE=1"}}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	key := KeyOf("alice")
	order := Order{Tenant: key, Enclosed: isolation.Landlock() == nil}
	w := start(t, l, order)
	own := filepath.Join(l.cfg.Folder, order.folder())
	want := []string{
		"CUDA_CACHE_PATH=" + own + "/cuda", "CUDA_VISIBLE_DEVICES=0", "HOME=" + own, "MORE=1",
	}
	got := slices.DeleteFunc(strings.Split(w.ask("env"), "\n"), func(v string) bool {
		return !slices.ContainsFunc([]string{"CUDA", "HOME", "MORE", "SCUDA"}, func(p string) bool {
			return strings.HasPrefix(v, p)
		})
	})
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
	if got := w.ask("args"); got != "scuda worker" {
		t.Errorf("arguments %q", got)
	}
	if !strings.Contains(w.ask("status"), "\nNoNewPrivs:\t1\n") {
		t.Error("it may gain privileges")
	}
	if got := w.ask("write " + own + "/cuda/x"); got != "done" {
		t.Errorf("its own folder: %s", got)
	}
	for _, o := range []Order{{UID: 1}, {UID: users.First}} {
		if _, err := begin(t, l, o); !errors.Is(err, ErrRefused) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	w.line.Close()
	if err := w.Wait(); err != nil {
		t.Error(err)
	}
	ends := start(t, l, Order{})
	if _, err := ends.line.Write([]byte("exit")); err != nil {
		t.Fatal(err)
	}
	if err := ends.Wait(); err == nil || err.Error() != "exit status 7" {
		t.Errorf("%v", err)
	}
	killed := start(t, l, Order{})
	if err := killed.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := killed.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("%v", err)
	}
}

// Workers of an operator's MPS use its folder, and no other beside their own.
func TestFolderOfMPS(t *testing.T) {
	if err := isolation.Landlock(); err != nil {
		t.Skip(err)
	}
	mps, other := t.TempDir(), t.TempDir()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", mps)
	l, err := NewLocal(Config{Cgroup: CgroupNone}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := start(t, l, Order{Enclosed: true})
	if got := w.ask("write " + mps + "/file"); got != "done" {
		t.Error(got)
	}
	if got := w.ask("write " + other + "/file"); got == "done" {
		t.Error("it writes elsewhere")
	}
}

// Two tenants' workers reach nothing of each other's, nor of the server's, and nor do two of one tenant's.
func TestTenantsAreApart(t *testing.T) {
	t.Setenv("SCUDA_TOKEN", "a secret")
	r := launched(t, Config{Folder: folder(t)})
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	alice := Order{Tenant: KeyOf("alice"), UID: users.First + 1, Enclosed: isolation.Landlock() == nil}
	bob := Order{Tenant: KeyOf("bob"), UID: users.First + 2, Enclosed: alice.Enclosed}
	a, a2, b := start(t, r, alice), start(t, r, alice), start(t, r, bob)
	for w, uid := range map[*worker]uint32{a: alice.UID, a2: alice.UID, b: bob.UID} {
		if got, want := w.said(), fmt.Sprintf("worker %d %d\n", uid, uid); got != want {
			t.Errorf("%q, not %q", got, want)
		}
		if w.ask("hide") != "done" {
			t.Error("it can be looked into")
		}
		status := w.ask("status")
		for _, want := range []string{"\nGroups:\t \n", "\nCapPrm:\t0000000000000000\n", "\nCapEff:\t0000000000000000\n",
			"\nNoNewPrivs:\t1\n"} {
			if !strings.Contains(status, want) {
				t.Errorf("no %q in %s", want, status)
			}
		}
	}
	for _, other := range []*worker{a2, b} {
		for _, what := range []string{"mem", "environ", "maps", "fd/3"} {
			if got := a.ask(fmt.Sprintf("open /proc/%d/%s", other.PID, what)); got == "done" {
				t.Errorf("it opens %s of another worker", what)
			}
		}
	}
	if got := a.ask(fmt.Sprintf("open /proc/%d/mem", os.Getpid())); got == "done" {
		t.Error("it opens the server's memory")
	}
	for _, pid := range []int{a2.PID, b.PID, os.Getpid()} {
		// without Landlock one user's processes can end each other until there is seccomp
		if alice.Enclosed || pid != a2.PID {
			if got := a.ask(fmt.Sprintf("kill %d", pid)); got == "done" {
				t.Errorf("it ends process %d", pid)
			}
		}
	}
	if got := a.ask("read " + secret); got == "token" {
		t.Error("it reads the token")
	}
	if strings.Contains(a.ask("env"), "secret") {
		t.Error("it has the token")
	}
	folder := r.client.facts
	if !folder.Folders || folder.UIDs != users {
		t.Errorf("the spawner says %+v", folder)
	}
	own := a.ask("env")
	_, mine, _ := strings.Cut(own, "HOME=")
	mine, _, _ = strings.Cut(mine, "\n")
	if got := a.ask("write " + mine + "/file"); got != "done" {
		t.Errorf("its own folder: %s", got)
	}
	if got := a2.ask("read " + mine + "/file"); got != "mine" {
		t.Errorf("its tenant's other worker reads %s", got)
	}
	for _, what := range []string{"read " + mine + "/file", "write " + mine + "/file"} {
		if got := b.ask(what); got == "done" || got == "mine" {
			t.Errorf("another tenant's worker: %s: %s", what, got)
		}
	}
}

// The spawner keeps its few capabilities, and starts nobody outside of its range.
func TestSpawner(t *testing.T) {
	r := launched(t, Config{})
	for _, uid := range []uint32{0, 1, users.First - 1, users.Last + 1, 1<<32 - 1} {
		if w, err := begin(t, r, Order{UID: uid}); err == nil {
			t.Errorf("a worker is user %d: %d", uid, w.PID)
		}
	}
	w := start(t, r, Order{UID: users.Last})
	var parent int
	status := w.ask("status")
	if _, err := fmt.Sscan(status[strings.Index(status, "PPid:")+5:], &parent); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", parent))
	if err != nil || !strings.Contains(string(text), "\nCapEff:\t00000000000000e0\n") {
		t.Errorf("%v: %s", err, text)
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", parent))
	if err != nil || strings.Contains(string(env), "PATH=/") && !strings.Contains(string(env), "LD_LIBRARY_PATH") {
		t.Errorf("%v: %q", err, env)
	}
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("%v", err)
	}
	ends := start(t, r, Order{UID: users.Last})
	if _, err := ends.line.Write([]byte("exit")); err != nil {
		t.Fatal(err)
	}
	if err := ends.Wait(); err == nil || err.Error() != "exit status 7" {
		t.Errorf("%v", err)
	}
	clean := start(t, r, Order{UID: users.Last})
	clean.line.Close()
	if err := clean.Wait(); err != nil {
		t.Error(err)
	}
}

// What a server inherited from whoever started it goes on into no worker and no spawner.
func TestInheritedDescriptors(t *testing.T) {
	fd := 900
	leak := func() {
		f, err := os.Open("/etc/passwd")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD, fd+1); err != nil { // stays open in what is started, as a shell's
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
	}
	leak()
	l, err := NewLocal(Config{Cgroup: CgroupNone}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := start(t, l, Order{}).ask(fmt.Sprintf("open /proc/self/fd/%d", fd)); got == "done" {
		t.Error("a worker has the descriptor")
	}
	leak()
	w := start(t, launched(t, Config{}), Order{UID: users.First})
	if got := w.ask(fmt.Sprintf("open /proc/self/fd/%d", fd)); got == "done" {
		t.Error("the worker of a spawner has the descriptor")
	}
	var parent int
	status := w.ask("status")
	if _, err := fmt.Sscan(status[strings.Index(status, "PPid:")+5:], &parent); err != nil {
		t.Fatal(err)
	}
	if name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", parent, fd)); err == nil {
		t.Errorf("the spawner has the descriptor of %s", name)
	}
}

// When the spawner dies its workers go on, nothing waits for ever, and the next one starts more.
func TestSpawnerDies(t *testing.T) {
	r := launched(t, Config{})
	w := start(t, r, Order{UID: users.First})
	status := w.ask("status")
	var parent int
	if _, err := fmt.Sscan(status[strings.Index(status, "PPid:")+5:], &parent); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(parent, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(); !errors.Is(err, ErrLost) {
		t.Errorf("%v", err)
	}
	if got := w.ask("args"); got != "scuda worker" {
		t.Errorf("the worker says %q", got)
	}
	if err := w.Kill(); err == nil {
		t.Error("a worker is ended by nobody")
	}
	next, err := begin(t, r, Order{UID: users.First})
	if errors.Is(err, ErrLost) { // its connection was not noticed to be gone; whoever asks again gets another
		next, err = begin(t, r, Order{UID: users.First})
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := next.ask("args"); got != "scuda worker" {
		t.Errorf("the next worker says %q", got)
	}
}

// When the server dies, so do the workers, whatever they do.
func TestServerDies(t *testing.T) {
	r := launched(t, Config{})
	w := start(t, r, Order{UID: users.First})
	w.said()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := w.says.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("it goes on: %v", err)
	}
	if _, err := begin(t, r, Order{UID: users.First}); err == nil {
		t.Error("a worker without a spawner")
	}
}

// A service of its own connects to the server's socket, and the next one after it.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dial := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- Dial(ctx, path, Config{Cgroup: CgroupNone}, quiet)
		}()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	stop := dial()
	r, err := Listen(ctx, path, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, r, Order{})
	if got := w.ask("args"); got != "scuda worker" {
		t.Errorf("%q", got)
	}
	before := r.client
	stop()
	<-before.gone
	_, err = begin(t, r, Order{})
	if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "scuda-spawner.service") {
		t.Errorf("without a spawner: %v", err)
	}
	if got := w.ask("args"); got != "scuda worker" {
		t.Errorf("the worker of before: %q", got)
	}
	defer dial()()
	for r.current() == before || r.current() == nil {
		time.Sleep(time.Millisecond)
	}
	if got := start(t, r, Order{}).ask("args"); got != "scuda worker" {
		t.Errorf("%q", got)
	}
	defer r.Close()
}

func (r *Remote) current() *Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.client
}

func TestNobodyConnects(t *testing.T) {
	_, err := Listen(t.Context(), filepath.Join(t.TempDir(), "socket"), time.Millisecond, quiet)
	if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "scuda-spawner.service") {
		t.Error(err)
	}
}

func TestParseRange(t *testing.T) {
	for text, want := range map[string]Range{"none": {}, "1000-1000": {1000, 1000}, "200000-209999": formerRange} {
		if r, err := ParseRange(text); r != want || err != nil {
			t.Errorf("%s: %v, %v", text, r, err)
		}
	}
	for _, text := range []string{
		"", "0-0", "0-5000", "999-2000", "2000-1999", "1-", "-1", "5000", "5000-4294967295", "a-b",
	} {
		if r, err := ParseRange(text); !errors.Is(err, ErrRange) {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
}

// A tenant that gets another user, or none, gets another folder.
func TestFolderOfAnotherUser(t *testing.T) {
	dir := folder(t)
	alice := Order{Tenant: KeyOf("alice"), UID: users.First}
	w := start(t, launched(t, Config{Folder: dir}), alice)
	defer w.line.Close()
	other := alice
	other.UID++
	w = start(t, launched(t, Config{Folder: dir}), other)
	defer w.line.Close()
	l, err := NewLocal(Config{Folder: dir, Cgroup: CgroupNone}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w = start(t, l, Order{Tenant: alice.Tenant})
	w.line.Close()
	if err := w.Wait(); err != nil {
		t.Error(err)
	}
}
