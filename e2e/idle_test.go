package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A program that has stopped calling costs no processor time any more, neither in its own process, from 50 ms after its
// last call on, nor on the server.
func TestIdleCostsNothing(t *testing.T) {
	s := serve(t)
	p := s.client(t, "hold", "16")
	p.await(p.out, "^ready$")
	const settle, watched, most = 50 * time.Millisecond, 2 * time.Second, 20 * time.Millisecond
	own := []int{p.cmd.Process.Pid}
	used := func() (program, server time.Duration) {
		theirs := tree(t, s.cmd.Process.Pid)
		program, server = processorTime(t, own), processorTime(t, theirs)
		time.Sleep(watched) // this is what is measured, not something waited for
		return processorTime(t, own) - program, processorTime(t, theirs) - server
	}
	time.Sleep(settle) // this is what is promised, not something waited for
	// In the first moments the server makes another worker ready for whoever comes next: 25 ms, later on a busy machine.
	for deadline := time.Now().Add(patience); ; {
		program, server := used()
		t.Logf("in %v of idleness the program used %v, the server and its workers %v", watched, program, server)
		if program >= most {
			t.Fatal("the program is not idle")
		}
		if program+server < most {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not become idle within %v", patience)
		}
	}
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// tree gives a process and its children.
func tree(t *testing.T, pid int) []int {
	t.Helper()
	list := []int{pid}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // a thread that has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsSeq(string(b)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, tree(t, child)...)
		}
	}
	return list
}

// processorTime is what the processes have used, as the scheduler counts it: whole ticks are charged to whoever runs
// when the clock ticks.
func processorTime(t *testing.T, pids []int) (sum time.Duration) {
	t.Helper()
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("process %d is gone: %v", pid, err)
		}
		for _, f := range threads {
			b, err := os.ReadFile(f)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // a thread that has ended
			}
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += time.Duration(n)
		}
	}
	return sum
}
