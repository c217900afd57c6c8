package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// crowded is a server with all that makes sessions different from each other: tenants with limits, TLS, leases, a
// queue, a usage log and metrics.
type crowded struct {
	*server
	environ []string // of programs, but for their tenant
	admin   []string
	metrics string
}

const crowd = 3 // tenants

func serveCrowd(t *testing.T, more ...string) *crowded {
	t.Helper()
	folder := t.TempDir()
	text := ""
	for n := range crowd {
		text += fmt.Sprintf("tenant%d token=token-of-tenant-%d share=%d max-vram-per-tenant=512MiB\n", n, n, 100*(n+1))
	}
	tenants, socket := filepath.Join(folder, "tenants"), filepath.Join(folder, "admin")
	if err := os.WriteFile(tenants, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, fingerprint := serveTLS(t, append([]string{"--tenants", tenants, "--admin", socket, "--metrics", "127.0.0.1:0",
		"--usage-log", filepath.Join(folder, "usage"), "--log", "warn"}, more...)...)
	return &crowded{s, s.env("SCUDA_FINGERPRINT=" + fingerprint), []string{"SCUDA_ADMIN=" + socket},
		s.await(s.out, `metrics on (http://\S+)`)[1]}
}

// of is a tenant's environment.
func (c *crowded) of(n int) []string {
	return append(slices.Clip(c.environ), fmt.Sprint("SCUDA_TOKEN=token-of-tenant-", n%crowd))
}

// a program's end, for goroutines that are not the test's.
func finish(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), env...)
	text, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %v: %w\n%s", filepath.Base(name), args, err, text)
	}
	return text, err
}

// one opens a session and ends it, in one of the ways in which that happens.
func (c *crowded) one(ctx context.Context, n int) error {
	switch n % 5 {
	default:
		_, err := finish(ctx, c.of(n), program("first_tensor"))
		return err
	case 1: // all kinds of memory, none given back
		_, err := finish(ctx, c.of(n), program("canary"), kernels, "plant")
		return err
	case 2: // NVML
		_, err := finish(ctx, c.of(n), program("nvml"))
		return err
	case 3: // killed in the middle
		p := exec.CommandContext(ctx, program("hold"), kernels, "8", "loop")
		p.Env = append(os.Environ(), c.of(n)...)
		out, err := p.StdoutPipe()
		if err == nil {
			err = p.Start()
		}
		if err != nil {
			return err
		}
		for text, b := "", make([]byte, 256); !strings.Contains(text, "ready\n"); {
			got, err := out.Read(b)
			if text += string(b[:got]); err != nil {
				return fmt.Errorf("hold: %w\n%s", err, text)
			}
		}
		_ = p.Process.Kill()
		_ = p.Wait() // says that it was killed
		return nil
	case 4: // under a lease of its own
		text, err := finish(ctx, c.admin, scuda, "lease", "create", "--tenant", fmt.Sprint("tenant", n%crowd), "--for",
			"10m", "--memory", "64MiB", "--json")
		if err != nil {
			return err
		}
		var l leased
		if err := json.Unmarshal(text, &l); err != nil {
			return err
		}
		if _, err := finish(ctx, append(c.of(n), "SCUDA_TOKEN="+l.Credential), program("first_tensor")); err != nil {
			return err
		}
		_, err = finish(ctx, c.admin, scuda, "lease", "revoke", l.ID)
		return err
	}
}

// several opens and ends sessions from one number to another, as many at once as at says.
func (c *crowded) several(t *testing.T, from, to, at int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var next atomic.Int64
	next.Store(int64(from))
	var all sync.WaitGroup
	for range at {
		all.Go(func() {
			for n := int(next.Add(1)) - 1; n < to && ctx.Err() == nil; n = int(next.Add(1)) - 1 {
				one, over := context.WithTimeout(ctx, patience)
				if err := c.one(one, n); err != nil && ctx.Err() == nil {
					t.Errorf("session %d: %v", n, err)
					cancel()
				}
				over()
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// footprint is what a server has of its machine.
type footprint struct{ descriptors, threads, processes, goroutines, kib int }

func (c *crowded) footprint(t *testing.T) (h footprint) {
	t.Helper()
	pid := c.cmd.Process.Pid
	h.descriptors = entries(t, fmt.Sprintf("/proc/%d/fd", pid))
	h.processes = len(tree(t, pid))
	h.threads = entries(t, fmt.Sprintf("/proc/%d/task", pid))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(after, &h.kib); err != nil {
		t.Fatal(err)
	}
	if m := scrape(t, c.metrics)["go_goroutines"]; m != nil {
		h.goroutines = int(m.GetMetric()[0].GetGauge().GetValue())
	}
	return h
}

func entries(t *testing.T, folder string) int {
	t.Helper()
	list, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// atRest waits until no session is left and gives what the server has then.
func (c *crowded) atRest(t *testing.T, at func(footprint) bool) (h footprint) {
	t.Helper()
	eventually(t, patience, "the server comes to rest", func() bool {
		if len(list(t, c.admin)) > 0 {
			return false
		}
		h = c.footprint(t)
		return at(h)
	})
	return h
}

// Settings, before TestMain takes them away.
var (
	enduranceSetting = os.Getenv("SCUDA_ENDURANCE")
	togetherSetting  = os.Getenv("SCUDA_TOGETHER")
)

// many is what a setting says, if it says anything.
func many(t *testing.T, setting string, usual int) int {
	t.Helper()
	if setting == "" {
		return usual
	}
	n, err := strconv.Atoi(setting)
	if err != nil || n < 1 {
		t.Fatalf("%q is no number of sessions", setting)
	}
	return n
}

// Sessions of several tenants that come, wait for a place, and end in one way or another leave nothing behind: no
// process, descriptor, thread, goroutine, file, lease or memory. SCUDA_ENDURANCE says how many there are.
func TestSessionsComeAndGo(t *testing.T) {
	sessions := many(t, enduranceSetting, 20)
	c := serveCrowd(t, "--max-sessions", "3")
	warm := max(sessions/10, 10)
	c.several(t, 0, warm, 5)
	last := footprint{}
	before := c.atRest(t, func(h footprint) bool { // twice the same: the next worker is ready
		same := h.processes == last.processes && h.descriptors == last.descriptors && h.goroutines == last.goroutines
		last = h
		return same
	})
	began := time.Now()
	c.several(t, warm, warm+sessions, 5)
	took := time.Since(began)
	// Threads stay with Go's runtime; a loaded machine has made more of them than were needed before.
	after := c.atRest(t, func(h footprint) bool {
		return h.processes <= before.processes && h.descriptors <= before.descriptors && h.goroutines <= before.goroutines
	})
	if after.threads > before.threads+24 || after.kib > before.kib+16<<10+sessions/2 {
		t.Errorf("before %+v, after %d sessions %+v", before, sessions, after)
	}
	t.Logf("%d sessions in %v; before %+v, after %+v", sessions, took.Round(time.Second), before, after)
	if all := told[[]leased](t, c.admin, "lease", "list"); len(all) > 0 {
		t.Errorf("leases are left: %+v", all)
	}
	cuda := 0
	for _, sum := range told[[]struct{ Sessions int }](t, c.admin, "usage", "--by", "tenant") {
		cuda += sum.Sessions
	}
	nvml := 0
	for n := range warm + sessions {
		if n%5 == 2 {
			nvml++
		}
	}
	if cuda != warm+sessions-nvml {
		t.Errorf("the usage log has %d sessions of %d", cuda, warm+sessions-nvml)
	}
	text, err := finish(t.Context(), c.of(0), scuda, "info", "--json")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `"memory_used_bytes": 0`) {
		t.Errorf("memory is left: %s", text)
	}
}

// Many sessions are open together, each of which has its own memory. SCUDA_TOGETHER says how sessions.
func TestSessionsTogether(t *testing.T) {
	sessions := many(t, togetherSetting, 24)
	c := serveCrowd(t)
	idle := c.footprint(t)
	var open []*process
	for n := range sessions {
		p := start(t, c.of(n), program("hold"), kernels, "2")
		open = append(open, p)
		if n%8 == 7 { // not all at once: a machine with few processors starts them one after the other anyway
			p.await(p.out, "^ready$")
		}
	}
	for _, p := range open {
		p.await(p.out, "^ready$")
	}
	if all := list(t, c.admin); len(all) != sessions {
		t.Errorf("%d of %d sessions are listed", len(all), sessions)
	}
	workers := 0
	for _, pid := range tree(t, c.cmd.Process.Pid)[1:] {
		workers += proportional(pid)
	}
	busy := c.footprint(t)
	t.Logf("%d sessions: the supervisor has %d KiB (alone %d), its workers %d KiB together, %d each", sessions, busy.kib,
		idle.kib, workers, workers/sessions)
	for _, p := range open {
		p.stdin.Close()
	}
	for n, p := range open {
		if code := p.wait(patience); code != 0 {
			t.Errorf("session %d: exit status %d\n%s%s", n, code, p.out, p.err)
		}
	}
	c.atRest(t, func(footprint) bool { return true })
}

// proportional is a process's part of the memory that processes share, in KiB.
func proportional(pid int) (kib int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)) // it may have ended
	_, after, _ := strings.Cut(string(text), "\nPss:")
	_, _ = fmt.Sscan(after, &kib)
	return kib
}
