//go:build !client

package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scuda.dev/scuda/server"
)

func TestFilesOfTrust(t *testing.T) {
	folder := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte("secret"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	state := filepath.Join(folder, "state")
	if err := os.Mkdir(state, 0o755); err != nil {
		t.Fatal(err)
	}
	o := serveOptions{
		tokenFile: file("token", 0o644), tenants: file("tenants", 0o640), key: file("key", 0o604), cert: file("cert", 0o644),
		clientCA: file("ca", 0o664), state: state,
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(o.cert, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.refuseWritable(); err != nil {
		t.Error(err)
	}
	var log bytes.Buffer
	o.warnOfFiles(slog.New(slog.NewTextHandler(&log, nil)))
	for name, want := range map[string]string{"token": "can read", "tenants": "", "key": "can read", "state": "",
		"ca": "a group can change", "cert": map[bool]string{true: "another user owns"}[os.Geteuid() == 0]} {
		lines := ""
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "file="+folder+"/"+name) {
				lines += line
			}
		}
		if want == "" && lines != "" || !strings.Contains(lines, want) {
			t.Errorf("%s: %q, want %q", name, lines, want)
		}
	}

	for _, name := range []string{o.tokenFile, o.tenants, o.key, o.cert, o.clientCA, state} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, info.Mode().Perm()|0o002); err != nil {
			t.Fatal(err)
		}
		c := server.Config{Addr: "127.0.0.1:0"}
		o.tls, o.fabric, o.between = "auto", "trusted", "untrusted"
		if err := o.readTrust(&c); !errors.Is(err, errWritable) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Chmod(name, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(state); err != nil || len(left) != 0 {
		t.Errorf("keys were laid there: %v, %v", left, err)
	}
}
