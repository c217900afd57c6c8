package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/deploy/pool/store"
	"scuda.dev/scuda/server/admin"
)

// asProgram makes of the test's own program one that has GPUs: it says so in a file ([hold]).
const asProgram = "SCUDA_POOL_TEST_LOG"

// howLong is the time that it has them; "": until its input ends.
const howLong = "SCUDA_POOL_TEST_TIME"

var pool, scuda string // programs

func TestMain(m *testing.M) {
	if path := os.Getenv(asProgram); path != "" {
		os.Exit(hold(path))
	}
	folder, err := os.MkdirTemp("", "pool")
	if err == nil {
		pool = filepath.Join(folder, "scuda-pool")
		var text []byte
		if text, err = exec.Command("../build.sh", folder).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, text)
		}
	}
	if err == nil {
		scuda, err = filepath.Abs("../../../build/scuda")
		if _, none := os.Stat(scuda); none != nil {
			err = fmt.Errorf("%w; run make build", none)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(folder)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// process is a program that was started.
type process struct {
	*testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *lines // what it says, of both kinds
	ended chan struct{}
}

// lines are what a program has said so far.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed at the next line
	done bool
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func begin(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{T: t, cmd: exec.Command(program, args...), out: &lines{more: make(chan struct{})},
		ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME=", "XDG_STATE_HOME=", "XDG_RUNTIME_DIR=")
	p.cmd.Env = append(p.cmd.Env, env...)
	// Nothing outlives the test, whatever ends it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var read sync.WaitGroup
	read.Go(func() {
		s := bufio.NewScanner(r)
		for s.Scan() {
			p.out.mu.Lock()
			fmt.Fprintln(&p.out.text, s.Text())
			close(p.out.more)
			p.out.more = make(chan struct{})
			p.out.mu.Unlock()
		}
		r.Close()
		p.out.mu.Lock()
		p.out.done = true
		close(p.out.more)
		p.out.mu.Unlock()
	})
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
		read.Wait()
	})
	return p
}

// patience is how long a test waits for one thing. What does not come within it never does.
const patience = 4 * time.Minute

// stuck says that something does not come, and where the program stands, if it is one of Go.
func (p *process) stuck(what string) {
	p.Helper()
	p.kill(syscall.SIGABRT)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
	}
	p.Fatalf("%v: %s does not come within %v:\n%s", p.cmd.Args, what, patience, p.out)
}

// says waits until something is true of what the program has said, or until it ends, when it says whether it is.
func (p *process) says(what string, is func(text string) bool) bool {
	p.Helper()
	over := time.After(patience)
	for {
		p.out.mu.Lock()
		text, more, done := p.out.text.String(), p.out.more, p.out.done
		p.out.mu.Unlock()
		if is(text) || done {
			return is(text)
		}
		select {
		case <-more:
		case <-over:
			p.stuck(what)
		}
	}
}

// await waits for a line and gives its parts.
func (p *process) await(pattern string) []string {
	p.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	var found []string
	if !p.says(pattern, func(text string) bool { found = re.FindStringSubmatch(text); return found != nil }) {
		p.Fatalf("%v ends without %q:\n%s", p.cmd.Args, pattern, p.out)
	}
	return found
}

// end waits for its end and that of its output, and gives the status.
func (p *process) end() int {
	p.Helper()
	code := p.gone()
	p.says("the end of its output", func(string) bool { return false })
	return code
}

// gone waits for its end, and gives the status. Its output goes on where others have it.
func (p *process) gone() int {
	p.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.stuck("its end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) kill(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// lab is a pool.
type lab struct {
	*testing.T
	folder string
	site   *site // whose etcd it is; nil: it has its own
	etcd   *process
	time   string // that programs have their GPUs; "": until their input ends
	store  *store.Pool
}

// open begins a pool without servers.
func open(t *testing.T) *lab {
	t.Helper()
	return openAt(t, nil)
}

// openAt does it with a site's etcd.
func openAt(t *testing.T, s *site) *lab {
	t.Helper()
	l := &lab{T: t, folder: t.TempDir(), site: s}
	l.start()
	if s != nil {
		s.admit(t)
	}
	l.connect()
	return l
}

// connect opens the store, or does it again: whoever was without etcd for long waits for seconds before the next try.
func (l *lab) connect() {
	l.Helper()
	o := store.Options{Endpoints: []string{l.endpoint()}}
	if l.site != nil {
		o = l.site.shows(person)
	}
	p, err := store.Open(o)
	if err != nil {
		l.Fatal(err)
	}
	l.store = p
	l.Cleanup(p.Close)
}

func (l *lab) endpoint() string { return "unix://" + filepath.Join(l.folder, "etcd.sock") }

// start starts etcd, or starts it again.
func (l *lab) start() {
	l.Helper()
	if l.site != nil {
		l.etcd = begin(l.T, nil, l.site.program, l.site.file)
		l.etcd.await("^etcd answers$")
		return
	}
	l.etcd = begin(l.T, nil, pool, "serve", "--data", l.folder, "--metrics", "127.0.0.1:0")
	l.etcd.await("the pool is open")
}

// machine is a server with simulated GPUs, and its agent.
type machine struct {
	*lab
	folder, address, gpus string
	server, agent         *process
}

// serve starts a server and announces it.
func (l *lab) serve(gpus string) *machine {
	l.Helper()
	folder := filepath.Join(l.folder, fmt.Sprintf("server%d", rand.N(1<<30)))
	if err := os.Mkdir(folder, 0o700); err != nil {
		l.Fatal(err)
	}
	// An address of its own, so that its port is free when it starts again.
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), rand.N(256), 1+rand.N(250))
	m := &machine{lab: l, folder: folder, address: host + ":0", gpus: gpus}
	tenants := ""
	for _, name := range []string{"vision", "text", "ops"} {
		token := filepath.Join(l.folder, name+".token")
		if _, err := os.Stat(token); err != nil {
			line, err := exec.Command(scuda, "token", "create", "--tenant", name, "-o", token).CombinedOutput()
			if err != nil {
				l.Fatalf("%v: %s", err, line)
			}
			if err := os.WriteFile(token+".line", line, 0o600); err != nil {
				l.Fatal(err)
			}
		}
		line, err := os.ReadFile(token + ".line")
		if err != nil {
			l.Fatal(err)
		}
		tenants += strings.TrimSpace(string(line))
		if name == "ops" {
			tenants += " role=admin"
		}
		tenants += "\n"
	}
	if err := os.WriteFile(filepath.Join(folder, "tenants"), []byte(tenants), 0o600); err != nil {
		l.Fatal(err)
	}
	m.start()
	m.announce()
	return m
}

func (m *machine) socket() string { return filepath.Join(m.folder, "a") }

// start starts the server, or starts it again.
func (m *machine) start() {
	m.Helper()
	m.server = begin(m.T, nil, scuda, "serve", m.address, "--gpu", m.gpus, "--tls", "always", "--state-dir", m.folder,
		"--cache-dir", "none", "--drain", "0", "--admin", m.socket(), "--tenants", filepath.Join(m.folder, "tenants"))
	m.address = m.server.await(`^listening on (\S+)$`)[1]
}

func (m *machine) announce() {
	m.Helper()
	m.agent = begin(m.T, m.reach(announcer), pool, "announce", "--server", m.address, "--admin", m.socket(),
		"--every", "200ms", "--grace", "1s", "--ttl", "2s", "--metrics", "127.0.0.1:0")
	m.until("the server is announced", func(st *plan.State) bool { return m.of(st) != nil && len(m.of(st).GPUs) > 0 })
}

// of is what the pool knows of the server.
func (m *machine) of(st *plan.State) *plan.Server {
	for i := range st.Servers {
		if st.Servers[i].Address == m.address {
			return &st.Servers[i]
		}
	}
	return nil
}

// leases are those that the server has, as it says itself.
func (m *machine) leases() []admin.Lease {
	m.Helper()
	c, err := admin.Dial(m.Context(), m.socket())
	if err != nil {
		m.Fatal(err)
	}
	defer c.Close()
	list, err := c.Leases(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	return list
}

// until waits until something is true of the pool.
func (l *lab) until(what string, is func(*plan.State) bool) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), patience)
	view, err := l.store.Follow(ctx)
	if err != nil {
		cancel()
		l.Fatal(err)
	}
	defer view.Wait()
	defer cancel()
	for {
		st, changed := view.Now()
		if is(&st) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			l.Fatalf("it is not so that %s: %+v", what, st)
		}
	}
}

// reach is the environment in which a process reaches etcd.
func (l *lab) reach(who string) []string {
	if l.site != nil {
		return l.site.env(who)
	}
	return []string{"SCUDA_POOL=" + l.endpoint()}
}

// env is the environment of a tenant's programs.
func (l *lab) env(tenant string) []string {
	return append(l.reach(person), "SCUDA_TOKEN_FILE="+filepath.Join(l.folder, tenant+".token"))
}

// run begins a program with GPUs. Without one it is the test's own ([hold]).
func (l *lab) run(tenant string, flags []string, program ...string) *process {
	l.Helper()
	env := l.env(tenant)
	if len(program) == 0 {
		self, err := os.Executable()
		if err != nil {
			l.Fatal(err)
		}
		program, env = []string{self}, append(env, asProgram+"="+l.log(), howLong+"="+l.time)
	}
	return begin(l.T, env, pool, append(append(append([]string{"run"}, flags...), "--"), program...)...)
}

func (l *lab) log() string { return filepath.Join(l.folder, "log") }

// event is a line of the log of programs.
type event struct {
	Began, Ended int64 // by one clock of the machine
	Server       string
	GPUs         []string
	Lease        string // with several servers, several
	PID          int
}

func clock() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// hold is a program that has GPUs: it notes when it begins and when it ends, which is when its input does, or when it
// is told to.
func hold(path string) int {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	var over <-chan time.Time
	if d, err := time.ParseDuration(os.Getenv(howLong)); err == nil {
		over = time.After(d)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	e := event{Began: clock(), Server: os.Getenv("SCUDA_SERVER"), GPUs: strings.Split(os.Getenv("SCUDA_POOL_GPUS"), ","),
		Lease: os.Getenv("SCUDA_POOL_LEASE"), PID: os.Getpid()}
	note := func() {
		text, _ := json.Marshal(e)
		_, err = f.Write(append(text, '\n'))
	}
	note()
	fmt.Println("it has", os.Getenv("SCUDA_POOL_LEASE"), "of", os.Getenv("SCUDA_SERVER"))
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(closed)
	}()
	select {
	case <-closed:
	case <-told:
	case <-over:
	}
	e.Ended = clock()
	note()
	return 0
}

// check says what is wrong in the log: GPUs that two had at once. Servers of such a test have GPUs of names of their
// own, as simulated ones of the same name have the same UUIDs.
func check(path string) (programs int, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	last := map[string]event{} // leases: their time, as far as it is known
	for line := range bytes.Lines(text) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return 0, err
		}
		last[e.Lease] = e
	}
	var bad []error
	for _, a := range last {
		for _, b := range last {
			if a.Lease >= b.Lease {
				continue
			}
			for _, g := range a.GPUs {
				for _, h := range b.GPUs {
					if g == h && a.Began < b.over() && b.Began < a.over() {
						bad = append(bad, fmt.Errorf("%s: %+v and %+v", g, a, b))
					}
				}
			}
		}
	}
	return len(last), errors.Join(bad...)
}

// over is when a program has surely ended: one that was killed has no time of its end, and nobody knows it better.
func (e *event) over() int64 {
	if e.Ended == 0 {
		return e.Began + 1
	}
	return e.Ended
}
