package e2e

import (
	"strings"
	"testing"
)

// Whatever a program does to its process, the library does not end it: calls answer, and a line says once what is
// wrong.
func TestRudePrograms(t *testing.T) {
	s := serve(t)
	for _, c := range []struct{ what, says string }{
		{"closed", "is lost: "},
		{"close_range", "is lost: "},
		{"taken", "is lost: "},
		{"files", "is lost: "},
		{"limit", ""},
		{"processes", "so many cannot be started; raise the limit on processes"},
		{"space", "raise the limit on virtual memory"},
		{"threadless", ""},
		{"handler", "a signal handler called CUDA"},
	} {
		for _, resume := range []string{"1", "0"} { // closed descriptors are no outage
			t.Run(c.what+" "+resume, func(t *testing.T) {
				beside(t)
				p := start(t, s.env("SCUDA_RESUME="+resume), program("rude"), kernels, c.what)
				p.stdin.Close()
				if code := p.wait(patience); code != 0 || strings.TrimSpace(p.out.String()) != "ok" {
					t.Fatalf("exit status %d\nstdout:\n%s\nstderr:\n%.4000s", code, p.out, p.err)
				}
				if n := strings.Count(p.err.String(), c.says); c.says != "" && n != 1 {
					t.Errorf("%d lines say %q:\n%s", n, c.says, p.err)
				}
			})
		}
	}
}
