package lab

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/server/admin"
)

// waiting says whether so many are in the queue.
func waiting(n int) func(*plan.State) bool {
	return func(st *plan.State) bool { return len(st.Queue) == n }
}

// free says whether so many GPUs of the pool are.
func free(n int) func(*plan.State) bool {
	return func(st *plan.State) bool {
		all := 0
		for _, list := range st.Free() {
			all += len(list)
		}
		return all == n
	}
}

// A program gets GPUs of a server and sees no others; when it has ended, they are free.
func TestProgram(t *testing.T) {
	t.Parallel()
	l := open(t)
	m := l.serve("sim:2,memory=1GiB,cc=9.0")
	p := l.run("vision", []string{"--gpus", "1", "--memory", "1GiB"}, scuda, "info", "--json")
	if code := p.end(); code != 0 {
		t.Fatalf("status %d: %s", code, p.out)
	}
	p.await(`"server": "` + m.address)
	if n := strings.Count(p.out.String(), `"uuid"`); n != 1 {
		t.Errorf("it sees %d GPUs:\n%s", n, p.out)
	}
	l.until("all is free", free(2))
	if list := m.leases(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	two := l.run("vision", []string{"--gpus", "2"})
	two.await("it has ")
	st := begin(t, l.env("vision"), pool, "status", "--json")
	st.end()
	st.await("^}$")
	var got struct {
		Servers []struct {
			Free   []string
			Leases []plan.Lease
		}
	}
	if err := json.Unmarshal([]byte(st.out.String()), &got); err != nil || len(got.Servers) != 1 ||
		len(got.Servers[0].Free) != 0 {
		t.Errorf("%v: %s", err, st.out)
	}
	begin(t, l.env("vision"), pool, "status").await(m.address + ` +GPU-\S+ .* vision: `)
	two.in.Close()
	if code := two.end(); code != 0 {
		t.Errorf("status %d: %s", code, two.out)
	}
	if p := l.run("vision", nil, "sh", "-c", "exit 7"); p.end() != 7 {
		t.Errorf("its status is not the program's: %s", p.out)
	}
}

// What cannot be had is said at once.
func TestRefused(t *testing.T) {
	t.Parallel()
	l := open(t)
	m := l.serve("sim:2,memory=1GiB")
	for _, c := range []struct {
		flags []string
		says  string
	}{
		{[]string{"--gpus", "3"}, "no server of the pool has that: 3 GPUs; all are of one server, unless --servers"},
		{[]string{"--gpus", "3", "--servers", "2"}, "3 GPUs of up to 2 servers; they are not of more servers than --servers"},
		{[]string{"--kind", "H200"}, `no server of the pool has that: 1 GPU of the kind "H200"`},
		{[]string{"--memory", "2GiB"}, "no server of the pool has that: 1 GPU with 2 GiB"},
		{[]string{"--etcd", "unix://" + l.folder + "/none"}, "the pool's etcd does not answer"},
		{[]string{"--token-file", l.folder + "/none"}, "no server of the pool gives that"},
	} {
		p := l.run("vision", c.flags)
		if code := p.end(); code != 125 || !strings.Contains(p.out.String(), c.says) {
			t.Errorf("%v: status %d, %s", c.flags, code, p.out)
		}
	}
	taken := l.etcd.await(`^metrics on http://(\S+)/metrics$`)[1]
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"run", "--gpus", "0", "--", "true"}, 2, "--gpus: 0"},
		{[]string{"run", "--servers", "0", "--", "true"}, 2, "--servers: 0; it is 1 to 16"},
		{[]string{"run", "--servers", "17", "--", "true"}, 2, "--servers: 17; it is 1 to 16"},
		{[]string{"run", "--lease", "1s", "--", "true"}, 2, "--lease: 1s"},
		{[]string{"run", "--etcd", "http://127.0.0.1:1", "--", "true"}, 2, "the pool's etcd cannot be asked so"},
		{[]string{"run", "--etcd", "https://127.0.0.1:1", "--", "true"}, 2, "it wants a certificate"},
		{[]string{"run", "--", "/none"}, 127, "cannot run /none"},
		{[]string{"run"}, 2, "no program given"},
		{[]string{"announce"}, 2, "no server given"},
		{[]string{"announce", "--server", "0.0.0.0:1"}, 2, "is not HOST:PORT"},
		{[]string{"announce", "--server", "a:1", "--server", "b:1", "--server", "a:1"}, 2, "a:1 is said twice"},
		{[]string{"announce", "--server", "a:1", "--metrics", "9837"}, 2, `--metrics: bad address for metrics: "9837"`},
		{[]string{"announce", "--server", "a:1", "--metrics", taken}, 1, "cannot offer metrics on " + taken},
		{[]string{"serve", "--data", t.TempDir(), "--metrics", taken}, 1, "choose another port with --metrics"},
		{[]string{"serve"}, 2, "--data FOLDER"},
		{[]string{"serve", "--data", l.folder}, 1, "another scuda-pool serve uses the folder"},
		{[]string{"serve", "--data", t.TempDir(), "--listen", "127.0.0.1:1"}, 1, "needs --cert, --key and --ca"},
	} {
		p := begin(t, l.env("vision"), pool, c.args...)
		if code := p.end(); code != c.code || !strings.Contains(p.out.String(), c.says) {
			t.Errorf("%v: status %d, %s", c.args, code, p.out)
		}
	}
	// A tenant that the server does not let see all leases announces nothing.
	blind := begin(t, l.env("vision"), pool, "announce", "--server", m.address)
	blind.await("an agent has to be an administrator of the server|announced by nobody|does not answer")
}

// Who came first is served first, tenants in turn, and nobody passes who wants more.
func TestQueue(t *testing.T) {
	t.Parallel()
	l := open(t)
	l.serve("sim:2,memory=1GiB")
	first := l.run("vision", []string{"--gpus", "2"})
	first.await("it has ")
	var all []*process
	order := make(chan string, 4)
	for i, c := range []struct{ name, tenant, gpus string }{
		{"v1", "vision", "2"}, {"v2", "vision", "1"}, {"t1", "text", "2"}, {"t2", "text", "1"},
	} {
		p := l.run(c.tenant, []string{"--gpus", c.gpus}, "sh", "-c", "echo it has; cat")
		l.until(fmt.Sprint(i+1, " wait"), waiting(i+1))
		all = append(all, p)
		go func() {
			p.await("it has")
			order <- c.name
		}()
	}
	served := func() string {
		select {
		case name := <-order:
			return name
		case <-time.After(patience):
			t.Fatal("nobody is served")
			return ""
		}
	}
	first.in.Close()
	// vision was served before; so text is first.
	for _, want := range []string{"t1", "v1"} {
		if got := served(); got != want {
			t.Fatalf("%s is served, not %s", got, want)
		}
		all[map[string]int{"v1": 0, "t1": 2}[want]].in.Close()
	}
	got := map[string]bool{served(): true, served(): true} // one GPU each
	if !got["v2"] || !got["t2"] {
		t.Errorf("%v", got)
	}
	for _, p := range all {
		p.in.Close()
		if code := p.end(); code != 0 {
			t.Errorf("status %d: %s", code, p.out)
		}
	}
}

// A server that is killed is out of the pool, and so is one whose agent is; programs that are killed leave nothing
// behind for longer than a lease's time.
func TestKilled(t *testing.T) {
	t.Parallel()
	l := open(t)
	a, b := l.serve("sim:1,memory=1GiB"), l.serve("sim:1,memory=1GiB")
	began := time.Now()
	a.server.kill(syscall.SIGKILL)
	l.until("the server is out", func(st *plan.State) bool { return a.of(st) == nil })
	t.Logf("a server that was killed is out of the pool after %v", time.Since(began))
	began = time.Now()
	b.agent.kill(syscall.SIGKILL)
	l.until("the server is out", func(st *plan.State) bool { return b.of(st) == nil })
	t.Logf("a server whose agent was killed is out of the pool after %v", time.Since(began))
	a.start()
	l.until("the server is back", func(st *plan.State) bool { return a.of(st) != nil })

	p := l.run("vision", []string{"--lease", "3s"})
	lease := p.await("it has (.*) of")[1]
	next := l.run("text", []string{"--lease", "3s"})
	l.until("somebody waits", waiting(1))
	p.kill(syscall.SIGKILL)
	if got := next.await("it has (.*) of")[1]; got == lease {
		t.Errorf("two have lease %s", got)
	}
	// Who waits and is killed is out of the queue.
	gone := l.run("text", nil)
	l.until("somebody waits", waiting(1))
	gone.kill(syscall.SIGKILL)
	l.until("nobody waits", waiting(0))
	// The lease goes, and the program is told.
	out, err := exec.Command(scuda, "lease", "revoke", "--admin", a.socket(), "--tenant", "text").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	next.await("the lease is lost: .* has ended it; the program is told to end")
	if code := next.end(); code != 0 {
		t.Errorf("status %d: %s", code, next.out)
	}
}

// goOn waits until the server's leases, which there are so many of, have been renewed for longer than they last: they
// are those of before.
func (m *machine) goOn(before []admin.Lease, number int, lasts time.Duration) {
	m.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	over := time.Now().Add(patience)
	for renewed := 0; renewed < number; <-tick.C {
		now := m.leases()
		renewed = 0
		for i := range before {
			j := slices.IndexFunc(now, func(x admin.Lease) bool { return x.ID == before[i].ID })
			if j < 0 || len(now) != number || len(before) != number {
				m.Fatalf("%+v, and before %+v", now, before)
			}
			if now[j].Expires.Sub(before[i].Expires) > lasts {
				renewed++
			}
		}
		if renewed < number && time.Now().After(over) {
			m.Fatalf("within %v %d of %d leases are renewed: %+v, and before %+v", patience, renewed, number, now, before)
		}
	}
}

// While etcd is away, programs keep what they have, and new ones are refused; then it goes on.
func TestEtcdAway(t *testing.T) {
	t.Parallel()
	l := open(t)
	m := l.serve("sim:2,memory=1GiB")
	p := l.run("vision", []string{"--lease", "3s"})
	p.await("it has ")
	before := m.leases()
	l.etcd.kill(syscall.SIGKILL)
	l.etcd.gone()
	late := l.run("text", nil)
	if code := late.end(); code != 125 || !strings.Contains(late.out.String(), "the pool's etcd does not answer") {
		t.Errorf("status %d: %s", code, late.out)
	}
	m.goOn(before, 1, 3*time.Second) // whether or not there is an etcd
	l.start()
	l.until("one GPU is free", free(1))
	other := l.run("text", nil)
	other.await("it has ")
	if n := len(m.leases()); n != 2 {
		t.Errorf("%d leases", n)
	}
	for _, p := range []*process{p, other} {
		p.in.Close()
		if code := p.end(); code != 0 {
			t.Errorf("status %d: %s", code, p.out)
		}
	}
	l.until("all is free", free(2))
	if n, err := check(l.log()); n != 2 || err != nil {
		t.Errorf("%d leases: %v", n, err)
	}
}
