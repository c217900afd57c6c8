package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"unicode/utf8"

	"scuda.dev/scuda/server/door"
)

// Options are what an interface needs beside its server.
type Options struct {
	// Worker says whether a process of this machine carries out what clients ask for: it is not let in.
	Worker func(pid int) bool
	// Count is told of each answer: what was asked for, by which role, and HTTP's status; nil: nobody counts.
	Count func(request, role string, status int)
	Log   *slog.Logger
}

// handler answers requests.
type handler struct {
	Options
	server Server
	mux    *http.ServeMux
	lines  door.Lines // about those who were not let in
	vain   door.Lines // about what was refused

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
	for _, at := range routes {
		h.mux.HandleFunc(at.pattern, func(w http.ResponseWriter, r *http.Request) {
			who, _ := r.Context().Value(whoKey{}).(Who)
			h.serve(at, w, r, who)
		})
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, fmt.Sprintf("there is no %.20s %.100q here", r.Method, r.URL.Path),
			"ask for one of "+offered())
	})
	return h
}

// whoKey is where a request's context has who asks.
type whoKey struct{}

// ServeHTTP lets in who may come.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.begin() {
		refuse(w, http.StatusServiceUnavailable, "the server ends", "start it again")
		return
	}
	defer h.answers.Done()
	who, fault := h.recognise(r.Context().Value(peerKey{}))
	if fault != nil {
		write(w, http.StatusForbidden, fault)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	h.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), whoKey{}, who)))
}

// recognise says who is at the other end of a connection: its address is what is known of that.
func (h *handler) recognise(end any) (Who, *Fault) {
	p := nobody
	switch end := end.(type) {
	case Caller:
		who, err := end.Now()
		if err != nil {
			return Who{}, &Fault{Cause: err.Error(), Remedy: "connect again, with a credential that the server takes"}
		}
		who.From = end.Address
		return who, nil
	case peer:
		p = end
	}
	switch {
	case p.uid != 0 && p.uid != os.Geteuid():
		if missed, ok := h.lines.Allow(); ok {
			h.Log.Warn("refused a user at the admin socket", "user", p.uid, "pid", p.pid, "left_out", missed)
		}
		return Who{}, &Fault{Cause: fmt.Sprintf("%v (user %d)", ErrForbidden, os.Geteuid()), Remedy: "use sudo"}
	case h.Worker != nil && h.Worker(p.pid):
		if missed, ok := h.lines.Allow(); ok {
			h.Log.Error("refused a worker at the admin socket", "worker", p.pid, "left_out", missed)
		}
		return Who{}, &Fault{Cause: "a worker has no business here"}
	}
	return Who{Admin: true, From: p.String()}, nil
}

func (h *handler) status(w http.ResponseWriter, _ *http.Request, who Who) {
	st := h.server.Status(who)
	st.Tenant, st.Role = who.Tenant, who.Role()
	answer(w, st)
}

// sessionList is the answer to GET /v1/sessions.
type sessionList struct {
	Sessions []Session `json:"sessions"`
}

func (h *handler) sessions(w http.ResponseWriter, _ *http.Request, who Who) {
	answer(w, sessionList{nonNil(h.server.Sessions(who))})
}

func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// endRequest is the body of POST /v1/sessions/{id}/end.
type endRequest struct {
	Reason string `json:"reason"`
}

func (h *handler) end(w http.ResponseWriter, r *http.Request, who Who) {
	var body endRequest
	if !read(w, r, &body) {
		return
	}
	if badReason(w, body.Reason) {
		return
	}
	switch err := h.server.End(r.Context(), who, r.PathValue("id"), body.Reason); {
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

func (h *handler) drain(w http.ResponseWriter, r *http.Request, who Who) {
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
	h.status(w, r, who)
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
