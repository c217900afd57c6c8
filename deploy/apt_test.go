package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// debs makes the packages of a release, small ones.
func debs(t *testing.T, version, contents string) string {
	t.Helper()
	out := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		for kind, depends := range map[string]string{"client": "", "server": "Depends: scuda-client (= " + version + ")\n"} {
			tree := t.TempDir()
			for file, text := range map[string]string{
				"usr/share/scuda/" + kind: contents,
				"DEBIAN/control": fmt.Sprintf("Package: scuda-%s\nVersion: %s\nArchitecture: %s\n%sMaintainer: a test "+
					"<test@example.com>\nDescription: a test\n", kind, version, arch, depends),
			} {
				if err := os.MkdirAll(filepath.Join(tree, filepath.Dir(file)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(tree, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			name := fmt.Sprintf("scuda-%s_%s_%s.deb", kind, version, arch)
			command(t, "", "dpkg-deb", "--root-owner-group", "-b", tree, filepath.Join(out, name))
		}
	}
	return out
}

// A machine of its own for apt, as far as apt is concerned.
type machine struct{ root string }

func newMachine(t *testing.T, source string) machine {
	t.Helper()
	root := t.TempDir()
	for _, folder := range []string{"etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d",
		"etc/apt/trusted.gpg.d", "var/lib/apt/lists/partial", "var/lib/dpkg", "var/cache/apt/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Read before anything of this machine's, so that all else is looked for below the folder.
	config := fmt.Sprintf("Dir %q;\nDir::State::status %q;\nDir::Bin::methods \"/usr/lib/apt/methods\";\n"+
		"APT::Sandbox::User \"\";\nAPT::Architecture \"amd64\";\nAPT::Architectures { \"amd64\"; };\n", root+"/",
		filepath.Join(root, "var/lib/dpkg/status"))
	for file, text := range map[string]string{"etc/apt/sources.list": source + "\n", "var/lib/dpkg/status": "",
		"config": config} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return machine{root}
}

// apt runs apt-get there, as of a machine with x86-64.
func (m machine) apt(t *testing.T, words ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "apt-get", append([]string{"-q"}, words...)...)
	cmd.Dir = m.root
	cmd.Env = append(os.Environ(), "LC_ALL=C", "APT_CONFIG="+filepath.Join(m.root, "config"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestAptSource has apt itself read a source that apt.sh makes: only one that is signed with the key that it was told,
// and nothing that was changed afterwards.
func TestAptSource(t *testing.T) {
	keys := t.TempDir()
	if err := os.Chmod(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GNUPGHOME", keys)
	t.Cleanup(func() {
		if out, err := exec.Command("gpgconf", "--kill", "all").CombinedOutput(); err != nil { // its agent
			t.Errorf("%v, %s", err, out)
		}
	})
	for _, who := range []string{"maker@example.com", "other@example.com"} {
		command(t, "", "gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", who, "ed25519", "sign",
			"never")
	}
	other := filepath.Join(keys, "other.asc")
	command(t, "", "gpg", "--batch", "--armor", "--output", other, "--export", "other@example.com")

	place := filepath.Join(t.TempDir(), "apt")
	source := func(options string) string { return "deb [" + options + "] file:" + place + " stable main" }
	one, two := debs(t, "1.0", "one"), debs(t, "1.1~dev20260101000000+gabc", "two")
	published := func(release, key string) string {
		t.Helper()
		t.Setenv("SCUDA_APT_KEY", key)
		return command(t, "", "./apt.sh", release, place)
	}
	refused := func(why, source string) {
		t.Helper()
		if out, err := newMachine(t, source).apt(t, "update"); err == nil || !strings.Contains(out, why) {
			t.Errorf("%s: %v, and apt says %s, not %q", source, err, out, why)
		}
	}
	installs := func(source string, want ...string) machine {
		t.Helper()
		m := newMachine(t, source)
		if out, err := m.apt(t, "update"); err != nil || strings.Contains(out, "W:") {
			t.Fatalf("%s: %v, %s", source, err, out)
		}
		out, err := m.apt(t, "-s", "install", "scuda-server")
		for _, line := range want {
			if err != nil || !strings.Contains(out, line) {
				t.Errorf("%s: %v, and apt would do %s, not %q", source, err, out, line)
			}
		}
		return m
	}

	if said := published(one, ""); !strings.Contains(said, "not signed") {
		t.Errorf("a source without a key says %q", said)
	}
	refused("is not signed", source("arch=amd64"))
	installs(source("trusted=yes"), "Inst scuda-client (1.0 scuda:stable [amd64])", "Inst scuda-server (1.0 ")

	published(one, "maker@example.com")
	signed := source("signed-by=" + filepath.Join(place, "scuda.asc"))
	refused("NO_PUBKEY", source("signed-by="+other))
	installs(signed, "Inst scuda-client (1.0 ", "Inst scuda-server (1.0 ")

	// A later release beside it: both are there, and apt takes the later one.
	published(two, "maker@example.com")
	m := installs(signed, "Inst scuda-client (1.1~dev20260101000000+gabc ", "Inst scuda-server (1.1~dev")
	for version, contents := range map[string]string{"1.0": "one", "1.1~dev20260101000000+gabc": "two"} {
		if out, err := m.apt(t, "download", "scuda-client="+version); err != nil {
			t.Fatalf("%v, %s", err, out)
		}
		tree := t.TempDir()
		got, err := filepath.Glob(filepath.Join(m.root, "scuda-client_"+version+"_amd64.deb"))
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %q, %v", version, got, err)
		}
		command(t, "", "dpkg-deb", "-x", got[0], tree)
		if text, err := os.ReadFile(filepath.Join(tree, "usr/share/scuda/client")); string(text) != contents {
			t.Errorf("the package of %s has %q, %v", version, text, err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "./apt.sh", debs(t, "1.0", "changed"), place).CombinedOutput(); err ==
		nil || !strings.Contains(string(out), "is another package of the same version") {
		t.Errorf("another package of the same version: %v, %s", err, out)
	}

	// A package that was changed afterwards, and a list.
	changed := func(file string) (undo func()) {
		t.Helper()
		file = filepath.Join(place, file)
		was, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		is := bytes.Clone(was)
		is[len(is)/2] ^= 1
		write := func(b []byte) {
			if err := os.WriteFile(file, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		write(is)
		return func() { write(was) }
	}
	undo := changed("pool/scuda-client_1.0_amd64.deb")
	if out, err := m.apt(t, "install", "-y", "--download-only", "scuda-client=1.0"); err == nil ||
		!strings.Contains(out, "Hash Sum mismatch") {
		t.Errorf("a package that was changed: %v, %s", err, out)
	}
	undo()
	undo = changed("dists/stable/InRelease")
	refused("BADSIG", signed)
	undo()
	for _, suffix := range []string{"", ".gz"} {
		changed("dists/stable/main/binary-amd64/Packages" + suffix)
	}
	refused("Hash Sum mismatch", signed)
}
