package deploy

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"scuda.dev/scuda/server/isolation"
)

// The server of compose.yaml serves with what is left of root's rights there, and gives its workers all but a control
// group.
func TestComposeServer(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("the server of compose.yaml is root")
	}
	text, err := os.ReadFile("docker/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services struct {
			Server struct {
				User             string
				CapDrop          []string `yaml:"cap_drop"`
				CapAdd           []string `yaml:"cap_add"`
				SecurityOpt      []string `yaml:"security_opt"`
				Command          []string
				Environment      map[string]string
				Volumes, Secrets []string
				Build            any
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	s := file.Services.Server
	if s.User != "0" || !slices.Equal(s.CapDrop, []string{"ALL"}) ||
		!slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) ||
		!slices.Contains(s.Volumes, "state:"+s.Environment["SCUDA_STATE_DIR"]) {
		t.Errorf("%+v", s)
	}
	keep := "-all"
	for _, c := range s.CapAdd {
		keep += ",+" + strings.ToLower(c)
	}
	folder, err := os.MkdirTemp("", "scuda-compose-") //nolint:usetesting // the parent of TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	if err := os.Chmod(folder, 0o755); err != nil { // workers of tenants go through it
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(folder, name) }
	command(t, "", "cp", "../build/scuda", in("scuda"))
	if err := os.WriteFile(in("token"), []byte("a token for a test"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--bounding-set=" + keep, "--inh-caps=-all", "--no-new-privs", in("scuda")}
	for _, a := range s.Command {
		switch {
		case strings.HasPrefix(a, "0.0.0.0:"):
			a = "127.0.0.1:0"
		case a == "/run/secrets/scuda_token":
			a = in("token")
		}
		args = append(args, a)
	}
	server := exec.CommandContext(t.Context(), "setpriv", args...)
	server.Env = append(os.Environ(), "SCUDA_STATE_DIR="+in("state"), "SCUDA_WORKER_FOLDER="+in("workers"),
		"SCUDA_CACHE_DIR="+in("cache"))
	if isolation.Landlock() == nil {
		server.Env = append(server.Env, "SCUDA_ISOLATION=require")
	}
	var log strings.Builder
	server.Stderr = &log
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if address, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
			said := command(t, "", in("scuda"), "info", "--server", address, "--token-file", in("token"))
			if !strings.Contains(said, "simulated") {
				t.Errorf("a client is told:\n%s", said)
			}
			_ = server.Process.Signal(syscall.SIGTERM) // it reads all of its output below
		}
	}
	if err := server.Wait(); err != nil || !strings.Contains(log.String(), " uid]\"") {
		t.Errorf("the server: %v\n%s", err, log.String())
	}
}
