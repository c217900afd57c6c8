package spawner

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lines is a log that is read while others still write to it.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A spawner that comes when its server is ending is hung up on, and keeps what it has for the next one.
func TestLateSpawner(t *testing.T) {
	next, left := keeping(t, newKeeper(true, quiet))
	first := next()
	w, _, _ := startKept(t, first)
	r := &Remote{client: first}
	if kept, _ := r.TakeOver(); len(kept) != 0 {
		t.Fatalf("%d are kept", len(kept))
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	late := next()
	r.set(late)
	<-late.gone
	if _, err := r.Facts(); !errors.Is(err, ErrLost) {
		t.Errorf("a server that has ended has a spawner: %v", err)
	}
	left()
	last := next()
	if len(last.kept) != 1 || last.kept[0].PID != w.PID {
		t.Fatalf("the next server gets %v", last.kept)
	}
	last.kept[0].Close()
	<-w.exited
	if err := last.Close(); err != nil {
		t.Error(err)
	}
}

// Everybody may connect to the socket. The log has so many lines for those who are refused, and a real spawner gets in.
func TestRefusedSpawners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	said := new(lines)
	log := slog.New(slog.NewTextHandler(said, nil))
	const strangers = 200
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for range strangers {
			for {
				c, err := net.Dial("unixpacket", path)
				if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
					continue
				}
				if err != nil {
					t.Error(err)
					break
				}
				_, _ = c.Write([]byte("no packet"))
				_, _ = c.Read(make([]byte, 1)) // until it is closed
				c.Close()
				break
			}
		}
		done <- Dial(ctx, path, Config{Cgroup: CgroupNone}, quiet)
	}()
	r, err := Listen(ctx, path, time.Minute, log)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(said.String(), "refused a spawner"); n == 0 || n > strangers/2 {
		t.Errorf("%d lines for %d strangers", n, strangers)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
