package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
		want, says     string
	}{
		"the package's service": {groups: "0::/system.slice/scuda.service\n", want: "journalctl --output cat --quiet " +
			"--lines 7 --unit scuda.service --unit scuda-spawner.service"},
		"a service of a user's": {groups: "0::/user.slice/user-1000.slice/user@1000.service/app.slice/scuda-mine.service\n",
			follow: true, want: "journalctl --output cat --quiet --lines 7 --user-unit scuda-mine.service --follow"},
		"older control groups": {groups: "3:cpu:/\n1:name=systemd:/system.slice/scuda.service\n", want: "journalctl " +
			"--output cat --quiet --lines 7 --unit scuda.service --unit scuda-spawner.service"},
		"a file":            {groups: "0::/user.slice/user@0.service/session\n", stderr: file, want: "tail -n 7 " + file},
		"a file that grows": {stderr: file, follow: true, want: "tail -n 7 -F " + file},
		"another service":   {groups: "0::/system.slice/ssh.service\n", stderr: file, want: "tail -n 7 " + file},
		"a terminal":        {stderr: "/dev/null", says: "its standard error is /dev/null; look there"},
		"of another user":   {says: "as root"},
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
		got, err := reader(proc, 7, c.follow)
		if !slices.Equal(got, strings.Fields(c.want)) || (err == nil) != (c.says == "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err != nil && (!errors.Is(err, errNoLog) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, not %q", name, err, c.says)
		}
	}
}
