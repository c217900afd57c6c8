package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"scuda.dev/scuda/server/door"
)

// Bounds of what one may ask.
const (
	maxBody     = 64 << 10
	maxHeader   = 16 << 10
	connections = 64
	headerTime  = 5 * time.Second
	readTime    = 10 * time.Second
	writeTime   = 30 * time.Second
	idleTime    = 30 * time.Second
)

// Port is an open admin interface; nil is none.
type Port struct {
	path   string
	server *http.Server
	done   sync.WaitGroup
	asked  *handler
}

// Options are what an interface needs beside its server.
type Options struct {
	// Worker says whether a process of this machine carries out what clients ask for: it is not let in.
	Worker func(pid int) bool
	Log    *slog.Logger
}

// Open offers a server at a socket.
func Open(ctx context.Context, path string, s Server, o Options) (*Port, error) {
	l, err := Listen(ctx, path)
	if err != nil {
		return nil, err
	}
	h := newHandler(s, o)
	p := &Port{path: path, asked: h, server: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.RemoteAddr())
		},
	}}
	p.done.Go(func() { _ = p.server.Serve(door.Listen(knowing{l}, connections)) })
	return p, nil
}

// Path is where the socket is.
func (p *Port) Path() string {
	if p == nil {
		return ""
	}
	return p.path
}

// Close ends the interface, takes its socket away, and waits for what is being answered. It may be called again.
func (p *Port) Close() {
	if p == nil {
		return
	}
	_ = p.server.Close() // the contexts of requests end with it
	p.done.Wait()
	p.asked.close()
}

type peerKey struct{}

// handler answers requests.
type handler struct {
	Options
	server Server
	mux    *http.ServeMux
	lines  door.Lines // about those who were not let in

	mu      sync.Mutex // guards closed, and Add of answers
	closed  bool
	answers sync.WaitGroup
}

// begin says whether a request may still be answered; h.answers.Done has to follow.
func (h *handler) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.answers.Add(1)
	}
	return !h.closed
}

func (h *handler) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.answers.Wait()
}

func newHandler(s Server, o Options) *handler {
	h := &handler{Options: o, server: s, mux: http.NewServeMux()}
	h.mux.HandleFunc("GET /v1/server", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Status()) })
	h.mux.HandleFunc("GET /v1/sessions", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, sessionList{nonNil(s.Sessions())})
	})
	h.mux.HandleFunc("POST /v1/sessions/{id}/end", h.end)
	h.mux.HandleFunc("PUT /v1/drain", h.drain)
	h.mux.HandleFunc("GET /v1/usage", h.usage)
	h.mux.HandleFunc("GET /v1/leases", func(w http.ResponseWriter, _ *http.Request) {
		list := s.Leases()
		if list == nil {
			list = []Lease{}
		}
		answer(w, leaseList{list})
	})
	h.mux.HandleFunc("POST /v1/leases", h.grant)
	h.mux.HandleFunc("DELETE /v1/leases/{id}", h.revoke)
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, fmt.Sprintf("there is no %.20s %.100q here", r.Method, r.URL.Path),
			"ask for GET /v1/server, GET /v1/sessions, POST /v1/sessions/ID/end, PUT /v1/drain, GET /v1/usage, GET or POST "+
				"/v1/leases, or DELETE /v1/leases/ID")
	})
	return h
}

// sessionList is the answer to GET /v1/sessions.
type sessionList struct {
	Sessions []Session `json:"sessions"`
}

func nonNil(list []Session) []Session {
	if list == nil {
		return []Session{}
	}
	return list
}

// ServeHTTP lets in who may come.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.begin() {
		refuse(w, http.StatusServiceUnavailable, "the server ends", "start it again")
		return
	}
	defer h.answers.Done()
	who, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		who = nobody
	}
	switch {
	case who.uid != 0 && who.uid != os.Geteuid():
		if missed, ok := h.lines.Allow(); ok {
			h.Log.Warn("refused a user at the admin socket", "user", who.uid, "pid", who.pid, "left_out", missed)
		}
		refuse(w, http.StatusForbidden, fmt.Sprintf("%v (user %d)", ErrForbidden, os.Geteuid()), "use sudo")
		return
	case h.Worker != nil && h.Worker(who.pid):
		if missed, ok := h.lines.Allow(); ok {
			h.Log.Error("refused a worker at the admin socket", "worker", who.pid, "left_out", missed)
		}
		refuse(w, http.StatusForbidden, "a worker has no business here", "")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	h.mux.ServeHTTP(w, r)
}

// endRequest is the body of POST /v1/sessions/{id}/end.
type endRequest struct {
	Reason string `json:"reason"`
}

func (h *handler) end(w http.ResponseWriter, r *http.Request) {
	var body endRequest
	if !read(w, r, &body) {
		return
	}
	if badReason(w, body.Reason) {
		return
	}
	switch err := h.server.End(r.Context(), r.PathValue("id"), body.Reason); {
	case errors.Is(err, ErrNoSession):
		refuse(w, http.StatusNotFound, fmt.Sprintf("%v: %.40q", err, r.PathValue("id")),
			"it may have ended; GET /v1/sessions lists them, and the whole id is needed")
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error(), "look into the server's log")
	default:
		answer(w, struct{}{})
	}
}

// badReason refuses a reason that cannot be told.
func badReason(w http.ResponseWriter, reason string) bool {
	if len(reason) <= MaxReason && utf8.ValidString(reason) {
		return false
	}
	refuse(w, http.StatusBadRequest, fmt.Sprintf("the reason has %d bytes, or is no text", len(reason)),
		fmt.Sprintf("write %d bytes of UTF-8 at most", MaxReason))
	return true
}

// drainRequest is the body of PUT /v1/drain.
type drainRequest struct {
	On *bool `json:"on"`
}

func (h *handler) drain(w http.ResponseWriter, r *http.Request) {
	var body drainRequest
	if !read(w, r, &body) {
		return
	}
	if body.On == nil {
		refuse(w, http.StatusBadRequest, `the body does not say "on"`, `write {"on": true} or {"on": false}`)
		return
	}
	if err := h.server.Drain(*body.On); err != nil {
		refuse(w, http.StatusConflict, err.Error(), "start it again")
		return
	}
	answer(w, h.server.Status())
}

// read reads a request's body, which is one JSON object and no more; false if it has been refused.
func read(w http.ResponseWriter, r *http.Request, to any) bool {
	err := parse(r.Body, to)
	if err == nil {
		return true
	}
	if e := (*http.MaxBytesError)(nil); errors.As(err, &e) {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", e.Limit), "send less")
		return false
	}
	refuse(w, http.StatusBadRequest, fmt.Sprintf("the body is not what is expected: %.200v", err),
		"send one JSON object, as docs/operations.md shows it")
	return false
}

func parse(from io.Reader, to any) error {
	d := json.NewDecoder(from)
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.Join(errors.New("something stands behind the object"), err)
	}
	return nil
}

func answer(w http.ResponseWriter, v any) { write(w, http.StatusOK, v) }

func refuse(w http.ResponseWriter, status int, cause, remedy string) {
	write(w, status, &Fault{Cause: strings.ToValidUTF8(cause, "�"), Remedy: remedy})
}

func write(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil { // no type here has anything that JSON lacks
		status, text = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written","remedy":""}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}
