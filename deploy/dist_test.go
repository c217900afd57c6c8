package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDist installs what make dist makes, the tarball below a prefix and the Debian package by dpkg, and runs programs
// with each.
func TestDist(t *testing.T) {
	out := filepath.Join(t.TempDir(), "dist")
	cmd := exec.CommandContext(t.Context(), "./dist.sh", out)
	cmd.Env = append(os.Environ(), "SCUDA_VERSION=v1.2-3-gabc")
	made, err := cmd.Output()
	files := strings.Fields(string(made))
	if err != nil || len(files) != 3 || filepath.Base(files[0]) != "scuda-v1.2-3-gabc-linux-x86_64.tar.gz" ||
		filepath.Base(files[1]) != "scuda-v1.2-3-gabc-linux-x86_64" ||
		filepath.Base(files[2]) != "scuda_0+v1.2.3.gabc_amd64.deb" {
		t.Fatalf("%v: %q", err, made)
	}

	prefix := t.TempDir()
	command(t, "", "tar", "-C", prefix, "--strip-components=1", "-xzf", files[0])
	works(t, prefix)
	t.Run("services", func(t *testing.T) { services(t, prefix) })
	for _, name := range []string{"LICENSE", "README.md", "docs/operations.md", "deploy/systemd/scuda.service",
		"deploy/grafana/scuda.json", "share/man/man1/scuda-serve.1.gz", "share/bash-completion/completions/scuda"} {
		if _, err := os.Stat(filepath.Join(prefix, name)); err != nil {
			t.Error(err)
		}
	}

	// One file is enough, in a folder with nothing beside it.
	alone := filepath.Join(t.TempDir(), "scuda")
	if err := os.Rename(files[1], alone); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	uses(t, alone, filepath.Join(prefix, "bin/scuda-load"))
	unpacked, err := filepath.Glob(filepath.Join(cache, "scuda/lib/*/libscuda-core.so"))
	if err != nil || len(unpacked) != 1 {
		t.Errorf("unpacked: %q, %v", unpacked, err)
	}

	// Systems with an older C library than this one take the package.
	var minor int
	if depends := command(t, "", "dpkg-deb", "-f", files[2], "Depends"); !strings.HasPrefix(depends, "libc6 (>= 2.") {
		t.Errorf("the package depends on %q", depends)
	} else if n, _ := fmt.Sscanf(depends, "libc6 (>= 2.%d)", &minor); n != 1 || minor > 31 {
		t.Errorf("the package wants a newer C library than 2.31: %q", depends)
	}
	root := t.TempDir()
	for _, d := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"var/lib/dpkg/status", "var/lib/dpkg/available"} {
		if err := os.WriteFile(filepath.Join(root, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dpkg := func(args ...string) string {
		return command(t, "", "dpkg", append([]string{
			"--root=" + root, "--force-depends", "--force-not-root", "--log=" + filepath.Join(root, "log"),
		}, args...)...)
	}
	dpkg("-i", files[2])
	works(t, filepath.Join(root, "usr"))
	for _, unit := range []string{"scuda.service", "scuda-exporter.service"} {
		b, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system", unit))
		if err != nil {
			t.Fatal(err)
		}
		_, start, _ := strings.Cut(string(b), "ExecStart=")
		program, _, _ := strings.Cut(start, " ")
		if st, err := os.Stat(filepath.Join(root, program)); err != nil || st.Mode()&0o111 == 0 {
			t.Errorf("%s starts %s: %v", unit, program, err)
		}
	}
	dpkg("-r", "scuda")
	if left, err := filepath.Glob(filepath.Join(root, "usr/*/*")); err != nil || len(left) > 0 {
		t.Errorf("after the package is removed there is %q", left)
	}
}

const askNVML = `import ctypes; print(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2())`

// works runs the installed server, and with the installed client a program on it.
func works(t *testing.T, prefix string) {
	t.Helper()
	scuda := filepath.Join(prefix, "bin/scuda")
	uses(t, scuda, filepath.Join(prefix, "bin/scuda-load"))
	// The programs that measure are found where they were installed.
	if out := command(t, "", scuda, "perf", "run", "--quick", "--repetitions", "1", "--entry",
		"system calls of a small program"); !strings.Contains(out, `"everything that writes"`) {
		t.Errorf("the measurement says %q", out)
	}
}

// uses serves with a program, and runs others with it.
func uses(t *testing.T, scuda, load string) {
	t.Helper()
	address := start(t, nil, []string{"listening on "}, scuda, "-l", "127.0.0.1:0", "--gpu", "sim", "--cache-dir",
		"none")[0]
	out := command(t, "", scuda, "run", "--server", address, "--", load, "up", "4096", "3")
	if lines := strings.Fields(out); len(lines) != 3 {
		t.Errorf("the load says %q", out)
	}
	// NVML's library finds the program that connects for it.
	if out := command(t, "", scuda, "run", "--server", address, "--", "python3", "-c", askNVML); out != "0\n" {
		t.Errorf("nvmlInit answers %q", out)
	}
}
