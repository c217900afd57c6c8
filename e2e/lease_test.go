package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

type leased struct {
	ID, Label, Tenant, Credential, File, Class string
	Kept                                       bool
	Sessions, Share, Open                      int
	Memory                                     uint64  `json:"memory_bytes"`
	Running                                    int     `json:"open_sessions"`
	Left                                       float64 `json:"left_seconds"`
}

func told[T any](t *testing.T, env []string, args ...string) (v T) {
	t.Helper()
	p := ask(t, env, 0, append(args, "--json")...)
	if err := json.Unmarshal([]byte(p.out.String()), &v); err != nil {
		t.Fatalf("%v\n%s", err, p.out)
	}
	return v
}

// under starts a program with a lease's credential.
func (s *server) under(t *testing.T, credential, name string, args ...string) *process {
	t.Helper()
	return start(t, s.env("SCUDA_TOKEN="+credential), program(name), append([]string{kernels}, args...)...)
}

// A program with a lease's credential sees the GPU that the lease allows, and what the lease does not allow it is told.
func TestLease(t *testing.T) {
	s, env := administered(t, "--work-timeout", "1s", "--state-dir", t.TempDir())
	l := told[leased](t, env, "lease", "create", "--memory", "32MiB", "--sessions", "1", "--for", "1h", "--label", "job 7",
		"--share", "300", "--class", "high")
	if l.Tenant != "anyone" || l.Memory != 32<<20 || l.Sessions != 1 || l.Share != 300 || l.Class != "high" || !l.Kept ||
		!strings.HasPrefix(l.Credential, "scuda-lease-") {
		t.Fatalf("%+v", l)
	}
	p := s.under(t, l.Credential, "endless")
	if code := p.wait(patience); code != 0 || !strings.HasPrefix(p.out.String(), "32 32 1 MiB\ntoo much 2\n") {
		t.Errorf("exit status %d, the program saw\n%s%s", code, p.out, p.err)
	}

	p = s.under(t, l.Credential, "hold", "16")
	p.await(p.out, "^ready$")
	second := start(t, s.env("SCUDA_TOKEN="+l.Credential, "SCUDA_QUEUE=0"), program("init"), kernels)
	second.wait(patience)
	if said := second.err.String(); !strings.Contains(said,
		"lease "+l.ID+" has 1 CUDA sessions, which is what its --sessions allows") {
		t.Errorf("a second session is told\n%s", said)
	}
	listed := told[[]struct {
		Lease, Class string
		Label        string `json:"lease_label"`
		Share        int
	}](t, env, "ps")
	if len(listed) != 1 || listed[0].Lease != l.ID || listed[0].Label != "job 7" || listed[0].Class != "high" ||
		listed[0].Share != 300 {
		t.Errorf("%+v", listed)
	}
	row := regexp.MustCompile(`(?m)AGE +LEASE\n.* +job 7$`)
	if text := ask(t, env, 0, "ps", "--wide").out.String(); !row.MatchString(text) {
		t.Errorf("ps says\n%s", text)
	}
	if all := told[[]leased](t, env, "lease", "list"); len(all) != 1 || all[0].Running != 1 || all[0].Left <= 0 ||
		all[0].Credential != "" {
		t.Errorf("%+v", all)
	}
	row = regexp.MustCompile(`(?m)^LEASE .*LEFT\n` + l.ID + ` +job 7 +anyone +all +32 MiB +1 of 1 +300 +high +59m`)
	if text := ask(t, env, 0, "lease", "list").out.String(); !row.MatchString(text) {
		t.Errorf("list says\n%s", text)
	}
	if text := ask(t, env, 0, "lease", "show", "job 7").out.String(); !strings.Contains(text,
		"\nmemory    32 MiB for its sessions together\nsessions  1 of 1\nshare     300\nclass     high\n") {
		t.Errorf("show says\n%s", text)
	}
	if got := ask(t, env, 0, "__complete", "lease", "revoke", "").out.String(); !strings.Contains(got,
		l.ID+"\tanyone job 7\n") {
		t.Errorf("completed are\n%s", got)
	}
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s", code, p.err)
	}
}

// Revoking a lease ends its program with the reason, and its credential; the server has neither in its file or its log.
func TestLeaseRevoke(t *testing.T) {
	state := t.TempDir()
	s, env := administered(t, "--state-dir", state)
	file := filepath.Join(t.TempDir(), "token")
	l := told[leased](t, env, "lease", "create", "-o", file)
	if l.Credential != "" || l.File != file {
		t.Errorf("%+v", l)
	}
	text, err := os.ReadFile(file)
	st, err2 := os.Stat(file)
	if err != nil || err2 != nil || st.Mode().Perm() != 0o600 {
		t.Fatal(st, err, err2)
	}
	ask(t, env, 1, "lease", "create", "-o", file)
	credential := strings.TrimSpace(string(text))
	p := start(t, s.env("SCUDA_TOKEN_FILE="+file), program("hold"), kernels, "16", "loop")
	p.await(p.out, "^ready$")
	for _, wrong := range []string{"zz", "no such label"} {
		ask(t, env, 1, "lease", "revoke", l.ID, wrong)
	}
	if all := told[[]leased](t, env, "lease", "list"); len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	got := ask(t, env, 0, "lease", "revoke", l.ID[:10], "--reason", "the node is drained").out.String()
	if got != "revoked "+l.ID+" of tenant anyone, which had 1 session\n" {
		t.Errorf("it says %q", got)
	}
	p.wait(patience)
	const why = ": the node is drained; ask who gave it to you for another one (scuda lease create)"
	begins := "the session ends: lease " + l.ID + " of tenant anyone was revoked at "
	if said := p.err.String(); !strings.Contains(said, begins) ||
		!strings.Contains(said, why) || !strings.Contains(p.out.String(), "error 46\nthen 46 46 46\n") {
		t.Errorf("the program says\n%s%s", p.out, said)
	}
	late := s.under(t, credential, "init")
	late.wait(patience)
	if said := late.err.String(); !strings.Contains(said, "was revoked at ") || !strings.Contains(said, why) ||
		strings.Contains(said, "scuda login") {
		t.Errorf("a later program is told\n%s", said)
	}
	kept, err := filepath.Glob(filepath.Join(state, "leases-*"))
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	secret := strings.TrimPrefix(credential, "scuda-lease-")
	if text, err := os.ReadFile(kept[0]); err != nil || strings.Contains(string(text), secret) ||
		strings.Contains(s.err.String(), secret) {
		t.Errorf("the credential stands in the file or the log: %v", err)
	}
	if text := ask(t, env, 0, "lease", "list").out.String(); text != "no leases\n" {
		t.Errorf("left are\n%s", text)
	}
}

// A lease of some GPUs shows these to a program, which may choose among them as natively.
func TestLeaseGPUs(t *testing.T) {
	state := t.TempDir()
	s, env := administered(t, "--gpu", "sim:3", "--sim-memory", "64MiB", "--state-dir", state)
	shown := func(credential string, more ...string) string {
		t.Helper()
		p := start(t, s.env(append(more, "SCUDA_TOKEN="+credential)...), program("devices"), kernels)
		if code := p.wait(patience); code != 0 {
			t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
		}
		return strings.TrimSpace(p.out.String())
	}
	all := strings.Fields(shown("none"))
	if len(all) != 3 {
		t.Fatalf("the server has %q", all)
	}
	one := told[leased](t, env, "lease", "create", "--gpus", all[1])
	two := told[leased](t, env, "lease", "create", "--gpus", "simulated:2")
	if got := shown(one.Credential); got != all[1] {
		t.Errorf("one GPU: %s", got)
	}
	if got := shown(two.Credential); got != all[0]+" "+all[2] {
		t.Errorf("two GPUs: %s", got)
	}
	if got := shown(two.Credential, "CUDA_VISIBLE_DEVICES=1"); got != all[2] {
		t.Errorf("the second of two: %s", got)
	}
	var info struct{ Devices []struct{ UUID string } }
	p := ask(t, s.env("SCUDA_TOKEN="+one.Credential), 0, "info", "--json")
	if err := json.Unmarshal([]byte(p.out.String()), &info); err != nil || len(info.Devices) != 1 ||
		info.Devices[0].UUID != all[1] {
		t.Errorf("info says %v\n%s", err, p.out)
	}
	if text := ask(t, env, 0, "lease", "show", one.ID).out.String(); !strings.Contains(text, "\nGPUs      "+all[1]+"\n") {
		t.Errorf("show says\n%s", text)
	}
	ask(t, env, 2, "lease", "create", "--gpus", "4")
}

// What cannot be is refused with the exit codes for it.
func TestLeaseMistakes(t *testing.T) {
	_, env := administered(t, "--state-dir", t.TempDir())
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{2, "low, normal or high", []string{"create", "--class", "top"}},
		{2, "it lasts 1s to", []string{"create", "--for", "0s"}},
		{2, "1 to 10000", []string{"create", "--share", "10001"}},
		{2, "bad name", []string{"create", "--tenant", "a/b"}},
		{2, "neither", []string{"create", "--gpus", "0"}},
		{2, "write a whole number", []string{"create", "--memory", "lots"}},
		{2, "no arguments expected", []string{"create", "now"}},
		{2, "which lease?", []string{"show"}},
		{2, "which lease?", []string{"revoke"}},
		{2, "either LEASE or --tenant", []string{"revoke", "aa", "--tenant", "a"}},
		{1, "there is no such lease", []string{"show", "aa"}},
		{1, "there is no such lease", []string{"revoke", "aa"}},
		{2, "unknown command", []string{"crate"}},
	} {
		said := ask(t, env, c.code, append([]string{"lease"}, c.args...)...).err.String()
		if !strings.Contains(said, c.says) {
			t.Errorf("%q: %s", c.args, said)
		}
	}
	if got := ask(t, env, 0, "__complete", "lease", "create", "--class", "").out.String(); !strings.HasPrefix(got,
		"low\nnormal\nhigh\n") {
		t.Errorf("completed are\n%s", got)
	}
}
