package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The log of a service is in the journal, that of another process in the file to which its standard error goes.
func TestReader(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		groups, stderr string
		follow         bool
		since          time.Time
		want, says     string
	}{
		"the package's service": {groups: "0::/system.slice/scuda.service\n", want: "journalctl --output cat --quiet " +
			"--unit scuda.service --unit scuda-spawner.service --lines 7"},
		"a service of a user's": {groups: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/scuda-mine.service\n",
			follow: true, want: "journalctl --output cat --quiet --user-unit scuda-mine.service --lines 7 --follow"},
		"older control groups": {groups: "3:cpu:/\n1:name=systemd:/system.slice/scuda.service\n", want: "journalctl " +
			"--output cat --quiet --unit scuda.service --unit scuda-spawner.service --lines 7"},
		"a file":            {groups: "0::/user.slice/user@0.service/session\n", stderr: file, want: "tail -n 7 " + file},
		"a file that grows": {stderr: file, follow: true, want: "tail -n 7 -F " + file},
		"another service":   {groups: "0::/system.slice/ssh.service\n", stderr: file, want: "tail -n 7 " + file},
		"a terminal":        {stderr: "/dev/null", says: "its standard error is /dev/null; look there"},
		"of another user":   {says: "as root"},
		"a file, by time":   {stderr: file, since: time.Unix(1, 0), says: "use --lines"},
	} {
		proc := t.TempDir()
		if err := os.WriteFile(filepath.Join(proc, "cgroup"), []byte(c.groups), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(proc, "fd"), 0o700); err != nil {
			t.Fatal(err)
		}
		if c.stderr != "" {
			if err := os.Symlink(c.stderr, filepath.Join(proc, "fd/2")); err != nil {
				t.Fatal(err)
			}
		}
		got, err := reader(proc, logsOf{lines: 7, follow: c.follow, since: c.since})
		if !slices.Equal(got, strings.Fields(c.want)) || (err == nil) != (c.says == "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err != nil && (errors.Is(err, errNoLog) != c.since.IsZero() || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, not %q", name, err, c.says)
		}
	}
}
