package slurm

import (
	"os/exec"
	"testing"
)

// TestLua runs job_submit.lua and burst_buffer.lua without Slurm, by testdata/test.lua.
func TestLua(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "lua5.1", "testdata/test.lua").CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v (Debian's package lua5.1)\n%s", err, out)
	}
}
