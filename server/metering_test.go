package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/usage"
	"scuda.dev/scuda/transport"
)

// What a session used stands in the log when it has ended, and in the metrics of its tenant.
func TestUsageLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	s := serve(t, func(c *Config) {
		c.Tenants = registry(t, "alice token=alice-token max-vram=8MiB\nbob token=bob-token\n")
		c.UsageLog, c.Metrics = path, "127.0.0.1:0"
	})
	s.token = []byte("alice-token")
	l := s.open(transport.KindCUDA)
	l.use(1 << 20)
	l.leave()
	s.open(transport.KindNVML).conn.Close() // is not metered
	var got []usage.Record
	s.until("a record", func() bool {
		got = nil
		_, err := usage.Records(t.Context(), path, time.Time{}, func(r *usage.Record) { got = append(got, *r) })
		return err == nil && len(got) > 0
	})
	if r := got[0]; len(got) != 1 || r.Tenant != "alice" || r.Program != "test" || r.End != "closed" || r.Calls == 0 ||
		!r.Estimated || r.Seconds <= 0 || r.GPU > r.Seconds || r.Session != l.welcome.Session {
		t.Errorf("%+v", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, text := s.get("/metrics"); !strings.Contains(text, `scuda_tenant_gpu_seconds_total{tenant="alice"}`) ||
		!strings.Contains(text, `scuda_tenant_copied_bytes_total{direction="to_host",tenant="alice"}`) ||
		strings.Contains(text, `seconds_total{tenant="bob"}`) {
		t.Error(text)
	}
}

// The admin interface says what the log has, of tenants that have used something since.
func TestUsageIsAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	began := time.Now()
	s, c := administered(t, func(c *Config) { c.UsageLog = path })
	l := s.open(transport.KindCUDA)
	l.use(1 << 20)
	l.leave()
	s.until("the session is in the log", func() bool {
		u, err := c.Usage(t.Context(), began, "session")
		return err == nil && u.Bad == 0 && len(u.Sums) == 1 && u.Sums[0].Key == l.welcome.Session &&
			u.Sums[0].Tenant == "anyone" && u.Sums[0].Calls > 0
	})
	if u, err := c.Usage(t.Context(), time.Now(), "tenant"); err != nil || u.Sums == nil || len(u.Sums) != 0 {
		t.Errorf("since now: %+v, %v", u, err)
	}
	if err := os.WriteFile(path, []byte("broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if u, err := c.Usage(t.Context(), began, "day"); err != nil || u.Bad != 1 || len(u.Sums) != 0 {
		t.Errorf("a broken log: %+v, %v", u, err)
	}
	_, c = administered(t, func(c *Config) { c.UsageLog = usage.None })
	if _, err := c.Usage(t.Context(), began, "day"); !errors.Is(err, admin.ErrNoUsage) {
		t.Errorf("without a log: %v", err)
	}
}

// Where nobody says where, the log is in the state folder; a server serves without where that cannot be.
func TestUsageLogByDefault(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "state")
	s := serve(t, func(c *Config) { c.StateDir = folder })
	if logs, err := filepath.Glob(filepath.Join(folder, "usage-*.jsonl")); err != nil || len(logs) != 1 {
		t.Errorf("%v, %v", logs, err)
	}
	s.logged("usage log")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, func(c *Config) { c.StateDir = filepath.Join(file, "state") }).logged("there is no usage log")
	none := filepath.Join(t.TempDir(), "state")
	serve(t, func(c *Config) { c.StateDir, c.UsageLog = none, usage.None })
	if _, err := os.Stat(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a log that is switched off: %v", err)
	}
}
