package fleet

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/transport"
)

// gpuServer starts a server with a simulated GPU, TLS and two tenants, and says how the controller asks it.
func gpuServer(t testing.TB) *Server {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "tenants"),
		[]byte("ops token=token-of-ops role=admin\nteam token=token-of-team\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "../../../build/scuda", "serve", "127.0.0.1:0", "--gpu", "sim:2",
		"--sim-memory", "64MiB", "--tls", "always", "--tenants", filepath.Join(folder, "tenants"), "--state-dir", folder,
		"--admin", "none", "--usage-log", "none", "--cache-dir", "none", "--worker-folder", "none")
	cmd.Stderr = t.Output()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("%v (make build makes the server)", err)
	}
	t.Cleanup(func() {
		_ = cmd.Cancel()
		_ = cmd.Wait() // says by what signal it ended
	})
	s := &Server{Name: "gpu1", AdminToken: filepath.Join(folder, "token")}
	for lines := bufio.NewScanner(out); s.Address == "" || s.Fingerprint == ""; {
		if !lines.Scan() {
			t.Fatal("the server ended")
		}
		if at, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
			s.Address = at
		}
		if f, ok := strings.CutPrefix(lines.Text(), "fingerprint "); ok {
			s.Fingerprint = f
		}
	}
	return s
}

// A server elsewhere is asked over its port, with the token that the file has at that moment.
func TestOverTLS(t *testing.T) {
	s := gpuServer(t)
	ask, ctx := Dial(s), t.Context()
	if err := s.checkAdmin(); err != nil {
		t.Error(err)
	}
	token := func(text string) {
		if err := os.WriteFile(s.AdminToken, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask.Status(ctx); err == nil {
		t.Error("there is no file with a token yet")
	}
	token("wrong")
	if _, err := ask.Status(ctx); !errors.Is(err, transport.ErrToken) {
		t.Error(err)
	}
	token("token-of-team") // who makes leases of its own, and of nobody else
	if _, err := ask.Grant(ctx, &admin.LeaseRequest{Tenant: "ops", Seconds: 60}); !errors.Is(err, admin.ErrForbidden) {
		t.Error(err)
	}
	token("token-of-ops")
	st, err := ask.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(st.GPUs) != 2 || st.Fingerprint != s.Fingerprint || len(devices(s, st)) != 2 {
		t.Errorf("%+v", st)
	}
	granted, err := ask.Grant(ctx, &admin.LeaseRequest{Tenant: "team", GPUs: st.GPUs[1].UUID, Seconds: 60, Label: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := ask.Leases(ctx); err != nil || len(all) != 1 || all[0].ID != granted.ID {
		t.Errorf("%+v, %v", all, err)
	}
	if err := ask.Revoke(ctx, granted.ID, "over"); err != nil {
		t.Error(err)
	}
	if err := ask.Revoke(ctx, granted.ID, "over"); !errors.Is(err, lease.ErrNone) {
		t.Error(err)
	}
	other := *s
	other.Fingerprint = "sha256:" + strings.Repeat("0", 64)
	if _, err := Dial(&other).Status(ctx); !errors.Is(err, transport.ErrUntrusted) {
		t.Error(err)
	}
	host, _, _ := net.SplitHostPort(s.Address)
	other.Admin = net.JoinHostPort(host, "1")
	if _, err := Dial(&other).Status(ctx); err == nil {
		t.Error("the admin address is not used")
	}
}

// BenchmarkAsk is what a question costs over a port, by a connection that is kept and by a new one each time. The
// controller's own part is in cpu-µs/op.
func BenchmarkAsk(b *testing.B) {
	s := gpuServer(b)
	if err := os.WriteFile(s.AdminToken, []byte("token-of-ops\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	kept := Dial(s)
	for name, dial := range map[string]func() Admin{
		"kept": func() Admin { return kept }, "new": func() Admin { return Dial(s) },
	} {
		b.Run(name, func(b *testing.B) {
			used := func() float64 {
				var u syscall.Rusage
				_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
				return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
			}
			before := used()
			for b.Loop() {
				ask := dial()
				if _, err := ask.Status(b.Context()); err != nil {
					b.Fatal(err)
				}
				if a, ok := ask.(*asker); ok && name == "new" {
					a.client.Close()
				}
			}
			b.ReportMetric((used()-before)/float64(b.N), "cpu-µs/op")
		})
	}
}
