//go:build !client

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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/config/configtest"
	"scuda.dev/scuda/server"
	"scuda.dev/scuda/server/tenant"
)

// The tests of the server's options. The client's program has none of them.

func TestEnvironment(t *testing.T) {
	t.Setenv("SCUDA_CACHE_DIR", "/from/env")
	t.Setenv("SCUDA_MAX_SESSIONS", "9")
	t.Setenv("SCUDA_GPU", "")
	var o serveOptions
	flags := newFlags(&o)
	if err := flags.Parse([]string{"--max-sessions", "3"}); err != nil {
		t.Fatal(err)
	}
	if err := applyEnv(flags); err != nil {
		t.Fatal(err)
	}
	if o.cacheDir != "/from/env" || o.sessions != 3 || o.gpu != "auto" {
		t.Errorf("got %+v", o)
	}
	t.Setenv("SCUDA_WARM", "many")
	var e *exitError
	if err := applyEnv(newFlags(&o)); !errors.As(err, &e) || e.code != exitUsage ||
		!strings.Contains(err.Error(), "SCUDA_WARM") {
		t.Errorf("got %v", err)
	}
	for _, name := range serveFlags {
		if f := flags.Lookup(name); !strings.Contains(f.Usage, envName(name)) {
			t.Errorf("--%s does not name its variable: %s", name, f.Usage)
		}
	}
	// A settings file takes what is in the list alone, and the root command hides that.
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "listen" && !slices.Contains(serveFlags, f.Name) {
			t.Errorf("--%s is missing in serveFlags", f.Name)
		}
	})
}

// TestNoDefaultInHelp: an option without a default has none in the help either, such as 0B, 0 B or 0s.
func TestNoDefaultInHelp(t *testing.T) {
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if zero := strings.TrimLeft(f.DefValue, "0 "); f.Value.Type() != "duration" && zero != f.DefValue &&
				slices.Contains([]string{"B", "s"}, zero) {
				t.Errorf("%s --%s: %q", c.CommandPath(), f.Name, f.DefValue)
			}
		})
		for _, c := range c.Commands() {
			look(c)
		}
	}
	look(newRoot())
}

func newFlags(o *serveOptions) *pflag.FlagSet {
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.flags(f)
	return f
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
