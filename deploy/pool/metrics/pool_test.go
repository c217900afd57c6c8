package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/server/door"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// news is an agent that says the same all the time.
type news struct{ answers, announced bool }

func (n news) Now() (answers, announced bool) { return n.answers, n.announced }

// source is an etcd that says what it is told to.
type source struct {
	st  plan.State
	err error
}

func (s *source) see(context.Context) (plan.State, error) { return s.st, s.err }

// scrape gives the pool's figures, by name and labels.
func scrape(t *testing.T, h http.Handler) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	figures := map[string]float64{}
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "scuda_pool_") || strings.HasPrefix(line, "scuda_pool_build_info") {
			continue
		}
		i := strings.LastIndex(line, " ")
		value, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
		if err != nil {
			t.Fatal(err)
		}
		figures[strings.TrimPrefix(line[:i], "scuda_pool_")] = value
	}
	return figures
}

// machine has GPUs of kinds, whose UUIDs are its address and a number.
func machine(address string, kinds ...string) plan.Server {
	s := plan.Server{Address: address}
	for i, k := range kinds {
		s.GPUs = append(s.GPUs, plan.GPU{UUID: fmt.Sprint(address, i), Name: k})
	}
	return s
}

// with gives some figures and more, without those that are 0.
func with(figures map[string]float64, more ...any) map[string]float64 {
	all := map[string]float64{}
	maps.Copy(all, figures)
	for i := 0; i < len(more); i += 2 {
		all[more[i].(string)] = float64(more[i+1].(int))
	}
	maps.DeleteFunc(all, func(_ string, value float64) bool { return value == 0 })
	return all
}

func TestFigures(t *testing.T) {
	some := map[string]float64{"readable": 1}
	for _, c := range []struct {
		name string
		is   func(*source)
		want map[string]float64
	}{
		{"nobody is there", func(*source) {}, some},
		{"etcd is away", func(s *source) { s.err = errors.New("away") }, with(nil, "read_failures_total", 1)},
		{"nobody has anything", func(s *source) { s.st.Servers = []plan.Server{machine("a", "L4", "H200", "L4")} },
			with(some, `servers{state="open"}`, 1, `gpus{kind="L4",state="free"}`, 2, `gpus{kind="H200",state="free"}`, 1)},
		{"leases of the pool, which its etcd, a server or both know", func(s *source) {
			s.st.Servers = []plan.Server{machine("a", "L4", "L4", "L4"), machine("b", "L4", "L4")}
			s.st.Servers[0].Leases = []plan.Lease{{ID: "1", Label: "pool/x", GPUs: []string{"a0"}},
				{ID: "2", Label: "pool/y", GPUs: []string{"a1"}}}
			s.st.Held = []plan.Held{{Server: "a", Lease: "1", GPUs: []string{"a0"}}, {Server: "b", Lease: "1",
				GPUs: []string{"b1"}}}
			s.st.Taken = 7
		}, with(some, `servers{state="open"}`, 2, `gpus{kind="L4",state="leased"}`, 3, `gpus{kind="L4",state="free"}`, 2,
			"leases", 3, "leases_taken_total", 7)},
		{"other leases", func(s *source) {
			s.st.Servers = []plan.Server{machine("a", "L4", "L4"), machine("b", "L4", "L4", "L4")}
			s.st.Servers[0].Leases = []plan.Lease{{ID: "1", Label: "mine"}} // of all GPUs
			s.st.Servers[1].Leases = []plan.Lease{{ID: "2", GPUs: []string{"b2", "none"}}}
		}, with(some, `servers{state="open"}`, 2, `gpus{kind="L4",state="outside"}`, 3, `gpus{kind="L4",state="free"}`, 2)},
		{"all GPUs in one lease of the pool", func(s *source) {
			s.st.Servers = []plan.Server{machine("a", "L4", "L4")}
			s.st.Servers[0].Leases = []plan.Lease{{ID: "1", Label: "pool/x"}}
		}, with(some, `servers{state="open"}`, 1, `gpus{kind="L4",state="leased"}`, 2, "leases", 1)},
		{"a server that drains", func(s *source) {
			s.st.Servers = []plan.Server{machine("a", "L4", "L4"), machine("b", "L4")}
			s.st.Servers[0].Draining = true
			s.st.Held = []plan.Held{{Server: "a", Lease: "1", GPUs: []string{"a0"}}}
		}, with(some, `servers{state="open"}`, 1, `servers{state="draining"}`, 1, `gpus{kind="L4",state="leased"}`, 1,
			`gpus{kind="L4",state="draining"}`, 1, `gpus{kind="L4",state="free"}`, 1, "leases", 1)},
		{"who waits keeps a GPU", func(s *source) {
			s.st.Servers = []plan.Server{machine("a", "L4", "L4"), machine("b", "H200")}
			s.st.Held = []plan.Held{{Server: "a", Lease: "1", GPUs: []string{"a0"}}}
			s.st.Queue = []plan.Request{
				{ID: "1", Since: time.Now().Add(-time.Minute), Want: plan.Want{GPUs: 2, Kind: "l4"}},
				{ID: "2", Since: time.Now().Add(-time.Hour), Want: plan.Want{GPUs: 1, Kind: "l4"}},
			}
		}, with(some, `servers{state="open"}`, 2, `gpus{kind="L4",state="leased"}`, 1, `gpus{kind="L4",state="kept"}`, 1,
			`gpus{kind="H200",state="free"}`, 1, "leases", 1, "waiting", 2, "longest_wait_seconds", 3600)},
		{"clocks that are wrong", func(s *source) {
			s.st.Queue = []plan.Request{{ID: "1"}, {ID: "2", Since: time.Now().Add(time.Hour)}}
		}, with(some, "waiting", 2)},
		{"a kind that cannot be a label", func(s *source) {
			s.st.Servers = []plan.Server{machine("a", "", strings.Repeat("x", longestKind+1), "a\nb", "\u202egpu",
				strings.Repeat("x", longestKind))}
		}, with(some, `servers{state="open"}`, 1, `gpus{kind="(others)",state="free"}`, 4,
			`gpus{kind="`+strings.Repeat("x", longestKind)+`",state="free"}`, 1)},
	} {
		synctest.Test(t, func(t *testing.T) {
			var s source
			c.is(&s)
			got := scrape(t, Handler(NewRegistry(New(s.see, nil), "v1")))
			if s.err != nil { // nothing is made up, not even zeros
				c.want["readable"], c.want["read_seconds"] = 0, 0
			} else {
				got = with(got)
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("%s: %v, not %v", c.name, got, c.want)
			}
		})
	}
}

// While etcd is away nothing of before is shown, and afterwards all is.
func TestAway(t *testing.T) { synctest.Test(t, away) }

func away(t *testing.T) {
	s := source{st: plan.State{Servers: []plan.Server{machine("a", "L4")}, Taken: 3}}
	h := Handler(NewRegistry(New(s.see, map[string]Agent{"a": news{true, false}, "b": news{false, true}}), "v1"))
	own := with(nil, `server_readable{server="a"}`, 1, `server_announced{server="b"}`, 1)
	there := with(own, "readable", 1, `servers{state="open"}`, 1, `gpus{kind="L4",state="free"}`, 1,
		"leases_taken_total", 3)
	for i, c := range []struct {
		err  error
		want map[string]float64
	}{
		{nil, there},
		{errors.New("away"), with(own, "read_failures_total", 1)},
		{errors.New("away"), with(own, "read_failures_total", 2)},
		{nil, with(there, "read_failures_total", 2)},
	} {
		s.err = c.err
		got := scrape(t, h)
		if _, shown := got[`servers{state="draining"}`]; shown != (c.err == nil) {
			t.Errorf("%d: servers are shown: %v", i, shown)
		}
		if got = with(got); !maps.Equal(got, c.want) {
			t.Errorf("%d: %v, not %v", i, got, c.want)
		}
	}
}

// How long etcd takes is shown, also where it fails.
func TestReadTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		takes := 250 * time.Millisecond
		h := Handler(NewRegistry(New(func(context.Context) (plan.State, error) {
			time.Sleep(takes)
			return plan.State{}, err
		}, nil), "v1"))
		for _, c := range []struct {
			takes time.Duration
			err   error
		}{{takes, nil}, {2 * takes, errors.New("away")}, {0, nil}} {
			takes, err = c.takes, c.err
			if got := scrape(t, h)["read_seconds"]; got != takes.Seconds() {
				t.Errorf("%v, not %v", got, takes)
			}
		}
	})
}

// Whatever is announced, and however often it changes, there is a bound to the series, each GPU is counted, and kinds
// that were there stay.
func TestKinds(t *testing.T) {
	s := source{st: plan.State{Servers: []plan.Server{machine("a", "L4")}}}
	h := Handler(NewRegistry(New(s.see, nil), "v1"))
	first := len(scrape(t, h))
	for round := range 3 {
		s.st.Servers = []plan.Server{machine("0", "L4", "L4")}
		if round == 2 {
			s.st.Servers = nil
		}
		var kinds []string
		for i := range 50 {
			kinds = append(kinds, fmt.Sprint("kind ", round, " ", i))
		}
		s.st.Servers = append(s.st.Servers, machine("b", kinds...))
		got, sum := scrape(t, h), 0.0
		for name, value := range got {
			if strings.HasPrefix(name, "gpus{") {
				sum += value
			}
		}
		own := float64(2)
		if round == 2 {
			own = 0
		}
		if value, ok := got[`gpus{kind="L4",state="free"}`]; !ok || value != own {
			t.Errorf("round %d: L4: %v, %v", round, value, ok)
		}
		if sum != 50+own {
			t.Errorf("round %d: %v GPUs", round, sum)
		}
		if most := first + (mostKinds-1)*len(states); len(got) != most {
			t.Errorf("round %d: %d series, not %d", round, len(got), most)
		}
	}
}

// A scrape ends, whatever etcd does, and those that come together ask it together.
func TestScrapesEnd(t *testing.T) {
	for _, c := range []struct {
		name  string
		deaf  bool // etcd's client does not heed its time
		after []time.Duration
		reads int
		code  int
		took  []time.Duration
	}{
		{"one", false, []time.Duration{0}, 1, 200, []time.Duration{readTime}},
		{"one after the other", false, []time.Duration{0, readTime}, 2, 200, []time.Duration{readTime, readTime}},
		{"several at once", false, []time.Duration{0, 1, readTime / 2, readTime - 1}, 2, 200,
			[]time.Duration{readTime, 2*readTime - 1, readTime + readTime/2, readTime + 1}},
		{"one that hangs", true, []time.Duration{0, time.Second}, 1, 503, []time.Duration{scrapeTime, scrapeTime}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var reads atomic.Int32
			over := make(chan struct{})
			h := Handler(NewRegistry(New(func(ctx context.Context) (plan.State, error) {
				reads.Add(1)
				if c.deaf {
					<-over
				} else {
					<-ctx.Done()
				}
				return plan.State{}, ctx.Err()
			}, nil), "v1"))
			var all sync.WaitGroup
			for i, after := range c.after {
				all.Go(func() {
					time.Sleep(after)
					began, w := time.Now(), httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
					shown := strings.Contains(w.Body.String(), "\nscuda_pool_readable 0\n")
					if took := time.Since(began); took != c.took[i] || w.Code != c.code || shown != (c.code == 200) {
						t.Errorf("%s: scrape %d: %v, %d, not %v, %d", c.name, i, took, w.Code, c.took[i], c.code)
					}
				})
			}
			all.Wait()
			if reads := int(reads.Load()); reads != c.reads {
				t.Errorf("%s: etcd is asked %d times, not %d", c.name, reads, c.reads)
			}
			close(over) // time stands still from here, so nothing may wait for it
		})
	}
}

// All names obey Prometheus's conventions, and the page has them, and no others.
func TestConventions(t *testing.T) {
	s := source{st: plan.State{Servers: []plan.Server{machine("a", "L4")}}}
	families, err := NewRegistry(New(s.see, map[string]Agent{"a": news{}}), "v1").Gather()
	if err != nil {
		t.Fatal(err)
	}
	families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool {
		return !strings.HasPrefix(f.GetName(), "scuda_")
	})
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	page, err := os.ReadFile("../../../docs/pool.md")
	if err != nil {
		t.Fatal(err)
	}
	have, said := map[string]bool{}, map[string]bool{}
	for _, f := range families {
		have[f.GetName()] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^\| .*`).FindAllString(string(page), -1) {
		for _, name := range regexp.MustCompile("`(scuda_[a-z_]+)`").FindAllStringSubmatch(m, -1) {
			said[name[1]] = true
		}
	}
	if !maps.Equal(have, said) {
		t.Errorf("docs/pool.md has %v, and there are %v", slices.Sorted(maps.Keys(said)), slices.Sorted(maps.Keys(have)))
	}
}

func TestPort(t *testing.T) {
	s := source{err: errors.New("away")}
	p, err := Open(t.Context(), "127.0.0.1:0", Handler(NewRegistry(New(s.see, nil), "v1")))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct {
		path, says string
		code       int
	}{
		{"/metrics", "\nscuda_pool_readable 0\n", 200},
		{"/metrics", "\nscuda_pool_build_info{goversion=\"go", 200},
		{"/metrics", "\nprocess_open_fds ", 200},
		{"/healthz", "ok\n", 200}, // the process lives, though etcd is away
		{"/other", "", 404},
	} {
		r, err := client.Get("http://" + p.Addr().String() + c.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != c.code || !strings.Contains(string(body), c.says) {
			t.Errorf("%s: %d, %v: %.500s", c.path, r.StatusCode, err, body)
		}
	}
	if _, err := Open(t.Context(), p.Addr().String(), http.NotFoundHandler()); !errors.Is(err, door.ErrPort) ||
		!strings.Contains(err.Error(), "choose another port with --metrics") {
		t.Errorf("a port in use: %v", err)
	}
	p.Close()
	if r, err := client.Get("http://" + p.Addr().String() + "/healthz"); err == nil {
		r.Body.Close()
		t.Error("a closed port answers")
	}
}
