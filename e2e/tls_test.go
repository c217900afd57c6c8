package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serveTLS starts a server that takes nothing but TLS, and gives its fingerprint.
func serveTLS(t *testing.T, args ...string) (*server, string) {
	t.Helper()
	s := serve(t, append([]string{"--tls", "always", "--state-dir", t.TempDir()}, args...)...)
	return s, s.await(s.out, `^fingerprint (sha256:[0-9a-f]{64})$`)[1]
}

// Programs run as without TLS: launches, copies of every size, what the server asks the client, NVML before a fork.
func TestProgramsWithTLS(t *testing.T) {
	s, fingerprint := serveTLS(t)
	for _, name := range []string{"compute", "copies", "callbacks", "graph_captured", "nvml", "fork", "threads"} {
		t.Run(name, func(t *testing.T) {
			p := start(t, s.env("SCUDA_FINGERPRINT="+fingerprint), program(name), kernels)
			p.stdin.Close()
			if code := p.wait(patience); code != 0 {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
		})
	}
}

// A client that knows nothing of a server with TLS says what to do, and so do those who do not reach it by C.
func TestUnknownServer(t *testing.T) {
	s, _ := serveTLS(t)
	p := start(t, s.env(), program("init"))
	p.wait(patience)
	if text := p.err.String(); !strings.Contains(text, "wants TLS") || !strings.Contains(text, "scuda login HOST:PORT") {
		t.Errorf("got %s", text)
	}
	p = start(t, s.env("SCUDA_FINGERPRINT=sha256:"+strings.Repeat("0", 64)), program("init"))
	p.wait(patience)
	if text := p.err.String(); !strings.Contains(text, "the server is another one") {
		t.Errorf("got %s", text)
	}
}

// terminal gives both ends of one.
func terminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// A person at a terminal is shown the fingerprint and asked; then it is known, and another server there is refused.
func TestTrustOnFirstUse(t *testing.T) {
	s, fingerprint := serveTLS(t)
	home := t.TempDir()
	env := []string{"XDG_CONFIG_HOME=" + home}
	knownFile := filepath.Join(home, "scuda", "known_servers")

	p := start(t, env, scuda, s.addr)
	if code := p.wait(patience); code != 4 || !strings.Contains(p.err.String(), fingerprint) {
		t.Errorf("without a terminal: exit status %d\n%s%s", code, p.out, p.err)
	}
	for _, answer := range []string{"no", "yes"} {
		ours, theirs := terminal(t)
		if _, err := ours.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
		p := startAt(t, theirs, env, scuda, "login", s.addr)
		code := p.wait(patience)
		known, _ := os.ReadFile(knownFile)
		if (code == 0) != (answer == "yes") || strings.Contains(string(known), fingerprint) != (answer == "yes") ||
			!strings.Contains(p.err.String(), fingerprint) {
			t.Errorf("%s: exit status %d\n%s%s\nknown:\n%s", answer, code, p.out, p.err, known)
		}
	}
	run := start(t, env, scuda, "run", "--", program("init"))
	if code := run.wait(patience); code != 0 || !strings.HasPrefix(run.out.String(), "cuInit = 0\n") {
		t.Errorf("exit status %d\n%s%s", code, run.out, run.err)
	}
	p = start(t, env, scuda, "--insecure", s.addr)
	if code := p.wait(patience); code == 0 || !strings.Contains(p.err.String(), "has had TLS before") {
		t.Errorf("back to plain text: exit status %d\n%s%s", code, p.out, p.err)
	}
	// Somebody else at the same address.
	s.signal(syscall.SIGTERM)
	s.wait(patience)
	other := start(t, nil, scuda, "-l", s.addr, "--gpu", gpu, "--sim-memory", "1GiB", "--cache-dir", t.TempDir(), "--tls",
		"always", "--state-dir", t.TempDir())
	other.await(other.out, `^listening on (\S+)$`)
	p = start(t, env, scuda, s.addr)
	if code := p.wait(patience); code != 4 || !strings.Contains(p.err.String(), "somebody may be in between") {
		t.Errorf("another server: exit status %d\n%s%s", code, p.out, p.err)
	}
}

// startAt is start with a file as standard input.
func startAt(t *testing.T, stdin *os.File, env []string, name string, args ...string) *process {
	t.Helper()
	command := []string{"-c", `exec "$0" "$@" < "$STDIN"`, name}
	return start(t, append(env, "STDIN="+stdin.Name()), "/bin/sh", append(command, args...)...)
}

// An authority's certificates name server and client; the tenants file says who may come, and is read again.
func TestTenants(t *testing.T) {
	folder := t.TempDir()
	for _, args := range [][]string{{"init"}, {"issue", "--server", "127.0.0.1"}, {"issue", "alice"}, {"issue", "bob"}} {
		p := start(t, nil, scuda, append([]string{"ca", "--folder", folder}, args...)...)
		if code := p.wait(patience); code != 0 {
			t.Fatalf("%v: exit status %d\n%s%s", args, code, p.out, p.err)
		}
	}
	in := func(name string) string { return filepath.Join(folder, name) }
	write := func(text string) {
		if err := os.WriteFile(in("tenants"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("alice certificate\nteam token=a-long-token\n")
	s, _ := serveTLS(t, "--tls-cert", in("127.0.0.1.crt"), "--client-ca", in("ca.crt"), "--tenants", in("tenants"))
	env := func(name string, more ...string) []string {
		return s.env(append(more, "XDG_CONFIG_HOME="+folder, "SCUDA_CA="+in("ca.crt"), "SCUDA_CERT="+in(name+".crt"))...)
	}
	session := func(env []string, ok bool) {
		t.Helper()
		p := start(t, env, program("init"))
		p.wait(patience)
		if strings.HasPrefix(p.out.String(), "cuInit = 0\n") != ok {
			t.Errorf("admitted: %v\n%s%s", !ok, p.out, p.err)
		}
	}
	session(env("alice"), true)
	s.await(s.err, `session opened.* tenant=alice`)
	session(env("bob"), false)
	session(env("bob", "SCUDA_TOKEN=a-long-token"), true)
	s.await(s.err, `session opened.* tenant=team`)

	waiting := start(t, env("alice"), program("hold"), kernels)
	waiting.await(waiting.out, `.`)
	write("nonsense")
	s.signal(syscall.SIGHUP)
	s.await(s.err, `cannot read tenants.* line 1`)
	session(env("alice"), true)
	write("bob certificate\n")
	s.signal(syscall.SIGHUP)
	s.await(s.err, `the server ended the session.*credential was withdrawn`)
	session(env("alice"), false)
	session(env("bob"), true)
}

// echoes waits until a terminal shows what is typed, or does not.
func echoes(t *testing.T, f *os.File, want bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		state, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		if state.Lflag&unix.ECHO != 0 == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the terminal shows what is typed: %v", !want)
		}
	}
}
