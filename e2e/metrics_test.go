package e2e

import (
	"bytes"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scraped is what was scraped of one name, by the values of its labels.
type scraped map[string]*dto.MetricFamily

func (s scraped) value(name string, labels ...string) float64 {
	var sum float64
	for _, m := range s[name].GetMetric() {
		has := 0
		for _, l := range m.Label {
			for i := 0; i < len(labels); i += 2 {
				if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
					has++
				}
			}
		}
		if has == len(labels)/2 {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetSummary().GetSampleCount())
		}
	}
	return sum
}

// scrape reads and lints what is offered at a URL.
func scrape(t *testing.T, url string) scraped {
	t.Helper()
	text := get(t, url)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%s: %v %v", url, problems, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v\n%s", url, err, text)
	}
	return families
}

// TestClientMetrics: with SCUDA_METRICS a client offers what it counts, exactly; the server counts the same unified
// memory.
func TestClientMetrics(t *testing.T) {
	s := serve(t, "--metrics", "127.0.0.1:0")
	p := start(t, s.env("SCUDA_METRICS=127.0.0.1:0", "SCUDA_LOG=info"), program("metered"), kernels)
	url := p.await(p.err, `url=(http://\S+/metrics)`)[1]
	p.await(p.out, "ready")
	got := scrape(t, url)
	for _, want := range []struct {
		name   string
		labels []string
		least  float64
		most   float64
	}{
		{"scuda_client_connected", []string{"server", s.addr}, 1, 1},
		{"scuda_client_build_info", nil, 1, 1},
		{"scuda_client_calls_total", []string{"class", "fill"}, 101, 102},
		{"scuda_client_calls_total", []string{"class", "copy"}, 15, 30}, // and blocks of unified memory
		{"scuda_client_calls_total", []string{"class", "launch"}, 0, 0},
		{"scuda_client_wait_seconds", []string{"class", "copy"}, 5, 20},
		{"scuda_client_wait_seconds", []string{"class", "memory"}, 2, 6},
		{"scuda_client_errors_total", []string{"result", "CUDA_ERROR_INVALID_VALUE"}, 3, 3},
		{"scuda_client_errors_total", nil, 3, 3},
		{"scuda_client_transport_bytes_total", []string{"direction", "sent", "transport", "tcp"}, 10 * 65536, 4 << 20},
		{"scuda_client_transport_bytes_total", []string{"direction", "received", "transport", "tcp"}, 5 * 4096, 4 << 20},
		{"scuda_client_transport_bytes_total", []string{"transport", "rdma"}, 0, 0},
		{"scuda_client_managed_faults_total", nil, 2, 512},
		{"scuda_client_managed_migrated_bytes_total", []string{"direction", "to_device"}, 8192, 1 << 20},
		{"scuda_client_managed_migrated_bytes_total", []string{"direction", "to_host"}, 2, 1 << 20},
		{"scuda_client_managed_pushed_bytes_total", nil, 0, 1 << 20},
		{"scuda_client_managed_pinned_total", nil, 0, 0},
		{"scuda_client_pending_downloads", nil, 0, 0},
		{"scuda_client_queue_bytes", nil, 0, 0},
		{"scuda_client_queue_wait_seconds", nil, 0, 0},
	} {
		if n := got.value(want.name, want.labels...); got[want.name] == nil || n < want.least || n > want.most {
			t.Errorf("%s%q is %v, want %v to %v", want.name, want.labels, n, want.least, want.most)
		}
	}
	server := scrape(t, s.await(s.out, `metrics on (http://\S+)`)[1])
	for _, direction := range []string{"to_device", "to_host"} {
		theirs, ours := server.value("scuda_managed_migrated_bytes_total", "direction", direction),
			got.value("scuda_client_managed_migrated_bytes_total", "direction", direction)
		if theirs != ours {
			t.Errorf("%s: the server says that %v bytes of unified memory moved, the client %v", direction, theirs, ours)
		}
	}
	if n := server.value("scuda_managed_faults_total"); n < 1 || n > got.value("scuda_client_managed_faults_total") {
		t.Errorf("the server counts %v faults in unified memory, the client %v", n,
			got.value("scuda_client_managed_faults_total"))
	}
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s", code, p.err)
	}
}

// TestClientMetricsTaken: a port that is taken is said, and the program runs without metrics.
func TestClientMetricsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := serve(t)
	cmd := exec.CommandContext(t.Context(), program("first_tensor"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, s.env("SCUDA_METRICS="+l.Addr().String())
	if err := cmd.Run(); err != nil || out.String() != "first tensor ok\n" ||
		!strings.Contains(errs.String(), "has no metrics") || !strings.Contains(errs.String(), "port 0") {
		t.Errorf("%v\n%s%s", err, &out, &errs)
	}
}
