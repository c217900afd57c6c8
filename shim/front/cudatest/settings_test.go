package cudatest

import (
	"os/exec"
	"testing"

	"scuda.dev/scuda/config/configtest"
)

// TestSettings: the front finds a server configured where package config does.
func TestSettings(t *testing.T) {
	for _, c := range configtest.Servers(t) {
		t.Run(c.Name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), programs["init"], library)
			cmd.Dir, cmd.Env = c.Prepare(t)
			cmd.Env = append(cmd.Env, "SCUDA_REAL_LIBCUDA=/nonexistent", "SCUDA_CORE=/nonexistent")
			want := "100\n" // no device
			if c.Configured() {
				want = "802\n" // the core, which reads what is configured, cannot be opened
			}
			if out, err := cmd.Output(); err != nil || string(out) != want {
				t.Errorf("cuInit answers %q, want %q: %v", out, want, err)
			}
		})
	}
}
