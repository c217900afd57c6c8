// Package store keeps the state of a pool in etcd: servers that announce themselves, requests that wait, leases that
// were taken, and whose turn was when. Every key that stands for something that can die hangs on an etcd lease of
// whoever wrote it ([Session]), so it goes with them. There are no credentials of servers in it.
//
//	/scuda-pool/servers/HOST:PORT           plan.Server, of the agent
//	/scuda-pool/queue/ID                    plan.Request, of who waits
//	/scuda-pool/held/HOST:PORT/LEASE        plan.Held, of who has it
//	/scuda-pool/turns/TENANT                when a tenant was served, and how often: the key's revision and version
//	/scuda-pool/turns/TENANT/N              how often it was with more than N servers: the key's version
//
// All of it can be lost: which GPUs are free is said by the servers alone.
package store

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/transport/certificate"
)

// Errors of a pool.
var (
	ErrEtcd    = errors.New("the pool's etcd does not answer")
	ErrSetting = errors.New("the pool's etcd cannot be asked so")
	ErrLost    = errors.New("the place in the queue is lost")
)

const (
	root    = "/scuda-pool/"
	servers = root + "servers/"
	queue   = root + "queue/"
	held    = root + "held/"
	turns   = root + "turns/"

	answerTime = 5 * time.Second // for one question
	again      = 500 * time.Millisecond
)

// Options say where a pool's etcd is, and what is shown to it.
type Options struct {
	Endpoints     []string // https://HOST:PORT, or unix:///PATH
	Cert, Key, CA string   // files
}

// Pool is a pool whose state can be read and changed.
type Pool struct {
	etcd *clientv3.Client
	name string
}

// Open gives a pool. Nothing is asked yet.
func Open(o Options) (*Pool, error) {
	if len(o.Endpoints) == 0 {
		return nil, fmt.Errorf("%w: it is not said where it is; set SCUDA_POOL, or give --etcd", ErrSetting)
	}
	c := clientv3.Config{Endpoints: o.Endpoints, Logger: zap.NewNop(), DialTimeout: answerTime,
		DialKeepAliveTime: answerTime, DialKeepAliveTimeout: answerTime}
	for _, e := range o.Endpoints {
		u, err := url.Parse(e)
		switch {
		case err == nil && u.Scheme == "unix" && strings.HasPrefix(u.Path, "/"):
		case err == nil && u.Scheme == "https" && u.Port() != "":
			if c.TLS == nil {
				if c.TLS, err = o.tls(); err != nil {
					return nil, err
				}
			}
		default:
			return nil, fmt.Errorf("%w: %.100q; write https://HOST:PORT or unix:///PATH", ErrSetting, e)
		}
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSetting, err)
	}
	return &Pool{client, strings.Join(o.Endpoints, ",")}, nil
}

func (o *Options) tls() (*tls.Config, error) {
	if o.Cert == "" || o.Key == "" || o.CA == "" {
		return nil, fmt.Errorf("%w: over https it wants a certificate: SCUDA_POOL_CERT, SCUDA_POOL_KEY and SCUDA_POOL_CA "+
			"(or --etcd-cert, --etcd-key, --etcd-ca)", ErrSetting)
	}
	cert, err := certificate.Load(o.Cert, o.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSetting, err)
	}
	roots, err := certificate.Pool(o.CA)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSetting, err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, MinVersion: tls.VersionTLS13}, nil
}

// Close ends the connections.
func (p *Pool) Close() { p.etcd.Close() }

// ask bounds a question.
func (p *Pool) ask(ctx context.Context, do func(context.Context) error) error {
	c, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := do(c)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: %s: %w; see to it that it runs, and that SCUDA_POOL names it", ErrEtcd, p.name, err)
}

// commit carries out a transaction.
func (p *Pool) commit(ctx context.Context, make func(clientv3.Txn) clientv3.Txn) error {
	return p.ask(ctx, func(ctx context.Context) error {
		_, err := make(p.etcd.Txn(ctx)).Commit()
		return err
	})
}

// Session is an etcd lease that is kept alive for as long as this process lives. What hangs on it goes with it.
type Session struct {
	*concurrency.Session
	pool *Pool
	end  context.CancelFunc
}

// Session begins one. When its process dies, what hangs on it is there for ttl at most.
func (p *Pool) Session(ctx context.Context, ttl time.Duration) (*Session, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	s := &Session{pool: p, end: end}
	err := p.ask(ctx, func(ctx context.Context) error {
		l, err := p.etcd.Grant(ctx, int64(max(ttl, time.Second).Seconds()))
		if err == nil {
			s.Session, err = concurrency.NewSession(p.etcd, concurrency.WithLease(l.ID), concurrency.WithContext(life))
		}
		return err
	})
	if err != nil {
		end()
		return nil, err
	}
	return s, nil
}

// Close ends it, and what hangs on it: at once, or if etcd does not answer when its time is up.
func (s *Session) Close(ctx context.Context) {
	s.end()
	<-s.Done()
	_ = s.pool.ask(context.WithoutCancel(ctx), func(ctx context.Context) error {
		_, err := s.pool.etcd.Revoke(ctx, s.Lease())
		return err
	})
}

// put has a value under a key that hangs on the session. Where it stands there already, nothing is written.
func (s *Session) put(ctx context.Context, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return s.pool.commit(ctx, func(t clientv3.Txn) clientv3.Txn {
		return t.If(clientv3.Compare(clientv3.Value(key), "=", string(text)),
			clientv3.Compare(clientv3.LeaseValue(key), "=", s.Lease())).
			Else(clientv3.OpPut(key, string(text), clientv3.WithLease(s.Lease())))
	})
}

// Announce says what a server has.
func (s *Session) Announce(ctx context.Context, v *plan.Server) error {
	return s.put(ctx, servers+v.Address, v)
}

// Wait has a request in the queue.
func (s *Session) Wait(ctx context.Context, r *plan.Request) error { return s.put(ctx, queue+r.ID, r) }

// Served takes a request out of the queue, as it has leases: its tenant has had a turn.
func (s *Session) Served(ctx context.Context, r *plan.Request, list []plan.Held) error {
	ops := []clientv3.Op{clientv3.OpDelete(queue + r.ID)}
	for i, h := range list {
		text, err := json.Marshal(h)
		if err != nil {
			return err
		}
		turn := turns + r.Tenant
		if i > 0 { // a transaction changes no key twice, and each lease counts
			turn = fmt.Sprintf("%s/%d", turn, i)
		}
		ops = append(ops, clientv3.OpPut(turn, ""),
			clientv3.OpPut(held+h.Server+"/"+h.Lease, string(text), clientv3.WithLease(s.Lease())))
	}
	return s.pool.commit(ctx, func(t clientv3.Txn) clientv3.Txn { return t.Then(ops...) })
}

// Changes tells when leases of a server are taken or given back through the pool, until the context ends.
func (p *Pool) Changes(ctx context.Context, server string) <-chan struct{} {
	changed := make(chan struct{}, 1)
	watch := p.etcd.Watch(ctx, held+server+"/", clientv3.WithPrefix())
	go func() {
		defer close(changed)
		for range watch {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed
}
