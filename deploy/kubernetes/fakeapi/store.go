package fakeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Errors of objects.
var (
	ErrNone     = errors.New("there is no such object")
	ErrThere    = errors.New("the object is there already")
	ErrConflict = errors.New("the object has changed since it was read")
)

// Object is one, as its JSON text would be decoded.
type Object map[string]any

// Meta gives the object's metadata.
func (o Object) Meta() map[string]any { return o.part("metadata") }

// part gives an inner object, which it makes where there is none.
func (o Object) part(name string) map[string]any {
	if m, ok := o[name].(map[string]any); ok {
		return m
	}
	m := map[string]any{}
	o[name] = m
	return m
}

func (o Object) text(name string) string {
	s, _ := o.Meta()[name].(string)
	return s
}

// Name, Namespace and UID are those of the metadata.
func (o Object) Name() string { return o.text("name") }

// Namespace is described at Name.
func (o Object) Namespace() string { return o.text("namespace") }

// UID is described at Name.
func (o Object) UID() string { return o.text("uid") }

// From makes an object of a value of Kubernetes' types.
func From(value any) (Object, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var o Object
	return o, json.Unmarshal(text, &o)
}

// change is one entry of a kind's history.
type change struct {
	version int64
	what    string // ADDED, MODIFIED, DELETED
	object  json.RawMessage
}

// kind is what there is of one resource, such as secrets.
type kind struct {
	objects map[string]json.RawMessage // by namespace/name
	history []change
}

// store has the objects.
type store struct {
	mu      sync.Mutex // guards everything
	version int64
	kinds   map[string]*kind
	news    chan struct{} // closed at the next change
}

func newStore() *store { return &store{kinds: map[string]*kind{}, news: make(chan struct{})} }

// kind gives that of a resource; the caller has the lock.
func (s *store) kind(resource string) *kind {
	k := s.kinds[resource]
	if k == nil {
		k = &kind{objects: map[string]json.RawMessage{}}
		s.kinds[resource] = k
	}
	return k
}

func key(namespace, name string) string { return namespace + "/" + name }

// put writes an object; the caller has the lock.
func (s *store) put(k *kind, what string, o Object) (json.RawMessage, error) {
	s.version++
	o.Meta()["resourceVersion"] = strconv.FormatInt(s.version, 10)
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	at := key(o.Namespace(), o.Name())
	if what == "DELETED" {
		delete(k.objects, at)
	} else {
		k.objects[at] = text
	}
	k.history = append(k.history, change{s.version, what, text})
	close(s.news)
	s.news = make(chan struct{})
	return text, nil
}

func (s *store) create(resource string, o Object) (json.RawMessage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := o.Meta()
	if o.Name() == "" {
		m["name"] = fmt.Sprintf("%s%08d", o.text("generateName"), s.version+1)
	}
	if o.UID() == "" {
		m["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012d", s.version+1)
	}
	m["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	k := s.kind(resource)
	if _, there := k.objects[key(o.Namespace(), o.Name())]; there {
		return nil, fmt.Errorf("%w: %s %s", ErrThere, resource, o.Name())
	}
	return s.put(k, "ADDED", o)
}

func (s *store) get(resource, namespace, name string) (json.RawMessage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := s.kind(resource).objects[key(namespace, name)]; ok {
		return text, nil
	}
	return nil, fmt.Errorf("%w: %s %s", ErrNone, resource, name)
}

// edit changes an object by a function.
func (s *store) edit(resource, namespace, name string, do func(Object) (Object, error)) (json.RawMessage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kind(resource)
	text, ok := k.objects[key(namespace, name)]
	if !ok {
		return nil, fmt.Errorf("%w: %s %s", ErrNone, resource, name)
	}
	var o Object
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, err
	}
	o, err := do(o)
	if err != nil {
		return nil, err
	}
	return s.put(k, "MODIFIED", o)
}

func (s *store) remove(resource, namespace, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kind(resource)
	text, ok := k.objects[key(namespace, name)]
	if !ok {
		return fmt.Errorf("%w: %s %s", ErrNone, resource, name)
	}
	var o Object
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	_, err := s.put(k, "DELETED", o)
	return err
}

// list gives a kind's objects, and the version at which they are so.
func (s *store) list(resource string) ([]json.RawMessage, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kind(resource)
	all := make([]json.RawMessage, 0, len(k.objects))
	for _, name := range slices.Sorted(maps.Keys(k.objects)) {
		all = append(all, k.objects[name])
	}
	return all, s.version
}

// since gives the changes after a version, and a channel that is closed when there are more.
func (s *store) since(resource string, version int64) ([]change, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.kind(resource).history
	i, _ := slices.BinarySearchFunc(h, version+1, func(c change, v int64) int { return int(c.version - v) })
	return slices.Clone(h[i:]), s.news
}
