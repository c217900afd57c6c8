//go:build helm

package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// helm runs Helm, and gives what it says.
func helm(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.Command(os.Getenv("HELM"), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var complaints []byte
	out, err := cmd.Output()
	if e, ok := err.(*exec.ExitError); ok { //nolint:errorlint // exec gives it so
		complaints = e.Stderr
	}
	if err != nil {
		t.Logf("%q: %v\n%s%s", args, err, out, complaints)
	}
	return out, err
}

// values writes a file of values.
func values(t *testing.T, v map[string]any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Helm itself finds nothing wrong, renders what kustomize has, and refuses values that the schema does not know.
func TestHelm(t *testing.T) {
	_, servers := kustomized(t)
	usual := values(t, map[string]any{"servers": servers})
	for _, path := range []string{usual, values(t, other())} {
		if out, err := helm(t, "lint", "--strict", folder, "--values", path); err != nil {
			t.Errorf("lint: %v\n%s", err, out)
		}
	}
	out, err := helm(t, "template", "scuda", folder, "--namespace", namespace, "--values", usual, "--kube-version",
		"1.36.0")
	if err != nil {
		t.Fatal(err)
	}
	same(t, decode(t, "helm template", out))
	for name, bad := range map[string]map[string]any{
		"unknown":   {"replicas": 3},
		"kind":      {"controller": map[string]any{"replicas": "two"}},
		"no server": {"servers": []any{map[string]any{"name": "gpu1"}}},
	} {
		if _, err := helm(t, "template", folder, "--values", values(t, bad)); err == nil {
			t.Errorf("%s: %v is taken", name, bad)
		}
	}
}
