package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// What a program used stands in the usage log when it has ended, for scuda usage, which asks the server or reads it.
func TestUsage(t *testing.T) {
	log := filepath.Join(t.TempDir(), "usage")
	s, env := administered(t, "--usage-log", log)
	l := told[leased](t, env, "lease", "create", "--label", "job 4711")
	if p := s.under(t, l.Credential, "copies"); p.wait(patience) != 0 {
		t.Fatal(p.err)
	}
	var out string
	eventually(t, patience, "a record", func() bool {
		out = ask(t, env, 0, "usage", "--by", "session", "--json").out.String()
		return strings.Contains(out, `"program": "copies"`)
	})
	if by := ask(t, env, 0, "usage", "--by", "label", "--json").out.String(); !strings.Contains(by, `"key": "job 4711"`) {
		t.Errorf("by label it says\n%s", by)
	}
	if read := ask(t, nil, 0, "usage", "--by", "session", "--json", "--log", log).out.String(); read != out {
		t.Errorf("the log has\n%s\nthe server said\n%s", read, out)
	}
	for _, none := range []string{`"gpu_seconds": 0,`, `"copied_to_gpu_bytes": 0,`,
		`"copied_to_host_bytes": 0,`, `"calls": 0`} {
		if strings.Contains(out, none) {
			t.Errorf("%s in\n%s", none, out)
		}
	}
}
