package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// From a client's machine tenants see and end their own sessions only, and administrators all.
func TestAdminElsewhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tenants")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ops token=token-of-ops role=admin\nalice token=token-of-alice\nbob token=token-of-bob\n")
	s, fingerprint := serveTLS(t, "--tenants", file, "--usage-log", filepath.Join(t.TempDir(), "usage"))
	as := func(name string) []string {
		return s.env("SCUDA_FINGERPRINT="+fingerprint, "SCUDA_TOKEN=token-of-"+name, "SCUDA_ADMIN=auto",
			"XDG_RUNTIME_DIR="+t.TempDir())
	}
	ids := map[string]string{}
	programs := map[string]*process{}
	for _, name := range []string{"alice", "bob"} {
		how := map[string]string{"alice": "loop", "bob": "wait"}[name]
		p := start(t, as(name), program("hold"), kernels, "16", how)
		p.await(p.out, "^ready$")
		all := list(t, as(name))
		if len(all) != 1 || all[0].Tenant != name || all[0].PID != p.cmd.Process.Pid {
			t.Fatalf("%s sees %+v", name, all)
		}
		ids[name], programs[name] = all[0].ID, p
	}
	for name, want := range map[string]string{"ops": "ops, an administrator\n", "bob": "bob\n"} {
		if text := ask(t, as(name), 0, "info").out.String(); !strings.Contains(text, "TLS 1.3, as tenant "+want) {
			t.Errorf("%s is told\n%s", name, text)
		}
	}
	if all := list(t, as("ops")); len(all) != 2 {
		t.Errorf("the administrator sees %+v", all)
	}
	if text := ask(t, as("alice"), 0, "ps").out.String(); strings.Contains(text, ids["bob"][:8]) ||
		!strings.Contains(text, ids["alice"][:8]) {
		t.Errorf("alice is shown\n%s", text)
	}
	if text := ask(t, as("bob"), 0, "top").out.String(); !strings.Contains(text, ": 1 session of CUDA") ||
		strings.Contains(text, "alice") {
		t.Errorf("bob is shown\n%s", text)
	}
	foreign := ask(t, as("bob"), 1, "kill", ids["alice"]).err.String()
	none := ask(t, as("bob"), 1, "kill", "0123456789abcdef").err.String()
	if !strings.Contains(foreign, "there is no such session") ||
		strings.ReplaceAll(foreign, ids["alice"], "0123456789abcdef") != none {
		t.Errorf("of another's session: %q; of none: %q", foreign, none)
	}
	if got := ask(t, as("bob"), 4, "drain").err.String(); !strings.Contains(got, "tenant bob may not ") ||
		!strings.Contains(got, "role=admin") {
		t.Errorf("drain: %q", got)
	}
	for _, more := range []string{"--share=101", "--class=high", "--tenant=alice"} {
		if got := ask(t, as("bob"), 4, "lease", "create", more).err.String(); !strings.Contains(got, "gives away no more") {
			t.Errorf("%s: %q", more, got)
		}
	}
	member := told[leased](t, as("bob"), "lease", "create", "--share", "40", "--for", "1h", "--label", "for a colleague")
	if shown := ask(t, as("bob"), 0, "lease", "show", member.ID).out.String(); !strings.Contains(shown, "its tenant") {
		t.Errorf("bob's own lease is\n%s", shown)
	}
	if all := list(t, append(as("nobody"), "SCUDA_TOKEN="+member.Credential)); len(all) != 0 {
		t.Errorf("who has bob's own lease sees %+v", all)
	}
	ask(t, as("bob"), 0, "lease", "revoke", member.ID)
	ask(t, as("alice"), 0, "kill", ids["alice"][:12], "--reason", "enough")
	if p := programs["alice"]; !p.endsWith(t, "tenant alice ends this session: enough") {
		t.Errorf("alice's program was told\n%s", p.err)
	}
	l := told[leased](t, as("ops"), "lease", "create", "--tenant", "bob", "--label", "job")
	if all := told[[]leased](t, as("bob"), "lease", "list"); len(all) != 1 || all[0].ID != l.ID {
		t.Errorf("bob has the leases %+v", all)
	}
	if all := told[[]leased](t, as("alice"), "lease", "list"); len(all) != 0 {
		t.Errorf("alice has the leases %+v", all)
	}
	if all := list(t, append(as("ops"), "SCUDA_TOKEN="+l.Credential)); len(all) != 0 {
		t.Errorf("who has bob's lease sees %+v", all)
	}
	var sums []struct{ Key string }
	if err := json.Unmarshal([]byte(ask(t, as("bob"), 0, "usage", "--json").out.String()), &sums); err != nil ||
		len(sums) != 0 {
		t.Errorf("bob has used %+v, %v", sums, err)
	}
	if got := ask(t, as("ops"), 0, "usage").out.String(); !strings.Contains(got, "alice") {
		t.Errorf("used was\n%s", got)
	}

	write("ops token=token-of-ops\nbob token=token-of-bob role=admin\n")
	s.signal(syscall.SIGHUP)
	s.await(s.err, "tenants and certificates were read again")
	ask(t, as("ops"), 4, "drain")
	ask(t, as("alice"), 4, "ps")
	if got := ask(t, as("bob"), 0, "drain", "--server", s.addr).out.String(); !strings.Contains(got, "has 1 session") {
		t.Errorf("%q", got)
	}
	s.await(s.err, `admin request.* request="PUT /v1/drain".* who="tenant bob" from=127\.0\.0\.1:\d+ status=200`)
	ask(t, as("bob"), 2, "ps", "--server", s.addr, "--admin", "none")
	if got := ask(t, append(as("bob"), "SCUDA_SERVER="), 3, "ps").err.String(); !strings.Contains(got, "scuda login") {
		t.Errorf("without a server: %q", got)
	}
}

// endsWith waits for a program's end, and says whether it was told something.
func (p *process) endsWith(t *testing.T, text string) bool {
	t.Helper()
	p.stdin.Close()
	p.wait(patience)
	return strings.Contains(p.err.String(), text)
}
