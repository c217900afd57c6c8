package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWarnOfSecrets(t *testing.T) {
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
	o := serveOptions{
		tokenFile: file("token", 0o644), tenants: file("tenants", 0o640), key: file("key", 0o604), cert: file("cert", 0o644),
	}
	var log bytes.Buffer
	o.warnOfSecrets(slog.New(slog.NewTextHandler(&log, nil)))
	for name, want := range map[string]bool{"token": true, "tenants": false, "key": true, "cert": false} {
		if strings.Contains(log.String(), folder+"/"+name) != want {
			t.Errorf("%s is named: %v\n%s", name, !want, &log)
		}
	}
}
