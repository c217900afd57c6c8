package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
)

// registry knows the tenants of a file with that text.
func registry(t *testing.T, text string) *tenant.Registry {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tenants")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := tenant.Read(tenant.Files{Tenants: file})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const aliceAndBob = "alice token=alice-token\nbob token=bob-token\n"

// twoTenants serves two, with a user id for each.
func twoTenants(t *testing.T, change func(*Config)) *testServer {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root starts processes of other users")
	}
	return serve(t, func(c *Config) {
		c.Tenants, c.StateDir = registry(t, aliceAndBob), t.TempDir()
		c.Workers.UIDs = spawner.Range{First: 300_000, Last: 300_099}
		c.SameUser = false
		if change != nil {
			change(c)
		}
	})
}

func (s *testServer) as(name string) *link {
	s.t.Helper()
	s.token = []byte(name + "-token")
	l := s.open(transport.KindCUDA)
	l.use(1 << 20)
	return l
}

// field reads a line of a worker's status.
func (s *testServer) field(l *link, name string) string {
	s.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.workerOf(l)))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n"+name+":\t")
	text, _, _ := strings.Cut(rest, "\n")
	return text
}

func TestUserOfEachTenant(t *testing.T) {
	s := twoTenants(t, func(c *Config) { c.Isolation = isolation.Require })
	alice, alice2, bob := s.as("alice"), s.as("alice"), s.as("bob")
	uid := s.field(alice, "Uid")
	if !strings.HasPrefix(uid, "3000") || s.field(alice2, "Uid") != uid || s.field(bob, "Uid") == uid {
		t.Errorf("alice's workers are %q and %q, bob's %q", uid, s.field(alice2, "Uid"), s.field(bob, "Uid"))
	}
	if s.field(bob, "Gid") != s.field(bob, "Uid") || s.field(bob, "Groups") != " " && s.field(bob, "Groups") != "" {
		t.Errorf("bob's worker has groups %q %q", s.field(bob, "Gid"), s.field(bob, "Groups"))
	}
	if s.field(bob, "CapEff") != strings.Repeat("0", 16) || s.field(bob, "Seccomp") != "2" {
		t.Error("bob's worker has capabilities, or no filter")
	}
}

// memory lists what a session's worker shares with other processes, by inode, but for the simulated machine's board.
func (s *testServer) memory(l *link) map[uint64]string {
	s.t.Helper()
	folder := fmt.Sprintf("/proc/%d/fd/", s.workerOf(l))
	entries, err := os.ReadDir(folder)
	if err != nil {
		s.t.Fatal(err)
	}
	found := map[uint64]string{}
	for _, e := range entries {
		name, err := os.Readlink(folder + e.Name())
		if err != nil || !strings.HasPrefix(name, "/memfd:scuda-") || strings.HasPrefix(name, "/memfd:scuda-sim-board") {
			continue
		}
		var st syscall.Stat_t
		if err := syscall.Stat(folder+e.Name(), &st); err != nil {
			s.t.Fatal(err)
		}
		found[st.Ino] = name
	}
	return found
}

// What a worker can write, no other tenant's worker looks at.
func TestTenantsShareNoMemory(t *testing.T) {
	s := serve(t, func(c *Config) { c.Tenants, c.Isolation = registry(t, aliceAndBob), isolation.Off })
	alice, alice2, bob := s.memory(s.as("alice")), s.memory(s.as("alice")), s.memory(s.as("bob"))
	common := 0
	for inode, name := range alice {
		if other, shared := bob[inode]; shared {
			t.Errorf("%s is memory of two tenants' workers, %s", name, other)
		}
		if _, shared := alice2[inode]; shared {
			common++
		}
	}
	if common == 0 {
		t.Error("the workers of one tenant share nothing: the test looks at something else")
	}
}

// What a tenant's sessions may do is the operator's choice. A worker that was made before a change is not used.
func TestProfilesOfTenants(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tenants")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("alice token=alice-token profiles=profile\nbob token=bob-token\n")
	tenants, err := tenant.Read(tenant.Files{Tenants: file})
	if err != nil {
		t.Fatal(err)
	}
	again := make(chan os.Signal)
	s := serve(t, func(c *Config) {
		c.Tenants, c.Reload, c.Profile, c.NoRDMA = tenants, again, isolation.NCCL, true
		c.Metrics = "127.0.0.1:0"
	})
	s.logged("profile=base+nccl") // what those get who have none of their own
	opens := func(name, profile string) {
		t.Helper()
		l := s.as(name)
		if l.welcome.Profile != profile {
			t.Errorf("%s is told of %s, not %s", name, l.welcome.Profile, profile)
		}
		s.workerOf(l) // it is logged
		for line := range strings.Lines(s.log.String()) {
			if strings.Contains(line, "session="+l.welcome.Session) && strings.Contains(line, `"session opened"`) &&
				!strings.Contains(line, "profile="+profile+"\n") {
				t.Errorf("not %s: %s", profile, line)
			}
		}
	}
	opens("alice", "base+profile")
	opens("bob", "base+nccl")
	s.shows(`scuda_workers{state="warm"} 2`)
	write("alice token=alice-token\nbob token=bob-token profiles=base\n")
	again <- syscall.SIGHUP
	s.logged("were read again")
	opens("alice", "base+nccl")
	opens("bob", "base")
}

// Running sessions go on without the spawner, and the next one is started by another.
func TestSpawnerIsKilled(t *testing.T) {
	s := twoTenants(t, nil)
	l := s.as("alice")
	parent := s.field(l, "PPid")
	var pid int
	if _, err := fmt.Sscan(parent, &pid); err != nil || pid == os.Getpid() {
		t.Fatalf("the worker's parent is %s, %v", parent, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !l.alive() {
		t.Error("the session ends with the spawner")
	}
	other := s.as("bob")
	if !other.alive() || s.field(other, "PPid") == parent {
		t.Error("the next session has no spawner of its own")
	}
	l.leave()
	s.logged("session closed")
}

// With a spawner that is a service of its own, new sessions are refused with the reason until it is there again.
func TestSpawnerOfAServiceIsGone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "spawner")
	run := func() context.CancelFunc {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- spawner.Dial(ctx, socket, spawner.Config{Cgroup: spawner.CgroupNone}, slog.New(slog.DiscardHandler))
		}()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	stop := run()
	s := serve(t, func(c *Config) { c.Spawner = socket })
	l := s.open(transport.KindCUDA)
	stop()
	for { // a worker may be ready yet
		_, err := s.dial(hello(transport.KindCUDA))
		if err != nil {
			if !errors.Is(err, transport.ErrServer) || strings.Contains(err.Error(), "spawner") {
				t.Errorf("refused with %v", err)
			}
			s.logged("scuda-spawner.service") // the remedy is the operator's
			break
		}
	}
	if !l.alive() {
		t.Error("the session ends with the spawner")
	}
	defer run()()
	s.until("a session after the spawner came again", func() bool {
		l, err := s.dial(hello(transport.KindCUDA))
		return err == nil && l.alive()
	})
}

// What is required and not there keeps the server from serving, with what to do.
func TestRequire(t *testing.T) {
	err := Serve(t.Context(), Config{
		Addr: "127.0.0.1:0", GPU: "sim", CacheDir: "none", Stderr: io.Discard, Isolation: isolation.Require,
		Workers: spawner.Config{Cgroup: spawner.CgroupNone}})
	if !errors.Is(err, isolation.ErrMissing) || !strings.Contains(err.Error(), "uid (") ||
		!strings.Contains(err.Error(), "scuda-spawner.service") {
		t.Errorf("%v", err)
	}
}

// Everything that is missing has a line of its own.
func TestMissingIsSaid(t *testing.T) {
	s := serve(t, func(c *Config) { c.SameUser, c.Workers.Cgroup = false, spawner.CgroupAuto })
	s.logged(`msg="workers are without uid" reason="the server is not root and has no spawner" remedy="start the`)
	s.logged(`msg="workers are without cgroup"`)
}
