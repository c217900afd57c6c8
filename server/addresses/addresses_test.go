package addresses

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/window"
)

const childEnv = "SCUDA_TEST_WINDOW"

// TestMain makes the test binary a process with a window where a test starts it as one: nothing can be taken back.
func TestMain(m *testing.M) {
	var number, windows int
	if of := os.Getenv(childEnv); of == "" {
		os.Exit(m.Run())
	} else if _, err := fmt.Sscanf(of, "%d/%d", &number, &windows); err != nil {
		panic(err)
	}
	if err := live(number, windows); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// mappings are the addresses in use, and what is said of each.
func mappings() (list []window.Range, lines []string, err error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var r window.Range
		if _, err := fmt.Sscanf(s.Text(), "%x-%x", &r.From, &r.To); err != nil {
			return nil, nil, err
		}
		list, lines = append(list, r), append(lines, s.Text())
	}
	return list, lines, nil
}

// live is what a process does with its window: everything lies there that it asks for without saying where.
func live(number, windows int) error {
	w, _, err := window.Of(number, windows)
	if err != nil {
		return err
	}
	before, _, err := mappings()
	if err != nil {
		return err
	}
	began := time.Now()
	k, err := Keep(w)
	if err != nil {
		return err
	}
	took := time.Since(began)
	after, lines, err := mappings()
	if err != nil {
		return err
	}
	if err := holes(after, lines, w, heapRange(), driverRoom, clientRoom); err != nil {
		return err
	}
	if most := len(before) + 64; len(after) > most {
		return fmt.Errorf("%d mappings, %d before", len(after), len(before))
	}
	for _, r := range []window.Range{driverRoom, clientRoom} { // NVIDIA's driver fails, or makes no use of it ever
		if err := takeAt(r.From, piece); err != nil {
			return fmt.Errorf("%#x is taken before the driver begins: %w", r.From, err)
		}
		free(r.From, piece)
	}
	if err := drive(w, k); err != nil { // before threads end that were there before
		return err
	}
	if after, lines, err = mappings(); err == nil {
		err = holes(after, lines, w, heapRange())
	}
	if err != nil {
		return fmt.Errorf("behind the driver's start: %w", err)
	}
	for _, size := range []uint64{4096, 64 << 10, 1 << 20, 2 << 20, 64 << 20, 1 << 30, 1 << 40} {
		at, err := takeAny(size)
		if err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
		if !w.Holds(at, size) {
			return fmt.Errorf("%d bytes at %#x, outside of %#x to %#x", size, at, w.From, w.To)
		}
	}
	if err := use(); err != nil {
		return err
	}
	if err := lend(k); err != nil {
		return err
	}
	fmt.Printf("%d mappings, %d before; %v\n", len(after), len(before), took)
	return nil
}

// holes says where addresses are left that could be offered, but for the room of the first stack and what may be free.
func holes(used []window.Range, lines []string, free ...window.Range) error {
	for i := 1; i < len(used) && !strings.HasSuffix(lines[i], "[stack]"); i++ {
		hole := window.Range{From: max(used[i-1].To, bottom), To: used[i].From}
		if hole.From+piece < hole.To && !slices.ContainsFunc(free, hole.Overlaps) {
			return fmt.Errorf("a hole from %#x to %#x", hole.From, hole.To)
		}
	}
	return nil
}

// use is what a worker needs itself: threads, memory of its own, a heap that grows.
func use() error {
	var ready, done sync.WaitGroup
	hold := make(chan struct{})
	for range 100 {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-hold
		})
	}
	ready.Wait()
	staging, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("1 GiB: %w", err)
	}
	staging[0], staging[1<<30-1] = 1, 1
	var pieces [][]byte
	for range 9 { // more than the arenas that Go had at first
		pieces = append(pieces, make([]byte, 8<<20))
	}
	runtime.KeepAlive(pieces)
	close(hold)
	done.Wait()
	return nil
}

// lend gives room at the client's addresses, and takes it back.
func lend(k *Kept) error {
	const at, bytes = window.ClientLow + 5<<36, 64 << 30
	isFree := func(at uint64) bool {
		err := takeAt(at, 4096)
		if err == nil {
			free(at, 4096)
		}
		return err == nil
	}
	for _, r := range []window.Range{
		{From: k.window.From, To: k.window.From + bytes}, {From: window.Low, To: window.Low + bytes},
		{From: window.High - bytes, To: window.High}, {From: ^uint64(0) - 4096, To: 4096}, {From: at, To: at},
	} {
		taken := slices.Clone(k.taken)
		if err := k.Lend(r.From, r.To-r.From, func() bool { return true }); err != nil || !slices.Equal(taken, k.taken) {
			return fmt.Errorf("lends what a server's window has: %#x, %w", r, err)
		}
	}
	isTaken := func() bool {
		noted := slices.ContainsFunc(k.taken, func(r window.Range) bool { return r.Holds(at, bytes) })
		return noted && !isFree(at) && !isFree(at+bytes-4096)
	}
	if err := k.Lend(at, bytes, func() bool { return !isFree(at) || !isFree(at+bytes-4096) }); err != nil {
		return err
	}
	if !isTaken() {
		return fmt.Errorf("does not take back what it lent: %#x", k.taken)
	}
	return crowd(k, at, bytes)
}

// crowd lends addresses while other threads ask for memory all the time: what they get lies elsewhere.
func crowd(k *Kept, at, bytes uint64) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for _, size := range []uint64{4096, 64 << 10, 64 << 20} {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if at, err := takeAny(size); err == nil {
					free(at, size)
				}
			}
		})
	}
	for i := range 2000 {
		var wrong error
		if err := errors.Join(k.Lend(at, bytes, func() bool {
			if wrong = takeAt(at, bytes); wrong == nil {
				free(at, bytes)
			}
			return false
		}), wrong); err != nil {
			return fmt.Errorf("addresses that are lent for the %d-th time: %w", i+1, err)
		}
	}
	return nil
}

func TestKeep(t *testing.T) {
	for _, of := range []string{"0/2", "1/2", "0/3", "1/3", "2/3", "0/16", "9/16", "15/16"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			if text, err := child(of).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, text)
			} else {
				t.Logf("%s", text)
			}
		})
	}
}

func child(of string, before ...string) *exec.Cmd {
	args := append(before, os.Args[0])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"="+of)
	return cmd
}

// TestUpwards: where the system offers low addresses first, a window cannot be kept to, and the reason is said.
func TestUpwards(t *testing.T) {
	text, err := child("1/2", "setarch", "-L").CombinedOutput()
	if err == nil || !strings.Contains(string(text), "upwards") {
		t.Fatalf("%v\n%s", err, text)
	}
}

// TestFewAddresses: where a process may have few addresses, the reason is said.
func TestFewAddresses(t *testing.T) {
	const script = `ulimit -v 100000000; exec "$0"`
	text, err := child("1/2", "sh", "-c", script).CombinedOutput()
	if err == nil || strings.Count(string(text), "ulimit -v") != 1 {
		t.Fatalf("%v\n%s", err, text)
	}
}

// TestNote: what was taken is remembered in order, neighbours as one.
func TestNote(t *testing.T) {
	k := new(Kept)
	for _, r := range []window.Range{{From: 40, To: 50}, {From: 10, To: 20}, {From: 20, To: 30}, {From: 60, To: 70},
		{From: 50, To: 60}, {From: 0, To: 5}} {
		k.note(r)
	}
	want := []window.Range{{From: 0, To: 5}, {From: 10, To: 30}, {From: 40, To: 70}}
	if !slices.Equal(k.taken, want) {
		t.Errorf("%v, want %v", k.taken, want)
	}
}
