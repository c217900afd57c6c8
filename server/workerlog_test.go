package server

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
)

// What a worker's logger made is told from what looks like a line of somebody else's.
func TestOwnLine(t *testing.T) {
	const pid = 42
	for _, format := range []config.LogFormat{config.LogText, config.LogJSON} {
		own := ownLine(format, pid)
		var b strings.Builder
		log := slog.New(format.Handler(&b, slog.LevelDebug))
		said := func(f func(log *slog.Logger)) []byte {
			b.Reset()
			f(log)
			return []byte(b.String())
		}
		mine := log.With("worker", pid)
		for _, line := range [][]byte{
			said(func(*slog.Logger) { mine.Info("opened") }),
			said(func(*slog.Logger) { mine.Warn("a longer message", "session", "s1", "text", "a \"b\"\n c") }),
			said(func(*slog.Logger) { mine.Debug("a \"quoted\" word = \\", "took", time.Second) }),
		} {
			if !own(line) {
				t.Errorf("%s: not its own: %q", format, line)
			}
		}
		good := string(said(func(*slog.Logger) { mine.Info("opened", "x", 1) }))
		other := regexp.MustCompile(`(worker\W+)42`).ReplaceAllString(good, "${1}43") // the time may have a 42 as well
		for _, line := range []string{
			"", "\n", "panic: boom\n", good[:len(good)-1], "x" + good, other,
			strings.Replace(good, "opened", "op\x1bened", 1), strings.Replace(good, "opened", "op\u202eened", 1),
			strings.Replace(good, "opened", "op\xffened", 1),
			string(said(func(log *slog.Logger) { log.Info("session ended", "session", "s1") })),
			string(said(func(log *slog.Logger) { log.Info("session ended", "session", "s1", "worker", pid) })),
			string(said(func(*slog.Logger) { mine.Info("x", "worker", 43) })),
		} {
			if own([]byte(line)) {
				t.Errorf("%s: its own: %q", format, line)
			}
		}
	}
}

// A worker writes whole lines, of a bounded length, and a bounded number of them.
func TestLinesOfWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines, said logBuffer
		l := &workerLog{
			to: &lines, log: slog.New(slog.NewTextHandler(&said, nil)), own: ownLine(config.LogText, 7), pid: 7,
			room: workerBurst, since: time.Now(),
		}
		from, to := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.copy(from)
		}()
		write := func(text string) {
			if _, err := io.WriteString(to, text); err != nil {
				t.Error(err)
			}
		}
		const good = "time=now level=INFO msg=opened worker=7\n"
		write(good[:9])
		write(good[9:])
		write("panic: \x1b[2J\n" + strings.Repeat("x", 3*workerLine) + "\nafter\n")
		synctest.Wait()
		if got := lines.String(); got != good {
			t.Errorf("lines %q", got)
		}
		got := said.String()
		for _, want := range []string{`worker=7 text="panic: \x1b[2J"`, "xxx", "worker=7 text=after"} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in %.300q", want, got)
			}
		}
		if strings.Count(got, "\n") != 3 || len(got) > workerLine+1000 {
			t.Errorf("%d lines of %d bytes", strings.Count(got, "\n"), len(got))
		}
		for range workerBurst / 1000 * 3 {
			write(strings.Repeat("y", 999) + "\n")
		}
		synctest.Wait()
		if n := len(said.String()); n > 2*workerBurst {
			t.Errorf("%d bytes in the log", n)
		}
		time.Sleep(time.Minute)
		write("later\n")
		to.Close()
		<-done
		if got := said.String(); !strings.Contains(got, "lines of a worker were left out") ||
			!strings.Contains(got, "text=later") {
			t.Errorf("the log ends with %q", got[len(got)-400:])
		}
	})
}

// A worker has no descriptor of the server's log, and what it says when it crashes is in the log.
func TestWorkersDoNotHoldTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := serve(t, func(c *Config) { c.Stderr = file })
	l := s.open(transport.KindCUDA)
	pid := s.workerOf(l)
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); name == path {
			t.Errorf("descriptor %s of the worker is the log", e.Name())
		}
	}
	if err := syscall.Kill(pid, syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	s.logged("worker crashed")
	if got, want := s.log.String(), fmt.Sprintf(`worker=%d text="SIGABRT: abort`, pid); !strings.Contains(got, want) {
		t.Errorf("no %q in the log", want)
	}
}
