package lab

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/deploy/pool/plan"
)

// scrape asks a process for its metrics.
func (p *process) scrape() string {
	p.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(p.await(`^metrics on (http://\S+/metrics)$`)[1])
	if err != nil {
		p.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		p.Fatalf("%d, %v: %s", r.StatusCode, err, text)
	}
	return string(text)
}

// missing are those figures that a text does not have; they are of the pool, and said without its prefix.
func missing(text string, figures []string) (list []string) {
	for _, f := range figures {
		if !strings.Contains(text, "\nscuda_pool_"+f+"\n") {
			list = append(list, f)
		}
	}
	return list
}

// shows says which figures a process does not show.
func (p *process) shows(when string, figures ...string) {
	p.Helper()
	text := p.scrape()
	if none := missing(text, figures); none != nil {
		p.Errorf("%s: no %q in\n%s", when, none, text)
	}
}

// comes waits until a process shows figures, which it cannot know at once, and gives all that it shows then.
func (p *process) comes(figures ...string) string {
	p.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for {
		text := p.scrape()
		none := missing(text, figures)
		if none == nil {
			return text
		}
		select {
		case <-tick.C:
		case <-over:
			p.Fatalf("no %q within %v in\n%s", none, patience, text)
		}
	}
}

// Scrapes see what becomes of servers, leases and the queue, and that etcd is away.
func TestMetrics(t *testing.T) {
	t.Parallel()
	l := open(t)
	l.etcd.shows("nobody is there", "readable 1", `servers{state="open"} 0`, "waiting 0", "leases_taken_total 0")
	m := l.serve("sim:2,memory=1GiB")
	gpus := func(state string, n int) string {
		return fmt.Sprintf(`gpus{kind="scuda simulated GPU",state="%s"} %d`, state, n)
	}
	server := func(what string, n int) string { return fmt.Sprintf(`server_%s{server="%s"} %d`, what, m.address, n) }
	m.agent.await("the server is announced")
	for _, p := range []*process{l.etcd, m.agent} { // both see the whole pool
		p.shows("a server", `servers{state="open"} 1`, gpus("free", 2), gpus("leased", 0), "leases 0")
	}
	m.agent.shows("a server", server("readable", 1), server("announced", 1))

	if p := l.run("vision", nil, "true"); p.end() != 0 {
		t.Errorf("a program: %s", p.out)
	}
	one := l.run("vision", nil)
	one.await("it has ")
	l.etcd.shows("a lease", gpus("free", 1), gpus("leased", 1), "leases 1", "leases_taken_total 2", "waiting 0",
		"longest_wait_seconds 0")
	two := l.run("text", []string{"--gpus", "2"})
	l.until("somebody waits", waiting(1))
	l.etcd.shows("a request", gpus("free", 0), gpus("kept", 1), gpus("leased", 1), "leases 1", "waiting 1")
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); missing(l.etcd.scrape(), []string{"longest_wait_seconds 0"}) == nil; {
		if <-tick.C; time.Since(began) > patience { // when it came is said in full seconds, which may be the next one
			t.Fatal("nobody waits for longer than 0 s")
		}
	}
	one.in.Close()
	two.await("it has ")
	l.etcd.shows("another lease", gpus("kept", 0), gpus("leased", 2), "leases 1", "leases_taken_total 3", "waiting 0",
		"longest_wait_seconds 0")
	two.in.Close()
	if code := two.end(); code != 0 {
		t.Errorf("status %d: %s", code, two.out)
	}
	l.until("all is free", free(2))
	l.etcd.shows("the end", gpus("free", 2), gpus("leased", 0), "leases 0", "leases_taken_total 3")

	m.server.kill(syscall.SIGKILL)
	l.until("the server is out", func(st *plan.State) bool { return m.of(st) == nil })
	m.agent.shows("no server", `servers{state="open"} 0`, gpus("free", 0), server("readable", 0), server("announced", 0))
	m.start()
	l.until("the server is back", func(st *plan.State) bool { return m.of(st) != nil })
	l.etcd.kill(syscall.SIGKILL)
	l.etcd.gone()
	text := m.agent.comes(server("announced", 0), server("readable", 1), "readable 0")
	for _, name := range []string{"servers", "gpus", "waiting", "longest_wait", "leases", "read_failures_total 0"} {
		if strings.Contains(text, "\nscuda_pool_"+name) {
			t.Errorf("etcd is away, and it says %s:\n%s", name, text)
		}
	}
	l.start()
	m.agent.comes(server("announced", 1), "readable 1", gpus("free", 2))
	m.agent.shows("etcd is back", "leases_taken_total 3")
}
