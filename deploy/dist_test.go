package deploy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDist installs what make dist makes, the tarball below a prefix and the packages by dpkg, and runs programs with
// each. Clean systems, and RPM's, are left to make test-install.
func TestDist(t *testing.T) {
	if !exists("../build/scuda-pool") {
		t.Fatal("there is no build/scuda-pool: run make pool first")
	}
	out := filepath.Join(t.TempDir(), "dist")
	cmd := exec.CommandContext(t.Context(), "./dist.sh", out)
	cmd.Env = append(os.Environ(), "SCUDA_VERSION=1.2.0-dev+gabc", "SOURCE_DATE_EPOCH=1700000000")
	cmd.Stderr = t.Output()
	made, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Fields(string(made))
	want := regexp.MustCompile(`^scuda-1\.2\.0-dev\+gabc-linux-x86_64\.tar\.gz scuda-1\.2\.0-dev\+gabc-linux-x86_64 ` +
		`scuda-client_1\.2\.0~dev(\d+)\+gabc_amd64\.deb scuda-client-1\.2\.0~dev\d+\+gabc\.x86_64\.rpm ` +
		`scuda-server_1\.2\.0~dev\d+\+gabc_amd64\.deb scuda-server-1\.2\.0~dev\d+\+gabc\.x86_64\.rpm ` +
		`scuda-pool_1\.2\.0~dev\d+\+gabc_amd64\.deb scuda-pool-1\.2\.0~dev\d+\+gabc\.x86_64\.rpm$`)
	var names []string
	for _, file := range files {
		names = append(names, filepath.Base(file))
	}
	found := want.FindStringSubmatch(strings.Join(names, " "))
	if found == nil {
		t.Fatalf("made were %q", names)
	}
	for _, order := range [][2]string{{"1.1.9", found[1]}, {found[1], "1.2.0"}, {found[1], "1.2.1~dev1+gaaa"}} {
		for i, version := range order {
			if version == found[1] {
				order[i] = "1.2.0~dev" + version + "+gabc"
			}
		}
		command(t, "", "dpkg", "--compare-versions", order[0], "lt", order[1])
	}

	prefix := t.TempDir()
	command(t, "", "tar", "-C", prefix, "--strip-components=1", "-xzf", files[0])
	works(t, prefix)
	pool := t.TempDir()
	command(t, "", "dpkg-deb", "-x", files[6], pool)
	t.Run("services", func(t *testing.T) { services(t, prefix, filepath.Join(pool, "usr")) })
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "docs/operations.md",
		"deploy/docker/compose.yaml", "deploy/systemd/scuda.service", "deploy/slurm/prolog", "deploy/slurm/slurm.yaml",
		"deploy/grafana/scuda.json", "deploy/grafana/scuda-exporter.json", "deploy/grafana/scuda-pool.json",
		"deploy/prometheus/scuda-pool.rules.yml",
		"lib/scuda/scuda-demo", "share/man/man1/scuda-serve.1.gz",
		"share/bash-completion/completions/scuda"} {
		if _, err := os.Stat(filepath.Join(prefix, name)); err != nil {
			t.Error(err)
		}
	}

	ownLinks(t, prefix)

	// One file is enough, in a folder with nothing beside it.
	alone := filepath.Join(t.TempDir(), "scuda")
	if err := os.Rename(files[1], alone); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	uses(t, alone, filepath.Join(prefix, "lib/scuda/scuda-load"))
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
	for _, words := range [][]string{{"serve", "--gpu", "sim"}, {"-l", "--gpu", "sim"}, {"perf", "run"}, {"run", "--on",
		"localhost", "--", "true"}} {
		said, err := exec.CommandContext(t.Context(), filepath.Join(root, "usr/bin/scuda"), words...).CombinedOutput()
		if err == nil || !strings.Contains(string(said), "install the package scuda-server") {
			t.Errorf("the client's package alone, asked to %q: %v, %s", words, err, said)
		}
	}
	if programs := tree(t, filepath.Join(root, "usr/bin")); !slices.Equal(programs, []string{"scuda"}) {
		t.Errorf("in /usr/bin there is %q", programs)
	}
	ownLinks(t, filepath.Join(root, "usr/share/doc"))
	contents := command(t, "", "dpkg-deb", "-c", files[4])
	for page, ours := range map[string]bool{"servers": false, "run": false, "serve": true, "perf-run": true} {
		if strings.Contains(contents, "/scuda-"+page+".1.gz") != ours {
			t.Errorf("the page of %s lies in the wrong package", page)
		}
	}
	command(t, "", "dpkg-deb", "-x", files[4], root) // its scripts are for a whole system
	works(t, filepath.Join(root, "usr"))
	if said := command(t, "", filepath.Join(root, "usr/bin/scuda"), "__complete", "serve", "--gpu", ""); !strings.Contains(
		said, "real\n") {
		t.Errorf("what the server's options take is completed with %q", said)
	}
	poolUnits(t, pool)
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
		pages := regexp.MustCompile(`(?m)^Documentation=man:(\S+)\(1\) file:(\S+)$`).FindStringSubmatch(string(b))
		if pages == nil || !exists(filepath.Join(root, "usr/share/man/man1", pages[1]+".1.gz")) ||
			!exists(filepath.Join(root, pages[2])) {
			t.Errorf("%s names as its documentation what is not installed: %q", unit, pages)
		}
	}
	for line := range strings.Lines(contents) {
		if fields := strings.Fields(line); len(fields) > 5 && !strings.HasSuffix(fields[5], "/") {
			if err := os.Remove(filepath.Join(root, fields[5])); err != nil {
				t.Error(err)
			}
		}
	}
	dpkg("-r", "scuda-client")
	err = filepath.WalkDir(filepath.Join(root, "usr"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("after the packages are removed there is %s", path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// poolUnits looks whether what the units of the pool's package name is in it, what monitoring takes, and nothing else.
func poolUnits(t *testing.T, root string) {
	t.Helper()
	var want []string
	for _, unit := range []string{"scuda-pool.service", "scuda-pool-announce.service"} {
		file := "usr/lib/systemd/system/" + unit
		want = append(want, file)
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`(?m)^(?:Documentation=file:|ExecStart=)/(\S+)`).FindAllStringSubmatch(string(b), -1)
		if len(named) != 2 {
			t.Errorf("%s names %q", unit, named)
		}
		for _, m := range named {
			want = append(want, m[1])
		}
	}
	want = append(want, "usr/share/doc/scuda-pool/changelog.gz", "usr/share/doc/scuda-pool/copyright",
		"usr/share/scuda-pool/grafana/scuda-pool.json", "usr/share/scuda-pool/prometheus/scuda-pool.rules.yml")
	slices.Sort(want)
	want = slices.Compact(want)
	got := slices.DeleteFunc(tree(t, root), func(name string) bool {
		st, err := os.Stat(filepath.Join(root, name))
		return err == nil && st.IsDir()
	})
	if !slices.Equal(got, want) {
		t.Errorf("the pool's package has %q, not %q", got, want)
	}
	ownLinks(t, root)
}

// ownLinks looks for links in documents to what was not packed with them.
func ownLinks(t *testing.T, folder string) {
	t.Helper()
	for _, name := range tree(t, folder) {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Error(err)
		}
		for _, link := range regexp.MustCompile(`\]\(([^)#\s]+)`).FindAllSubmatch(text, -1) {
			if to := string(link[1]); !strings.Contains(to, ":") && !exists(filepath.Join(folder, filepath.Dir(name), to)) {
				t.Errorf("%s links %s, which is not packed", name, to)
			}
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

const askNVML = `import ctypes; print(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2())`

// works runs the installed server, and with the installed client a program on it.
func works(t *testing.T, prefix string) {
	t.Helper()
	scuda := filepath.Join(prefix, "bin/scuda")
	uses(t, scuda, filepath.Join(prefix, "lib/scuda/scuda-load"))
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
		"none", "--admin", "none")[0]
	out := command(t, "", scuda, "run", "--server", address, "--", load, "up", "4096", "3")
	if lines := strings.Fields(out); len(lines) != 3 {
		t.Errorf("the load says %q", out)
	}
	// NVML's library finds the program that connects for it.
	if out := command(t, "", scuda, "run", "--server", address, "--", "python3", "-c", askNVML); out != "0\n" {
		t.Errorf("nvmlInit answers %q", out)
	}
}
