package tunnel

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestContainers(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for name, text := range map[string]string{
		"docker": "#!/bin/sh\n[ \"$*\" = 'ps --format {{.Names}}' ] && printf 'web\\n-rm\\n\\na b\\ndb\\n'",
		"podman": "#!/bin/sh\necho partial\nexit 1",
		"kubectl": "#!/bin/sh\ncase \"$*\" in\n'get pods --output=name') echo pod/one ;;\n" +
			"'get pods --output=name --namespace=ml') echo pod/two; echo pod/three ;;\nesac",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for word, want := range map[string]string{
		"docker://":        "docker://web docker://db",
		"docker://w":       "docker://web docker://db", // the shell leaves out what does not begin so
		"podman://":        "podman://partial",
		"kube://":          "kube://one",
		"kube://ml/":       "kube://ml/two kube://ml/three",
		"kube://ml/tw":     "kube://ml/two kube://ml/three",
		"kube://-f/":       "",
		"kube://ml/two/":   "",
		"ssh://gpu1":       "",
		"http://gpu1":      "",
		"me@docker://":     "",
		"docker":           "docker://web docker://db",
		"somethingelse://": "",
	} {
		if got := strings.Join(Containers(t.Context(), word), " "); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if got := Containers(t.Context(), "docker://"); got != nil {
		t.Errorf("without docker: %q", got)
	}
	for _, scheme := range Schemes() {
		if _, err := ParseWay(scheme + "name"); err != nil {
			t.Error(err)
		}
	}
}

func FuzzParseContainers(f *testing.F) {
	f.Add("docker://", "web\n-rm\na b\n")
	f.Add("kube://ml/", "pod/one\npod/two/three")
	f.Fuzz(func(t *testing.T, before, text string) {
		list := ParseContainers(before, text)
		if len(list) > maxHosts || slices.ContainsFunc(list, func(s string) bool {
			_, err := ParseWay(s)
			return err != nil || !strings.HasPrefix(s, before)
		}) {
			t.Errorf("%q", list)
		}
	})
}
