package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/deploy/pool/take"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
)

// pair begins two servers with a GPU each.
func (l *lab) pair() (a, b *machine) {
	l.Helper()
	return l.serve("sim:1,memory=1GiB,name=A"), l.serve("sim:1,memory=1GiB,name=B")
}

// both are the options for a GPU of each of two servers.
var both = []string{"--gpus", "2", "--servers", "2"}

// devices says how many GPUs a program has, and uses each.
const devices = `
#include <stdio.h>
int cuInit(unsigned), cuDeviceGetCount(int *), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long *, unsigned long), cuMemsetD8_v2(unsigned long, unsigned char, unsigned long);
int cuMemcpyDtoH_v2(void *, unsigned long, unsigned long);
int main(void) {
  int n = 0, r = cuInit(0);
  if (r || (r = cuDeviceGetCount(&n))) return printf("cuInit: %d\n", r), 1;
  for (int i = 0; i < n; i++) {
    void *context;
    unsigned long at;
    unsigned char got = 0;
    if ((r = cuDevicePrimaryCtxRetain(&context, i)) || (r = cuCtxSetCurrent(context)) || (r = cuMemAlloc_v2(&at, 1)) ||
        (r = cuMemsetD8_v2(at, 40 + i, 1)) || (r = cuMemcpyDtoH_v2(&got, at, 1)) || got != 40 + i)
      return printf("GPU %d: %d, %d\n", i, r, got), 1;
  }
  printf("it uses %d GPUs\n", n);
}
`

// A program has GPUs of two servers where it says so, and uses them; who comes behind it waits.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	l := open(t)
	a, b := l.pair()
	p := l.run("vision", []string{"--gpus", "2"})
	if code := p.end(); code != 125 || !strings.Contains(p.out.String(), "all are of one server, unless --servers says") {
		t.Errorf("status %d: %s", code, p.out)
	}
	program := filepath.Join(l.folder, "devices")
	lib := filepath.Join(filepath.Dir(scuda), "lib")
	build := exec.CommandContext(t.Context(), "gcc", "-x", "c", "-", "-o", program, "-L", lib, "-l:libcuda.so.1")
	build.Stdin = strings.NewReader(devices)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p = begin(t, append(l.env("vision"), "PATH="+filepath.Dir(pool)), scuda, "run", "--gpus", "2", "--servers", "2", "--",
		program)
	p.await("^it uses 2 GPUs$")
	if code := p.end(); code != 0 {
		t.Errorf("status %d: %s", code, p.out)
	}
	l.until("all is free", free(2))

	one := l.run("vision", both)
	ids := strings.Split(one.await("it has (.*) of")[1], ",")
	if x, y := a.leases(), b.leases(); len(ids) != 2 || len(x) != 1 || len(y) != 1 ||
		!slices.Contains(ids, x[0].ID) || !slices.Contains(ids, y[0].ID) {
		t.Errorf("it has %v, and the servers have %+v, %+v", ids, x, y)
	}
	l.etcd.shows("two leases", "leases 2", "leases_taken_total 4", "waiting 0")
	begin(t, l.env("vision"), pool, "status").await(b.address + ` +GPU-\S+ .* vision: `)
	two := l.run("text", both)
	l.until("somebody waits", waiting(1))
	begin(t, l.env("vision"), pool, "status").await("text +2 GPUs of up to 2 servers")
	single := l.run("vision", nil)
	l.until("two wait", waiting(2))
	one.in.Close()
	two.await("it has ")
	l.until("one waits", waiting(1))
	two.in.Close()
	single.await("it has ")
	single.in.Close()
	for _, p := range []*process{one, two, single} {
		if code := p.end(); code != 0 {
			t.Errorf("status %d: %s", code, p.out)
		}
	}
	l.until("all is free", free(2))
	if n, err := check(l.log()); n != 3 || err != nil {
		t.Errorf("%d programs: %v", n, err)
	}
}

// Who waits for GPUs of two servers keeps the one that is free, and does not where the other server is gone.
func TestSeveralWait(t *testing.T) {
	t.Parallel()
	l := open(t)
	a, b := l.pair()
	first := l.run("vision", []string{"--kind", "A"})
	first.await("it has ")
	two := l.run("vision", both)
	l.until("somebody waits", waiting(1))
	single := l.run("vision", nil)
	l.until("two wait", waiting(2))
	l.etcd.shows("a GPU is kept", `gpus{kind="B",state="kept"} 1`, `gpus{kind="B",state="free"} 0`, "leases 1")
	b.server.kill(syscall.SIGKILL)
	b.server.gone()
	l.until("the server is out", func(st *plan.State) bool { return b.of(st) == nil })
	first.in.Close()
	single.await("it has .* of " + a.address)
	l.until("one waits", waiting(1))
	b.start()
	l.until("the server is back", func(st *plan.State) bool { return b.of(st) != nil })
	single.in.Close()
	two.await("it has ")
	two.in.Close()
	for _, p := range []*process{first, two, single} {
		if code := p.end(); code != 0 {
			t.Errorf("status %d: %s", code, p.out)
		}
	}
	l.until("all is free", free(2))
}

// A program that loses one of two leases is told, and gives the other one back; one whose scuda-pool is killed leaves
// neither behind for longer than a lease's time.
func TestSeveralKilled(t *testing.T) {
	t.Parallel()
	l := open(t)
	a, b := l.pair()
	short := append(slices.Clone(both), "--lease", "3s")
	p := l.run("vision", short)
	p.await("it has ")
	b.server.kill(syscall.SIGKILL)
	b.server.gone()
	p.await("the lease is lost: " + b.address + " could not be asked .*; the program is told to end")
	if code := p.end(); code != 0 || !strings.Contains(p.out.String(), b.address+" was not told that the lease is over") {
		t.Errorf("status %d: %s", code, p.out)
	}
	if list := a.leases(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	b.start()
	l.until("the server is back", func(st *plan.State) bool { return b.of(st) != nil })
	p = l.run("vision", short)
	p.await("it has ")
	p.kill(syscall.SIGKILL)
	next := l.run("text", both)
	next.await("it has ")
	next.in.Close()
	if code := next.end(); code != 0 {
		t.Errorf("status %d: %s", code, next.out)
	}
	l.until("all is free", free(2))
}

// half is a server that is no process: it makes leases, or does not.
type half struct {
	mu     sync.Mutex // guards what follows
	grant  func() error
	leases map[string]bool // those that hold
}

func (h *half) Status(context.Context) (*admin.Status, error) {
	return &admin.Status{Tenant: "vision"}, nil
}

func (h *half) Grant(_ context.Context, r *admin.LeaseRequest) (*admin.Granted, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.grant(); err != nil {
		return nil, err
	}
	id := fmt.Sprint(len(h.leases))
	h.leases[id] = true
	g := new(admin.Granted)
	g.ID, g.GPUs = id, strings.Split(r.GPUs, ",")
	return g, nil
}

func (h *half) Renew(context.Context, string, time.Duration) (*admin.Lease, error) { return nil, nil }

func (h *half) Revoke(_ context.Context, id, _ string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.leases[id] {
		return lease.ErrNone
	}
	h.leases[id] = false
	return nil
}

func (h *half) Close() {}

// hold says how many leases hold, of how many that were made.
func (h *half) hold() (now, made int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, held := range h.leases {
		if held {
			now++
		}
	}
	return now, len(h.leases)
}

// Where one server makes a lease and the other refuses, or is gone, the lease is given back, and it is tried again.
func TestHalfTaken(t *testing.T) {
	t.Parallel()
	l := open(t)
	s, err := l.store.Session(t.Context(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	a, b := &half{leases: map[string]bool{}}, &half{leases: map[string]bool{}}
	servers := map[string]*half{"a:1": a, "b:1": b}
	for address := range servers {
		if err := s.Announce(t.Context(), &plan.Server{Address: address,
			GPUs: []plan.GPU{{UUID: "GPU-" + address, Name: "GPU", Memory: config.GiB}}}); err != nil {
			t.Fatal(err)
		}
	}
	o := take.Options{Want: plan.Want{GPUs: 2, Servers: 2}, Lasts: time.Minute, TTL: 10 * time.Second, Note: io.Discard,
		Dial: func(s *plan.Server) (take.Admin, error) { return servers[s.Address], nil }}
	a.grant = func() error { return nil }
	refusals := []error{&admin.Fault{Cause: "a GPU is leased already"}, admin.ErrNoServer, context.DeadlineExceeded}
	b.grant = func() error {
		if now, made := a.hold(); now != 1 || made != 4-len(refusals) {
			t.Errorf("the other has %d of %d leases", now, made)
		}
		if len(refusals) == 0 {
			return nil
		}
		err := refusals[0]
		refusals = refusals[1:]
		return err
	}
	taken, err := take.Take(t.Context(), l.store, o)
	if err != nil {
		t.Fatal(err)
	}
	if now, made := a.hold(); now != 1 || made != 4 || len(taken.Leases) != 2 {
		t.Errorf("%d of %d leases: %+v", now, made, taken.Leases)
	}
	l.until("nobody waits", waiting(0))
	if bad := taken.Give(t.Context()); len(bad) > 0 {
		t.Error(bad)
	}
	for address, h := range servers {
		if now, made := h.hold(); now != 0 || made == 0 {
			t.Errorf("%s: %d of %d leases", address, now, made)
		}
	}
	// Refused for good: it is said, and nothing is left behind.
	b.grant = func() error { return lease.ErrTerms }
	if _, err := take.Take(t.Context(), l.store, o); !errors.Is(err, take.ErrRefused) || !errors.Is(err, lease.ErrTerms) {
		t.Errorf("refused: %v", err)
	}
	if now, made := a.hold(); now != 0 || made != 5 {
		t.Errorf("%d of %d leases", now, made)
	}
	l.until("nobody waits", waiting(0))
}
