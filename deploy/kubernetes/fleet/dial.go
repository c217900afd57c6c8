package fleet

import (
	"bytes"
	"cmp"
	"context"
	"sync"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/transport"
)

// Admin is what is asked of a server.
type Admin interface {
	Status(context.Context) (*admin.Status, error)
	Leases(context.Context) ([]admin.Lease, error)
	Grant(context.Context, *admin.LeaseRequest) (*admin.Granted, error)
	Revoke(ctx context.Context, id, reason string) error
}

// Dial says how a server is asked: over its admin socket, else over its port, by TLS and with the token that the file
// has at that moment. The connection is made when it is needed, and kept for the next question: a thousand servers
// that are asked twice every two seconds would cost a thousand handshakes a second.
func Dial(s *Server) Admin { return &asker{server: s} }

// asker asks one server.
type asker struct {
	server *Server

	mu     sync.Mutex // guards what follows
	client *admin.Client
	token  []byte // with which the client was made
}

// get gives a client that has the token of now.
func (a *asker) get(ctx context.Context) (*admin.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if path, ok := a.server.socket(); ok {
		if a.client == nil {
			c, err := admin.Dial(ctx, path)
			if err != nil {
				return nil, err
			}
			a.client = c
		}
		return a.client, nil
	}
	token, err := config.ReadToken(a.server.AdminToken)
	if err != nil {
		return nil, err
	}
	if a.client != nil && bytes.Equal(token, a.token) {
		return a.client, nil
	}
	to := transport.Target{Address: cmp.Or(a.server.Admin, a.server.Address), Token: token, TokenOf: a.server.AdminToken}
	if to.TLS, err = a.server.tls(); err != nil {
		return nil, err
	}
	c, err := admin.Over(to, "scuda-dra")
	if err != nil {
		return nil, err
	}
	if a.client != nil {
		a.client.Close()
	}
	a.client, a.token = c, token
	return c, nil
}

// ask has one question answered.
func ask[T any](ctx context.Context, a *asker, question func(*admin.Client) (T, error)) (answer T, err error) {
	c, err := a.get(ctx)
	if err != nil {
		return answer, err
	}
	return question(c)
}

// Status, Leases, Grant and Revoke are [Admin]'s.
func (a *asker) Status(ctx context.Context) (*admin.Status, error) {
	return ask(ctx, a, func(c *admin.Client) (*admin.Status, error) { return c.Status(ctx) })
}

// Leases is described at Status.
func (a *asker) Leases(ctx context.Context) ([]admin.Lease, error) {
	return ask(ctx, a, func(c *admin.Client) ([]admin.Lease, error) { return c.Leases(ctx) })
}

// Grant is described at Status.
func (a *asker) Grant(ctx context.Context, r *admin.LeaseRequest) (*admin.Granted, error) {
	return ask(ctx, a, func(c *admin.Client) (*admin.Granted, error) { return c.Grant(ctx, r) })
}

// Revoke is described at Status.
func (a *asker) Revoke(ctx context.Context, id, reason string) error {
	_, err := ask(ctx, a, func(c *admin.Client) (struct{}, error) { return struct{}{}, c.Revoke(ctx, id, reason) })
	return err
}
