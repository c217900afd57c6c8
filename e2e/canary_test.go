package e2e

import (
	"regexp"
	"testing"
)

// What a session has in memory is not there for the next, whether it freed the memory, ended with it, or goes on; a
// process finds what it has left itself, so that there is something to find.
func TestCanary(t *testing.T) {
	s := serve(t)
	p := start(t, s.env(), program("canary"), kernels, "again")
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	if gpu == "sim" && !regexp.MustCompile(`found [1-9]`).MatchString(p.err.String()) {
		t.Errorf("a process does not find what it left: %s", p.err)
	}
	look := func(after string) {
		t.Helper()
		out := s.run(t, "canary", "look")
		if len(regexp.MustCompile(`(?m): 0 words$`).FindAllString(out, -1)) != 6 {
			t.Errorf("%s:\n%s", after, out)
		}
	}
	s.run(t, "canary", "plant")
	look("after a session that ended with its memory")
	stays := start(t, s.env(), program("canary"), kernels, "stay")
	stays.await(stays.out, "^ready$")
	look("beside a session that has freed its memory")
	stays.stdin.Close()
	if code := stays.wait(patience); code != 0 {
		t.Errorf("exit status %d", code)
	}
	look("after its end")
}
