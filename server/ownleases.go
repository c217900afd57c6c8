package server

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/tenant"
)

// Tenants make leases of their own: within what they may have themselves, and for as long as the credential holds with
// which they asked. Sessions under such a lease take their tenant's turns, with its share, so that leases make nobody's
// part of a GPU larger.

// Bounds of leases of tenants' own making that hold: of one tenant, and of all, so that administrators have room.
const (
	mostOwn    = 256
	mostOwnAll = lease.MostLeases / 2
)

// own sees to it that what a tenant wants is within what it may have. l has the terms that it asks for.
func (s desk) own(who admin.Who, l *lease.Lease, lasts time.Duration) error {
	beyond := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", admin.ErrBeyond, fmt.Errorf(format, args...))
	}
	mine, limits := s.cfg.Tenants.Terms(who.Tenant), s.cfg.Tenants.Limits(who.Tenant, *s.cfg.Limits)
	notMine := func(uuid string) bool { return !slices.Contains(mine.GPUs, uuid) }
	switch {
	case l.Tenant != who.Tenant:
		return beyond("it makes leases of its own alone, and none of %.60q", l.Tenant)
	case l.Share > mine.Share:
		return beyond("a share of %d; its own is %d", l.Share, mine.Share)
	case l.Class > mine.Class:
		return beyond("class %s; its own is %s", l.Class, mine.Class)
	case len(mine.GPUs) > 0 && (len(l.GPUs) == 0 || slices.ContainsFunc(l.GPUs, notMine)):
		return beyond("GPUs that it does not have")
	case limits.TenantVRAM > 0 && l.Memory > limits.TenantVRAM:
		return beyond("%v of GPU memory; it has %v", l.Memory, limits.TenantVRAM)
	case limits.Sessions > 0 && uint64(l.Sessions) > limits.Sessions:
		return beyond("%d sessions; it has %d", l.Sessions, limits.Sessions)
	case !who.Until.IsZero() && time.Now().Add(lasts).After(who.Until):
		return beyond("it would last longer than the certificate with which it is asked for, which ends at %s",
			who.Until.UTC().Format(time.RFC3339))
	}
	l.Maker = cmp.Or(who.Credential, tenant.Anyone) // where nothing is asked for, everybody is that
	of, all := 0, 0
	for _, x := range s.leases.Leases() {
		if x.Maker == "" {
			continue
		}
		if all++; x.Tenant == who.Tenant {
			of++
		}
	}
	if of >= mostOwn || all >= mostOwnAll {
		return fmt.Errorf("%w: it made %d that hold, and tenants %d in all; revoke some (scuda lease revoke)", lease.ErrFull,
			of, all)
	}
	return nil
}

// Renew has a lease last for so long from now.
func (s desk) Renew(who admin.Who, id string, lasts time.Duration) (*admin.Lease, error) {
	l, err := s.leases.Get(id)
	if err != nil || !who.May(l.Tenant, l.ID) {
		return nil, lease.ErrNone
	}
	if who.Role() != admin.RoleAdmin {
		switch {
		case l.Maker != cmp.Or(who.Credential, tenant.Anyone):
			return nil, fmt.Errorf("%w: it prolongs leases that it made with the same credential", admin.ErrBeyond)
		case !who.Until.IsZero() && time.Now().Add(lasts).After(who.Until):
			return nil, fmt.Errorf("%w: the lease would last longer than the certificate with which it is asked for, which "+
				"ends at %s", admin.ErrBeyond, who.Until.UTC().Format(time.RFC3339))
		}
	}
	if l, err = s.leases.Renew(id, lasts); err != nil {
		return nil, err
	}
	use := s.use(l)
	return &use, nil
}

// dropOrphans ends the leases that tenants made with credentials that are withdrawn.
func (s *supervisor) dropOrphans() {
	for _, l := range s.leases.Leases() {
		if orphan(s, &l) {
			dropOrphan(s, &l)
		}
	}
}

// orphan says whether a lease was made with a credential that nobody has any more.
func orphan(s *supervisor, l *lease.Lease) bool {
	return l.Maker != "" && !s.cfg.Tenants.Holds(tenant.Known(l.Tenant, l.Maker))
}

func dropOrphan(s *supervisor, l *lease.Lease) {
	_, err := s.leases.Revoke(l.ID, "the credential with which it was made was withdrawn")
	_, over := s.leases.Get(l.ID)
	if over == nil { // nobody could revoke it
		over = err
	}
	n := len(s.endLease(l.ID, over))
	s.log.Info("a lease is over: the credential with which it was made was withdrawn", "lease", l.ID, "label", l.Label,
		"tenant", l.Tenant, "sessions", n, "error", err)
}

// turnsOf says in whose name, and with which rights, a session takes turns.
func (s *supervisor) turnsOf(who bearer, terms lease.Terms) (bearer, lease.Terms) {
	if l, err := s.leases.Get(who.lease); err == nil && l.Maker != "" {
		who.lease, terms.Share = "", s.cfg.Tenants.Terms(who.Name).Share
	}
	return who, terms
}
