package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/mps"
	"scuda.dev/scuda/server/mps/mpstest"
	"scuda.dev/scuda/server/probe"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
)

// underMPS serves with a stand-in for NVIDIA's program, and gives where tenants have their folders.
func underMPS(t *testing.T, change func(*Config)) (*testServer, *admin.Client, string) {
	t.Helper()
	folder, err := os.MkdirTemp("", "mps") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	s, c := administered(t, func(c *Config) {
		c.MPS, c.mpsControl, c.Workers.Folder = MPSOn, mpstest.Install(t), filepath.Join(folder, "w")
		c.mpsPatience = time.Minute // the stand-in is this test's program, which starts slowly on a busy machine
		if change != nil {
			change(c)
		}
	})
	return s, c, filepath.Join(folder, "w")
}

// pipes are the folders of the daemons of tenants.
func pipes(t *testing.T, folder string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(folder, "*", "mps"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func readText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// Each tenant has a daemon in its own folder; a session that is ended is taken leave of while its process lives, and
// all daemons end with the server.
func TestMPSOfTenants(t *testing.T) {
	s, c, folder := underMPS(t, func(c *Config) { c.Tenants = registry(t, aliceAndBob) })
	var workers []int
	for _, token := range []string{"alice-token", "bob-token"} {
		s.token = []byte(token)
		s.open(transport.KindCUDA)
	}
	all := list(t, c, 2)
	for _, x := range all {
		workers = append(workers, x.Worker)
		env := environOf(t, x.Worker)
		if env["HOME"] == "" || env["HOME"] == "/" {
			t.Errorf("the worker of %s is at home in %q", x.Tenant, env["HOME"])
		}
	}
	if list := pipes(t, folder); len(list) != 2 {
		t.Fatalf("the daemons are in %q", list)
	}
	for _, p := range pipes(t, folder) {
		text := strconv.Itoa(workers[0]) + "\n" + strconv.Itoa(workers[1]) + "\n"
		if err := os.WriteFile(filepath.Join(p, mpstest.Clients), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.End(t.Context(), all[0].ID, "enough"); err != nil {
		t.Fatal(err)
	}
	want := "terminate_client " + strconv.Itoa(mpstest.Server) + " " + strconv.Itoa(workers[0]) + " alive\n"
	told := 0
	for _, p := range pipes(t, folder) {
		text := readText(t, filepath.Join(p, mpstest.Commands))
		told += strings.Count(text, want)
		if strings.Contains(text, "terminate_client "+strconv.Itoa(mpstest.Server)+" "+strconv.Itoa(workers[1])) {
			t.Errorf("the other one was ended, too:\n%s", text)
		}
	}
	if told != 1 {
		t.Errorf("%d daemons were told %q", told, want)
	}
	list(t, c, 1)
	s.stop()
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	for _, p := range pipes(t, folder) {
		control := mps.Control{Program: mpstest.Install(t), Folder: p}
		if _, err := mps.Servers(t.Context(), &control); err == nil {
			t.Errorf("the daemon in %s goes on", p)
		}
	}
}

// environOf is what a process was started with.
func environOf(t *testing.T, pid int) map[string]string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for v := range strings.SplitSeq(string(b), "\x00") {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	return env
}

// A daemon that dies is started again, sessions go on meanwhile, and ready workers, whose contexts are lost, are
// replaced.
func TestMPSDaemonDies(t *testing.T) {
	s, c, folder := underMPS(t, func(c *Config) { c.Metrics, c.mpsLook = "127.0.0.1:0", 10*time.Millisecond })
	a := s.open(transport.KindCUDA)
	s.until("a daemon", func() bool { return strings.Count(s.log.String(), "an MPS daemon was started") == 1 })
	s.shows(`scuda_mps_up{tenant="anyone"} 1`)
	s.shows(`scuda_mps_restarts_total{tenant="anyone"} 0`)
	pipe := pipes(t, folder)[0]
	s.until("the server of the daemon is known", func() bool { // when it is asked for again, the first answer was read
		asked, _ := os.ReadFile(filepath.Join(pipe, mpstest.Commands))
		return strings.Count(string(asked), "get_server_list") > 1
	})
	if err := os.WriteFile(filepath.Join(pipe, mpstest.Lost), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.shows(`scuda_mps_servers_lost_total{tenant="anyone"} 1`)
	if err := os.Remove(filepath.Join(pipe, mpstest.Lost)); err != nil {
		t.Fatal(err)
	}
	control := mps.Control{Program: mpstest.Install(t), Folder: pipe}
	if err := os.WriteFile(filepath.Join(pipe, mpstest.Broken), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Ask(t.Context(), "quit"); err != nil {
		t.Fatal(err)
	}
	s.logged("an MPS daemon has ended")
	s.shows(`scuda_mps_up{tenant="anyone"} 0`)
	if err := os.Remove(filepath.Join(pipe, mpstest.Broken)); err != nil {
		t.Fatal(err)
	}
	if !a.alive() {
		t.Error("the session has ended with the daemon")
	}
	s.until("a new session", func() bool { // maybe by a worker that was being started when the daemon ended
		_, err := s.dial(hello(transport.KindCUDA))
		return err == nil
	})
	started := func() int { return strings.Count(s.log.String(), "an MPS daemon was started") }
	s.until("a new daemon for the next worker", func() bool { return started() > 1 })
	if _, err := mps.Servers(t.Context(), &control); err != nil {
		t.Errorf("the new one: %v", err)
	}
	s.shows(`scuda_mps_up{tenant="anyone"} 1`)
	s.shows(`scuda_mps_restarts_total{tenant="anyone"} 1`)
	s.shows(`scuda_mps_servers_lost_total{tenant="anyone"} 1`)
	if n := started(); n != 2 {
		t.Errorf("a daemon was started %d times", n)
	}
	_ = c
}

// What a lease says becomes limits of its workers; a tenant's sessions have no others, and workers are told apart by
// what they have.
func TestMPSLimits(t *testing.T) {
	s := supervising(t, "a token=token-of-a share=50\n", nil)
	id, limits := tenant.Identity{Name: "a"}, config.Limits{}
	if of := whoseOf(s, bearer{id, "x"}, &lease.Terms{Share: 25}, &limits); of != (whose{tenant: "a"}) {
		t.Errorf("without MPS: %+v", of)
	}
	s.mps = &daemons{s: s}
	limits.LeaseVRAM = config.GiB
	for _, c := range []struct {
		who  bearer
		want mps.Limits
	}{
		{bearer{id, "x"}, mps.Limits{Percent: 25, Memory: 2 << 30}}, {bearer{Identity: id}, mps.Limits{Memory: 2 << 30}},
	} {
		of := whoseOf(s, c.who, &lease.Terms{Share: 25, GPUs: []string{"GPU-1", "GPU-2"}}, &limits)
		if of.limits != c.want || of.gpus != "GPU-1,GPU-2" {
			t.Errorf("%+v: %+v", c.who, of)
		}
	}
	s.cfg.Warm = 3
	for limit, want := range map[uint64]uint64{0: 57, 10: 10, 57: 57, 100: 57} {
		if got := s.mps.bound(limit); got != want {
			t.Errorf("of %d sessions %d are allowed, not %d", limit, got, want)
		}
	}
	if got := (*daemons)(nil).bound(100); got != 100 {
		t.Errorf("without MPS %d", got)
	}
}

// What the server lacks for MPS is an error where it is asked for, and said otherwise.
func TestMPSIsMissing(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.Workers.Folder = "" }, "no folders of their own"},
		{func(*Config) { t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps") }, "an MPS of yours (/run/mps)"},
	} {
		cfg := Config{Addr: "127.0.0.1:0", GPU: "sim", CacheDir: "none", SameUser: true, MPS: MPSOn,
			mpsControl: "/nonexistent", Workers: spawner.Config{Cgroup: spawner.CgroupNone,
				Folder: filepath.Join(t.TempDir(), "w")}}
		c.change(&cfg)
		err := Serve(t.Context(), cfg)
		if !errors.Is(err, ErrMPS) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, not %q", err, c.says)
		}
		t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "")
	}
	s, _, folder := underMPS(t, func(c *Config) { c.MPS = MPSAuto })
	s.open(transport.KindCUDA)
	if s.logged(`msg="workers run without MPS" reason="the GPUs are simulated"`); len(pipes(t, folder)) > 0 {
		t.Error("there is a daemon")
	}
	for _, text := range []string{"on", "off", "auto"} {
		if m, err := ParseMPS(text); err != nil || string(m) != text {
			t.Errorf("%s: %v, %v", text, m, err)
		}
	}
	if _, err := ParseMPS("yes"); !errors.Is(err, ErrMPS) {
		t.Errorf("got %v", err)
	}
}

// A daemon that cannot be started is tried again after a pause that grows, and clients are told.
func TestMPSDaemonIsBroken(t *testing.T) {
	s := &supervisor{}
	x := &daemon{of: &daemons{s: s, by: map[string]*daemon{}}, tenant: "a"}
	var waits []time.Duration
	for range 8 {
		x.fails(errors.New("it is broken"))
		waits = append(waits, x.wait)
	}
	if !slices.IsSorted(waits) || waits[0] != mpsLeastWait || waits[7] != mpsMostWait {
		t.Errorf("it waits %v", waits)
	}
	if err := x.run(t.Context()); err == nil || !strings.Contains(err.Error(), "it failed, and is started again in ") {
		t.Errorf("got %v", err)
	}
	x.of.by["a"] = x
	x.workers = mps.Contexts
	if _, err := x.of.join(t.Context(), whose{tenant: "a"}); err == nil || !strings.Contains(err.Error(), "room for 60") {
		t.Errorf("a server that is full: %v", err)
	}
}

// A worker's driver finds the daemon by the worker's environment.
func TestMPSEnvironment(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range []string{"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"} {
		t.Setenv(name, "") // and afterwards as before
	}
	w := &worker{}
	if err := w.joinMPS(); err != nil || os.Getenv("CUDA_MPS_PIPE_DIRECTORY") != "" {
		t.Errorf("without MPS: %v", err)
	}
	w.cfg = workerConfig{MPS: "/x", MPSLimits: mps.Limits{Percent: 30, Memory: 1 << 30}, MPSGPUs: 1}
	if err := w.joinMPS(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"CUDA_MPS_PIPE_DIRECTORY": filepath.Join(home, "mps"),
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M"} {
		if got := os.Getenv(name); got != want {
			t.Errorf("%s=%s, not %s", name, got, want)
		}
	}
	t.Setenv("HOME", "/")
	if err := w.joinMPS(); !errors.Is(err, mps.ErrFolder) {
		t.Errorf("without a folder: %v", err)
	}
}

// Behind a fault an MPS server takes no clients before those that it has have ended: the tenant's ready workers do.
func TestMPSServerInFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := supervising(t, "a token=token-of-a\n", nil)
		var ended []string
		s.pools = newPools(ctx, func(ctx context.Context, of whose) *pool {
			start := func(ctx context.Context) (*process, error) {
				none := func() metrics.Glance { return metrics.Glance{} }
				return &process{exited: make(chan struct{}), tenant: of.tenant, glance: none}, ctx.Err()
			}
			p := newPool(ctx, 1, start, func(error) {})
			p.discard = func(w *process) {
				if ctx.Err() == nil {
					ended = append(ended, w.tenant)
				}
			}
			return p
		})
		s.pools.keep(whose{tenant: "a"})
		s.pools.keep(whose{tenant: "a", gpus: "GPU-1"})
		s.pools.keep(whose{tenant: "b"})
		d := &daemons{s: s}
		for _, c := range []struct {
			on   *daemons
			err  error
			want []string
		}{
			{d, errors.New("it hung"), nil},
			{d, &workerError{"no device", cuda.CUDA_ERROR_NO_DEVICE}, nil},
			{nil, &workerError{"not ready", cuda.CUDA_ERROR_MPS_SERVER_NOT_READY}, nil},
			{d, &workerError{"not ready", cuda.CUDA_ERROR_MPS_SERVER_NOT_READY}, []string{"a", "a"}},
		} {
			synctest.Wait()
			if c.on.refused("a", c.err); !slices.Equal(ended, c.want) {
				t.Errorf("%v: the ready workers of %q were ended, not those of %q", c.err, ended, c.want)
			}
		}
		cancel()
		s.pools.wait()
	})
	f := failure(fmt.Errorf("look at the GPUs: %w", &probe.Error{Call: "cuInit", Result: cuda.CUDA_ERROR_NO_DEVICE}))
	if f.Result != cuda.CUDA_ERROR_NO_DEVICE || failure(errors.New("else")).Result != cuda.CUDA_SUCCESS {
		t.Errorf("a worker that cannot serve says %+v", f)
	}
}
