package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/lease"
)

// Lease is a lease that holds, and what is used of it.
type Lease struct {
	lease.Lease
	Open int     `json:"open_sessions"` // of CUDA
	Left float64 `json:"left_seconds"`
	Own  bool    `json:"own"` // its tenant made it, and no administrator
}

// LeaseRequest is a lease that somebody wants. What is left out is as the tenant has it without a lease.
type LeaseRequest struct {
	Tenant   string      `json:"tenant,omitempty"` // may be left out where the server has only one
	Label    string      `json:"label,omitempty"`
	GPUs     string      `json:"gpus,omitempty"` // what [lease.ParseWish] reads
	Memory   config.Size `json:"memory_bytes,omitempty"`
	Sessions uint32      `json:"sessions,omitempty"`
	Share    uint32      `json:"share,omitempty"`
	Class    string      `json:"class,omitempty"`
	Seconds  float64     `json:"seconds"` // how long it lasts

	Exclusive bool `json:"exclusive,omitempty"` // no other lease has its GPUs; needs GPUs
}

// renewRequest says how long a lease is to last from now.
type renewRequest struct {
	Seconds float64 `json:"seconds"`
}

// Lasts is how long the lease is to last.
func (r *LeaseRequest) Lasts() time.Duration { return lasts(r.Seconds) }

func lasts(seconds float64) time.Duration {
	return time.Duration(min(max(seconds, 0), (2*lease.MostTime).Seconds()) * float64(time.Second))
}

// Granted is a new lease. Its credential is said this once.
type Granted struct {
	Lease
	Credential string `json:"credential"`
	Kept       bool   `json:"kept"` // it outlives the server
}

// leaseList is the answer to GET /v1/leases.
type leaseList struct {
	Leases []Lease `json:"leases"`
}

func (h *handler) leases(w http.ResponseWriter, _ *http.Request, who Who) {
	answer(w, leaseList{nonNil(h.server.Leases(who))})
}

func (h *handler) grant(w http.ResponseWriter, r *http.Request, who Who) {
	if who.Role() == RoleLease {
		refuse(w, http.StatusForbidden, who.String()+" may not make leases", "ask its tenant, or an administrator")
		return
	}
	var body LeaseRequest
	if !read(w, r, &body) {
		return
	}
	switch g, err := h.server.Grant(who, body); {
	case err == nil:
		answer(w, g)
	case errors.Is(err, lease.ErrTerms):
		refuse(w, http.StatusBadRequest, err.Error(), "")
	case errors.Is(err, ErrBeyond):
		refuse(w, http.StatusForbidden, err.Error(), "an administrator can make it, or give the tenant more")
	case errors.Is(err, lease.ErrTaken):
		refuse(w, http.StatusConflict, err.Error(), "scuda lease list shows them; wait until it is over, or choose others")
	case errors.Is(err, lease.ErrFull):
		refuse(w, http.StatusServiceUnavailable, err.Error(), "")
	default:
		refuse(w, http.StatusInternalServerError, err.Error(), "")
	}
}

func (h *handler) renew(w http.ResponseWriter, r *http.Request, who Who) {
	if who.Role() == RoleLease {
		refuse(w, http.StatusForbidden, who.String()+" may not prolong leases", "ask its tenant, or an administrator")
		return
	}
	var body renewRequest
	if !read(w, r, &body) {
		return
	}
	switch l, err := h.server.Renew(who, r.PathValue("id"), lasts(body.Seconds)); {
	case errors.Is(err, lease.ErrNone):
		noLease(w, r, err)
	case errors.Is(err, lease.ErrTerms):
		refuse(w, http.StatusBadRequest, err.Error(), "")
	case errors.Is(err, ErrBeyond):
		refuse(w, http.StatusForbidden, err.Error(), "an administrator can prolong it")
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error(), "")
	default:
		answer(w, l)
	}
}

func noLease(w http.ResponseWriter, r *http.Request, err error) {
	refuse(w, http.StatusNotFound, fmt.Sprintf("%v: %.40q", err, r.PathValue("id")),
		"it may be over; GET /v1/leases lists them, and the whole id is needed")
}

func (h *handler) revoke(w http.ResponseWriter, r *http.Request, who Who) {
	var body endRequest
	if !read(w, r, &body) || badReason(w, body.Reason) {
		return
	}
	switch err := h.server.Revoke(r.Context(), who, r.PathValue("id"), body.Reason); {
	case errors.Is(err, lease.ErrNone):
		noLease(w, r, err)
	case errors.Is(err, lease.ErrTerms):
		refuse(w, http.StatusBadRequest, err.Error(), "")
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error(), "look into the server's log")
	default:
		answer(w, struct{}{})
	}
}

// Leases asks for those that hold, the oldest first.
func (c *Client) Leases(ctx context.Context) ([]Lease, error) {
	var list leaseList
	err := c.ask(ctx, http.MethodGet, "/v1/leases", nil, &list)
	return list.Leases, err
}

// Grant has a lease made.
func (c *Client) Grant(ctx context.Context, r *LeaseRequest) (*Granted, error) {
	var g Granted
	return &g, ofLease(c.ask(ctx, http.MethodPost, "/v1/leases", r, &g))
}

// Renew has the lease with this id last for so long from now, if it would end before.
func (c *Client) Renew(ctx context.Context, id string, lasts time.Duration) (*Lease, error) {
	var l Lease
	return &l, ofLease(c.ask(ctx, http.MethodPost, "/v1/leases/"+url.PathEscape(id)+"/renew",
		renewRequest{lasts.Seconds()}, &l))
}

// Revoke has the lease with this id ended, with its sessions.
func (c *Client) Revoke(ctx context.Context, id, reason string) error {
	return ofLease(c.ask(ctx, http.MethodDelete, "/v1/leases/"+url.PathEscape(id), endRequest{reason}, &struct{}{}))
}

// ofLease says of a fault that it is about a lease.
func ofLease(err error) error {
	if f, ok := errors.AsType[*Fault](err); ok {
		f.lease = true
	}
	return err
}

// FindLease gives the lease with an id, or the only one whose id begins so or that has this label.
func FindLease(list []Lease, word string) (*Lease, error) {
	var found, other *Lease
	for i := range list {
		l := &list[i]
		if l.ID == word {
			return l, nil
		}
		if word != "" && (l.Label == word || strings.HasPrefix(l.ID, word)) {
			found, other = l, found
		}
	}
	if other != nil {
		return nil, fmt.Errorf("%w: %s and %s; write a whole id", ErrAlike, other.ID, found.ID)
	}
	if found == nil {
		return nil, fmt.Errorf("%w: %.40q; it may be over; scuda lease list lists them", lease.ErrNone, word)
	}
	return found, nil
}
