package slurm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const one = "servers:\n- address: gpu1:14833\n  places: 2\n"

// The example is right as it is.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("slurm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSite(text)
	if err != nil || len(s.Servers) != 1 || s.Servers[0].Places != 8 || s.Tenant != "slurm-%u" ||
		s.Environment["SCUDA_KEY"] == "" || time.Duration(s.Timeout) != 30*time.Second {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestParseSite(t *testing.T) {
	for text, want := range map[string]string{
		"":                                         "name 1 to 64",
		"servers: []":                              "name 1 to 64",
		"server: x":                                "field server not found",
		one + "timeout: soon":                      `"soon" is no time`,
		one + "timeout: -1s":                       `"-1s" is no time`,
		one + "tenant: a/b":                        `tenant: "a/b"`,
		one + "tenant: '%a'":                       `tenant: "%a"`,
		one + "cluster: a b":                       `cluster: "a b"`,
		one + "licence: 'a:b'":                     `licence: "a:b"`,
		one + "memory-per-gpu: much":               "write 20GiB",
		one + "class: best":                        "write low, normal or high",
		one + "bind: core":                         "write rank or none",
		one + "mode: both":                         "write node or controller",
		one + "folder: run":                        "absolute",
		one + "longest: 10000h":                    "366 days",
		one + "environment: {LD_PRELOAD: /x.so}":   `"LD_PRELOAD" is no setting`,
		one + "- address: gpu1:14833\n  places: 1": "stands there twice",
		"servers:\n- address: gpu1\n  places: 1":   "write HOST:PORT",
		"servers:\n- address: gpu1:1":              "places: 0",
		"servers:\n- address: gpu1:1\n  places: 1\n  admin: s":                     "absolute",
		"servers:\n- address: gpu1:1\n  places: 1\n  fingerprint: ab":              "write sha256:…",
		"servers:\n- address: gpu1:1\n  places: 1\n  fingerprint: \"sha256:\\nx\"": "write sha256:…",
		strings.Repeat("#", maxSite+1):                                             "more than",
	} {
		if _, err := ParseSite([]byte(text)); !errors.Is(err, ErrSite) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v", text, err)
		}
	}
	if _, err := ParseSite([]byte(one)); err != nil {
		t.Error(err)
	}
}

func TestReadSite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slurm.yaml")
	if _, err := ReadSite(path); !errors.Is(err, ErrSite) || !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := ReadSite(path); err != nil || s.Scuda == "" {
		t.Error(s, err)
	}
	if err := os.Chmod(path, 0o620); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSite(path); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Error(err)
	}
}

func FuzzParseSite(f *testing.F) {
	f.Add([]byte(one))
	f.Add([]byte(one + "environment: {SCUDA_CERT: /x}\npartitions: [a, b]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := ParseSite(text); err != nil && !errors.Is(err, ErrSite) {
			t.Error(err)
		}
	})
}
