package config

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// home gives the test an empty settings folder and no variables.
func home(t *testing.T) string {
	t.Helper()
	d := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", d)
	for _, v := range []string{EnvServer, EnvToken, EnvTokenFile, EnvLog} {
		t.Setenv(v, "") // restored afterwards
		os.Unsetenv(v)
	}
	if err := os.Mkdir(filepath.Join(d, "scuda"), 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(d, "scuda")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestServer(t *testing.T) {
	const none = "none"
	for _, c := range []struct {
		name, env, file string
		addr, source    string
		fails           bool
	}{
		{"nothing", none, none, "", "", false},
		{"variable", "gpu7:99", none, "gpu7:99", EnvServer, false},
		{"variable before file", "gpu7", "gpu8:1", "gpu7:14833", EnvServer, false},
		{"empty variable switches off", "", "gpu8:1", "", EnvServer, false},
		{"file", none, "# mine\n\n  gpu8:1 # fast one\ngpu9\n", "gpu8:1", "host", false},
		{"file with comments only", none, "# nothing\n", "", "host", false},
		{"IPv6", none, "[::1]\n", "[::1]:14833", "host", false},
		{"bad variable", "gpu7:port", none, "", EnvServer, true},
		{"bad file", none, "gpu 7\n", "", "host", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := home(t)
			if c.env != none {
				t.Setenv(EnvServer, c.env)
			}
			if c.file != none {
				write(t, filepath.Join(d, "host"), c.file)
			}
			addr, source, err := Server()
			if addr != c.addr || filepath.Base(source) != filepath.Base(c.source) && source != c.source || errors.Is(err, ErrSetting) != c.fails {
				t.Errorf("got %q from %q, %v; expected %q from %q", addr, source, err, c.addr, c.source)
			}
			if err != nil && !strings.Contains(err.Error(), c.source) {
				t.Errorf("%q does not say where the setting stands", err)
			}
		})
	}
}

func TestSetServer(t *testing.T) {
	d := home(t)
	if err := os.Remove(d); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"gpu7", "[::1]:5"} {
		if err := SetServer(addr); err != nil {
			t.Fatal(err)
		}
	}
	if addr, _, err := Server(); addr != "[::1]:5" || err != nil {
		t.Errorf("remembered %q, %v", addr, err)
	}
	if err := SetServer("a b"); err == nil {
		t.Error("a bad address was remembered")
	}
	files, err := os.ReadDir(d)
	if err != nil || len(files) != 1 {
		t.Errorf("%d files are left, %v", len(files), err)
	}
}

func TestToken(t *testing.T) {
	d := home(t)
	if got, err := Token(); got != nil || err != nil {
		t.Errorf("without any: %q, %v", got, err)
	}
	write(t, filepath.Join(d, "token"), " secret1\n")
	write(t, filepath.Join(d, "other"), "secret2\n")
	write(t, filepath.Join(d, "empty"), "\n")
	write(t, filepath.Join(d, "long"), strings.Repeat("x", 513))
	check := func(want string) {
		t.Helper()
		if got, err := Token(); string(got) != want || (err == nil) != (want != "") {
			t.Errorf("got %q, %v; expected %q", got, err, want)
		}
	}
	check("secret1")
	t.Setenv(EnvTokenFile, filepath.Join(d, "other"))
	check("secret2")
	for _, f := range []string{"empty", "long", "missing"} {
		t.Setenv(EnvTokenFile, filepath.Join(d, f))
		check("")
	}
	t.Setenv(EnvToken, "secret3")
	check("secret3")
}

func TestParseLog(t *testing.T) {
	for _, c := range []struct {
		in    string
		level slog.Level
		file  string
		ok    bool
	}{
		{"", slog.LevelWarn, "", true},
		{"debug", slog.LevelDebug, "", true},
		{"INFO", slog.LevelInfo, "", true},
		{"warn", slog.LevelWarn, "", true},
		{"error,file=/tmp/a,b", slog.LevelError, "/tmp/a,b", true},
		{"file=/tmp/x", slog.LevelWarn, "/tmp/x", true},
		{"loud", slog.LevelWarn, "", false},
		{"debug,file=", slog.LevelWarn, "", false},
		{"debug,/tmp/x", slog.LevelWarn, "", false},
	} {
		level, file, err := ParseLog(c.in)
		if level != c.level || file != c.file || (err == nil) != c.ok || err != nil && !errors.Is(err, ErrSetting) {
			t.Errorf("%q: %v, %q, %v", c.in, level, file, err)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	f.Add([]byte("# c\nhost:1 # x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if line, err := ParseHost(bytes.NewReader(b)); err == nil && (strings.ContainsAny(line, "#\n") || line != strings.TrimSpace(line)) {
			t.Errorf("%q", line)
		}
	})
}
