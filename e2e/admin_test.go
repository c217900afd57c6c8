package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// administered gives a server with an admin socket, and what its administrator has in the environment.
func administered(t *testing.T, args ...string) (*server, []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin")
	s := serve(t, append([]string{"--admin", path}, args...)...)
	return s, []string{"SCUDA_ADMIN=" + path}
}

// ask runs a verb of an administrator's to its end.
func ask(t *testing.T, env []string, code int, args ...string) *process {
	t.Helper()
	words := append([]string{scuda}, args...)
	if slices.Contains(env, "SCUDA_ADMIN=auto") { // a machine without a server, whatever runs on this one
		words = append([]string{"unshare", "--map-root-user", "--mount", "sh", "-c",
			`mount -t tmpfs none /run && exec "$0" "$@"`}, words...)
	}
	p := start(t, env, words[0], words[1:]...)
	p.stdin.Close()
	if got := p.wait(patience); got != code {
		t.Fatalf("scuda %s: exit status %d, not %d\n%s%s", strings.Join(args, " "), got, code, p.out, p.err)
	}
	return p
}

type listed struct {
	ID, Kind, State, Tenant, User, Host, Program string
	PID                                          int
	Counted                                      *uint64 `json:"counted_bytes"`
	Quota                                        uint64  `json:"quota_bytes"`
	Away                                         *struct{ Seconds float64 }
}

func list(t *testing.T, env []string) (all []listed) {
	t.Helper()
	p := ask(t, env, 0, "ps", "--json")
	if err := json.Unmarshal([]byte(p.out.String()), &all); err != nil {
		t.Fatalf("%v\n%s", err, p.out)
	}
	return all
}

func TestPS(t *testing.T) {
	s, env := administered(t, "--max-vram", "64MiB", "--max-sessions", "9")
	if got := ask(t, env, 0, "ps").out.String(); got != "no sessions\n" {
		t.Errorf("%q", got)
	}
	p := start(t, s.env("USER=ada"), program("hold"), kernels, "16")
	p.await(p.out, "^ready$")
	all := list(t, env)
	host, _ := os.Hostname()
	if len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	x := all[0]
	if x.Kind != "cuda" || x.Tenant != "anyone" || x.User != "ada" || x.Host != host || x.Program != "hold" ||
		x.PID != p.cmd.Process.Pid || x.Counted == nil || *x.Counted < 16<<20 || x.Quota != 64<<20 {
		t.Errorf("%+v", x)
	}
	text := ask(t, env, 0, "ps").out.String()
	row := regexp.MustCompile(`(?m)^` + x.ID[:8] +
		` .* ada@\S+ +hold +\d+ +0 +[\d-]+ +16(\.\d)? MiB of 64 MiB +\d+ +(busy|idle) +\d`)
	if !strings.HasPrefix(text, "SESSION ") || !row.MatchString(text) {
		t.Errorf("the table is\n%s", text)
	}
	if got := ask(t, env, 0, "top").out.String(); !strings.Contains(got, "1 of 9 sessions of CUDA") ||
		!strings.Contains(got, "CALLS/S") || !strings.Contains(got, x.ID[:8]) {
		t.Errorf("top says\n%s", got)
	}
	if got := ask(t, env, 0, "__complete", "kill", "").out.String(); !strings.Contains(got, x.ID+"\tada@") {
		t.Errorf("completed are\n%s", got)
	}
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// A program whose session is killed is told the reason, and its calls fail; others go on.
func TestKill(t *testing.T) {
	s, env := administered(t)
	p, other := s.client(t, "hold", "16", "loop"), s.client(t, "hold", "16")
	p.await(p.out, "^ready$")
	other.await(other.out, "^ready$")
	id := ""
	for _, x := range list(t, env) {
		if x.PID == p.cmd.Process.Pid {
			id = x.ID
		}
	}
	ask(t, env, 1, "kill", "zz", "--reason", "nobody")
	ask(t, env, 1, "kill", id, "zz")
	ask(t, env, 2, "kill")
	if n := len(list(t, env)); n != 2 {
		t.Fatalf("%d sessions after kills that could not be", n)
	}
	got := ask(t, env, 0, "kill", id[:12], "--reason", "the machine is upgraded at noon").out.String()
	if !strings.HasPrefix(got, "ended "+id+", hold of ") {
		t.Errorf("it says %q", got)
	}
	if all := list(t, env); len(all) != 1 || all[0].ID == id {
		t.Errorf("left are %+v", all)
	}
	p.wait(patience)
	if out := p.out.String(); !strings.Contains(out, "error 46\nthen 46 46 46\n") {
		t.Errorf("its calls answered\n%s", out)
	}
	const said = "an administrator ends this session: the machine is upgraded at noon"
	if !strings.Contains(p.err.String(), said) {
		t.Errorf("it was told\n%s", p.err)
	}
	s.await(s.err, `the server ended the session.*upgraded at noon`)
	other.stdin.Close()
	if code := other.wait(patience); code != 0 {
		t.Errorf("the other one: exit status %d\n%s", code, other.err)
	}
}

// A drained server lets its sessions go on and takes no others; --wait waits for the last one.
func TestDrainVerb(t *testing.T) {
	s, env := administered(t)
	p := s.client(t, "hold", "16")
	p.await(p.out, "^ready$")
	if got := ask(t, env, 0, "drain").out.String(); !strings.Contains(got, "takes no new sessions, and has 1 session") {
		t.Errorf("%q", got)
	}
	late := s.client(t, "init")
	late.wait(patience)
	if out := late.out.String() + late.err.String(); !strings.Contains(out, "an administrator drains the server") {
		t.Errorf("a program that comes is told\n%s", out)
	}
	got := ask(t, env, 1, "drain", "--wait", "--timeout", "10ms").err.String()
	if !strings.Contains(got, "sessions are left") {
		t.Errorf("%q", got)
	}
	waits := start(t, env, scuda, "drain", "--wait", "--json")
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Errorf("the session that was there: exit status %d\n%s", code, p.err)
	}
	if code := waits.wait(patience); code != 0 || !strings.Contains(waits.out.String(), `"draining": true`) {
		t.Errorf("exit status %d\n%s%s", code, waits.out, waits.err)
	}
	ask(t, env, 0, "drain", "--undo")
	s.run(t, "init")
	for _, wrong := range [][]string{{"--undo", "--wait"}, {"--timeout", "1s"}, {"--wait", "--timeout", "-1s"}} {
		ask(t, env, 2, append([]string{"drain"}, wrong...)...)
	}
}

// Who asks no server, or one that is not there, is told what to do, with the exit codes for it.
func TestNoAdminSocket(t *testing.T) {
	run := t.TempDir()
	for _, c := range []struct {
		path string
		code int
		says string
	}{
		{filepath.Join(run, "none"), 3, "no server's admin interface answers"}, {"none", 2, "switched off"},
	} {
		for _, verb := range [][]string{{"ps"}, {"kill", "aa"}, {"drain"}, {"top"}} {
			if got := ask(t, nil, c.code, append(verb, "--admin", c.path)...).err.String(); !strings.Contains(got, c.says) {
				t.Errorf("%v: %q", verb, got)
			}
		}
	}
	// by themselves, servers have sockets beside each other
	env := []string{"SCUDA_ADMIN=auto", "RUNTIME_DIRECTORY=" + run}
	for range 2 {
		s := start(t, env, scuda, "-l", "127.0.0.1:0", "--gpu", "sim", "--sim-memory", "64MiB")
		port := s.await(s.out, `^listening on \S+:(\d+)$`)[1]
		path := fmt.Sprintf("%s/admin-%s.sock", run, port)
		s.await(s.err, `msg="admin interface" socket=`+regexp.QuoteMeta(path))
		ask(t, nil, 0, "ps", "--admin", path)
	}
}

// Clients learn how full their server is.
func TestInfoOfSessions(t *testing.T) {
	s, env := administered(t, "--max-sessions", "9")
	p := s.client(t, "hold", "16")
	p.await(p.out, "^ready$")
	const want = "\nsessions    1 of 9 sessions taken, 1 of this tenant; the server is up "
	if info := ask(t, s.env(), 0, "info").out.String(); !strings.Contains(info, want) {
		t.Errorf("info says\n%s", info)
	}
	ask(t, env, 0, "drain")
	var facts struct {
		Sessions struct {
			Taken, Places int
			Mine          int     `json:"of_this_tenant"`
			Uptime        float64 `json:"server_uptime_seconds"`
			Draining      bool
		}
	}
	text := ask(t, s.env(), 0, "info", "--json").out.String()
	if err := json.Unmarshal([]byte(text), &facts); err != nil {
		t.Fatal(err)
	}
	if f := facts.Sessions; f.Taken != 1 || f.Places != 9 || f.Mine != 1 || f.Uptime <= 0 || !f.Draining {
		t.Errorf("%+v", f)
	}
}
