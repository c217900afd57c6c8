package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"scuda.dev/scuda/deploy/kubernetes/fakeapi"
	"scuda.dev/scuda/deploy/kubernetes/names"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
)

const (
	self = "SCUDA_DRA_TEST_SELF" // the test's program is scuda-dra where this is set
	own  = "scuda-system"

	patience = 10 * time.Minute // of a test for what has to come
)

func TestMain(m *testing.M) {
	if os.Getenv(self) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// gpus is a server with GPUs behind a real admin socket.
type gpus struct {
	name string
	port *admin.Port
	path string

	mu     sync.Mutex // guards what follows
	status admin.Status
	leases map[string]admin.Lease
	made   int
	asked  int
}

func newGPUs(folder string, n, count int) *gpus {
	g := &gpus{name: fmt.Sprintf("gpu%04d.example.org", n), leases: map[string]admin.Lease{},
		path: filepath.Join(folder, fmt.Sprintf("%d.sock", n)),
		status: admin.Status{Driver: "580.95.05", CUDAVersion: "13.0",
			Fingerprint: "sha256:" + strings.Repeat("a", 64)}}
	for i := range count {
		g.status.GPUs = append(g.status.GPUs, admin.GPU{UUID: fmt.Sprintf("GPU-00000000-0000-0000-%04x-%012x", n, i),
			Name: "NVIDIA H200", Memory: 140 << 30, Capability: "9.0"})
	}
	return g
}

func (g *gpus) open(ctx context.Context) error {
	g.port = admin.New(g, admin.Options{Log: slog.New(slog.DiscardHandler)})
	return g.port.Open(ctx, g.path)
}

// Status and the others are [admin.Server]'s.
func (g *gpus) Status(admin.Who) admin.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	return g.status
}
func (*gpus) Sessions(admin.Who) []admin.Session                   { return nil }
func (*gpus) End(context.Context, admin.Who, string, string) error { return admin.ErrNoSession }
func (*gpus) Drain(bool) error                                     { return nil }
func (*gpus) Usage(context.Context, admin.Who, time.Time, string) (*admin.Usage, error) {
	return nil, admin.ErrNoUsage
}
func (g *gpus) Leases(admin.Who) (list []admin.Lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	for _, l := range g.leases {
		list = append(list, l)
	}
	return list
}
func (g *gpus) Grant(_ admin.Who, r admin.LeaseRequest) (*admin.Granted, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.made++
	l := admin.Lease{Lease: lease.Lease{ID: fmt.Sprintf("%016x", g.made), Label: r.Label}}
	g.leases[l.ID] = l
	return &admin.Granted{Lease: l, Credential: strings.Repeat("c", 60) + l.ID}, nil
}
func (*gpus) Renew(admin.Who, string, time.Duration) (*admin.Lease, error) { return nil, lease.ErrNone }

func (g *gpus) Revoke(_ context.Context, _ admin.Who, id, _ string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.leases[id]; !ok {
		return lease.ErrNone
	}
	delete(g.leases, id)
	return nil
}

// world is a cluster's interface, servers, and the controller as a process of its own.
type world struct {
	*testing.T
	api     *fakeapi.Server
	servers []*gpus
	folder  string
	args    []string
	program *exec.Cmd
	log     bytes.Buffer // the program's
}

// newWorld makes one whose servers have so many GPUs each.
func newWorld(t *testing.T, servers, count int, args ...string) *world {
	t.Helper()
	w := &world{T: t, api: fakeapi.New(), folder: t.TempDir()}
	t.Cleanup(w.api.Close)
	t.Cleanup(w.api.CloseClientConnections)
	if err := w.api.Create("namespaces", fakeapi.Object{"metadata": map[string]any{"name": "kube-system"}}); err != nil {
		t.Fatal(err)
	}
	var list strings.Builder
	list.WriteString("servers:\n")
	for n := range servers {
		g := newGPUs(w.folder, n, count)
		if err := g.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.port.Close)
		w.servers = append(w.servers, g)
		fmt.Fprintf(&list, "- {name: %s, address: \"%[1]s:14833\", admin: \"unix:%s\", tenant: cluster}\n", g.name, g.path)
	}
	config := filepath.Join(w.folder, "servers.yaml")
	w.file(config, list.String())
	kube := filepath.Join(w.folder, "kubeconfig")
	w.file(kube, fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a,
		clusters: [{name: a, cluster: {server: "%s"}}], contexts: [{name: a, context: {cluster: a, user: a}}],
		users: [{name: a, user: {}}]}`, w.api.URL))
	w.args = append([]string{"controller", "--kubeconfig", kube, "--namespace", own, "--servers", config}, args...)
	return w
}

func (w *world) file(path, text string) {
	w.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

// start starts the controller; more are options beside those of the world.
func (w *world) start(more ...string) {
	w.Helper()
	exe, err := os.Executable()
	if err != nil {
		w.Fatal(err)
	}
	w.program = exec.Command(exe, append(w.args, more...)...)
	w.program.Env = append(os.Environ(), self+"=1")
	w.program.Stdout, w.program.Stderr = &w.log, &w.log
	w.program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.program.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(w.stop)
}

// stop ends the controller.
func (w *world) stop() {
	if w.program != nil {
		_ = w.program.Process.Signal(syscall.SIGTERM)
		_ = w.program.Wait() // says by what signal it ended
		w.program = nil
	}
	if w.Failed() {
		w.Logf("the controller said:\n%.4000s", w.log.String())
	}
}

// used are the program's processor time and its memory, now and at most.
func (w *world) used() (cpu time.Duration, now, most int) {
	w.Helper()
	proc := fmt.Sprintf("/proc/%d/", w.program.Process.Pid)
	stat, err := os.ReadFile(proc + "stat")
	if err != nil {
		w.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		w.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch name {
		case "VmRSS":
			now = n / 1024
		case "VmHWM":
			most = n / 1024
		}
	}
	return time.Duration(user+system) * 10 * time.Millisecond, now, most
}

// await waits until something is so.
func (w *world) await(what string, is func() bool) time.Duration {
	w.Helper()
	began := time.Now()
	for !is() {
		if time.Since(began) > patience {
			w.Fatalf("%s: not within %v; asked were %v", what, patience, w.api.Calls())
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(began)
}

// held are the leases of all servers; made, how many were made.
func (w *world) held() (held, made int) {
	for _, g := range w.servers {
		g.mu.Lock()
		held, made = held+len(g.leases), made+g.made
		g.mu.Unlock()
	}
	return held, made
}

// questions are how often servers were asked.
func (w *world) questions() (n int) {
	for _, g := range w.servers {
		g.mu.Lock()
		n += g.asked
		g.mu.Unlock()
	}
	return n
}

// place makes a claim that has a part of a GPU of the n-th server.
func (w *world) place(name string, n int) {
	w.Helper()
	g := w.servers[n%len(w.servers)]
	gpu := g.status.GPUs[n/len(w.servers)%len(g.status.GPUs)]
	o, err := fakeapi.From(&resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{Kind: "ResourceClaim", APIVersion: "resource.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "users"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "gpu", Driver: names.Driver, Pool: g.name, Device: names.Device(gpu.UUID),
					ShareID: new(types.UID("00000000-0000-4000-8000-000000000001"))}}}}},
	})
	if err == nil {
		err = w.api.Create("resourceclaims", o)
	}
	if err != nil {
		w.Fatal(err)
	}
}

// readiness follows the claims and says when each was ready.
type readiness struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (w *world) follow(ctx context.Context) *readiness {
	r := &readiness{at: map[string]time.Time{}}
	_, version := w.api.List("resourceclaims")
	go func() {
		for {
			list, next, more := w.api.Since("resourceclaims", version)
			for _, text := range list {
				if !bytes.Contains(text, []byte(names.Ready)) {
					continue
				}
				var c resourceapi.ResourceClaim
				if json.Unmarshal(text, &c) != nil {
					continue
				}
				r.mu.Lock()
				if _, known := r.at[c.Name]; !known {
					r.at[c.Name] = time.Now()
				}
				r.mu.Unlock()
			}
			version = next
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}()
	return r
}

func (r *readiness) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.at)
}

func (r *readiness) when(name string) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.at[name]
	return at, ok
}
