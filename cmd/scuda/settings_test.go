package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/config/configtest"
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
