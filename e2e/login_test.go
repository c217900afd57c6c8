package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scuda login asks for a token, does not show it, and remembers it: programs need nothing else.
func TestLogin(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "--token-file", token)
	home := t.TempDir()
	env := []string{"XDG_CONFIG_HOME=" + home}
	file := filepath.Join(home, "scuda/servers")
	says := func(p *process, code int, texts ...string) {
		t.Helper()
		if got := p.wait(patience); got != code {
			t.Errorf("exit status %d, not %d\n%s%s", got, code, p.out, p.err)
		}
		for _, text := range texts {
			if !strings.Contains(p.out.String()+p.err.String(), text) {
				t.Errorf("it does not say %q:\n%s%s", text, p.out, p.err)
			}
		}
	}

	// Nobody there to ask.
	says(start(t, env, scuda, "login", s.addr), 4, "wants a token, and none was given; run scuda login "+s.addr)
	says(start(t, s.env(), program("init")), 0, "wants a token, and none was given") // it prints what calls answer

	// The first token is wrong.
	ours, theirs := terminal(t)
	p := startAt(t, theirs, env, scuda, "login", "--name", "horse", s.addr)
	echoes(t, theirs, false)
	for _, text := range []string{"battery staple", "correct horse"} {
		if _, err := ours.WriteString(text + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	says(p, 0, "refused the token of the terminal: wrong token", "answers, 1 GPU", "without TLS",
		"as horse (credential: token)")
	echoes(t, theirs, true)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	says(start(t, env, scuda, "run", "--", program("init")), 0, "cuInit = 0")
	says(start(t, env, scuda, "run", "--", program("nvml")), 0)
	says(start(t, append(env, "SCUDA_SERVER=horse"), scuda, "info"), 0, s.addr)

	// Other tokens are told apart.
	says(start(t, append(env, "SCUDA_TOKEN=battery staple"), scuda, "info"), 4,
		"refused the token of SCUDA_TOKEN: wrong token")
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("another horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s2 := serve(t, "--token-file", other)
	says(start(t, env, scuda, "login", "--token-file", other, "--name", "other", s2.addr), 0)
	says(start(t, append(env, "SCUDA_TOKEN=correct horse"), scuda, "info"), 4,
		"refused the token of SCUDA_TOKEN, which is that of the server horse: wrong token")
	p = start(t, env, scuda, "login", "--json", s2.addr)
	says(p, 0, `"name": "other"`, `"used": true`, `"credential": "token"`, `"gpus": "1 GPU (`, `"server_version": "`,
		`"file": "`+file+`"`)
	if strings.Contains(p.out.String(), "another horse") {
		t.Errorf("it prints the token:\n%s", p.out)
	}
	says(start(t, env, scuda, "use", "horse"), 0)
	says(start(t, env, scuda, "run", "--", program("init")), 0, "cuInit = 0")
	says(start(t, env, scuda, "logout"), 0, "forgot horse")
	says(start(t, env, scuda, "run", "--server", s.addr, "--", program("init")), 0, "wants a token, and none was given")
	if b, err := os.ReadFile(file); err != nil || strings.Contains(string(b), "correct") {
		t.Errorf("%s, %v", b, err)
	}
}

// A doctor who finds nothing says so, and which part of the way to the server is not as it should be.
func TestDoctor(t *testing.T) {
	s, fingerprint := serveTLS(t)
	for name, c := range map[string]struct {
		env  string
		code int
		says []string
	}{
		"well": {"SCUDA_FINGERPRINT=" + fingerprint, 0, []string{
			"ok      reachable      it answers", "ok      TLS            TLS 1.3", "ok      token ", "ok      versions ",
			"ok      GPUs           1 GPU", "ok      libraries ", "ok      preload "}},
		"another server": {"SCUDA_FINGERPRINT=sha256:" + strings.Repeat("0", 64), 1, []string{
			"ok      reachable ", "FAIL    TLS            the server is another one", "unknown token "}},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, s.env(c.env), scuda, "doctor")
			if code := p.wait(patience); code != c.code {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
			for _, text := range c.says {
				if !strings.Contains(p.out.String(), text) {
					t.Errorf("it does not say %q:\n%s", text, p.out)
				}
			}
		})
	}
	p := start(t, s.env("SCUDA_FINGERPRINT="+fingerprint), scuda, "status")
	if code := p.wait(patience); code != 0 || !strings.Contains(p.out.String(), " ok ") {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
	p = start(t, s.env("SCUDA_FINGERPRINT="+fingerprint), scuda, "upgrade")
	if code := p.wait(patience); code != 0 || !strings.Contains(p.out.String(), "the same release") {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
}

// On a server's own machine, which needs no login, the doctor looks at that server; where there is none, it says that
// one has to be configured.
func TestDoctorServing(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin.sock")
	env := []string{"SCUDA_SERVER=", "LD_LIBRARY_PATH=" + lib, "SCUDA_ADMIN=" + socket}
	says := func(code int, texts ...string) {
		t.Helper()
		p := start(t, env, scuda, "doctor")
		if got := p.wait(patience); got != code {
			t.Errorf("exit status %d, not %d\n%s%s", got, code, p.out, p.err)
		}
		for _, text := range texts {
			if !strings.Contains(p.out.String(), text) {
				t.Errorf("it does not say %q:\n%s", text, p.out)
			}
		}
	}
	says(1, "FAIL    server         none is configured", "unknown reachable ")
	s := serve(t, "--admin", socket)
	says(0, "ok      server         none is configured for programs, but this machine serves on "+s.addr,
		"ok      reachable ", "ok      versions ", "ok      GPUs ", "ok      sessions       0 of CUDA", "ok      libraries ")
	got := ask(t, nil, 1, "logs", "--admin", socket).err.String()
	if !strings.Contains(got, "its standard error is pipe:") {
		t.Errorf("scuda logs: %q", got)
	}
	ask(t, nil, 0, "drain", "--admin", socket)
	says(0, "note    sessions ", "it takes no new ones", "scuda drain --undo")
}

// scuda logs shows the file to which a server writes its log.
func TestLogs(t *testing.T) {
	folder := t.TempDir()
	socket, file := filepath.Join(folder, "admin.sock"), filepath.Join(folder, "log")
	s := start(t, nil, "sh", "-c", `exec "$0" "$@" 2>`+file, scuda, "serve", "127.0.0.1:0", "--gpu", gpu, "--sim-memory",
		"1GiB", "--cache-dir", "none", "--admin", socket)
	s.await(s.out, `^listening on (\S+)$`)
	if got := ask(t, nil, 0, "logs", "--admin", socket).out.String(); !strings.Contains(got, "msg=serving ") {
		t.Errorf("it shows %q", got)
	}
	ask(t, nil, 0, "drain", "--admin", socket)
	got := ask(t, nil, 0, "logs", "-n", "1", "--admin", socket).out.String()
	if strings.Count(got, "\n") != 1 {
		t.Errorf("one line: %q", got)
	}
}
