// Package configtest has the tables with which everything is tested that reads scuda's settings: package config, both
// C fronts, scuda-connect, and the options of the command line. What two of them would read differently is a case
// that one of them fails.
package configtest

import (
	_ "embed"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed server.json
var serverCases []byte

//go:embed values.json
var valueCases []byte

// Server is a case of where the server comes from. $T stands for a folder of the case's own, which is the working
// folder, too.
type Server struct {
	Name  string
	Env   map[string]string
	Files map[string][]any  // texts, each followed by how often it stands there, or one alone
	Links map[string]string // symbolic links

	Address string // several with commas between; "": none is configured, or Error says why not
	Error   string // a part of it
}

// Configured says whether the C fronts are to find a server configured.
func (c *Server) Configured() bool { return c.Address != "" || c.Error != "" }

// Value is a case of a setting that clients and the server's options share. $T stands for a folder.
type Value struct {
	Setting string // the option's name
	Text    string
	Client  string  // what it means
	Server  *string // to the server, where that is something else
	Error   string  // a part of it
}

// Servers gives the cases of the server.
func Servers(t *testing.T) []Server { return load[Server](t, serverCases) }

// Values gives the cases of one setting.
func Values(t *testing.T, setting string) []Value {
	t.Helper()
	var list []Value
	for _, v := range load[Value](t, valueCases) {
		if v.Setting == setting {
			list = append(list, v)
		}
	}
	if len(list) == 0 {
		t.Fatal("no cases of " + setting)
	}
	return list
}

func load[T any](t *testing.T, text []byte) (list []T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		t.Fatal(err)
	}
	return list
}

// Prepare makes the case's files and gives their folder, and the environment.
func (c *Server) Prepare(t *testing.T) (folder string, env []string) {
	t.Helper()
	folder = t.TempDir()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, parts := range c.Files {
		var text strings.Builder
		for i, p := range parts {
			if s, ok := p.(string); ok {
				n := 1
				if i+1 < len(parts) {
					n = int(parts[i+1].(float64))
				}
				text.WriteString(strings.Repeat(s, n))
			}
		}
		path := filepath.Join(folder, name)
		check(os.MkdirAll(filepath.Dir(path), 0o700))
		check(os.WriteFile(path, []byte(text.String()), 0o600))
	}
	for name, to := range c.Links {
		check(os.Symlink(to, filepath.Join(folder, name)))
	}
	for name, value := range c.Env {
		env = append(env, name+"="+strings.ReplaceAll(value, "$T", folder))
	}
	return folder, env
}

// Set makes the case that of the test's own process.
func (c *Server) Set(t *testing.T) {
	t.Helper()
	folder, env := c.Prepare(t)
	t.Chdir(folder)
	for _, name := range []string{"SCUDA_SERVER", "SCUDA_TOKEN", "SCUDA_TOKEN_FILE", "HOME", "XDG_CONFIG_HOME"} {
		t.Setenv(name, "") // which restores it in the end
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
}
