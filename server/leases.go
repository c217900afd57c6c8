package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/sim"
	"scuda.dev/scuda/transport"
)

// bearer is who opened a connection: a tenant, and the lease whose credential was shown.
type bearer struct {
	tenant.Identity
	lease string // its id; "": none
}

// bookPath is where the leases are kept; "": nowhere. Servers that share a state folder have different ports, and a
// book each.
func bookPath(cfg *Config) string {
	if cfg.StateDir == "" {
		return ""
	}
	return filepath.Join(cfg.StateDir, fmt.Sprintf("leases-%d", cfg.Listener.Addr().(*net.TCPAddr).Port))
}

// openLeases opens the book of leases.
func openLeases(cfg *Config) (*lease.Book, error) {
	b, err := lease.Open(bookPath(cfg))
	if err != nil {
		return nil, fmt.Errorf("the leases: %w", err)
	}
	return b, nil
}

// recognise says who shows these credentials. A lease's goes before all others, as it allows the least: one that is
// over is an error, whatever else is shown.
func (s *supervisor) recognise(token []byte, state *tls.ConnectionState) (who bearer, ok bool, over error) {
	if len(token) > 0 {
		l, err := s.leases.Find(token)
		if err == nil {
			return bearer{tenant.Identity{Name: l.Tenant}, l.ID}, true, nil
		}
		if !errors.Is(err, lease.ErrNone) {
			return bearer{}, false, refusef(transport.StatusToken, "%w", err)
		}
	}
	who.Identity, ok = s.cfg.Tenants.Admit(token, state)
	return who, ok, nil
}

// terms are those of a session that is to open.
func (s *supervisor) terms(who bearer) (lease.Terms, error) {
	if who.lease == "" {
		return s.cfg.Tenants.Terms(who.Name), nil
	}
	l, err := s.leases.Get(who.lease)
	if err != nil {
		return lease.Terms{}, refusef(transport.StatusToken, "%w", err)
	}
	return l.Terms, nil
}

// limits are those of a session under terms.
func (s *supervisor) limits(who bearer, terms *lease.Terms) config.Limits {
	l := s.cfg.Tenants.Limits(who.Name, *s.cfg.Limits)
	l.LeaseVRAM = terms.Memory
	return l
}

// withdrawn says why who was admitted may not go on; nil: they may.
func (s *supervisor) withdrawn(who bearer) *ending {
	if who.lease == "" {
		if s.cfg.Tenants.Holds(who.Identity) {
			return nil
		}
		return &ending{reason: "its tenant's credential was withdrawn",
			said: "the credential with which this session was opened was withdrawn; the session ends"}
	}
	_, err := s.leases.Get(who.lease)
	if err == nil {
		return nil
	}
	return leaseEnding(err)
}

// refused is withdrawn for who has no session yet.
func (s *supervisor) refused(who bearer) error {
	if who.lease != "" {
		_, err := s.terms(who)
		return err
	}
	if !s.cfg.Tenants.Holds(who.Identity) {
		return transport.ErrToken
	}
	return nil
}

// leaseEnding is the end of a session whose lease is over.
func leaseEnding(err error) *ending {
	return &ending{reason: err.Error(), said: "the session ends: " + err.Error()}
}

// leaseOver ends the sessions of a lease that has expired.
func (s *supervisor) leaseOver(e *lease.OverError) {
	n := len(s.endLease(e.Lease.ID, e))
	s.log.Info("a lease has expired", "lease", e.Lease.ID, "label", e.Lease.Label, "tenant", e.Lease.Tenant, "sessions", n)
}

// endLease ends the sessions under a lease, and gives them. It does not wait for that. Who waits for a place under it
// waits no longer.
func (s *supervisor) endLease(id string, why error) (list []*session) {
	s.waiting.review(func(w *waiter) error { return s.refused(w.who) })
	for _, x := range s.sessions.all() {
		if x.who.lease == id {
			s.end(x, leaseEnding(why))
			list = append(list, x)
		}
	}
	return list
}

// soleTenant says whether there is only one tenant.
func (s *supervisor) soleTenant() bool {
	sole := s.cfg.Tenants.Sole()
	return sole != "" && s.leases.Only(sole)
}

// under is how many CUDA sessions a lease has.
func (s *sessions) under(lease string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.byLease[lease])
}

// leaseNumber is a lease's id as a number; 0: none.
func leaseNumber(id string) uint64 {
	n, _ := strconv.ParseUint(id, 16, 64) // it is one that the book has made
	return n
}

// leaseLabel is the label of a lease.
func (s *supervisor) leaseLabel(id string) string {
	if id == "" {
		return ""
	}
	l, _ := s.leases.Get(id) // one that is over has one, too
	return l.Label
}

// Leases are those that hold.
func (s desk) Leases(who admin.Who) (list []admin.Lease) {
	for _, l := range s.leases.Leases() {
		if who.May(l.Tenant, l.ID) {
			list = append(list, s.use(l))
		}
	}
	return list
}

// use says what is used of a lease.
func (s desk) use(l lease.Lease) admin.Lease {
	return admin.Lease{Lease: l, Open: s.sessions.under(l.ID), Left: max(0, time.Until(l.Expires).Seconds()),
		Own: l.Maker != ""}
}

// Grant makes a lease.
func (s desk) Grant(who admin.Who, r admin.LeaseRequest) (*admin.Granted, error) {
	l := lease.Lease{Tenant: cmp.Or(r.Tenant, s.cfg.Tenants.Sole()), Label: r.Label, Exclusive: r.Exclusive}
	own := who.Role() != admin.RoleAdmin
	if own {
		l.Tenant = cmp.Or(r.Tenant, who.Tenant)
	}
	if l.Tenant == "" {
		return nil, fmt.Errorf("%w: it is not said of which tenant, and this server has several (--tenant NAME)",
			lease.ErrTerms)
	}
	l.Terms = s.cfg.Tenants.Terms(l.Tenant)
	l.Memory, l.Sessions, l.Share = r.Memory, r.Sessions, cmp.Or(r.Share, l.Share)
	var err error
	if r.Class != "" {
		if l.Class, err = lease.ParseClass(r.Class); err != nil {
			return nil, err
		}
	}
	if r.GPUs != "" {
		var only []string
		if own {
			only = l.GPUs
		}
		if l.GPUs, err = s.choose(r.GPUs, only); err != nil {
			return nil, err
		}
	}
	if own {
		s.granting.Lock() // so that tenants are counted one after the other
		defer s.granting.Unlock()
		if err := s.own(who, &l, r.Lasts()); err != nil {
			return nil, err
		}
	}
	l, credential, err := s.leases.Grant(l, r.Lasts())
	if err != nil {
		return nil, err
	}
	if orphan(s.supervisor, &l) { // the credential was withdrawn meanwhile
		dropOrphan(s.supervisor, &l)
		return nil, fmt.Errorf("%w: its credential was withdrawn", admin.ErrBeyond)
	}
	s.log.Info("a lease was made", "lease", l.ID, "label", l.Label, "tenant", l.Tenant, "expires", l.Expires)
	return &admin.Granted{Lease: s.use(l), Credential: credential, Kept: s.leases.Kept()}, nil
}

// choose gives the UUIDs of the GPUs that are wished for, of those that may be chosen; none: of all.
func (s *supervisor) choose(text string, only []string) ([]string, error) {
	w, err := lease.ParseWish(text)
	if err != nil {
		return nil, err
	}
	var have []lease.GPU
	for _, d := range s.facts.Load().Devices {
		if g := (lease.GPU{UUID: d.UUIDText(), Name: d.Name}); len(only) == 0 || slices.Contains(only, g.UUID) {
			have = append(have, g)
		}
	}
	return w.Choose(have, s.leases.Taken())
}

// seen are the GPUs of a list that have one of these UUIDs, in the order of those; without any: all.
func seen(list []transport.Device, uuids []string) (part []transport.Device) {
	if len(uuids) == 0 {
		return list
	}
	for _, uuid := range uuids {
		for _, d := range list {
			if d.UUIDText() == uuid {
				part = append(part, d)
			}
		}
	}
	return part
}

// allSeen says whether a driver shows the GPUs that it was to show, and no others.
func allSeen(list []transport.Device, visible string) error {
	var shown []string
	for _, d := range list {
		shown = append(shown, d.UUIDText())
	}
	if got := strings.Join(shown, ","); visible != "" && got != visible {
		return fmt.Errorf("the driver shows the GPUs %q instead of %q: has one been taken out, or does the server's own %s "+
			"hide one?", got, visible, sim.VisibleDevices)
	}
	return nil
}

// Revoke ends a lease and its sessions.
func (s desk) Revoke(ctx context.Context, who admin.Who, id, reason string) error {
	if l, err := s.leases.Get(id); err != nil || !who.May(l.Tenant, l.ID) {
		return lease.ErrNone
	}
	l, err := s.leases.Revoke(id, transport.Printable(reason))
	if err != nil && !errors.Is(err, lease.ErrKept) {
		return err
	}
	_, over := s.leases.Get(id)
	ended := s.endLease(id, over)
	s.log.Info("a lease was revoked", "lease", id, "label", l.Label, "tenant", l.Tenant, "reason", reason, "sessions",
		len(ended))
	for _, x := range ended {
		select {
		case <-x.gone:
		case <-ctx.Done():
			return cmp.Or(err, context.Cause(ctx))
		}
	}
	return err
}
