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
	script, err := filepath.Abs("release.sh")
	if err != nil {
		t.Fatal(err)
	}
	command(t, out, "bash", script, "sign", out)
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
			!strings.Contains(out, "installed scuda version 1.0") || !strings.Contains(out, "export PATH=") ||
			!strings.Contains(out, "tar.gz is what SHA256SUMS says\nnot checked: who made the release") {
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

// TestInstallSigned: with a key the script installs what is signed with that key, and nothing else.
func TestInstallSigned(t *testing.T) {
	folder := t.TempDir()
	key, other := filepath.Join(folder, "key"), filepath.Join(folder, "other")
	for _, path := range []string{key, other} {
		command(t, "", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "releases of a test", "-f", path)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"bin/scuda": "#!/bin/sh\necho scuda version 1.0\n", "lib/scuda/a": "", "share/a": ""}
	unsigned := release(t, files)
	t.Setenv("SCUDA_RELEASE_KEY", key)
	signed := release(t, files)
	prefix := filepath.Join(t.TempDir(), "prefix")
	install := func(from, key string, env ...string) (string, error) {
		args := []string{"install.sh", "--prefix", prefix, "--from", from}
		if key != "" {
			args = append(args, "--key", key)
		}
		cmd := exec.CommandContext(t.Context(), "sh", args...)
		cmd.Env = append(append(os.Environ(), "SCUDA_RELEASE=", "SCUDA_RELEASE_KEY="), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	refused := func(why, from, key string, env ...string) {
		t.Helper()
		if out, err := install(from, key, env...); err == nil || !strings.Contains(out, why) {
			t.Errorf("%v, and says %q, not %q", err, out, why)
		}
		if _, err := os.Stat(prefix); err == nil {
			t.Fatal("something was installed")
		}
	}
	const not = "SHA256SUMS is not signed with that key"
	refused("SHA256SUMS.sig cannot be had", unsigned, key+".pub")
	refused(not, signed, other+".pub")
	refused(not, signed, "", "SCUDA_RELEASE_KEY="+other+".pub")
	refused("the key cannot be read", signed, filepath.Join(folder, "none"))
	sums := filepath.Join(signed, "SHA256SUMS")
	right, err := os.ReadFile(sums)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sums, append(right, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	refused(not, signed, key+".pub")
	if err := os.WriteFile(sums, right, 0o644); err != nil {
		t.Fatal(err)
	}
	// Several keys, and a file of allowed signers, which may be for other purposes.
	others, err := os.ReadFile(other + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	written := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	refused(not, signed, written("email", `maker@example.com namespaces="email" `+string(public)))
	refused(not, signed, written("nobody", "# nobody yet\n"))
	for name, who := range map[string]string{key + ".pub": "release", strings.TrimSpace(string(public)): "release",
		written("keys", string(others)+string(public)):                                          "release",
		written("signers", "a@example.com "+string(others)+"maker@example.com "+string(public)): "maker@example.com"} {
		out, err := install(signed, name)
		if err != nil || !strings.Contains(out, "installed scuda version 1.0") || strings.Contains(out, "not checked") ||
			!strings.Contains(out, "checked: SHA256SUMS is signed with the ED25519 key SHA256:") ||
			!strings.Contains(out, " of "+who+"\n") {
			t.Errorf("with %s: %v, %q", name, err, out)
		}
	}
	// What was signed for something else is no release's.
	if err := os.Remove(sums + ".sig"); err != nil {
		t.Fatal(err)
	}
	command(t, "", "ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "file", sums)
	if out, err := install(signed, key+".pub"); err == nil || !strings.Contains(out, not) {
		t.Errorf("a signature for another purpose: %v, %q", err, out)
	}
}
