package e2e

import (
	"os"
	"testing"
)

// TestWithoutRDMA: where there is no RDMA, big copies go over TCP, and the program's log says so and why; where it is
// demanded the program is refused.
func TestWithoutRDMA(t *testing.T) {
	cases := []struct {
		name   string
		server string // its --transport
		why    string
	}{{"switched off", "tcp", "switched off"}}
	if devices, _ := os.ReadDir("/sys/class/infiniband"); len(devices) == 0 {
		cases = append(cases, struct{ name, server, why string }{"none", "auto", `no RDMA|no usable RDMA|libibverbs`})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, "--transport", c.server)
			p := start(t, s.env("SCUDA_LOG=info"), program("copies"), kernels)
			p.await(p.err, `RDMA is not used; big copies go over TCP.*(`+c.why+`)`)
			if code := p.wait(patience); code != 0 {
				t.Errorf("exit status %d\n%s", code, p.err)
			}
			p = start(t, s.env("SCUDA_TRANSPORT=rdma"), program("copies"), kernels)
			if code := p.wait(patience); code == 0 {
				t.Error("a program that demands RDMA runs without")
			}
			p.await(p.err, `(`+c.why+`)`)
		})
	}
}
