// Package deploy tests the files that operators install: units, the dashboard, rules, what make dist packs.
package deploy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"scuda.dev/scuda/ebpf/exporter"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/mps/mpstest"
)

// TestMain puts the Prometheus that `make runtimes` took out of its package before the machine's.
func TestMain(m *testing.M) {
	mpstest.Main()
	unpacked, err := filepath.Abs("../build/packaged/prometheus")
	if err != nil {
		panic(err)
	}
	if err := os.Setenv("PATH", unpacked+":"+os.Getenv("PATH")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestRules(t *testing.T) {
	command(t, "prometheus", "promtool", "check", "config", "prometheus.yml")
	command(t, "prometheus", "promtool", "test", "rules", "scuda.rules_test.yml", "scuda-pool.rules_test.yml")
}

// TestCollector: the OpenTelemetry collector's example takes what Prometheus's takes. No
// collector is at hand to read it.
func TestCollector(t *testing.T) {
	type jobs []struct {
		Name   string                       `yaml:"job_name"`
		Static []struct{ Targets []string } `yaml:"static_configs"`
	}
	var plain struct {
		Jobs jobs `yaml:"scrape_configs"`
	}
	var collector struct {
		Receivers struct {
			Prometheus struct {
				Config struct {
					Jobs jobs `yaml:"scrape_configs"`
				}
			}
		}
		Exporters map[string]any
		Service   struct {
			Pipelines map[string]struct{ Receivers, Exporters []string }
		}
	}
	for name, to := range map[string]any{"prometheus.yml": &plain, "otel-collector.yaml": &collector} {
		b, err := os.ReadFile(filepath.Join("prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(b, to); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	ours, theirs := collector.Receivers.Prometheus.Config.Jobs, plain.Jobs
	if len(theirs) != 2 || !reflect.DeepEqual(ours, theirs) {
		t.Errorf("the collector takes %+v, Prometheus %+v", ours, theirs)
	}
	way := collector.Service.Pipelines["metrics"]
	if !slices.Equal(way.Receivers, []string{"prometheus"}) || len(way.Exporters) != 1 ||
		collector.Exporters[way.Exporters[0]] == nil {
		t.Errorf("the figures go %+v", way)
	}
}

func TestUnits(t *testing.T) {
	units, err := filepath.Glob("systemd/*.service")
	if err != nil || len(units) != 3 {
		t.Fatal(units, err)
	}
	for _, u := range units {
		command(t, "", "systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", u)
	}
}

// registered are the names of all series of a server and of the exporter.
func registered(t *testing.T) map[string]bool {
	s := metrics.NewServer(metrics.Build{}, func() ([]metrics.GPU, error) { return nil, errors.New("none") })
	names := map[string]bool{}
	for _, c := range []prometheus.Collector{&s.Pages, s.Sessions, s.Opened, s.Ended, s.Refused, s.Opening, s.Workers,
		s.WorkerStarts, s.WorkerFailures, s.Draining, metrics.GPUs{}, metrics.ModuleCache(nil),
		metrics.TenantMemory(nil), metrics.TenantUsage(nil), metrics.Leases(nil), metrics.TenantWaiting(nil),
		metrics.TurnCounts(nil), metrics.MPSDaemons(nil), s.Tenants, s.Waiting, s.Waited,
		exporter.New(nil)} {
		ch := make(chan *prometheus.Desc)
		go func() { c.Describe(ch); close(ch) }()
		for d := range ch {
			name := regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1]
			names[name], names[name+"_bucket"], names[name+"_count"], names[name+"_sum"] = true, true, true, true
		}
	}
	names["scuda_build_info"], names["scuda_driver_info"] = true, true
	return names
}

var metricName = regexp.MustCompile(`\bscuda_\w+`)

// ofClient says whether a client has a series; shim/core tests that the page names its metrics.
func ofClient(t *testing.T, name string) bool {
	t.Helper()
	b, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	name = regexp.MustCompile(`_(sum|count|bucket)$`).ReplaceAllString(name, "")
	return strings.HasPrefix(name, "scuda_client_") && strings.Contains(string(b), "`"+name+"`")
}

// Every query of the dashboard and the rules asks for something that a server has, and Prometheus understands it.
func TestQueries(t *testing.T) {
	names := registered(t)
	check := func(where, query string) {
		t.Helper()
		found := metricName.FindAllString(query, -1)
		if len(found) == 0 {
			t.Errorf("%s asks for nothing of scuda: %s", where, query)
		}
		for _, name := range found {
			if !names[name] && !ofClient(t, name) && !ofPool(t, name) {
				t.Errorf("%s asks for %s, which neither a server nor a client nor a pool has", where, name)
			}
		}
	}
	var rules strings.Builder
	rules.WriteString("groups:\n- name: x\n  rules:\n")
	for _, file := range dashboards {
		d := dashboard(t, file)
		for _, p := range d.Panels {
			for i, q := range p.Targets {
				check(p.Title, q.Expr)
				fmt.Fprintf(&rules, "  - record: x%d_%d\n    expr: %q\n", rules.Len(), i,
					strings.ReplaceAll(q.Expr, "$__rate_interval", "1m"))
			}
		}
		for _, a := range d.Annotations.List {
			check("an annotation", a.Expr)
		}
		for _, v := range d.Templating.List {
			if v.Definition != "" {
				check("a variable", v.Definition)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(path, []byte(rules.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "", "promtool", "check", "rules", path)
	for _, file := range []string{"scuda.rules.yml", "scuda-pool.rules.yml"} {
		for _, r := range alerts(t, file) {
			if !strings.HasPrefix(r.Expr, "up{") {
				check(r.Alert, r.Expr)
			}
		}
	}
}

// rule is an alert.
type rule struct {
	Alert, Expr string
	Annotations struct{ Summary, Description string }
}

// alerts are those of a file of rules.
func alerts(t *testing.T, file string) (list []rule) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("prometheus", file))
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(b, &all); err != nil || len(all.Groups) != 1 || len(all.Groups[0].Rules) == 0 {
		t.Fatalf("%s: %v, %+v", file, err, all)
	}
	return all.Groups[0].Rules
}

// The tables of docs/operations.md and docs/ebpf.md have every series.
func TestDocumented(t *testing.T) {
	var b []byte
	for _, page := range []string{"../docs/operations.md", "../docs/ebpf.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, text...)
	}
	for name := range registered(t) {
		if !strings.HasSuffix(name, "_bucket") && !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") &&
			!strings.Contains(string(b), "`"+name+"`") {
			t.Errorf("neither docs/operations.md nor docs/ebpf.md names %s", name)
		}
	}
}

// start starts a program and gives what follows each of the texts on the first line of its output that has it.
func start(t *testing.T, env, texts []string, name string, args ...string) (found []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(os.Environ(), env...)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); w.Close(); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	lines := make(chan string, 1)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
			}
		}
	}()
	limit := time.After(time.Minute)
	for _, text := range texts {
		for {
			var line string
			var ok bool
			select {
			case line, ok = <-lines:
			case <-limit:
			}
			if !ok {
				t.Fatalf("%s never says %q", name, text)
			}
			if _, rest, has := strings.Cut(line, text); has {
				found = append(found, rest)
				break
			}
		}
	}
	go func() {
		for range lines { // what it says later is of no interest
		}
	}()
	return found
}

// A real Prometheus records what a server under load offers.
func TestPrometheus(t *testing.T) {
	scuda, err := filepath.Abs("../build/scuda")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(scuda); err != nil {
		t.Fatal("run make build first: ", err)
	}
	dir := t.TempDir()
	said := start(t, nil, []string{"listening on ", "metrics on http://"}, scuda, "-l", "127.0.0.1:0", "--gpu", "sim",
		"--cache-dir", "none", "--metrics", "127.0.0.1:0", "--admin", "none")
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(
		"global: {scrape_interval: 500ms}\nscrape_configs:\n- {job_name: scuda, static_configs: [{targets: [%q]}]}\n",
		strings.TrimSuffix(said[1], "/metrics"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	web := start(t, nil, []string{"msg=\"Listening on\" address="}, "prometheus", "--config.file="+config,
		"--storage.tsdb.path="+dir, "--web.listen-address=127.0.0.1:0",
		"--enable-feature=native-histograms")[0]
	load := exec.CommandContext(t.Context(), scuda, "run", "--server", said[0], "--",
		filepath.Join(filepath.Dir(scuda), "scuda-load"), "up", "65536", "2000")
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("the load: %v\n%.500s", err, out)
	}
	managed := exec.CommandContext(t.Context(), scuda, "run", "--server", said[0], "--",
		filepath.Join(filepath.Dir(scuda), "scuda-load"), "managed", "65536", "20")
	if out, err := managed.CombinedOutput(); err != nil {
		t.Fatalf("the load in unified memory: %v\n%.500s", err, out)
	}
	for _, query := range []string{
		`up{job="scuda"} == 1`,
		`scuda_managed_faults_total >= 2`, // then the block is pinned
		`scuda_managed_faults_total + scuda_managed_pushes_total >= 20`,
		`scuda_managed_migrated_bytes_total{direction="to_host"} >= 20 * 65536`,
		`scuda_managed_migrated_bytes_total{direction="to_device"} >= 20 * 65536`,
		`scuda_calls_total{class="copy"} > 2000`,
		`scuda_copied_bytes_total{direction="to_device"} > 2000 * 65536`,
		`scuda_transport_bytes_total{direction="received", transport="tcp"} > 2000 * 65536`,
		`scuda_sessions_ended_total{kind="cuda", how="closed"} == 2`,
		`scuda_workers{state="warm"} == 1`,
		`scuda_gpu_memory_size_bytes > 1e9`,
		`histogram_quantile(0.5, scuda_call_duration_seconds{class="synchronize"}) > 1e-7`,
		`scuda_build_info == 1`,
	} {
		recorded(t, web, query)
	}
}

// recorded waits until a query has a result.
func recorded(t *testing.T, address, query string) {
	t.Helper()
	last := ""
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		r, err := http.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(query))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Data struct{ Result []any } }
		if json.Unmarshal(b, &answer) == nil && len(answer.Data.Result) > 0 {
			return
		}
		last = string(b)
		tick := time.NewTimer(50 * time.Millisecond)
		<-tick.C
	}
	t.Errorf("Prometheus never records %s: %s", query, last)
}
