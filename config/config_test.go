package config

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scuda.dev/scuda/transport"
)

// home gives an empty configuration folder and clears the settings.
func home(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", folder)
	for _, name := range []string{"SCUDA_SERVER", "SCUDA_TOKEN", "SCUDA_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	if err := os.Mkdir(filepath.Join(folder, "scuda"), 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(folder, "scuda")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestServer(t *testing.T) {
	for name, c := range map[string]struct {
		env, file string
		want      string
		source    string // suffix
		err       error
	}{
		"none":            {},
		"environment":     {env: "gpu1:99", file: "gpu2:88\n", want: "gpu1:99", source: "SCUDA_SERVER"},
		"default port":    {env: " gpu1 ", want: "gpu1:14833", source: "SCUDA_SERVER"},
		"file":            {file: "gpu2:88", want: "gpu2:88", source: "scuda/host"},
		"comments":        {file: "# mine\n\n  # more\n \t gpu2:88 \r\nother:1\n", want: "gpu2:88", source: "scuda/host"},
		"only comments":   {file: "# gpu2:88\n\n"},
		"IPv6":            {file: "[::1]:5\n", want: "[::1]:5", source: "scuda/host"},
		"bad environment": {env: "a b", source: "SCUDA_SERVER", err: transport.ErrAddress},
		"bad file":        {file: "gpu:port\n", source: "scuda/host", err: transport.ErrAddress},
		"much too long":   {file: strings.Repeat("x", 70000), err: errAny, source: ""},
		"empty, yet set":  {env: " ", file: "gpu3\n"},
		"comment behind":  {file: "gpu3 # the new one\n", want: "gpu3:14833", source: "scuda/host"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := home(t)
			if os.Unsetenv("SCUDA_SERVER"); c.env != "" {
				t.Setenv("SCUDA_SERVER", c.env)
			}
			if c.file != "" {
				write(t, filepath.Join(folder, "host"), c.file)
			}
			got, source, err := Server()
			if got != c.want || !strings.HasSuffix(source, c.source) {
				t.Errorf("got %q from %q", got, source)
			}
			if c.err == errAny && err == nil || c.err != errAny && !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
		})
	}
}

var errAny = errors.New("any")

func TestServerWithoutHome(t *testing.T) {
	home(t)
	os.Unsetenv("SCUDA_SERVER") // t.Setenv in home restores it
	t.Setenv("XDG_CONFIG_HOME", "relative")
	t.Setenv("HOME", "")
	if got, _, err := Server(); got != "" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := SetServer("gpu"); !errors.Is(err, ErrFolder) {
		t.Errorf("SetServer: %v", err)
	}
}

func TestUnreadableFile(t *testing.T) {
	folder := home(t)
	os.Unsetenv("SCUDA_SERVER")
	if err := os.Mkdir(filepath.Join(folder, "host"), 0o700); err != nil { // a folder cannot be read as a file
		t.Fatal(err)
	}
	_, _, err := Server()
	var e *FileError
	if !errors.As(err, &e) || e.Path != filepath.Join(folder, "host") {
		t.Errorf("got %v", err)
	}
}

func TestSetServer(t *testing.T) {
	home(t)
	os.Unsetenv("SCUDA_SERVER")
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(t.TempDir(), "new", "folder"))
	for _, addr := range []string{"gpu1", "gpu2:77"} {
		if err := SetServer(addr); err != nil {
			t.Fatal(err)
		}
		got, _, err := Server()
		if want, _ := transport.ParseAddress(addr); got != want || err != nil {
			t.Errorf("got %q, %v after SetServer(%q)", got, err, addr)
		}
	}
	path, _ := HostFile()
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := SetServer("not an address"); !errors.Is(err, transport.ErrAddress) {
		t.Errorf("got %v", err)
	}
}

func TestToken(t *testing.T) {
	for name, c := range map[string]struct {
		env, named, file string
		want             string
		err              error
	}{
		"none":        {},
		"environment": {env: "secret", named: "other\n", want: "secret"},
		"named file":  {named: "# comment\n secret \n", file: "third", want: "secret"},
		"file":        {file: "secret\n", want: "secret"},
		"empty file":  {file: "\n"},
		"empty named": {named: "\n", err: ErrToken},
		"lost":        {named: "lost", err: fs.ErrNotExist},
		"too long":    {env: strings.Repeat("x", transport.MaxToken+1), err: ErrToken},
	} {
		t.Run(name, func(t *testing.T) {
			folder := home(t)
			t.Setenv("SCUDA_TOKEN", c.env)
			if c.named != "" {
				path := filepath.Join(t.TempDir(), "token")
				t.Setenv("SCUDA_TOKEN_FILE", path)
				if c.named != "lost" {
					write(t, path, c.named)
				}
			}
			if c.file != "" {
				write(t, filepath.Join(folder, "token"), c.file)
			}
			got, err := Token()
			if string(got) != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestParseLog(t *testing.T) {
	for s, want := range map[string]struct {
		level slog.Level
		path  string
		err   error
	}{
		"":                       {level: slog.LevelWarn},
		"debug":                  {level: slog.LevelDebug},
		"error":                  {level: slog.LevelError},
		"info,file=/tmp/a=b.log": {level: slog.LevelInfo, path: "/tmp/a=b.log"},
		"file=x":                 {level: slog.LevelWarn, path: "x"},
		"loud":                   {level: slog.LevelWarn, err: ErrLog},
		"info,debug":             {level: slog.LevelWarn, err: ErrLog},
		"info,file=":             {level: slog.LevelWarn, err: ErrLog},
		",":                      {level: slog.LevelWarn, err: ErrLog},
	} {
		level, path, err := ParseLog(s)
		if level != want.level || path != want.path || !errors.Is(err, want.err) {
			t.Errorf("%q: got %v, %q, %v", s, level, path, err)
		}
	}
}

func FuzzParseLog(f *testing.F) {
	f.Add("info,file=/x")
	f.Fuzz(func(t *testing.T, s string) {
		if _, path, err := ParseLog(s); err != nil && path != "" {
			t.Errorf("%q: a path beside an error", s)
		}
	})
}
