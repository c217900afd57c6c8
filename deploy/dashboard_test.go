package deploy

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scuda.dev/scuda/ebpf"
	"scuda.dev/scuda/server/mps/mpstest"
)

// board is what the tests read of the dashboard.
type board struct {
	Panels []struct {
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct{ Expr string }
	}
	Annotations struct{ List []struct{ Expr string } }
	Templating  struct{ List []struct{ Definition string } }
}

// The dashboards: of servers, of the exporter, and of a pool.
const (
	ofServer, ofExporter = "grafana/scuda.json", "grafana/scuda-exporter.json"
	ofAPool              = "grafana/scuda-pool.json"
)

var dashboards = []string{ofServer, ofExporter, ofAPool}

func dashboard(t *testing.T, file string) (d board) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPanels: each panel says what it shows, and none lies over another or outside.
func TestPanels(t *testing.T) {
	for _, file := range dashboards {
		taken := map[[2]int]string{}
		for _, p := range dashboard(t, file).Panels {
			if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
				t.Errorf("%s says or shows nothing", p.Title)
			}
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if other := taken[at]; other != "" || at[0] >= 24 {
						t.Fatalf("%s lies at %v, where %q is", p.Title, at, other)
					}
					taken[at] = p.Title
				}
			}
		}
	}
}

// leased makes a lease of a tenant at a server, and gives its credential.
func leased(t *testing.T, scuda, admin string) (credential string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), scuda, "lease", "create", "--admin", admin, "--tenant", "vision",
		"--share", "300", "--for", "1h")
	out, err := cmd.Output() // what it says beside the credential goes to standard error
	if err != nil {
		t.Fatalf("lease create: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// offered are where the processes of TestDashboard give their metrics.
func offered(t *testing.T, scuda, address, credential string) (targets []string) {
	t.Helper()
	load := filepath.Join(filepath.Dir(scuda), "scuda-load")
	// It computes until it is ended.
	client := start(t, []string{"SCUDA_METRICS=127.0.0.1:0", "SCUDA_LOG=info", "SCUDA_TOKEN=" + credential},
		[]string{"url=http://", "ready"}, "sh", "-c", "exec \"$@\" <<X\n600\nX", "sh", scuda, "run", "--server", address,
		"--", load, "launch", "0", "0")
	target, _, _ := strings.Cut(client[0], "/metrics")
	targets = append(targets, target)
	if os.Getenv("SCUDA_TEST_NO_BPF") == "1" {
		return targets
	}
	if err := ebpf.Able(); err != nil {
		t.Fatalf("the exporter cannot be tested here: %v (SCUDA_TEST_NO_BPF=1 leaves it out)", err)
	}
	library := filepath.Join(filepath.Dir(scuda), "lib", "libcuda.so.1")
	return append(targets, start(t, nil, []string{"listening on "}, scuda, "exporter", "--listen", "127.0.0.1:0",
		"--library", library)...)
}

// startPrometheus starts one that looks at targets twice a second, and gives its address.
func startPrometheus(t *testing.T, targets []string, flags ...string) (web string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 500ms}\nscrape_configs:\n"+
		"- {job_name: scuda, static_configs: [{targets: ['%s']}]}\n", strings.Join(targets, "', '"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	web = start(t, nil, []string{"msg=\"Listening on\" address="}, "prometheus", append(flags,
		"--config.file="+config, "--storage.tsdb.path="+dir, "--web.listen-address=127.0.0.1:0")...)[0]
	tick := time.NewTicker(50 * time.Millisecond) // it answers queries only when it has read what it kept
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		r, err := http.Get("http://" + web + "/-/ready")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode == http.StatusOK {
			return web
		}
		if time.Now().After(end) {
			t.Fatalf("prometheus is not ready: %s", r.Status)
		}
	}
}

// chosen fills in what is chosen in Grafana.
var chosen = strings.NewReplacer("$__rate_interval", "20s", "$instance", ".*", "$gpu", ".*", "$library", ".*",
	"$server", ".*")

// TestDashboard: with a server, a client with a lease, an exporter and a load that waits for a place, every panel has
// figures in a real Prometheus, whether it keeps classic or native histograms.
func TestDashboard(t *testing.T) {
	scuda, err := filepath.Abs("../build/scuda")
	if err != nil {
		t.Fatal(err)
	}
	load := filepath.Join(filepath.Dir(scuda), "scuda-load")
	for name, feature := range map[string][]string{"classic": nil, "native": {"--enable-feature=native-histograms"}} {
		t.Run(name, func(t *testing.T) {
			admin := filepath.Join(t.TempDir(), "admin.sock")
			// One place is the client's, for the other one the load's programs wait.
			folder, err := os.MkdirTemp("", "mps") //nolint:usetesting // the path of a socket is short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(folder) })
			underMPS := []string{"PATH=" + filepath.Dir(mpstest.Install(t)) + ":" + os.Getenv("PATH")}
			said := start(t, underMPS, []string{"listening on ", "metrics on http://"}, scuda, "-l", "127.0.0.1:0",
				"--gpu", "sim", "--cache-dir", t.TempDir(), "--metrics", "127.0.0.1:0", "--max-vram-per-tenant", "1GiB",
				"--max-sessions", "2", "--state-dir", t.TempDir(), "--admin", admin, "--turns", "--mps", "on",
				"--worker-uids", "none", "--worker-folder", filepath.Join(folder, "w"))
			targets := append(offered(t, scuda, said[0], leased(t, scuda, admin)), strings.TrimSuffix(said[1], "/metrics"))
			web := startPrometheus(t, targets, feature...)
			missing := map[string]string{}
			boards := []string{ofServer, ofExporter}[:len(targets)-1] // without probes there is no exporter
			for _, file := range boards {
				for _, p := range dashboard(t, file).Panels {
					for _, q := range p.Targets {
						query := chosen.Replace(q.Expr)
						if !strings.Contains(query, "scuda_transport_changes_total") { // takes RDMA
							query = strings.TrimSuffix(query, " or vector(0)") // what has happened is there
						}
						missing[query] = p.Title
					}
				}
			}
			if len(missing) < 25 {
				t.Fatalf("%d panels", len(missing))
			}
			begun := time.Now()
			for end := begun.Add(90 * time.Second); len(missing) > 0 && time.Now().Before(end); {
				provoke(t, scuda, said[0], load)
				for query := range missing {
					if hasFigures(t, web, query, begun) {
						delete(missing, query)
					}
				}
			}
			for query, title := range missing {
				t.Errorf("%q is empty: %s", title, query)
			}
		})
	}
}

// provoke lets happen what the panels show: somebody who is refused, and copies, unified memory and a call that fails,
// by programs that wait for each other. Prometheus sees the first meanwhile.
func provoke(t *testing.T, scuda, address, load string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, c)
	var programs sync.WaitGroup
	for _, c := range []struct {
		args  []string
		fails bool
	}{
		{[]string{"up", "65536", "300"}, false}, {[]string{"down", "65536", "30"}, false},
		{[]string{"managed", "65536", "20"}, false}, {[]string{"allocate", "99999999999999", "1"}, true},
	} {
		programs.Go(func() {
			args := append([]string{"run", "--server", address, "--", load}, c.args...)
			if out, err := exec.CommandContext(t.Context(), scuda, args...).CombinedOutput(); (err != nil) != c.fails {
				t.Errorf("%q: %v\n%.500s", c.args, err, out)
			}
		})
	}
	programs.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// hasFigures says whether a query has a result since begun that is a number or a histogram, as a panel shows it that
// draws this time: a program that waited waits no more when it is asked for. NaN is none: nothing happened.
func hasFigures(t *testing.T, address, query string, begun time.Time) bool {
	t.Helper()
	r, err := http.Get("http://" + address + "/api/v1/query_range?" + url.Values{
		"query": {query}, "step": {"0.5"},
		"start": {begun.UTC().Format(time.RFC3339Nano)}, "end": {time.Now().UTC().Format(time.RFC3339Nano)},
	}.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Values     [][2]any // a time, and what it was then
				Histograms [][2]any
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || answer.Error != "" {
		t.Fatalf("%s: %v %s", query, err, answer.Error)
	}
	for _, x := range answer.Data.Result {
		number := func(v [2]any) bool { return v[1] != "NaN" }
		if len(x.Histograms) > 0 || slices.ContainsFunc(x.Values, number) {
			return true
		}
	}
	return false
}
