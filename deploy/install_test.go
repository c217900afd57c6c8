package deploy

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// release makes a small release in a folder, as release.sh lays it out: files by path and text.
func release(t *testing.T, files map[string]string) string {
	t.Helper()
	tree, out := t.TempDir(), t.TempDir()
	machine := strings.TrimSpace(command(t, "", "uname", "-m"))
	top := "scuda-1.0-linux-" + machine
	for name, text := range files {
		file := filepath.Join(tree, top, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command(t, tree, "tar", "-czf", filepath.Join(out, top+".tar.gz"), top)
	command(t, out, "sh", "-c", "sha256sum * >SHA256SUMS")
	return out
}

// tree lists what is below a folder.
func tree(t *testing.T, folder string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if name, _ := strings.CutPrefix(path, folder); name != "" {
			found = append(found, name[1:])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestInstallScript installs a small release with the script, from a folder and over HTTP, replaces it, and takes it
// away again.
func TestInstallScript(t *testing.T) {
	program := "#!/bin/sh\necho scuda version 1.0\n"
	one := release(t, map[string]string{"bin/scuda": program, "lib/scuda/libold.so": "old", "docs/a.md": "",
		"share/man/man1/scuda.1.gz": ""})
	two := release(t, map[string]string{"bin/scuda": program + "# newer\n", "lib/scuda/libnew.so": "new", "share/x": ""})
	web := httptest.NewServer(http.FileServer(http.Dir(one)))
	defer web.Close()

	prefix := t.TempDir()
	if err := os.Mkdir(filepath.Join(prefix, "bin"), 0o755); err != nil { // the user's own, as /usr/local/bin
		t.Fatal(err)
	}
	before := tree(t, prefix)
	install := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", append([]string{"install.sh", "--prefix", prefix}, args...)...)
		cmd.Env = append(os.Environ(), "SCUDA_RELEASE=")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	has := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(prefix, name)); err != nil {
				t.Error(err)
			}
		}
	}
	refused := func(why string, args ...string) {
		t.Helper()
		was := tree(t, prefix)
		if out, err := install(args...); err == nil || !strings.Contains(out, why) {
			t.Errorf("%q: %v, and says %q, not %q", args, err, out, why)
		}
		if is := tree(t, prefix); !slices.Equal(is, was) {
			t.Errorf("%q changed %q into %q", args, was, is)
		}
	}

	refused("from where?")
	refused("what is --form?", "--form", one)
	refused("nothing of scuda was installed", "--remove")
	refused("SHA256SUMS cannot be had", "--from", t.TempDir())
	refused("SHA256SUMS cannot be had", "--from", web.URL+"/none")

	for _, from := range []string{one, web.URL} {
		if out, err := install("--from", from); err != nil ||
			!strings.Contains(out, "installed scuda version 1.0") || !strings.Contains(out, "export PATH=") {
			t.Errorf("from %s: %v, %q", from, err, out)
		}
		has("bin/scuda", "lib/scuda/libold.so", "share/man/man1/scuda.1.gz")
	}
	// The newer release: its files, and not those that it has no more.
	if out, err := install("--from", two); err != nil {
		t.Errorf("%v, %q", err, out)
	}
	has("bin/scuda", "lib/scuda/libnew.so", "share/x")
	if _, err := os.Stat(filepath.Join(prefix, "lib/scuda/libold.so")); err == nil {
		t.Error("a file of the release before is there still")
	}
	// A file of somebody else in a folder of ours stays.
	other := filepath.Join(prefix, "share/other")
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}

	archives, err := filepath.Glob(filepath.Join(one, "*.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatal(archives, err)
	}
	if err := os.WriteFile(archives[0], []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused("is not what SHA256SUMS says", "--from", one)
	refused("is not what SHA256SUMS says", "--from", web.URL)
	sums := []byte("0  scuda-1-linux-s390x.tar.gz\n")
	if err := os.WriteFile(filepath.Join(one, "SHA256SUMS"), sums, 0o644); err != nil {
		t.Fatal(err)
	}
	refused("has no archive for", "--from", one)

	if out, err := install("--remove"); err != nil {
		t.Errorf("%v, %q", err, out)
	}
	if err := os.Remove(other); err != nil {
		t.Error(err)
	}
	if left := tree(t, prefix); !slices.Equal(left, append(before, "share")) {
		t.Errorf("after it was removed there is %q", left)
	}
}
