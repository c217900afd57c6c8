package deploy

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// pageOfPool is what docs/pool.md says.
func pageOfPool(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/pool.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ofPool says whether a pool has a series; deploy/pool/metrics tests that the page names its metrics, and no others.
func ofPool(t *testing.T, name string) bool {
	t.Helper()
	return strings.HasPrefix(name, "scuda_pool_") && strings.Contains(pageOfPool(t), "\n| `"+name+"` |")
}

// Each alert of a pool says what is wrong, why, and what helps, docs/pool.md has it, and a test lets it fire.
func TestPoolAlerts(t *testing.T) {
	var has []string
	tests, err := os.ReadFile("prometheus/scuda-pool.rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range alerts(t, "scuda-pool.rules.yml") {
		has = append(has, r.Alert)
		if r.Annotations.Summary == "" || r.Annotations.Description == "" {
			t.Errorf("%s says %+v", r.Alert, r.Annotations)
		}
		for _, then := range []string{`\n +exp_alerts:`, `\}`} { // it fires, and it does not
			if !regexp.MustCompile(`alertname: ` + r.Alert + then).Match(tests) {
				t.Errorf("no test has %s followed by %s", r.Alert, then)
			}
		}
	}
	var said []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(ScudaPool\\w+)` \\|").FindAllStringSubmatch(pageOfPool(t), -1) {
		said = append(said, m[1])
	}
	if !slices.Equal(said, has) {
		t.Errorf("docs/pool.md has the alerts %q, and there are %q", said, has)
	}
}

// holds has a GPU of a pool until the test ends: its program ends with its input, as scuda-pool passes no interrupt on.
func holds(t *testing.T, env []string, pool string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	cmd := exec.CommandContext(ctx, pool, "run", "--", "sh", "-c", "echo it has one; exec cat")
	cmd.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &said, 10*time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait(); cancel() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		cancel()
		_ = cmd.Wait()
		t.Fatalf("it has no GPU: %q, %v: %s", line, err, &said)
	}
}

// TestPoolDashboard: with a server, an announcer, a program that has a GPU, and one that waits for two, every panel has
// figures in a real Prometheus.
func TestPoolDashboard(t *testing.T) {
	build, err := filepath.Abs("../build")
	if err != nil {
		t.Fatal(err)
	}
	scuda, pool := filepath.Join(build, "scuda"), filepath.Join(build, "scuda-pool")
	if _, err := os.Stat(pool); err != nil {
		t.Fatal("run make pool first: ", err)
	}
	folder := t.TempDir()
	token, tenants := filepath.Join(folder, "token"), filepath.Join(folder, "tenants")
	line, err := exec.CommandContext(t.Context(), scuda, "token", "create", "--tenant", "vision", "-o",
		token).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	if err := os.WriteFile(tenants, line, 0o600); err != nil {
		t.Fatal(err)
	}
	admin := filepath.Join(folder, "admin.sock")
	server := start(t, nil, []string{"listening on ", "metrics on http://"}, scuda, "serve", "127.0.0.1:0", "--gpu",
		"sim:2", "--cache-dir", "none", "--state-dir", folder, "--tenants", tenants, "--admin", admin, "--metrics",
		"127.0.0.1:0", "--drain", "0")
	data := filepath.Join(folder, "pool")
	targets := []string{server[1], start(t, nil, []string{"metrics on http://"}, pool, "serve", "--data", data,
		"--metrics", "127.0.0.1:0")[0]}
	env := []string{"SCUDA_POOL=unix://" + filepath.Join(data, "etcd.sock"), "SCUDA_TOKEN_FILE=" + token,
		"HOME=" + folder}
	targets = append(targets, start(t, env, []string{"metrics on http://", "the server is announced"}, pool, "announce",
		"--server", server[0], "--admin", admin, "--metrics", "127.0.0.1:0")[0])
	for i := range targets {
		targets[i] = strings.TrimSuffix(targets[i], "/metrics")
	}
	holds(t, env, pool)
	start(t, env, []string{"it is the first in the queue"}, pool, "run", "--gpus", "2", "--", "true")

	missing := map[string]string{}
	for _, p := range dashboard(t, ofAPool).Panels {
		for _, q := range p.Targets {
			missing[chosen.Replace(q.Expr)] = p.Title
		}
	}
	if len(missing) < 15 {
		t.Fatalf("%d queries", len(missing))
	}
	web := startPrometheus(t, targets)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	begun := time.Now()
	for end := begun.Add(time.Minute); len(missing) > 0 && time.Now().Before(end); <-tick.C {
		for query := range missing {
			if hasFigures(t, web, query, begun) {
				delete(missing, query)
			}
		}
	}
	for query, title := range missing {
		t.Errorf("%q is empty: %s", title, query)
	}
	for _, query := range []string{ // the panels' figures are those of the pool, though two processes show them
		`sum(max by (kind, state) (scuda_pool_gpus)) == 2`,
		`sum(max by (kind, state) (scuda_pool_gpus{state="leased"})) == 1`,
		`sum(max by (kind, state) (scuda_pool_gpus{state="kept"})) == 1`,
		`max(scuda_pool_longest_wait_seconds) > 0`,
	} {
		recorded(t, web, query)
	}
}
