package bar

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// screen is what a terminal would show of what was written: its last line.
func screen(text string) string {
	lines := strings.Split(text, "\n")
	line := lines[len(lines)-1]
	if i := strings.LastIndex(line, "\r\x1b[K"); i >= 0 {
		line = line[i+len("\r\x1b[K"):]
	}
	return line
}

func TestBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		width := 80
		b := begin(&out, func() int { return width })
		shows := func(want string) {
			t.Helper()
			synctest.Wait()
			b.mu.Lock()
			defer b.mu.Unlock()
			if got := screen(out.String()); got != want {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		}
		shows("")
		b.Step(0, 4, "round 1")
		shows("[....................]   0 %  0s  round 1")
		time.Sleep(10*time.Second + time.Millisecond)
		shows("[....................]   0 %  10s  round 1")
		b.Step(1, 4, "round 2")
		shows("[#####...............]  25 %  about 30s left  round 2")
		time.Sleep(4*time.Second + time.Millisecond)
		shows("[#####...............]  25 %  about 26s left  round 2")
		time.Sleep(time.Minute) // later than it was thought
		shows("[#####...............]  25 %  1m14s  round 2")
		fmt.Fprintln(b, "a note")
		shows("")
		if !strings.HasSuffix(out.String(), "\r\x1b[Ka note\n") {
			t.Errorf("got %q", out.String())
		}
		width = 31
		b.Step(4, 4, "späte Runde")
		shows("[####################] 100 %  ")
		width = 0
		b.Step(4, 4, "x")
		shows("")
		b.End()
		shows("")
	})
}

// Many small steps write no more than a terminal shows.
func TestSmallSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := begin(&out, func() int { return 80 })
		for i := range int64(1000) {
			b.Step(i, 1000, "copying")
			time.Sleep(time.Millisecond)
		}
		b.End()
		if n := strings.Count(out.String(), "copying"); n > 15 {
			t.Errorf("%d lines in a second", n)
		}
	})
}

// Only terminals have a bar, and those that want one.
func TestTerminal(t *testing.T) {
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		name, colour, term string
		out                io.Writer
		shows              bool
	}{
		{"terminal", "", "xterm", theirs, true},
		{"NO_COLOR", "1", "xterm", theirs, false},
		{"dumb", "", "dumb", theirs, false},
		{"file", "", "xterm", file, false},
		{"buffer", "", "xterm", &bytes.Buffer{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("NO_COLOR", c.colour)
			t.Setenv("TERM", c.term)
			b := New(c.out)
			b.Step(1, 2, "half")
			if b.shown != c.shows {
				t.Errorf("shown: %v", b.shown)
			}
			b.End()
		})
	}
	if info, err := file.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("%v, %v", info.Size(), err)
	}
}
