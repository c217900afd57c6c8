package server

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/transport"
)

// get reads a page of the metrics port.
func (s *testServer) get(path string) (int, string) {
	s.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(s.metrics + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// shows waits until the metrics have a line.
func (s *testServer) shows(line string) {
	s.t.Helper()
	s.until("metrics: "+line, func() bool {
		_, text := s.get("/metrics")
		return strings.Contains(text, line+"\n")
	})
}

func TestMetrics(t *testing.T) {
	folder, image := t.TempDir(), make([]byte, 1000)
	keepImage(t, folder, "default", image)
	s := serve(t, func(c *Config) { c.Metrics, c.Token, c.CacheDir = "127.0.0.1:0", []byte("a token of mine"), folder })
	s.shows(`scuda_module_cache_images 1`)
	s.shows(`scuda_module_cache_bytes 1000`)
	if code, text := s.get("/readyz"); code != 200 {
		t.Fatalf("readyz: %d %s", code, text)
	}
	if _, err := s.dial(hello(transport.KindCUDA)); err == nil {
		t.Fatal("a client without the token was let in")
	}
	s.shows(`scuda_connections_refused_total{reason="token"} 1`)
	s.token = []byte("a token of mine")
	s.shows(`scuda_workers{state="warm"} 1`)
	a, b := s.open(transport.KindCUDA), s.open(transport.KindCUDA)
	a.use(1 << 20)
	b.use(1 << 20)
	s.shows(`scuda_sessions{kind="cuda"} 2`)
	s.shows(`scuda_workers{state="busy"} 2`)
	_, text := s.get("/metrics")
	for _, want := range []string{`scuda_gpu_readable 1`, `scuda_gpu_memory_size_bytes{UUID="GPU-`,
		`scuda_driver_info{cuda="`, `scuda_build_info{`,
		`scuda_transport_bytes_total{direction="received",transport="tcp"}`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, `scuda_calls_total{class="memory"} 0`) {
		t.Error("no calls of memory are counted")
	}
	if err := syscall.Kill(s.workerOf(a), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.leave()
	s.shows(`scuda_sessions_ended_total{how="crashed",kind="cuda"} 1`)
	s.shows(`scuda_sessions_ended_total{how="closed",kind="cuda"} 1`)
	s.shows(`scuda_workers{state="busy"} 0`)
	s.shows(`scuda_sessions{kind="cuda"} 0`)
}

func TestMetricsAddressInUse(t *testing.T) {
	s := serve(t, func(c *Config) { c.Metrics = "127.0.0.1:0" })
	err := Serve(t.Context(), Config{Addr: "127.0.0.1:0", GPU: "sim", Metrics: strings.TrimPrefix(s.metrics, "http://")})
	if err == nil || !strings.Contains(err.Error(), "choose another port with --metrics") {
		t.Errorf("a port in use: %v", err)
	}
}

// Connections to the metrics port that are kept take neither its places nor the server's descriptors.
func TestIdleScrapers(t *testing.T) {
	s := serve(t, func(c *Config) { c.Metrics = "127.0.0.1:0" })
	var kept []net.Conn
	for range 2 * door.PortPlaces {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.metrics, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err = bufio.NewReader(c).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		kept = append(kept, c)
	}
	if code, _ := s.get("/readyz"); code != 200 {
		t.Errorf("readyz beside %d connections: %d", len(kept), code)
	}
	if _, err := io.Copy(io.Discard, kept[0]); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the oldest connection is still there: %v", err)
	}
}

func TestRemember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		ask := remember(func() (int, error) {
			asked++
			return asked, nil
		})
		for _, c := range []struct {
			pause time.Duration
			want  int
		}{{0, 1}, {0, 1}, {recent - 1, 1}, {1, 2}, {0, 2}} {
			time.Sleep(c.pause)
			if got, err := ask(); got != c.want || err != nil {
				t.Errorf("after %v: %d, %v, not %d", c.pause, got, err, c.want)
			}
		}
	})
}
