package e2e

import (
	"strings"
	"testing"
)

// What a program sees of a server's limits: a GPU of the size that it may have, and error 702 from the call that waits
// for a kernel without end and from all behind it. Other sessions go on.
func TestLimitsOfASession(t *testing.T) {
	s := serve(t, "--max-vram", "32MiB", "--work-timeout", "1s")
	other := s.client(t, "hold", "16")
	other.await(other.out, "^ready$")
	p := s.client(t, "endless")
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s", code, p.err)
	}
	const want = "32 32 1 MiB\ntoo much 2\nwaiting 702\nlater 702\n"
	if got := p.out.String(); got != want {
		t.Errorf("the program saw\n%s, not\n%s", got, want)
	}
	if said := p.err.String(); strings.Count(said, "work-timeout") == 0 {
		t.Errorf("it was not told why:\n%s", said)
	}
	s.await(s.err, `session ended.*work-timeout`)
	other.stdin.Close()
	if code := other.wait(patience); code != 0 {
		t.Errorf("the other program's exit status is %d\n%s", code, other.err)
	}
}
