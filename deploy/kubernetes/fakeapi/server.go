package fakeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"

	"k8s.io/client-go/kubernetes/scheme"
)

// Server is an API server. Its address is URL.
type Server struct {
	*httptest.Server
	*store

	count sync.Mutex // guards calls
	calls map[string]int
}

// New starts one; Close of it ends it.
func New() *Server {
	s := &Server{store: newStore(), calls: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	return s
}

// Calls are how often what was asked since the start, such as "create secrets".
func (s *Server) Calls() map[string]int {
	s.count.Lock()
	defer s.count.Unlock()
	return maps.Clone(s.calls)
}

// Create, Edit, Remove and List work on the objects without being counted. Create changes the object.
func (s *Server) Create(resource string, o Object) error {
	_, err := s.create(resource, o)
	return err
}

// Edit is described at Create.
func (s *Server) Edit(resource, namespace, name string, do func(Object)) error {
	_, err := s.edit(resource, namespace, name, func(o Object) (Object, error) { do(o); return o, nil })
	return err
}

// Remove is described at Create.
func (s *Server) Remove(resource, namespace, name string) error {
	return s.remove(resource, namespace, name)
}

// List is described at Create. It gives the objects' texts, and the version.
func (s *Server) List(resource string) ([]json.RawMessage, int64) { return s.list(resource) }

// Count says how many objects there are.
func (s *Server) Count(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.kind(resource).objects)
}

// Since gives the objects that have changed since a version, and a channel that is closed when there are more.
func (s *Server) Since(resource string, version int64) (list []json.RawMessage, next int64, more <-chan struct{}) {
	changes, more := s.since(resource, version)
	for _, c := range changes {
		list, version = append(list, c.object), c.version
	}
	return list, version, more
}

// EndWatches ends all that are open, as a server does that restarts.
func (s *Server) EndWatches() { s.CloseClientConnections() }

// asked is what a request is about.
type asked struct {
	verb, group, resource, namespace, name, sub string
}

// parse reads a request's path: /api/v1/… or /apis/GROUP/VERSION/…
func parse(r *http.Request) (a asked, ok bool) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		a.group, parts = parts[1], parts[3:]
	default:
		return a, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		a.namespace, parts = parts[1], parts[2:]
	}
	a.resource = parts[0]
	if len(parts) > 1 {
		a.name = parts[1]
	}
	if len(parts) > 2 {
		a.sub = parts[2]
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		a.verb = "watch"
	case r.Method == http.MethodGet && a.name == "":
		a.verb = "list"
	default:
		a.verb = map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update",
			http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	}
	return a, a.verb != ""
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	a, ok := parse(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	s.count.Lock()
	s.calls[a.verb+" "+strings.TrimSuffix(a.resource+"/"+a.sub, "/")]++
	s.count.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch a.verb {
	case "watch":
		s.watch(w, r, a)
		return
	case "list":
		items, version := s.list(a.resource)
		write(w, map[string]any{"metadata": map[string]string{"resourceVersion": strconv.FormatInt(version, 10)},
			"items": items}, nil)
		return
	case "get":
		o, err := s.get(a.resource, a.namespace, a.name)
		write(w, o, err)
		return
	case "delete":
		write(w, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"},
			s.remove(a.resource, a.namespace, a.name))
		return
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, 8<<20))
	var o Object
	if err == nil {
		o, err = decode(text)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if a.namespace != "" {
		o.Meta()["namespace"] = a.namespace
	}
	var after json.RawMessage
	switch a.verb {
	case "create":
		after, err = s.create(a.resource, o)
	case "update":
		after, err = s.edit(a.resource, a.namespace, a.name, func(have Object) (Object, error) {
			if v := o.text("resourceVersion"); v != "" && v != have.text("resourceVersion") {
				return nil, ErrConflict
			}
			o.Meta()["uid"], o.Meta()["creationTimestamp"] = have.UID(), have.text("creationTimestamp")
			return o, nil
		})
	case "patch":
		after, err = s.edit(a.resource, a.namespace, a.name, func(have Object) (Object, error) {
			if u := o.UID(); u != "" && u != have.UID() {
				return nil, ErrConflict
			}
			if a.sub == "status" {
				have.part("status")["devices"] = o.part("status")["devices"]
				return have, nil
			}
			for name, value := range o {
				if name != "metadata" {
					have[name] = value
				}
			}
			return have, nil
		})
	}
	write(w, after, err)
}

// decode reads an object as clients write it: in JSON, or in the form of protocol buffers.
func decode(text []byte) (o Object, err error) {
	if !bytes.HasPrefix(text, []byte("k8s\x00")) {
		return o, json.Unmarshal(text, &o)
	}
	value, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	return From(value)
}

// write answers with a value, or with what is wrong.
func write(w http.ResponseWriter, value any, err error) {
	code, reason := http.StatusOK, ""
	switch {
	case errors.Is(err, ErrNone):
		code, reason = http.StatusNotFound, "NotFound"
	case errors.Is(err, ErrThere):
		code, reason = http.StatusConflict, "AlreadyExists"
	case errors.Is(err, ErrConflict):
		code, reason = http.StatusConflict, "Conflict"
	case err != nil:
		code, reason = http.StatusInternalServerError, "InternalError"
	}
	if err != nil {
		w.WriteHeader(code)
		value = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
			"message": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(value) // one that has gone is told nothing
}

// watch tells of changes until the other end has gone.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, a asked) {
	q := r.URL.Query()
	version, _ := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	to, flush := json.NewEncoder(w), http.NewResponseController(w)
	say := func(what string, o any) bool { return to.Encode(map[string]any{"type": what, "object": o}) == nil }
	if q.Get("sendInitialEvents") == "true" {
		var items []json.RawMessage
		items, version = s.list(a.resource)
		for _, o := range items {
			if !say("ADDED", o) {
				return
			}
		}
		kind := map[string]string{"resourceclaims": "ResourceClaim", "resourceslices": "ResourceSlice"}[a.resource]
		if !say("BOOKMARK", map[string]any{"kind": kind, "apiVersion": a.group + "/v1", "metadata": map[string]any{
			"resourceVersion": strconv.FormatInt(version, 10),
			"annotations":     map[string]string{"k8s.io/initial-events-end": "true"}}}) {
			return
		}
	}
	for {
		changes, more := s.since(a.resource, version)
		for _, c := range changes {
			if !say(c.what, c.object) {
				return
			}
			version = c.version
		}
		if flush.Flush() != nil {
			return
		}
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}
