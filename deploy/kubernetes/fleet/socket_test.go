package fleet

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
)

// server is one behind a real admin socket.
type server struct{ revoked []string }

func (*server) Status(admin.Who) admin.Status {
	return admin.Status{Driver: "simulated", GPUs: []admin.GPU{{UUID: "GPU-0a", Name: "A card", Memory: 1 << 30}}}
}
func (*server) Sessions(admin.Who) []admin.Session                   { return nil }
func (*server) End(context.Context, admin.Who, string, string) error { return admin.ErrNoSession }
func (*server) Drain(bool) error                                     { return nil }
func (*server) Leases(admin.Who) []admin.Lease {
	return []admin.Lease{{Lease: lease.Lease{ID: "aa"}}}
}
func (*server) Grant(admin.Who, admin.LeaseRequest) (*admin.Granted, error) {
	return nil, lease.ErrTerms
}
func (*server) Usage(context.Context, admin.Who, time.Time, string) (*admin.Usage, error) {
	return nil, admin.ErrNoUsage
}
func (*server) Renew(admin.Who, string, time.Duration) (*admin.Lease, error) {
	return nil, lease.ErrNone
}
func (s *server) Revoke(_ context.Context, _ admin.Who, id, _ string) error {
	if id != "aa" {
		return lease.ErrNone
	}
	s.revoked = append(s.revoked, id)
	return nil
}

// Servers are asked over their admin sockets, and the errors are those that the controller knows.
func TestSocket(t *testing.T) {
	s, path := &server{}, filepath.Join(t.TempDir(), "s")
	p := admin.New(s, admin.Options{Log: slog.New(slog.DiscardHandler)})
	defer p.Close()
	if err := p.Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	ask := Dial(&Server{Admin: "unix:" + path})
	st, err := ask.Status(t.Context())
	if err != nil || len(devices(&Server{Name: "a"}, st)) != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	if list, err := ask.Leases(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := ask.Grant(t.Context(), &admin.LeaseRequest{Seconds: 1}); !errors.Is(err, lease.ErrTerms) {
		t.Error(err)
	}
	if err := ask.Revoke(t.Context(), "bb", ""); !errors.Is(err, lease.ErrNone) {
		t.Error(err)
	}
	if err := ask.Revoke(t.Context(), "aa", "over"); err != nil || len(s.revoked) != 1 {
		t.Error(err)
	}
	if _, err := Dial(&Server{Admin: "unix:" + path + "x"}).Status(t.Context()); !errors.Is(err, admin.ErrNoServer) {
		t.Error(err)
	}
}
