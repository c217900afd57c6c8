package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	root     string // of the repository
	scuda    string // the binary
	lib      string // the folder of client libraries
	kernels  string // the folder of module images
	programs string // the folder of compiled programs
	gpu      = "sim"
	wrap     []string // command in front of every client
	noProbes bool     // leave the tests of probes out
)

// patience bounds everything that should take far less; the race detector and two busy cores are slow.
const patience = 120 * time.Second

func TestMain(m *testing.M) {
	code, err := setUp(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func setUp(m *testing.M) (int, error) {
	folder, err := os.Getwd()
	if err != nil {
		return 1, err
	}
	root = filepath.Dir(folder)
	scuda, lib, kernels = filepath.Join(root, "build/scuda"), filepath.Join(root, "build/lib"),
		filepath.Join(root, "testdata/kernels")
	for _, path := range []string{scuda, lib + "/libcuda.so.1", lib + "/libnvidia-ml.so.1", lib + "/libscuda.so",
		lib + "/libscuda-core.so", lib + "/scuda-connect", root + "/shim/include/cuda.h"} {
		if _, err := os.Stat(path); err != nil {
			return 1, fmt.Errorf("%w: run make build first", err)
		}
	}
	if programs, err = os.MkdirTemp("", "scuda-e2e-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(programs)
	sources, err := filepath.Glob(filepath.Join(root, "e2e/programs/*.c"))
	if err != nil || len(sources) == 0 {
		return 1, fmt.Errorf("no programs: %w", err)
	}
	if err := compileAll(sources); err != nil {
		return 1, err
	}
	if v := os.Getenv("SCUDA_E2E_GPU"); v != "" {
		gpu = v
	}
	wrap = strings.Fields(os.Getenv("SCUDA_E2E_WRAP"))
	noProbes = os.Getenv("SCUDA_TEST_NO_BPF") == "1"
	for _, name := range os.Environ() { // nothing of the caller's settings may leak in
		if name, _, _ = strings.Cut(name, "="); strings.HasPrefix(name, "SCUDA_") || strings.HasPrefix(name, "CUDA_") ||
			name == "LD_PRELOAD" {
			os.Unsetenv(name)
		}
	}
	// as on a GPU, a process finds what it has left in memory
	os.Setenv("SCUDA_SIM", "contents=process")
	os.Setenv("SCUDA_ADMIN", "none") // servers of tests are not found by others' scuda ps
	os.Setenv("XDG_CONFIG_HOME", filepath.Join(programs, "no-config"))
	os.Setenv("XDG_CACHE_HOME", filepath.Join(programs, "cache"))
	os.Setenv("XDG_STATE_HOME", filepath.Join(programs, "state"))
	// where the tests run as root, workers have users of their own, who must reach their folders
	os.Setenv("SCUDA_WORKER_FOLDER", filepath.Join(programs, "workers"))
	if err := os.Chmod(programs, 0o755); err != nil {
		return 1, err
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // those that run side by side wait most of their time
		return 1, err
	}
	return m.Run(), nil
}

// besides is room for tests that run beside others: few, as patience has its limits on a busy machine.
var besides = make(chan struct{}, 2*runtime.NumCPU())

// beside lets a test run beside others that do so, as most wait most of the time. It must not have such tests in it.
func beside(t *testing.T) {
	t.Helper()
	t.Parallel()
	besides <- struct{}{}
	t.Cleanup(func() { <-besides })
}

// compileAll compiles the programs, as many at a time as there are processors.
func compileAll(sources []string) error {
	failed := make([]error, len(sources))
	room := make(chan struct{}, runtime.NumCPU())
	var all sync.WaitGroup
	for i, source := range sources {
		all.Go(func() {
			room <- struct{}{}
			failed[i] = compile(source, program(strings.TrimSuffix(filepath.Base(source), ".c")))
			<-room
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

func compile(source, target string, more ...string) error {
	args := append([]string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wno-unused", "-o", target, source}, more...)
	out, err := exec.Command("gcc", append(args, "-I", filepath.Join(root, "shim/include"), "-L", lib, "-l:libcuda.so.1",
		"-Wl,--allow-shlib-undefined", "-lm", "-lpthread", "-ldl")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compiling %s: %w\n%s", source, err, out)
	}
	return nil
}

// output collects what a process prints and lets tests wait for a line of it.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // closed and replaced at each line; nil once it has ended
}

func (o *output) follow(s *bufio.Scanner) {
	for s.Scan() {
		o.mu.Lock()
		o.text.Write(s.Bytes())
		o.text.WriteByte('\n')
		close(o.changed)
		o.changed = make(chan struct{})
		o.mu.Unlock()
	}
	o.mu.Lock()
	close(o.changed)
	o.changed = nil
	o.mu.Unlock()
}

func (o *output) String() string { return o.Since(0) }

// Since is what was printed behind the first n bytes: a test of thousands of sessions must not read the whole of it for
// each.
func (o *output) Since(n int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text.Bytes()[n:])
}

// until waits until something is true of what was printed, and says whether it is. Else the output has ended, or the
// time is over.
func (o *output) until(limit time.Duration, is func(text string) bool) (found, ended bool) {
	deadline := time.After(limit)
	for {
		o.mu.Lock()
		text, changed := o.text.String(), o.changed
		o.mu.Unlock()
		if is(text) || changed == nil {
			return is(text), changed == nil
		}
		select {
		case <-changed:
		case <-deadline:
			return false, false
		}
	}
}

// Len is how many bytes were printed.
func (o *output) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Len()
}

// process is a program under way.
type process struct {
	t        *testing.T
	name     string
	cmd      *exec.Cmd
	out, err *output
	stdin    io.WriteCloser
	followed sync.WaitGroup
	done     chan struct{}
	state    error
}

func start(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: filepath.Base(name), done: make(chan struct{})}
	if filepath.Dir(name) == programs {
		args = slices.Concat(wrap, []string{name}, args)
		name, args = args[0], args[1:]
	}
	p.cmd = exec.Command(name, args...)
	p.cmd.Env = append(os.Environ(), env...)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	for _, o := range []**output{&p.out, &p.err} {
		pipe := p.cmd.StdoutPipe
		if o == &p.err {
			pipe = p.cmd.StderrPipe
		}
		r, err := pipe()
		if err != nil {
			t.Fatal(err)
		}
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		*o = &output{changed: make(chan struct{})}
		p.followed.Go(func() { (*o).follow(s) })
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.followed.Wait()
		p.state = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// await waits for a line of standard output (or of standard error) that matches, and gives its groups.
func (p *process) await(o *output, pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	var m []string
	found, ended := o.until(patience, func(text string) bool { m = re.FindStringSubmatch(text); return m != nil })
	switch {
	case found:
	case ended:
		p.t.Fatalf("%s ended without printing %q\nstdout:\n%s\nstderr:\n%s", p.name, pattern, p.out, p.err)
	default:
		p.stuck(patience, fmt.Sprintf("print %q", pattern))
	}
	return m
}

// wait waits for the end within limit and gives the exit status, -1 for a signal.
func (p *process) wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.stuck(limit, "end")
	}
	var e *exec.ExitError
	if p.state != nil && !errors.As(p.state, &e) {
		p.t.Fatal(p.state)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// server is a running `scuda serve`.
type server struct {
	*process
	addr  string
	cache string // the folder of modules
}

func serve(t *testing.T, args ...string) *server { return serveBy(t, scuda, args...) }

func serveBy(t *testing.T, binary string, args ...string) *server {
	t.Helper()
	cache := t.TempDir()
	all := append([]string{"-l", "127.0.0.1:0", "--gpu", gpu, "--sim-memory", "1GiB", "--cache-dir", cache}, args...)
	s := &server{process: start(t, nil, binary, all...), cache: cache}
	s.addr = s.await(s.out, `^listening on (\S+)$`)[1]
	servers.Store(s.addr, s)
	t.Cleanup(func() {
		servers.Delete(s.addr)
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.err)
		}
		for _, bad := range []string{"panic:", "WARNING: DATA RACE", "fatal error:"} {
			if strings.Contains(s.err.String(), bad) {
				t.Errorf("the server said %q:\n%s", bad, s.err)
			}
		}
	})
	return s
}

// env is what a client of the server has in its environment.
func (s *server) env(more ...string) []string { return clientEnv(s.addr, more...) }

func clientEnv(addr string, more ...string) []string {
	return append([]string{"SCUDA_SERVER=" + addr, "LD_LIBRARY_PATH=" + lib}, more...)
}

func program(name string) string { return filepath.Join(programs, name) }

// client starts a program on the server.
func (s *server) client(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return start(t, s.env(), program(name), append([]string{kernels}, args...)...)
}

// run runs a program on the server to its end, which must be a success, and gives its output.
func (s *server) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	p := s.client(t, name, args...)
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("%s: exit status %d\nstdout:\n%s\nstderr:\n%s", name, code, p.out, p.err)
	}
	return p.out.String()
}

// eventually polls a condition that nothing announces.
func eventually(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
