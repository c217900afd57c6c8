package board

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// timed is a board whose time stands still until it is moved.
func timed() (*Board, *int64) {
	b, now := Private(), new(int64)
	b.now = func() int64 { return *now }
	return b, now
}

func join(t testing.TB, b *Board) *Seat {
	t.Helper()
	s, err := b.Join()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestLoadFollowsTheWork(t *testing.T) {
	b, now := timed()
	s := join(t, b)
	if r := b.Read(1); r.Kernels != 0 || r.Heat != 0 || r.Users != nil {
		t.Errorf("before anything happened: %+v", r)
	}
	s.Begin(1, Kernels)
	*now += int64(LoadTime)
	s.Begin(1, Kernels) // another stream: the GPU is not busier for it
	if r := b.Read(1); !near(r.Kernels, 1-1/math.E) || r.Copies != 0 {
		t.Errorf("a kernel runs: %+v", r)
	}
	s.End(1, Kernels)
	*now += int64(2 * time.Second)
	if r := b.Read(1); r.Kernels < 0.999 || !near(r.Heat, 1-math.Exp(-2.25/15)) {
		t.Errorf("the other kernel still runs: %+v", r)
	}
	s.End(1, Kernels)
	hot := b.Read(1)
	*now += int64(LoadTime)
	if r := b.Read(1); !near(r.Kernels, hot.Kernels/math.E) || r.Heat > hot.Heat || r.Heat < 0.9*hot.Heat {
		t.Errorf("it rests: %+v, before %+v", r, hot)
	}
	s.Begin(1, Copies)
	*now += int64(LoadTime)
	if r := b.Read(1); !near(r.Copies, 1-1/math.E) {
		t.Errorf("a copy: %+v", r)
	}
	if r := b.Read(0); r.Kernels != 0 || r.Copies != 0 {
		t.Errorf("another device: %+v", r)
	}
}

// TestShares: many short kernels with pauses between them are the load that they make up.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, now := timed()
		s, err := b.Join()
		if err != nil {
			t.Fatal(err)
		}
		work := rapid.Int64Range(1e5, 1e6).Draw(t, "work")
		rest := rapid.Int64Range(0, 1e6).Draw(t, "rest")
		reads := rapid.Bool().Draw(t, "reads")
		for *now < int64(3*time.Second) {
			s.Begin(0, Kernels)
			*now += work
			s.End(0, Kernels)
			*now += rest
			if reads && *now%64 == 0 {
				b.Read(0) // changes nothing
			}
		}
		want := float64(work) / float64(work+rest)
		if r := b.Read(0); math.Abs(r.Kernels-want) > 0.01 {
			t.Errorf("%d ns of work and %d of rest: load %f, want %f", work, rest, r.Kernels, want)
		}
	})
}

func TestMemoryAndUsers(t *testing.T) {
	b, _ := timed()
	one, other := join(t, b), join(t, b)
	one.Use(0, 100)
	one.Contexts(0, 2)
	other.Use(0, 11)
	other.Use(3, 5)
	r := b.Read(0)
	if r.Used != 111 || len(r.Users) != 1 || r.Users[0] != (User{os.Getpid(), 100}) {
		t.Errorf("%+v", r)
	}
	one.Leave()
	if r := b.Read(0); r.Used != 11 || len(r.Users) != 0 {
		t.Errorf("after one has left: %+v", r)
	}
	if third := join(t, b); third.own != one.own {
		t.Error("the seat that is free again was not taken")
	}
}

func TestFullBoard(t *testing.T) {
	b, _ := timed()
	for range Seats {
		join(t, b)
	}
	if _, err := b.Join(); err == nil || !strings.Contains(err.Error(), ErrFull.Error()) {
		t.Errorf("one process too many: %v", err)
	}
}

// TestKilledProcess: another process has memory and a running kernel until it is killed, at which moment both are gone,
// but not what the work did to the averages.
func TestKilledProcess(t *testing.T) {
	if os.Getenv("SCUDA_TEST_BOARD") != "" { // descriptor 3 of any other process is somebody else's
		b, err := Open(os.NewFile(3, "board"))
		if err != nil {
			t.Fatal(err)
		}
		s := join(t, b)
		s.Use(2, 77)
		s.Contexts(2, 1)
		s.Begin(2, Kernels)
		fmt.Println("seated")
		select {}
	}
	b, f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
	c.Env = append(os.Environ(), "SCUDA_TEST_BOARD=1")
	c.ExtraFiles = []*os.File{f}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 64)
	if n, err := out.Read(line); err != nil || !bytes.HasPrefix(line[:n], []byte("seated")) {
		t.Errorf("the process says %q, %v", line[:n], err)
	}
	late := b.now() + int64(time.Second)
	b.now = func() int64 { return late }
	r := b.Read(2)
	if r.Used != 77 || len(r.Users) != 1 || r.Users[0].PID != c.Process.Pid || r.Kernels < 0.9 {
		t.Errorf("while it runs: %+v", r)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if r := b.Read(2); r.Used != 0 || r.Users != nil || r.Kernels != 0 {
		t.Errorf("after it was killed: %+v", r)
	}
	if s := join(t, b); s.own != &b.seats[0] {
		t.Error("its seat was not taken over")
	}
	if r := b.Read(2); r.Used != 0 || r.Kernels != 0 {
		t.Errorf("its seat is somebody else's: %+v", r)
	}
}

// TestTake: one at a time has the device, whoever waits is next, and one that is killed gives it back.
func TestTake(t *testing.T) {
	ctx := context.Background()
	if os.Getenv("SCUDA_TEST_TAKE") != "" { // descriptor 3 of any other process is somebody else's
		b, err := Open(os.NewFile(3, "board"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := join(t, b).Take(ctx, 2); err != nil {
			t.Fatal(err)
		}
		fmt.Println("taken")
		<-time.After(time.Hour) // where nothing can happen any more, Go ends the process
	}
	b, f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := join(t, b)
	leave, err := s.Take(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestTake$")
	c.Env = append(os.Environ(), "SCUDA_TEST_TAKE=1")
	c.ExtraFiles = []*os.File{f}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.Take(ctx, 1)
	if err != nil {
		t.Fatalf("another device: %v", err)
	}
	other()
	for next := false; !next; { // until it waits
		l := unix.Flock_t{Type: unix.F_WRLCK, Start: 2*locks + lockNext, Len: 1}
		if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &l); err != nil {
			t.Fatal(err)
		}
		next = l.Type != unix.F_UNLCK
	}
	leave()
	line := make([]byte, 64)
	if n, err := out.Read(line); err != nil || !bytes.HasPrefix(line[:n], []byte("taken")) {
		t.Errorf("the process says %q, %v", line[:n], err)
	}
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := s.Take(soon, 2); err == nil {
		t.Fatal("two have the device")
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	leave, err = s.Take(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if leave, err = join(t, Private()).Take(ctx, 0); err != nil {
		t.Fatal(err)
	}
	leave()
}
