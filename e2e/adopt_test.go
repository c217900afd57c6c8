package e2e

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// killCount is how often servers are killed in mid-work.
var killCount = setting("SCUDA_KILLS", 4)

// keptServer is a server whose spawner is a service of its own.
type keptServer struct {
	*server
	args    []string
	admin   []string // what its administrator has in the environment
	spawner *process
}

func serveKept(t *testing.T, more ...string) *keptServer {
	t.Helper()
	socket, admin := filepath.Join(t.TempDir(), "spawner"), filepath.Join(t.TempDir(), "admin")
	k := &keptServer{admin: []string{"SCUDA_ADMIN=" + admin}}
	k.spawner = start(t, nil, scuda, "spawner", "--connect", socket, "--worker-uids", "none", "--worker-cgroup", "none",
		"--worker-folder", "none")
	k.args = append([]string{"--spawner", socket, "--worker-uids", "none", "--state-dir", t.TempDir(), "--admin", admin},
		more...)
	k.server = serve(t, k.args...)
	return k
}

// kill ends the server as a kernel does that is out of memory.
func (k *keptServer) kill(t *testing.T) {
	t.Helper()
	k.signal(syscall.SIGKILL)
	k.wait(patience)
}

// again starts the next server.
func (k *keptServer) again(t *testing.T) {
	t.Helper()
	addr := k.addr
	if k.server = serve(t, k.args...); k.addr != addr {
		t.Fatalf("the next server listens on %s, not on %s", k.addr, addr)
	}
}

// sessions are the CUDA sessions that the server shows.
func (k *keptServer) sessions(t *testing.T) string {
	t.Helper()
	return ask(t, k.admin, 0, "ps").out.String()
}

// Programs do not notice that their server is killed and another one comes, and those that come meanwhile wait for it.
func TestServerKilledInMidWork(t *testing.T) {
	k := serveKept(t)
	names := []string{"compute", "copies", "streams", "graph", "captures", "ordering", "threads", "callbacks", "managed",
		"print", "ipc", "counted"}
	want := make(map[string]string)
	for _, name := range names {
		want[name] = k.prints(t, name)
	}
	env := k.env()
	stop, done := make(chan struct{}), make(chan struct{})
	var ran atomic.Int64
	go func() { // one after the other, for as long as servers are killed
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			name := names[n%len(names)]
			p := start(t, env, program(name), append([]string{kernels}, timesOf(name)...)...)
			p.stdin.Close()
			if code := p.wait(patience); code != 0 || p.out.String() != want[name] {
				t.Errorf("%s: exit status %d\n%s%s", name, code, p.out, p.err)
				return
			}
			ran.Add(1)
		}
	}()
	for range killCount {
		k.kill(t)
		k.again(t)
		before := ran.Load()
		eventually(t, patience, "a program gets on", func() bool { return ran.Load() > before || t.Failed() })
	}
	close(stop)
	<-done
	t.Logf("%d programs", ran.Load())
}

// The next server has the sessions of the one before, with all that belongs to them.
func TestSessionsTakenOver(t *testing.T) {
	k := serveKept(t, "--max-sessions", "2")
	c := start(t, k.env(), program("hold"), kernels, "16", "loop")
	c.await(c.out, "^ready$")
	before := k.sessions(t)
	if !strings.Contains(before, "hold") {
		t.Fatalf("no session:\n%s", before)
	}
	k.kill(t)
	waits := start(t, k.env(), program("init"), kernels) // nobody takes its connection yet
	waits.stdin.Close()
	k.again(t)
	k.await(k.err, `msg="took over the sessions of the server before" sessions=1`)
	if code := waits.wait(patience); code != 0 {
		t.Errorf("who came meanwhile: exit status %d\n%s%s", code, waits.out, waits.err)
	}
	if after := k.sessions(t); strings.Count(after, "hold") != 1 {
		t.Errorf("before:\n%safter:\n%s", before, after)
	}
	second := start(t, k.env(), program("hold"), kernels, "16", "loop")
	second.await(second.out, "^ready$")
	third := start(t, append(k.env(), "SCUDA_QUEUE=0"), program("hold"), kernels, "16", "loop")
	third.await(third.err, "2 of 2 CUDA sessions are taken")
	c.signal(syscall.SIGTERM)
	c.wait(patience)
	eventually(t, patience, "the session is over", func() bool { return k.closed() > 0 })
	second.signal(syscall.SIGTERM)
	second.wait(patience)
}

// What the server asks of a program goes on: host functions that wait while the server is killed, and faults of unified
// memory. A session of NVML is made anew, in which the program's questions are asked again.
func TestProgramsAreAskedAfterwards(t *testing.T) {
	k := serveKept(t)
	smi := start(t, k.env(), program("smi"))
	lines := func() int { return strings.Count(smi.out.String(), "\n") }
	c := start(t, k.env(), program("kept"), kernels)
	for n := range 3 {
		c.await(c.out, fmt.Sprintf("^round %d waits$", n))
		before := lines()
		eventually(t, patience, "NVML answers", func() bool { return lines() > before })
		k.kill(t)
		k.again(t)
		if _, err := io.WriteString(c.stdin, "go on\n"); err != nil {
			t.Fatal(err)
		}
		c.await(c.out, fmt.Sprintf("^round %d is over$", n))
		before = lines()
		eventually(t, patience, "NVML answers again", func() bool { return lines() > before })
	}
	for _, p := range []*process{c, smi} {
		p.stdin.Close()
		if code := p.wait(patience); code != 0 {
			t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
		}
	}
}
