package store

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scuda.dev/scuda/deploy/pool/plan"
)

// View is a pool's state, which follows what others do.
type View struct {
	mu      sync.Mutex // guards what follows
	servers map[string]plan.Server
	queue   map[string]plan.Request
	held    map[string]plan.Held
	turns   map[string]turn
	changed chan struct{} // closed at the next change

	done chan struct{}
}

// turn is when a tenant was served last, and how often it was.
type turn struct{ last, times int64 }

// See asks for the state of the pool once.
func (p *Pool) See(ctx context.Context) (plan.State, error) {
	v := &View{changed: make(chan struct{})}
	_, err := p.list(ctx, v)
	return v.state(), err
}

// Follow asks for it, and follows it until the context ends; [View.Wait] then returns.
func (p *Pool) Follow(ctx context.Context) (*View, error) {
	v := &View{changed: make(chan struct{}), done: make(chan struct{})}
	revision, err := p.list(ctx, v)
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(v.done)
		for ctx.Err() == nil {
			p.follow(ctx, v, revision)
			for ctx.Err() == nil {
				if revision, err = p.list(ctx, v); err == nil {
					break
				}
				select {
				case <-time.After(again):
				case <-ctx.Done():
				}
			}
		}
	}()
	return v, nil
}

// follow takes in what happens after a revision, until etcd has forgotten what was since, or the context ends.
func (p *Pool) follow(ctx context.Context, v *View, revision int64) {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	for r := range p.etcd.Watch(clientv3.WithRequireLeader(own), root, clientv3.WithPrefix(),
		clientv3.WithRev(revision+1)) {
		if r.Err() != nil {
			return
		}
		v.apply(r.Events)
	}
}

// Wait returns when the view does not follow any more.
func (v *View) Wait() { <-v.done }

// Now gives the state, and what is closed when it is another one.
func (v *View) Now() (plan.State, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state(), v.changed
}

// state copies it. v.mu is held, or nobody else has v.
func (v *View) state() plan.State {
	st := plan.State{Turns: map[string]int64{}}
	for key, t := range v.turns {
		st.Turns[strings.TrimPrefix(key, turns)] = t.last
		st.Taken += t.times
	}
	for _, key := range slices.Sorted(maps.Keys(v.servers)) {
		st.Servers = append(st.Servers, v.servers[key])
	}
	for _, key := range slices.Sorted(maps.Keys(v.held)) {
		st.Held = append(st.Held, v.held[key])
	}
	for _, key := range slices.Sorted(maps.Keys(v.queue)) {
		st.Queue = append(st.Queue, v.queue[key])
	}
	return st
}

// list reads all keys anew.
func (p *Pool) list(ctx context.Context, v *View) (revision int64, err error) {
	var got *clientv3.GetResponse
	err = p.ask(ctx, func(ctx context.Context) (err error) {
		got, err = p.etcd.Get(ctx, root, clientv3.WithPrefix())
		return err
	})
	if err != nil {
		return 0, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.servers, v.queue = map[string]plan.Server{}, map[string]plan.Request{}
	v.held, v.turns = map[string]plan.Held{}, map[string]turn{}
	for _, kv := range got.Kvs {
		v.enter(kv)
	}
	v.tell()
	return got.Header.Revision, nil
}

func (v *View) apply(events []*clientv3.Event) {
	if len(events) == 0 {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range events {
		if e.Type == clientv3.EventTypePut {
			v.enter(e.Kv)
			continue
		}
		key := string(e.Kv.Key)
		delete(v.servers, key)
		delete(v.queue, key)
		delete(v.held, key)
		delete(v.turns, key)
	}
	v.tell()
}

// tell wakes those that wait for a change. v.mu is held.
func (v *View) tell() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// enter takes a key in. What cannot be read, as a later release has written it, is not there. v.mu is held.
func (v *View) enter(kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	switch {
	case strings.HasPrefix(key, servers):
		read(v.servers, kv, func(s *plan.Server) { s.Version = kv.ModRevision })
	case strings.HasPrefix(key, queue):
		read(v.queue, kv, func(r *plan.Request) { r.Order = kv.CreateRevision })
	case strings.HasPrefix(key, held):
		read(v.held, kv, func(*plan.Held) {})
	case strings.HasPrefix(key, turns):
		v.turns[key] = turn{kv.ModRevision, kv.Version}
	}
}

func read[T any](into map[string]T, kv *mvccpb.KeyValue, complete func(*T)) {
	var value T
	if json.Unmarshal(kv.Value, &value) != nil {
		delete(into, string(kv.Key))
		return
	}
	complete(&value)
	into[string(kv.Key)] = value
}
