package spawner

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// etc gives a folder with files like those of /etc.
func etc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var ordinary = map[string]string{
	"subuid": "first:100000:65536\nsecond:165536:65536\n", "subgid": "first:100000:65536\n\nbroken:1\n",
	"passwd": "root:x:0:0:root:/root:/bin/sh\nsecond:x:1001:1001::/home/second:/bin/sh\n", "group": "root:x:0:\n",
}

// Whoever has an id of the range, too, is named.
func TestClaims(t *testing.T) {
	dir := etc(t, ordinary)
	for r, want := range map[Range][]string{
		DefaultRange:       nil,
		formerRange:        {"second has 165536-231071 by " + dir + "/subuid"},
		{231_071, 231_071}: {"second has 165536-231071 by " + dir + "/subuid"},
		{231_072, 300_000}: nil,
		{1000, 1001}:       {"second has 1001-1001 by " + dir + "/passwd"},
		{150_000, 1 << 31}: {
			"first has 100000-165535 by " + dir + "/subuid", "second has 165536-231071 by " + dir + "/subuid",
			"first has 100000-165535 by " + dir + "/subgid",
		},
		{4_000_000_000, ^uint32(0) - 2}: nil,
	} {
		if got := r.claims(dir); !slices.Equal(got, want) {
			t.Errorf("%v: %q, want %q", r, got, want)
		}
	}
	var said bytes.Buffer
	l := &Local{cfg: Config{UIDs: formerRange}, log: slog.New(slog.NewTextHandler(&said, nil))}
	l.warnOfClaims(dir)
	if got := said.String(); !strings.Contains(got, "second has 165536-231071") ||
		!strings.Contains(got, "--worker-uids") {
		t.Errorf("the log says %q", got)
	}
}

// The former default goes on for tenants that have folders with it, where it is nobody else's.
func TestUsualRange(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root has folders of other users")
	}
	free, taken := etc(t, nil), etc(t, ordinary)
	none, foreign, former := t.TempDir(), t.TempDir(), t.TempDir()
	name := Order{Tenant: KeyOf("alice"), UID: formerRange.First + 7}.folder()
	for _, folder := range []string{foreign, former} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(former, name), int(formerRange.First)+7, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		folder, etc string
		want        Range
	}{
		{"", free, DefaultRange}, {none, free, DefaultRange}, {foreign, free, DefaultRange},
		{former, free, formerRange}, {former, taken, DefaultRange}, {none + "/missing", free, DefaultRange},
	} {
		if got := usualRange(c.folder, c.etc); got != c.want {
			t.Errorf("%s, %s: %v, want %v", c.folder, c.etc, got, c.want)
		}
	}
}
