package config

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/config/configtest"
	"scuda.dev/scuda/transport"
)

// home gives an empty configuration folder and clears the settings.
func home(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", folder)
	for _, name := range []string{"SCUDA_SERVER", "SCUDA_SPREAD", "SCUDA_TOKEN", "SCUDA_TOKEN_FILE",
		"SCUDA_FINGERPRINT"} {
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
	for _, c := range configtest.Servers(t) {
		t.Run(c.Name, func(t *testing.T) {
			c.Set(t)
			list, source, err := Configured()
			got := Join(list)
			if got != c.Address || (err == nil) != (c.Error == "") || err != nil && !strings.Contains(err.Error(), c.Error) {
				t.Errorf("got %q, %v", got, err)
			}
			if _, set := c.Env["SCUDA_SERVER"]; c.Configured() != (source != "") ||
				source != "" && set != (source == "SCUDA_SERVER") {
				t.Errorf("it comes from %q", source)
			}
			if _, err := Target(); errors.Is(err, ErrNoServer) == c.Configured() ||
				errors.Is(err, ErrSeveral) != (len(list) > 1) {
				t.Errorf("target: %v", err)
			}
			for i := range len(list) + 1 {
				to, n, err := TargetOf(i)
				if i < len(list) && (to.Address != list[i] || n != len(list) || err != nil) || i == len(list) && err == nil {
					t.Errorf("target %d: %+v of %d, %v", i, to, n, err)
				}
			}
		})
	}
}

func TestServerWithoutHome(t *testing.T) {
	home(t)
	os.Unsetenv("SCUDA_SERVER") // t.Setenv in home restores it
	t.Setenv("XDG_CONFIG_HOME", "relative")
	t.Setenv("HOME", "")
	if got, _, err := Server(); got != "" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := SetServers("gpu"); !errors.Is(err, ErrFolder) {
		t.Errorf("SetServers: %v", err)
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

func TestSetServers(t *testing.T) {
	home(t)
	os.Unsetenv("SCUDA_SERVER")
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(t.TempDir(), "new", "folder"))
	for _, addr := range []string{"gpu1", "gpu2:77"} {
		if err := SetServers(addr); err != nil {
			t.Fatal(err)
		}
		got, _, err := Server()
		if want, _ := transport.ParseAddress(addr); got != want || err != nil {
			t.Errorf("got %q, %v after SetServers(%q)", got, err, addr)
		}
	}
	if err := SetServers("gpu1", "[::1]:7"); err != nil {
		t.Fatal(err)
	}
	if got, _, err := Configured(); Join(got) != "gpu1:14833,[::1]:7" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	path, _ := HostFile()
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := SetServers("not an address"); !errors.Is(err, transport.ErrAddress) {
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
			got, _, err := Token("gpu:1")
			if string(got) != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// TestOfServer: a variable says one thing of all servers that are set, or one of each.
func TestOfServer(t *testing.T) {
	for name, c := range map[string]struct {
		servers, spread, tokens string
		want                    map[string]string // server: its token, or what the error says
	}{
		"one of all": {servers: "a:1,b:1", tokens: "x",
			want: map[string]string{"a:1": "x", "b:1": "x", "c:1": "x"}},
		"one of each": {servers: "a:1, b:1", tokens: " x , y ", want: map[string]string{"a:1": "x", "b:1": "y"}},
		"one says nothing": {servers: "a:1,b:1", tokens: ",y",
			want: map[string]string{"a:1": "of the file", "b:1": "y"}},
		"another server": {servers: "a:1,b:1", tokens: "x,y", want: map[string]string{"c:1": "and c:1 is none of these"}},
		"too few": {servers: "a:1,b:1,c:1", tokens: "x,y",
			want: map[string]string{"a:1": "and SCUDA_SERVER has 3"}},
		"too many":           {servers: "a:1,b:1", tokens: "x,y,z", want: map[string]string{"a:1": "has 3 elements"}},
		"a comma in a token": {servers: "a:1", tokens: "x,y", want: map[string]string{"a:1": "x,y", "b:1": "x,y"}},
		"and no server":      {tokens: "x,y", want: map[string]string{"a:1": "x,y"}},
		"ranks":              {servers: "a:1", spread: "a:1,b:1", tokens: "x,y", want: map[string]string{"b:1": "y"}},
		"ranks, too few": {servers: "a:1", spread: "a:1,b:1", tokens: "x,y,z",
			want: map[string]string{"b:1": "and SCUDA_SPREAD"}},
		"bad list of servers": {servers: "a:1,,b:1", tokens: "x,y", want: map[string]string{"a:1": "is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, filepath.Join(home(t), "token"), "of the file\n")
			t.Setenv("SCUDA_SERVER", c.servers)
			t.Setenv("SCUDA_SPREAD", c.spread)
			t.Setenv("SCUDA_TOKEN", c.tokens)
			for server, want := range c.want {
				got, _, err := Token(server)
				if err == nil && string(got) != want || err != nil && (!errors.Is(err, ErrList) ||
					!strings.Contains(err.Error(), want)) {
					t.Errorf("%s: %q, %v", server, got, err)
				}
			}
		})
	}
}

func TestParseLog(t *testing.T) {
	for _, c := range configtest.Values(t, "log") {
		level, path, err := ParseLog(c.Text)
		got := strings.TrimSpace(level.String() + " " + path)
		if err == nil && got != c.Client || (err == nil) != (c.Error == "") ||
			err != nil && !strings.Contains(err.Error(), c.Error) {
			t.Errorf("%q: got %s, %v", c.Text, got, err)
		}
		if err != nil && (level != slog.LevelWarn || path != "" || !errors.Is(err, ErrLog)) {
			t.Errorf("%q: %v, %q beside %v", c.Text, level, path, err)
		}
	}
}

// TestValues: what clients read.
func TestValues(t *testing.T) {
	for setting, read := range map[string]func() (string, error){
		"transport": func() (string, error) { over, _, err := Path(); return string(over), err },
		"rdma-memory": func() (string, error) {
			n, err := ClientRDMAMemory(os.Getenv("SCUDA_RDMA_MEMORY"))
			return n.String(), err
		},
		"metrics": Metrics,
	} {
		for _, c := range configtest.Values(t, setting) {
			t.Setenv("SCUDA_"+strings.ToUpper(strings.ReplaceAll(setting, "-", "_")), c.Text)
			got, err := read()
			if err == nil && got != c.Client || (err == nil) != (c.Error == "") ||
				err != nil && !strings.Contains(err.Error(), c.Error) {
				t.Errorf("%s %q: got %s, %v", setting, c.Text, got, err)
			}
		}
	}
}

func TestReadClient(t *testing.T) {
	home(t)
	for name, value := range map[string]string{"SCUDA_SERVER": "gpu", "SCUDA_TOKEN": " secret ", "SCUDA_TRANSPORT": "tcp",
		"SCUDA_RDMA_DEVICE": " mlx5_0:1 ",
		"SCUDA_RDMA_MEMORY": "64MiB", "SCUDA_BULK": "0", "SCUDA_INSECURE": "1", "SCUDA_QUEUE": "90s",
		"SCUDA_RESUME": " 0 "} {
		t.Setenv(name, value)
	}
	want := Client{
		Servers:   []transport.Target{{Address: "gpu:14833", Token: []byte("secret"), TokenOf: "SCUDA_TOKEN"}},
		Transport: TransportTCP, RDMADevice: "mlx5_0:1", RDMAMemory: 64 * MiB,
		Queue: 90 * time.Second,
	}
	if got, err := ReadClient(); err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	t.Setenv("SCUDA_SERVER", "gpu,other")
	if got, err := ReadClient(); err != nil || len(got.Servers) != 2 || got.Servers[1].Address != "other:14833" {
		t.Errorf("two servers: %+v, %v", got, err)
	}
	t.Setenv("SCUDA_BULK", "many")
	t.Setenv("SCUDA_RESUME", "")
	if got, err := ReadClient(); err != nil || got.Bulk != usualBulk || !got.Resume {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"SCUDA_RESUME", "SCUDA_RDMA_MEMORY", "SCUDA_TRANSPORT", "SCUDA_INSECURE",
		"SCUDA_SERVER"} {
		t.Setenv(name, "no such thing")
		if _, err := ReadClient(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReadToken: a file that somebody names has a token.
func TestReadToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, "# of the server\n\n secret \n")
	if got, err := ReadToken(path); err != nil || string(got) != "secret" {
		t.Errorf("%q, %v", got, err)
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
