package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/usage"
)

// net/http waits half a second, with nobody to wait for it, after it has refused a body.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// fake is a server with two sessions and a lease.
type fake struct {
	wanted   []LeaseRequest
	refuses  error // to make a lease
	mu       sync.Mutex
	ended    []string
	draining bool
	stopping bool
	stuck    bool // sessions do not end
}

func (f *fake) Status(Who) Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Status{Version: "test", Draining: f.draining, CUDA: Places{2, 8}}
}

func (f *fake) Sessions(who Who) (list []Session) {
	for _, x := range []Session{{ID: "aa11", Program: "train", Tenant: "a", Lease: "bb11", Calls: new(uint64(5))},
		{ID: "aa22", Tenant: "a", Kind: KindNVML}} {
		if who.May(x.Tenant, x.Lease) {
			list = append(list, x)
		}
	}
	return list
}

func (f *fake) End(ctx context.Context, who Who, id, reason string) error {
	if !slices.ContainsFunc(f.Sessions(who), func(x Session) bool { return x.ID == id }) {
		return ErrNoSession
	}
	if f.stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, id+" "+reason)
	return nil
}

func (f *fake) Drain(on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopping {
		return ErrShutdown
	}
	f.draining = on
	return nil
}

func (f *fake) Usage(_ context.Context, _ Who, since time.Time, by string) (*Usage, error) {
	if f.refuses != nil {
		return nil, f.refuses
	}
	return &Usage{[]usage.Sum{{Key: by, Program: since.UTC().Format(time.RFC3339Nano), Sessions: 3}}, 1}, nil
}

func (f *fake) Leases(who Who) []Lease {
	if !who.May("a", "bb11") {
		return nil
	}
	return []Lease{{Lease: lease.Lease{ID: "bb11", Label: "job", Tenant: "a", Terms: lease.Usual()}, Open: 2}}
}

func (f *fake) Grant(who Who, r LeaseRequest) (*Granted, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wanted = append(f.wanted, r)
	return &Granted{Lease: append(f.Leases(who), Lease{})[0], Credential: "secret"}, f.refuses
}

func (f *fake) Renew(who Who, id string, lasts time.Duration) (*Lease, error) {
	if id != "bb11" || len(f.Leases(who)) == 0 {
		return nil, lease.ErrNone
	}
	f.wanted = append(f.wanted, LeaseRequest{Seconds: lasts.Seconds()})
	return &f.Leases(who)[0], f.refuses
}

func (f *fake) Revoke(ctx context.Context, who Who, id, reason string) error {
	if id != "bb11" || len(f.Leases(who)) == 0 {
		return lease.ErrNone
	}
	return f.End(ctx, who, "aa11", reason)
}

// offer opens an interface, and gives a client of it.
func offer(t *testing.T, f *fake, o Options) (*Client, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := New(f, o)
	t.Cleanup(p.Close)
	if err := p.Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, path
}

func TestAsk(t *testing.T) {
	f := &fake{}
	c, path := offer(t, f, Options{})
	ctx := t.Context()
	if s, err := c.Status(ctx); err != nil || s.Version != "test" || s.CUDA != (Places{2, 8}) {
		t.Errorf("%+v, %v", s, err)
	}
	list, err := c.Sessions(ctx)
	if err != nil || len(list) != 2 || *list[0].Calls != 5 || list[1].Calls != nil {
		t.Errorf("%+v, %v", list, err)
	}
	if err := c.End(ctx, "aa11", "maintenance"); err != nil || len(f.ended) != 1 || f.ended[0] != "aa11 maintenance" {
		t.Errorf("%q, %v", f.ended, err)
	}
	for _, id := range []string{"bb", "aa", "", "../server", "aa11/end"} {
		if err := c.End(ctx, id, ""); !errors.Is(err, ErrNoSession) {
			t.Errorf("end of %q: %v", id, err)
		}
	}
	if err := c.End(ctx, "aa11", strings.Repeat("x", MaxReason+1)); err == nil || len(f.ended) != 1 {
		t.Errorf("a reason that is too long: %v", err)
	}
	for _, on := range []bool{true, false} {
		if s, err := c.Drain(ctx, on); err != nil || s.Draining != on {
			t.Errorf("drain %v: %+v, %v", on, s, err)
		}
	}
	f.mu.Lock()
	f.stopping = true
	f.mu.Unlock()
	if _, err := c.Drain(ctx, true); !errors.Is(err, ErrShutdown) {
		t.Errorf("while it shuts down: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestFindLease(t *testing.T) {
	l := func(id, label string) Lease { return Lease{Lease: lease.Lease{ID: id, Label: label}} }
	list := []Lease{l("aa11", "one"), l("aa22", ""), l("bb33", "two"), l("bb44", "two"), l("aa", "")}
	for word, want := range map[string]string{"aa": "aa", "aa1": "aa11", "one": "aa11", "bb4": "bb44"} {
		if got, err := FindLease(list, word); err != nil || got.ID != want {
			t.Errorf("%s: %+v, %v", word, got, err)
		}
	}
	for word, want := range map[string]error{"bb": ErrAlike, "two": ErrAlike, "": lease.ErrNone, "cc": lease.ErrNone} {
		if _, err := FindLease(list, word); !errors.Is(err, want) {
			t.Errorf("%q: %v", word, err)
		}
	}
}

// Close waits for nobody who asks, and its socket is gone.
func TestClose(t *testing.T) {
	f := &fake{stuck: true}
	path := filepath.Join(t.TempDir(), "s")
	p := New(f, Options{Log: slog.New(slog.DiscardHandler)})
	if err := p.Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ended := make(chan error, 1)
	go func() { ended <- c.End(context.WithoutCancel(t.Context()), "aa11", "") }()
	p.Close()
	if err := <-ended; err == nil {
		t.Error("the question has an answer")
	}
	p.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// Others than root, the server's user, and programs that are not its workers get an answer that says so.
func TestOthersAreRefused(t *testing.T) {
	var log bytes.Buffer
	h := newHandler(&fake{}, Options{
		Worker: func(pid int) bool { return pid == 7 }, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	for _, c := range []struct {
		who  any
		code int
	}{
		{peer{os.Geteuid(), 1}, 200}, {peer{0, 1}, 200}, {peer{os.Geteuid() + 1, 1}, 403}, {peer{os.Geteuid(), 7}, 403},
		{peer{0, 7}, 403}, {nobody, 403}, {nil, 403},
	} {
		r := httptest.NewRequest(http.MethodGet, "/v1/server", nil)
		r = r.WithContext(context.WithValue(r.Context(), peerKey{}, c.who))
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.code {
			t.Errorf("%v: %d %s", c.who, w.Code, w.Body)
		}
		if c.code == 200 {
			continue
		}
		var f Fault
		if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || f.Cause == "" {
			t.Errorf("%v: %s", c.who, w.Body)
		}
	}
	if got := strings.Count(log.String(), "refused a "); got != 5 {
		t.Errorf("%d lines:\n%s", got, &log)
	}
}

// The kernel says who is at the other end.
func TestPeerOf(t *testing.T) {
	var seen int
	c, _ := offer(t, &fake{}, Options{Worker: func(pid int) bool { seen = pid; return false }})
	if _, err := c.Status(t.Context()); err != nil || seen != os.Getpid() {
		t.Errorf("pid %d, %v", seen, err)
	}
}

func TestHostileRequests(t *testing.T) {
	f := &fake{}
	c, _ := offer(t, f, Options{})
	deep := strings.Repeat("[", 20000)
	for name, q := range map[string]struct {
		method, path, body string
		code               int
	}{
		"no such path":      {"GET", "/v2/server", "", 404},
		"another method":    {"DELETE", "/v1/sessions", "", 404},
		"no body":           {"POST", "/v1/sessions/aa11/end", "", 400},
		"no object":         {"POST", "/v1/sessions/aa11/end", `"x"`, 400},
		"another field":     {"POST", "/v1/sessions/aa11/end", `{"force":true}`, 400},
		"two objects":       {"POST", "/v1/sessions/aa11/end", `{}{}`, 400},
		"a tail":            {"POST", "/v1/sessions/aa11/end", `{} x`, 400},
		"cut off":           {"POST", "/v1/sessions/aa11/end", `{"reason":"`, 400},
		"a number":          {"POST", "/v1/sessions/aa11/end", `{"reason":5}`, 400},
		"deep":              {"POST", "/v1/sessions/aa11/end", deep, 400},
		"much":              {"POST", "/v1/sessions/aa11/end", `{"reason":"` + strings.Repeat("x", maxBody) + `"}`, 413},
		"a long reason":     {"POST", "/v1/sessions/aa11/end", `{"reason":"` + strings.Repeat("x", 999) + `"}`, 400},
		"not said":          {"PUT", "/v1/drain", `{}`, 400},
		"nothing said":      {"PUT", "/v1/drain", `{"on":null}`, 400},
		"climbs":            {"POST", "/v1/sessions/%2e%2e%2fserver/end", `{}`, 404},
		"usage by what":     {"GET", "/v1/usage?by=colour", "", 400},
		"since when":        {"GET", "/v1/usage?since=yesterday", "", 400},
		"since twice":       {"GET", "/v1/usage?since=2026-01-31T00:00:00Z&since=", "", 400},
		"no such question":  {"GET", "/v1/usage?tenant=a", "", 400},
		"no question":       {"GET", "/v1/usage?by=%zz", "", 400},
		"no such session":   {"POST", "/v1/sessions/aa1/end", `{}`, 404},
		"of another letter": {"POST", "/v1/sessions/AA11/end", `{}`, 404},
	} {
		r, err := http.NewRequestWithContext(t.Context(), q.method, "http://x"+q.path, strings.NewReader(q.body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.http.Do(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, _ := io.ReadAll(got.Body)
		got.Body.Close()
		var fault Fault
		if err := json.Unmarshal(text, &fault); err != nil || got.StatusCode != q.code || fault.Cause == "" ||
			fault.Remedy == "" || len(text) > 2048 {
			t.Errorf("%s: %d %s", name, got.StatusCode, text)
		}
	}
	if f.ended != nil || f.draining {
		t.Errorf("something was done: %q", f.ended)
	}
}

// What is no HTTP costs an answer and the connection.
func TestHostileBytes(t *testing.T) {
	_, path := offer(t, &fake{}, Options{})
	for name, text := range map[string]string{
		"noise":       "\x00\x01\x02\r\n\r\n",
		"long header": "GET /v1/server HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("b", 64<<10) + "\r\n\r\n",
		"long path":   "GET /" + strings.Repeat("b", 64<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, text)
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) || r != nil && r.StatusCode < 400 {
			t.Errorf("%s: %v, %v", name, r, err)
		}
		if r != nil {
			r.Body.Close()
		}
		c.Close()
	}
}

// More connections than places push out old ones: who comes is served.
func TestManyConnections(t *testing.T) {
	c, path := offer(t, &fake{}, Options{})
	for range 2 * connections {
		idle, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer idle.Close()
	}
	if _, err := c.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

func FuzzBodies(f *testing.F) {
	for _, s := range []string{`{"reason":"x"}`, `{"on":true}`, `{"on":true}x`, `[`, `{"reason":"\ud800"}`, ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		s := &fake{}
		h := newHandler(s, Options{Log: slog.New(slog.DiscardHandler)})
		for _, q := range [][2]string{{http.MethodPost, "/v1/sessions/aa11/end"}, {http.MethodPut, "/v1/drain"}} {
			r := httptest.NewRequest(q[0], q[1], strings.NewReader(body))
			r = r.WithContext(context.WithValue(r.Context(), peerKey{}, peer{0, 1}))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if !json.Valid(w.Body.Bytes()) || w.Code != 200 && w.Code != 400 && w.Code != 413 {
				t.Fatalf("%q: %d %q", body, w.Code, w.Body)
			}
		}
		for _, e := range s.ended {
			if len(e) > MaxReason+len("aa11 ") {
				t.Fatalf("a reason of %d bytes", len(e))
			}
		}
	})
}

// A socket whose server is gone is replaced; whatever else is there stays, and the error says what it is.
func TestListen(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "s")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Listen(t.Context(), path)
	if !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "a server listens") {
		t.Errorf("beside another server: %v", err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first server lost its socket: %v", err)
	} else {
		c.Close()
	}
	l.Close()
	file, link := filepath.Join(folder, "file"), filepath.Join(folder, "link")
	if err := errors.Join(os.WriteFile(file, []byte("mine"), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{file, link} {
		if _, err := Listen(t.Context(), p); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "no socket") {
			t.Errorf("%s: %v", p, err)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "mine" || err != nil {
		t.Errorf("the file is %q, %v", text, err)
	}
	open := filepath.Join(folder, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), filepath.Join(open, "s")); err == nil || !strings.Contains(err.Error(), "chmod o-w") {
		t.Errorf("where everybody can exchange it: %v", err)
	}
	if _, err := Listen(t.Context(), filepath.Join(folder, strings.Repeat("x", 108))); err == nil ||
		!strings.Contains(err.Error(), "shorter") {
		t.Errorf("a long path: %v", err)
	}
	fresh := filepath.Join(folder, "made", "s")
	if l, err = Listen(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if st, err := os.Stat(filepath.Dir(fresh)); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", st, err)
	}
}

// Servers that start at the same time, each at a port of its own, all have their sockets. Who keeps the lock keeps
// nobody for ever.
func TestListenBeside(t *testing.T) {
	folder := t.TempDir()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			l, err := Listen(t.Context(), filepath.Join(folder, fmt.Sprint(i)))
			if err != nil {
				t.Error(err)
				return
			}
			l.Close()
		})
	}
	all.Wait()
	keeps, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer keeps.Close()
	if err := unix.Flock(int(keeps.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), filepath.Join(folder, "s")); !errors.Is(err, ErrTaken) {
		t.Errorf("while another has the lock: %v", err)
	}
}

// One of two who come at the same time gets the place of a server that is gone.
func TestListenTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	var got sync.Map
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if l, err := Listen(t.Context(), path); err == nil {
				got.Store(i, l)
			} else if !errors.Is(err, ErrTaken) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n := 0
	got.Range(func(_, l any) bool { n++; l.(net.Listener).Close(); return true })
	if n != 1 {
		t.Errorf("%d have the socket", n)
	}
}

// A client finds the one server that there is, and asks which where there are several.
func TestFindServer(t *testing.T) {
	if os.Geteuid() == 0 {
		if _, err := os.Stat(rootFolder); err == nil {
			t.Log("this machine has a server of root's; its sockets count, too")
		}
	}
	run := t.TempDir()
	t.Setenv("RUNTIME_DIRECTORY", "")
	t.Setenv("XDG_RUNTIME_DIR", run)
	list := func() ([]string, error) { return search(t.Context(), []string{filepath.Join(run, "scuda")}) }
	if _, err := list(); !errors.Is(err, ErrNoServer) {
		t.Errorf("without a server: %v", err)
	}
	path := func(port int) string { return filepath.Join(run, "scuda", fmt.Sprintf("admin-%d.sock", port)) }
	if os.Geteuid() != 0 && PathOf(5) != path(5) {
		t.Errorf("the place is %s", PathOf(5))
	}
	var open []net.Listener
	for _, port := range []int{2, 1} {
		l, err := Listen(t.Context(), path(port))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, l)
		live, err := list()
		if err != nil || len(live) != len(open) || live[0] != path(port) {
			t.Errorf("%q, %v", live, err)
		}
	}
	for _, l := range open {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
	}
	if _, err := list(); !errors.Is(err, ErrNoServer) {
		t.Errorf("with sockets that are left: %v", err)
	}
	for given, want := range map[string]error{
		None: ErrSwitched, path(9): ErrNoServer, path(1): ErrNoServer,
	} {
		if _, err := Dial(t.Context(), given); !errors.Is(err, want) {
			t.Errorf("%s: %v", given, err)
		}
	}
}

func TestFind(t *testing.T) {
	list := []Session{{ID: "aa11"}, {ID: "aa22"}, {ID: "aa"}, {ID: "b"}}
	for id, want := range map[string]string{"aa11": "aa11", "aa1": "aa11", "aa": "aa", "b": "b"} {
		if s, err := Find(list, id); err != nil || s.ID != want {
			t.Errorf("%q: %v, %v", id, s, err)
		}
	}
	for id, want := range map[string]error{"a": ErrAmbiguous, "c": ErrNoSession, "": ErrNoSession, "aa111": ErrNoSession} {
		if _, err := Find(list, id); !errors.Is(err, want) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestMemory(t *testing.T) {
	two := []Use{{Memory: 3}, {Memory: 4}}
	for _, c := range []struct {
		s     Session
		bytes uint64
		known bool
	}{
		{Session{}, 0, false}, {Session{GPUs: two}, 7, true},
		{Session{GPUs: two, Counted: new(uint64(0)), Quota: 9}, 0, true},
	} {
		if n, known := c.s.Memory(); n != c.bytes || known != c.known {
			t.Errorf("%+v: %d, %v", c.s, n, known)
		}
	}
}
