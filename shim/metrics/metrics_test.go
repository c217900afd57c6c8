package metrics

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestText: Prometheus's own parser reads what was written, whatever stands in labels and help.
func TestText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label, help := rapid.String().Draw(t, "label"), rapid.StringMatching(`[ -~\n]*`).Draw(t, "help")
		value := rapid.Float64().Draw(t, "value")
		var x Text
		x.Family("x_total", help, Counter)
		x.Sample("x_total", value, "a", label, "b", "")
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(x.Bytes()))
		if err != nil {
			t.Fatalf("%v\n%s", err, x.Bytes())
		}
		m := families["x_total"].Metric[0]
		if m.Counter.GetValue() != value || m.Label[0].GetValue() != label || m.Label[1].GetName() != "b" {
			t.Fatalf("%v of\n%s", m, x.Bytes())
		}
	})
}

func serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, func(x *Text) {
		x.Family("scuda_client_x_total", "A number.", Counter)
		x.Sample("scuda_client_x_total", 42)
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// TestServer: an ordinary client of HTTP gets what there is, and what is no request is told so.
func TestServer(t *testing.T) {
	address := serve(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/metrics", 200, "scuda_client_x_total 42\n"}, {"GET", "/metrics?x=y", 200, " 42\n"},
		{"HEAD", "/metrics", 200, ""},
		{"GET", "/", 404, "/metrics"}, {"POST", "/metrics", 405, "only GET"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+address+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := client.Do(r)
		if err != nil {
			t.Fatalf("%s %s: %v", c.method, c.path, err)
		}
		body, err := io.ReadAll(a.Body)
		a.Body.Close()
		if err != nil || a.StatusCode != c.status || !strings.Contains(string(body), c.body) {
			t.Errorf("%s %s: %v, %s, %q", c.method, c.path, err, a.Status, body)
		}
		if c.status == 200 && c.method == "GET" {
			if problems, err := promlint.New(bytes.NewReader(body)).Lint(); err != nil || len(problems) > 0 {
				t.Errorf("%v %v", problems, err)
			}
		}
	}
	for _, text := range []string{"nonsense\r\n\r\n", "GET /metrics SPDY/3\r\n\r\n",
		"GET /metrics HTTP/1.1\r\n" + strings.Repeat("X: y\r\n", 4000)} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, text)
		answer := make([]byte, 64)
		n, err := io.ReadFull(c, answer)
		if !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 400 ") {
			t.Errorf("%.40q was answered %v, %q", text, err, answer[:n])
		}
		c.Close()
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		method, path, err := request(bytes.NewReader(b))
		if err == nil && (method == "" || path == "") {
			t.Errorf("%q is taken for a request", b)
		}
	})
}
