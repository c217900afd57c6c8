package e2e

import (
	"strings"
	"syscall"
	"testing"
)

// Who finds no place says where it stands, waits in cuInit, and runs when the first has ended. One that is killed
// meanwhile has left the queue.
func TestQueue(t *testing.T) {
	s := serve(t, "--max-sessions", "1")
	first := s.client(t, "hold", "1")
	first.await(first.out, "^ready$")
	killed := s.client(t, "hold", "1")
	killed.await(killed.err, `^scuda: waiting for a place on \S+: first in the queue \(1 of 1 CUDA sessions are taken`)
	second := s.client(t, "hold", "1")
	second.await(second.err, `^scuda: waiting for a place on \S+: second in the queue`)
	killed.signal(syscall.SIGKILL)
	killed.wait(patience)
	s.await(s.err, `a client left the queue`)
	if out := second.out.String(); out != "" {
		t.Errorf("it did not wait: %s", out)
	}
	first.stdin.Close()
	if code := first.wait(patience); code != 0 {
		t.Errorf("the first: exit status %d", code)
	}
	second.await(second.out, "^ready$")
	second.stdin.Close()
	if code := second.wait(patience); code != 0 {
		t.Errorf("the second: exit status %d", code)
	}
}

// A program may say that it does not wait, or how long.
func TestQueueTime(t *testing.T) {
	s := serve(t, "--max-sessions", "1")
	p := s.client(t, "hold", "1")
	p.await(p.out, "^ready$")
	for setting, says := range map[string]string{"0": "1 of 1 CUDA sessions are taken",
		"100ms": "first in the queue, after 100ms", "soon": "SCUDA_QUEUE"} {
		t.Run(setting, func(t *testing.T) {
			late := start(t, s.env("SCUDA_QUEUE="+setting), program("init"))
			late.wait(patience)
			if out := late.out.String(); !strings.Contains(out, "cuInit = 802") {
				t.Errorf("got\n%s", out)
			}
			oneLine(t, late, says)
		})
	}
}

// A server that ends tells those who wait.
func TestQueueEndsWithTheServer(t *testing.T) {
	s := serve(t, "--max-sessions", "1", "--drain", "100ms")
	p := s.client(t, "hold", "1")
	p.await(p.out, "^ready$")
	late := start(t, s.env(), program("init"))
	late.await(late.err, "first in the queue")
	s.signal(syscall.SIGTERM)
	late.wait(patience)
	if text := late.err.String(); !strings.Contains(text, "is shutting down") {
		t.Errorf("it was not told: %s", text)
	}
}
