package spawner

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// keeping gives functions of a spawner of its own service: next makes a supervisor of its, left waits until the spawner
// has noticed that the one before is gone.
func keeping(t *testing.T, k *keeper) (next func() *Client, left func()) {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(t.TempDir(), "socket")})
	if err != nil {
		t.Fatal(err)
	}
	local, err := NewLocal(Config{Cgroup: CgroupNone}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	served := false
	left = func() {
		if served {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		served = false
	}
	t.Cleanup(func() {
		left()
		local.Close()
		l.Close()
	})
	next = func() *Client {
		left()
		served = true
		c, err := net.DialUnix("unixpacket", nil, l.Addr().(*net.UnixAddr))
		if err != nil {
			t.Fatal(err)
		}
		go func() { done <- serve(context.Background(), line{c}, local, k) }()
		theirs, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		client, err := newClient(line{theirs})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.line.sock.Close() }) // of a test that ended early
		return client
	}
	return next, left
}

// keptFiles are descriptors as a supervisor has them kept, the first of which is a pipe.
func keptFiles(t *testing.T) (files []*os.File, r *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close(); null.Close() })
	return []*os.File{w, null, null, null, null}, r
}

// startKept starts a worker and has files kept of it; r is what one of them is the other end of.
func startKept(t *testing.T, c *Client) (w *worker, files []*os.File, r *os.File) {
	t.Helper()
	w = start(t, c, Order{})
	w.said()
	files, r = keptFiles(t)
	if err := w.Keep(files); err != nil {
		t.Fatal(err)
	}
	return w, files, r
}

// The next supervisor gets the workers of which something is kept, with that, and learns how they end. The others have
// ended.
func TestKeeper(t *testing.T) {
	k := newKeeper(true, quiet)
	next, _ := keeping(t, k)
	first := next()
	stays, _, r := startKept(t, first)
	ends := start(t, first, Order{})
	ends.said()
	first.line.sock.Close() // as if it were killed
	<-first.gone
	if n, err := ends.says.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a worker of which nothing is kept goes on")
	}
	second := next()
	if len(second.kept) != 1 || second.kept[0].PID != stays.PID {
		t.Fatalf("%d are kept: %v", len(second.kept), second.kept)
	}
	mine := second.kept[0]
	if _, err := mine.Files[0].WriteString("kept"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(r, b); err != nil || string(b) != "kept" {
		t.Errorf("%q, %v", b, err)
	}
	closeAll(mine.Files)
	another := start(t, second, Order{}) // its number is nobody else's
	another.said()
	if err := mine.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := mine.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	<-another.exited
}

// A worker that ends while there is no supervisor is shown to the next one, and so is its end.
func TestKeptWorkerEnds(t *testing.T) {
	k := newKeeper(true, quiet)
	next, left := keeping(t, k)
	first := next()
	w, _, _ := startKept(t, first)
	first.line.sock.Close()
	<-first.gone
	left()
	if err := unix.Kill(w.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := next()
	if len(second.kept) != 1 {
		t.Fatalf("%d are kept", len(second.kept))
	}
	if err := second.kept[0].Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v", err)
	}
	closeAll(second.kept[0].Files)
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// A worker may end when its supervisor is gone already and the spawner has not noticed it.
func TestEndIsNotLost(t *testing.T) {
	ours, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.sock.Close()
	theirs.Close()
	files, _ := keptFiles(t)
	exited := make(chan struct{})
	close(exited)
	k := newKeeper(true, quiet)
	k.line = &ours
	for id, w := range []*ward{{Worker: &Worker{exited: exited}, files: files}, {Worker: &Worker{exited: exited}}} {
		k.workers[uint64(id)] = w
		k.follow(uint64(id), w)
	}
	if w := k.workers[0]; w == nil || w.ended == nil {
		t.Error("the next supervisor does not learn how a kept worker ended")
	}
	if k.workers[1] != nil {
		t.Error("a worker that ends with its supervisor is kept")
	}
}

// What is kept ends when no supervisor comes in time, when the last one says so, and when the next is another user.
func TestKeptForNobody(t *testing.T) {
	for name, c := range map[string]func(*keeper, *Client){
		"late": func(k *keeper, first *Client) {
			k.mu.Lock()
			k.time = time.Millisecond
			k.mu.Unlock()
			first.line.sock.Close()
		},
		"bye": func(_ *keeper, first *Client) {
			r := &Remote{client: first}
			r.Bye()
			first.line.sock.Close()
		},
		"another user": func(k *keeper, first *Client) {
			first.line.sock.Close()
			k.mu.Lock()
			k.owner++
			k.mu.Unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(true, quiet)
			next, _ := keeping(t, k)
			first := next()
			w, files, _ := startKept(t, first)
			if err := first.line.send(&packet{Kind: kindHouse}, files[:HouseFiles]...); err != nil {
				t.Fatal(err)
			}
			c(k, first)
			<-first.gone
			if name == "late" {
				if n, err := w.says.Read(make([]byte, 1)); n != 0 || err == nil {
					t.Error("the worker goes on")
				}
			}
			second := next()
			if len(second.kept) != 0 || len(second.house) != 0 {
				t.Errorf("%d workers and %d descriptors are kept", len(second.kept), len(second.house))
			}
			if n, err := w.says.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Error("the worker goes on")
			}
			if err := second.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A spawner that is a supervisor's child keeps nothing.
func TestChildKeepsNothing(t *testing.T) {
	k := newKeeper(false, quiet)
	next, _ := keeping(t, k)
	first := next()
	w := start(t, first, Order{})
	w.said()
	if w.Keeps() {
		t.Error("it says that it keeps")
	}
	files, _ := keptFiles(t)
	if err := first.line.send(&packet{Kind: kindKeep, ID: w.id}, files...); err != nil {
		t.Fatal(err)
	}
	first.line.sock.Close()
	<-first.gone
	second := next()
	if len(second.kept) != 0 {
		t.Errorf("%d are kept", len(second.kept))
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// A spawner has no more workers than it has descriptors for.
func TestDescriptorsOfKeeper(t *testing.T) {
	for cur, want := range map[uint64]int{0: 1, 1024: 120, 65536: 8184, 1 << 40: mostWorkers} {
		got := mostOf(func(_ int, r *unix.Rlimit) error { r.Cur = cur; return nil })
		if got != want {
			t.Errorf("%d workers with %d descriptors, not %d", got, cur, want)
		}
	}
	k := newKeeper(true, quiet)
	k.most = 1
	next, _ := keeping(t, k)
	c := next()
	w := start(t, c, Order{})
	line, errs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	defer errs.Close()
	if _, err := c.Start(Order{}, line, errs); err == nil || !strings.Contains(err.Error(), "too many workers") {
		t.Errorf("one more: %v", err)
	}
	w.said()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
