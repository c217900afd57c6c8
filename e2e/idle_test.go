package e2e

import (
	"bytes"
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

// A program that has stopped calling costs no processor time any more, neither in its own process nor on the server: 50
// ms after its last call nothing of scuda runs.
func TestIdleCostsNothing(t *testing.T) {
	s := serve(t)
	p := s.client(t, "hold", "16")
	p.await(p.out, "^ready$")
	const settle, watched = 50 * time.Millisecond, 2 * time.Second
	time.Sleep(settle) // this is what is promised, not something waited for
	pids := append(tree(t, s.cmd.Process.Pid), p.cmd.Process.Pid)
	before := ticks(t, pids)
	time.Sleep(watched)
	if used := ticks(t, pids) - before; used > 1 {
		t.Errorf("the processes %v used %d ticks (of 10 ms) in %v of idleness", pids, used, watched)
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

// ticks is the processor time that the processes have used.
func ticks(t *testing.T, pids []int) (sum int64) {
	t.Helper()
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		for _, i := range []int{11, 12} { // utime, stime
			n, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
