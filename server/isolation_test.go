package server

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/transport"
)

// Workers serve their sessions under the filter, and the log says what they were given.
func TestIsolation(t *testing.T) {
	for mode, seccomp := range map[isolation.Mode]string{
		"": "2", isolation.Auto: "2", isolation.Require: "2", isolation.Log: "2", isolation.Off: "0",
	} {
		t.Run(string(mode), func(t *testing.T) {
			s := serve(t, func(c *Config) { c.Isolation = mode })
			l := s.open(transport.KindCUDA)
			l.use(1 << 20)
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.workerOf(l)))
			if err != nil || !strings.Contains(string(status), "\nSeccomp:\t"+seccomp+"\n") {
				t.Errorf("seccomp is not %s: %v", seccomp, err)
			}
			s.logged("isolation of workers")
		})
	}
}
