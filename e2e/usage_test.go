package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What a program used stands in the usage log when it has ended, for scuda usage.
func TestUsage(t *testing.T) {
	log := filepath.Join(t.TempDir(), "usage")
	s := serve(t, "--usage-log", log)
	s.run(t, "copies")
	var out []byte
	eventually(t, patience, "a record", func() bool {
		var err error
		out, err = exec.Command(scuda, "usage", "--log", log, "--by", "session", "--json").Output()
		return err == nil && strings.Contains(string(out), `"program": "copies"`)
	})
	for _, none := range []string{`"gpu_seconds": 0,`, `"copied_to_gpu_bytes": 0,`,
		`"copied_to_host_bytes": 0,`, `"calls": 0`} {
		if strings.Contains(string(out), none) {
			t.Errorf("%s in\n%s", none, out)
		}
	}
}
