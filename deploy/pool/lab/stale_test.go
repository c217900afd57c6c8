package lab

import (
	"os/exec"
	"testing"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/server/admin"
)

// What the pool says is not believed: a GPU that it calls free, and that its server has leased, is waited for.
func TestStaleNews(t *testing.T) {
	t.Parallel()
	l := open(t)
	m := l.serve("sim:1,memory=1GiB")
	m.agent.kill(9)
	l.until("the server is out", func(st *plan.State) bool { return m.of(st) == nil })
	c, err := admin.Dial(t.Context(), m.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	st, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := st.GPUs[0]
	lease, err := c.Grant(t.Context(), &admin.LeaseRequest{Tenant: "ops", GPUs: g.UUID, Seconds: 3600})
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.store.Session(t.Context(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	if err := s.Announce(t.Context(), &plan.Server{Address: m.address, Fingerprint: st.Fingerprint,
		GPUs: []plan.GPU{{UUID: g.UUID, Name: g.Name, Memory: config.Size(g.Memory)}}}); err != nil {
		t.Fatal(err)
	}
	p := l.run("vision", nil)
	m.server.await(`POST /v1/leases" .*status=409`) // refused, and it stays in the queue
	l.until("somebody waits", waiting(1))
	if out, err := exec.Command(scuda, "lease", "revoke", "--admin", m.socket(), lease.ID).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p.await("it has ")
	p.in.Close()
	if code := p.end(); code != 0 {
		t.Errorf("status %d: %s", code, p.out)
	}
}
