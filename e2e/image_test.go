package e2e

import (
	"strings"
	"testing"
)

// TestRefusedImages: why an image is refused stands in the program's buffer, and on standard error, once, for programs
// that have none.
func TestRefusedImages(t *testing.T) {
	if gpu != "sim" {
		t.Skip("the reason is the simulation's")
	}
	s := serve(t)
	p := start(t, s.env(), program("image"), kernels)
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	const why = "the simulated GPU runs PTX for sm_90 and older; this image has PTX for sm_121 only\n"
	if got, want := p.out.String(), "with a buffer: "+why; !strings.HasSuffix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := p.err.String(), "without\nscuda: warning: module image refused (218): "+why; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
