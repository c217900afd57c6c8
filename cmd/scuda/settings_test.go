package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/config/configtest"
	"scuda.dev/scuda/server"
	"scuda.dev/scuda/server/tenant"
)

// TestServer: the command line uses the server that programs use.
func TestServer(t *testing.T) {
	lib := t.TempDir()
	if err := os.WriteFile(filepath.Join(lib, "libscuda.so"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCUDA_LIB", lib)
	for _, c := range configtest.Servers(t) {
		t.Run(c.Name, func(t *testing.T) {
			c.Set(t)
			_, err := clientEnv(nil, "", "")
			switch {
			case !c.Configured() && !errors.Is(err, config.ErrNoServer), c.Address != "" && err != nil,
				c.Error != "" && (err == nil || !strings.Contains(err.Error(), c.Error)):
				t.Errorf("%v", err)
			}
			// What a program's variable may say the option may, too.
			address := strings.TrimSpace(c.Env["SCUDA_SERVER"])
			if address == "" {
				return
			}
			env, err := clientEnv(nil, address, "")
			if c.Address != "" && !slices.Contains(env, "SCUDA_SERVER="+c.Address) || (err == nil) != (c.Error == "") {
				t.Errorf("--server %s: %q, %v", address, env, err)
			}
		})
	}
}

// options gives what the server's options say with a variable set.
func options(t *testing.T, name, value string) (*server.Config, error) {
	t.Helper()
	for _, n := range serveFlags {
		t.Setenv(envName(n), "")
	}
	t.Setenv(envName(name), value)
	var o serveOptions
	flags := pflag.NewFlagSet("scuda", pflag.ContinueOnError)
	o.flags(flags)
	if err := errors.Join(flags.Parse([]string{"--listen"}), applyEnv(flags)); err != nil {
		return nil, err
	}
	return o.config(io.Discard)
}

// TestSharedOptions: the settings that clients have, too, mean the same to the server's options.
func TestSharedOptions(t *testing.T) {
	read := map[string]func(*server.Config) string{
		"log": func(c *server.Config) string {
			for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
				if c.Log.Enabled(context.Background(), level) {
					return level.String()
				}
			}
			return "ERROR"
		},
		"transport": func(c *server.Config) string {
			return map[bool]string{true: "tcp", false: "auto"}[c.NoRDMA]
		},
		"rdma-memory": func(c *server.Config) string { return config.Size(c.RDMAMemory).String() },
		"metrics":     func(c *server.Config) string { return c.Metrics },
	}
	for name, value := range read {
		for _, v := range configtest.Values(t, name) {
			dir := t.TempDir()
			place := func(s string) string { return strings.ReplaceAll(s, "$T", dir) }
			want := v.Client
			if v.Server != nil {
				want = *v.Server
			}
			path := ""
			if name == "log" {
				want, path, _ = strings.Cut(place(want), " ")
			}
			c, err := options(t, name, place(v.Text))
			if v.Error != "" {
				if err == nil || !strings.Contains(err.Error(), v.Error) {
					t.Errorf("%s=%q: %v", envName(name), v.Text, err)
				}
				continue
			}
			if err != nil || value(c) != want {
				t.Errorf("%s=%q: %v, want %s", envName(name), v.Text, err, want)
			}
			if _, err := os.Stat(path); path != "" && err != nil {
				t.Error(err)
			}
		}
	}
}

// TestOptionsAreListed: the list of settings has exactly the variables of the server's options.
func TestOptionsAreListed(t *testing.T) {
	var listed, variables []string
	for _, s := range config.Settings {
		if s.Server {
			listed = append(listed, s.Name)
		}
	}
	newServe().Flags().VisitAll(func(f *pflag.Flag) { variables = append(variables, f.Annotations["env"]...) })
	slices.Sort(listed)
	slices.Sort(variables)
	if !slices.Equal(listed, variables) {
		t.Errorf("config/settings.go has %q, the options %q", listed, variables)
	}
}

// TestSharedToken: server and clients find the same token in a file.
func TestSharedToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("# of gpu1\n\n  0123456789abcdef \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SCUDA_TOKEN", "")
	t.Setenv("SCUDA_TOKEN_FILE", path)
	client, _, err := config.Token("127.0.0.1:1")
	c, serr := options(t, "token-file", path)
	if err != nil || serr != nil || string(client) != "0123456789abcdef" {
		t.Errorf("%q, %v; %v", client, err, serr)
	}
	if who, ok := c.Tenants.Admit(client, nil); !ok || who.Name != tenant.Default {
		t.Errorf("the client's token is %q's", who.Name)
	}
	option, err := target("127.0.0.1:1", path)
	if err != nil || string(option.Token) != string(client) {
		t.Errorf("--token-file: %q, %v", option.Token, err)
	}
}
