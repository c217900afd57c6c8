package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/transport"
)

// administered gives a server with an admin interface, and a client of that.
func administered(t *testing.T, change func(*Config)) (*testServer, *admin.Client) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin")
	s := serve(t, func(c *Config) {
		c.Admin = path
		if change != nil {
			change(c)
		}
	})
	var c *admin.Client
	s.until("the admin interface answers", func() (ok bool) {
		got, err := admin.Dial(t.Context(), path)
		c = got
		return err == nil
	})
	t.Cleanup(c.Close)
	return s, c
}

// list gives the sessions, of which there have to be so many.
func list(t *testing.T, c *admin.Client, n int) []admin.Session {
	t.Helper()
	all, err := c.Sessions(t.Context())
	if err != nil || len(all) != n {
		t.Fatalf("%d sessions, not %d: %+v, %v", len(all), n, all, err)
	}
	return all
}

func TestSessionsAreListed(t *testing.T) {
	began := time.Now()
	s, c := administered(t, func(c *Config) { c.MaxSessions = 7 })
	list(t, c, 0)
	h := hello(transport.KindCUDA)
	h.Host, h.User, h.Command, h.PID = "laptop", "ada", "/usr/bin/train\x1b[2J", 4711
	a, err := s.dial(h)
	if err != nil {
		t.Fatal(err)
	}
	a.use(8 << 20)
	b := s.open(transport.KindNVML)
	if r, _, err := b.call(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8)); r != 0 || err != nil {
		t.Fatal(r, err)
	}
	all := list(t, c, 2)
	x, y := all[0], all[1]
	if x.ID != a.welcome.Session || x.Kind != admin.KindCUDA || x.Tenant != "anyone" || x.Host != "laptop" ||
		x.User != "ada" || x.Program != "train?[2J" || x.PID != 4711 || x.Worker <= 1 ||
		x.Address != "127.0.0.1" || x.TLS || x.Calls == nil ||
		*x.Calls < 2 || x.Opened.Before(began) || x.Age < 0 || x.Quota != 0 || x.Counted != nil ||
		x.State != admin.StateBusy && x.State != admin.StateIdle {
		t.Errorf("%+v", x)
	}
	s.until("NVML's figures, which are kept for a moment, are of this session", func() bool {
		g := list(t, c, 2)[0].GPUs
		return len(g) == 1 && g[0].Index == 0 && g[0].Memory >= 8<<20 && strings.HasPrefix(g[0].UUID, "GPU-")
	})
	if y.ID != b.welcome.Session || y.Kind != admin.KindNVML || y.State != admin.StateOpen || y.Calls != nil ||
		len(y.GPUs) != 0 {
		t.Errorf("%+v", y)
	}
	st, err := c.Status(t.Context())
	if err != nil || st.CUDA != (admin.Places{Taken: 1, Limit: 7}) || st.NVML.Taken != 1 || st.NVML.Limit != DefaultNVML ||
		st.Draining || st.Uptime < 0 || st.Version != release.Version() || st.Address != s.addr {
		t.Errorf("%+v, %v", st, err)
	}
	a.leave()
	b.conn.Close()
	s.until("the sessions are gone", func() bool {
		all, err := c.Sessions(t.Context())
		return err == nil && len(all) == 0
	})
}

// With a limit it is said how much is counted against it.
func TestCountedMemoryIsListed(t *testing.T) {
	s, c := administered(t, func(c *Config) { c.Limits = &config.Limits{VRAM: 32 << 20} })
	a := s.open(transport.KindCUDA)
	a.use(8 << 20)
	x := list(t, c, 1)[0]
	if x.Quota != 32<<20 || x.Counted == nil || *x.Counted != 8<<20 {
		t.Errorf("%+v", x)
	}
}

// A session that is ended is told why; the others go on. When the answer is there, it is gone.
func TestEndOfASession(t *testing.T) {
	s, c := administered(t, func(c *Config) { c.Metrics = "127.0.0.1:0" })
	a, b := s.open(transport.KindCUDA), s.open(transport.KindCUDA)
	a.use(8 << 20)
	b.use(8 << 20)
	if err := c.End(t.Context(), a.welcome.Session, "the GPU is needed\x1b[2J"); err != nil {
		t.Fatal(err)
	}
	if x := list(t, c, 1)[0]; x.ID != b.welcome.Session {
		t.Errorf("%+v is left", x)
	}
	if _, _, err := a.message(); err != nil || len(a.notices) != 1 ||
		a.notices[0] != "an administrator ends this session: the GPU is needed?[2J" {
		t.Errorf("it was told %q, %v", a.notices, err)
	}
	if a.alive() || !b.alive() {
		t.Error("not this session, or not this one alone, has ended")
	}
	if err := c.End(t.Context(), a.welcome.Session, ""); !errors.Is(err, admin.ErrNoSession) {
		t.Errorf("a second end: %v", err)
	}
	s.logged(`msg="the server ended the session"`)
	s.logged("an administrator ended it: the GPU is needed")
	s.shows(`scuda_sessions_ended_total{how="killed",kind="cuda"} 1`)
	n := s.open(transport.KindNVML)
	if r, _, err := n.call(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8)); r != 0 || err != nil {
		t.Fatal(r, err)
	}
	s.logged("kind=nvml") // its worker answers as soon as it has the connection, before the session can be named
	if err := c.End(t.Context(), n.welcome.Session, "bye"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.message(); err != nil || len(n.notices) != 1 ||
		n.notices[0] != "an administrator ends this session: bye" {
		t.Errorf("NVML's client was told %q, %v", n.notices, err)
	}
	list(t, c, 1)
}

// A server that is drained takes nobody, its sessions go on, and it takes them again when it is told so.
func TestDrainByAdministrator(t *testing.T) {
	s, c := administered(t, func(c *Config) { c.Metrics = "127.0.0.1:0" })
	a := s.open(transport.KindCUDA)
	a.use(8 << 20)
	for range 2 {
		if st, err := c.Drain(t.Context(), true); err != nil || !st.Draining || st.CUDA.Taken != 1 {
			t.Fatalf("%+v, %v", st, err)
		}
	}
	for _, kind := range []string{transport.KindCUDA, transport.KindNVML} {
		_, err := s.dial(hello(kind))
		if !errors.Is(err, transport.ErrDraining) || !strings.Contains(err.Error(), "administrator") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if l := s.open(transport.KindInfo); l.welcome.Load == nil || !l.welcome.Load.Draining {
		t.Errorf("clients are told %+v", l.welcome.Load)
	}
	s.shows("scuda_draining 1")
	if code, text := s.get("/readyz"); code != 503 {
		t.Errorf("ready: %d %s", code, text)
	}
	if !a.alive() {
		t.Error("the session that was there has ended")
	}
	if st, err := c.Drain(t.Context(), false); err != nil || st.Draining {
		t.Fatalf("%+v, %v", st, err)
	}
	if code, _ := s.get("/readyz"); code != 200 {
		t.Error("it is not ready again")
	}
	s.open(transport.KindCUDA).use(1 << 20)
}

// Whoever hands out a server's GPUs learns from its status what they are.
func TestStatusHasTheGPUs(t *testing.T) {
	_, c := administered(t, func(c *Config) {
		c.SimDevices, c.SimMemory, c.Sim = 2, 80<<20, "name=A card,cc=9.0,driver=13000"
	})
	st, err := c.Status(t.Context())
	if err != nil || len(st.GPUs) != 2 || st.Driver != "simulated" || st.CUDAVersion != "13.0" || st.Fingerprint != "" {
		t.Fatalf("%+v, %v", st, err)
	}
	for _, g := range st.GPUs {
		if g.Name != "A card" || g.Memory != 80<<20 || g.Capability != "9.0" || !strings.HasPrefix(g.UUID, "GPU-") {
			t.Errorf("%+v", g)
		}
	}
	if st.GPUs[0].UUID == st.GPUs[1].UUID {
		t.Error("both have one UUID")
	}
}

// Clients learn how full the server is, and of their own tenant's sessions.
func TestLoadOfTheServer(t *testing.T) {
	s := serve(t, func(c *Config) { c.MaxSessions = 5 })
	a := s.open(transport.KindCUDA)
	a.use(1 << 20)
	if a.welcome.Load != nil {
		t.Error("a session is told what only information is asked for")
	}
	l := s.open(transport.KindInfo).welcome.Load
	if l == nil || l.Sessions != 1 || l.Places != 5 || l.Mine != 1 || l.Draining || l.Uptime <= 0 {
		t.Errorf("%+v", l)
	}
}

// A worker is not let in, though it is of the server's user.
func TestWorkersAreNoAdministrators(t *testing.T) {
	s := &supervisor{}
	s.sessions.init(0, 0, 0)
	s.sessions.add(&session{id: "a", proc: &process{Worker: &spawner.Worker{PID: 7}}})
	if !s.isWorker(7) || s.isWorker(8) {
		t.Error("workers are not told from others")
	}
}

// A socket that is asked for has to be there; one that the server chose need not.
func TestNoPlaceForTheAdminSocket(t *testing.T) {
	taken := filepath.Join(t.TempDir(), "taken")
	l, err := net.Listen("unix", taken)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cfg := Config{Addr: "127.0.0.1:0", GPU: "sim", SimMemory: 64 << 20, CacheDir: "none", SameUser: true, Admin: taken}
	if err := Serve(ctx, cfg); !errors.Is(err, admin.ErrTaken) {
		t.Errorf("%v", err)
	}
	t.Setenv("RUNTIME_DIRECTORY", filepath.Join(t.TempDir(), "no", "such", "folder"))
	s := serve(t, func(c *Config) { c.Admin = admin.Auto })
	s.logged("there is no admin interface")
	s.open(transport.KindCUDA).use(1 << 20)
}

// Who hears that the server is there may ask it at once.
func TestAdminIsThereFirst(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin")
	asked := make(chan error, 1)
	serve(t, func(c *Config) {
		told := c.Ready
		c.Admin, c.Ready = socket, func(s Status) {
			c, err := admin.Dial(t.Context(), socket)
			if err == nil {
				c.Close()
			}
			asked <- err
			told(s)
		}
	})
	if err := <-asked; err != nil {
		t.Error(err)
	}
}

// An NVML that hangs hides who uses the GPUs, and nothing else.
func TestSessionsWithoutNVML(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		s := &supervisor{log: slog.New(slog.DiscardHandler), gpuTurn: make(chan struct{}, 1)}
		s.sessions.init(0, 0, 0)
		s.readGPUs = func() (gpuList, error) { <-hang; return gpuList{Users: []gpuUser{{GPU: 3, PID: 7}}}, nil }
		glance := func() metrics.Glance { return metrics.Glance{Calls: 5, Active: time.Now()} }
		s.sessions.add(&session{id: "a", opened: time.Now(), proc: &process{Worker: &spawner.Worker{PID: 7}, glance: glance}})
		began := time.Now()
		for range 2 { // the second waits for its turn in vain
			list := desk{s}.Sessions(admin.Who{Admin: true})
			if len(list) != 1 || *list[0].Calls != 5 || len(list[0].GPUs) != 0 {
				t.Errorf("%+v", list)
			}
		}
		if passed := time.Since(began); passed != 2*gpuTimeout {
			t.Errorf("it took %v", passed)
		}
		close(hang)
		s.handlers.Wait()
		if got := s.gpusSoon(); len(got.Users) != 1 {
			t.Errorf("afterwards: %+v", got)
		}
		s.handlers.Wait()
	})
}
