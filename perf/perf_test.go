package perf

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The suite for GPU machines can be read.
func TestGPUSuite(t *testing.T) {
	text, err := os.ReadFile("gpu/suite.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseSuite(text); err != nil {
		t.Error(err)
	}
}

func TestDefaultSuite(t *testing.T) {
	s := Default()
	q := s.QuickVersion()
	if len(s.tasks()) < 300 || len(q.tasks()) < 10 || len(q.tasks()) > 25 {
		t.Errorf("%d tasks, quick %d", len(s.tasks()), len(q.tasks()))
	}
	for _, task := range q.tasks() {
		if task.Place != Sim && task.Place != Bare || task.Delay > time.Millisecond {
			t.Errorf("the quick suite has %s", task.title())
		}
	}
}

func TestParseSuite(t *testing.T) {
	good := `{"version":1,"repetitions":1,"entries":[{"name":"a","kind":"load","load":"up","count":1,"places":["sim"]}]}`
	if _, err := ParseSuite([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{`"version":1`, `"version":2`}, {`"repetitions":1`, `"repetitions":0`}, {`"name":"a"`, `"name":""`},
		{`"kind":"load"`, `"kind":"bench"`},
		{`"kind":"load"`, `"kind":"x"`}, {`"places":["sim"]`, `"places":[]`}, {`["sim"]`, `["machine"]`},
		{`["sim"]`, `["moon"]`}, {`"count":1`, `"count":0`},
		{`"count":1`, `"clients":[2]`}, {`"count":1`, `"clients":[0],"seconds":1`}, {`"count":1`, `"count":1,"sizes":[-1]`},
		{`"count":1`, `"count":1,"delays":["-1s"]`},
		{`"count":1`, `"count":1,"modes":["x"]`}, {`"count":1`, `"count":1,"gpu":"real"`},
		{`"count":1`, `"parties":[{"name":"a"}]`}, {`"count":1`, `"seconds":1,"alone":true,"parties":[{"name":"a"}]`},
		{`"count":1`, `"seconds":1,"parties":[{"name":""}]`},
		{`"count":1`, `"seconds":1,"parties":[{"name":"a"},{"name":"a"}]`},
		{`"count":1`, `"seconds":1,"parties":[{"name":"a","share":10001}]`},
		{`"count":1`, `"seconds":1,"parties":[{"name":"a","class":"x"}]`},
		{`"count":1`, `"seconds":1,"parties":[{"name":"a","clients":300}]`},
		{`"count":1`, `"seconds":1,"parties":[{"name":"a","load":"up","command":["x"]}]`},
		{`"count":1`, `"seconds":1,"clients":[2],"parties":[{"name":"a"}]`},
		{`"kind":"load","load":"up"`, `"kind":"bench","seconds":1,"parties":[{"name":"a","load":"up"}]`},
		{`"kind":"load","load":"up"`, `"kind":"load","seconds":1,"parties":[{"name":"a"}]`},
		{`"count":1`, `"count":1,"unknown":1`}, {`"count":1`, `"count":1,"delays":["x"]`}, {`}]`, `}`},
	} {
		text := strings.Replace(good, c[0], c[1], 1)
		if _, err := ParseSuite([]byte(text)); !errors.Is(err, ErrSuite) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzParseSuite(f *testing.F) {
	f.Add(defaultSuite)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSuite(b)
		if (s == nil) == (err == nil) {
			t.Fatal("neither a suite nor an error, or both")
		}
	})
}

func FuzzParseResult(f *testing.F) {
	f.Add(`{"schema":1,"measures":[{"entry":"a","name":"b","place":"sim","delay":"1ms","unit":"s","values":[1,2]}]}`)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseResult(strings.NewReader(s))
		if err != nil {
			return
		}
		if err := errors.Join(HTML(io.Discard, r, Compare(r, r, 0.05)), Markdown(io.Discard, r)); err != nil {
			t.Error(err)
		}
	})
}

// The format of results is an interface: older ones stay readable, and nothing that is there changes its name or type.
func TestSchema(t *testing.T) {
	for _, file := range []string{"testdata/result.json", "testdata/parties.json"} { // of schemas 1 and 2
		r, err := ReadResult(file)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := r.Write(&b); err != nil {
			t.Fatal(err)
		}
		var x, y map[string]any
		if err := errors.Join(json.Unmarshal(want, &x), json.Unmarshal([]byte(b.String()), &y)); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(x, y) {
			t.Errorf("%s: written again it differs:\n%s", file, b.String())
		}
	}
	const other = `{"machine":"an H200","programs":[]}` // of a script
	_, err := ParseResult(strings.NewReader(other))
	if !errors.Is(err, ErrResult) || !strings.Contains(err.Error(), "scuda perf run has not written it") {
		t.Errorf("got %v", err)
	}
	if _, err := ParseResult(strings.NewReader(`{"schema":3}`)); !errors.Is(err, ErrResult) {
		t.Errorf("another schema: %v", err)
	}
}

// Known values: scipy.stats.mannwhitneyu(method="exact"), and the smallest p of samples of 3, 4 and 5.
func TestMannWhitney(t *testing.T) {
	for _, c := range []struct {
		x, y []float64
		p    float64
	}{
		{[]float64{1, 2, 3}, []float64{4, 5, 6}, 0.1},
		{[]float64{1, 2, 3, 4}, []float64{5, 6, 7, 8}, 2.0 / 70},
		{[]float64{1, 2, 3, 4, 5}, []float64{6, 7, 8, 9, 10}, 2.0 / 252},
		{[]float64{1, 3, 5}, []float64{2, 4, 6}, 0.7},
		{[]float64{1, 1, 1}, []float64{1, 1, 1}, 1},
	} {
		if p := mannWhitney(c.x, c.y); math.Abs(p-c.p) > 1e-9 {
			t.Errorf("%v, %v: p = %v, want %v", c.x, c.y, p, c.p)
		}
	}
}

func result(values []float64, higher bool) *Result {
	return &Result{
		Schema: Schema, Measures: []Measure{{Entry: "a", Name: "a", Place: Sim, Unit: "s", Higher: higher, Values: values}},
	}
}

func scaled(v []float64, by float64) []float64 {
	out := slices.Clone(v)
	for i := range out {
		out[i] *= by
	}
	return out
}

func TestCompare(t *testing.T) {
	base := []float64{1, 1.01, 0.99, 1.02, 0.98, 1.005, 0.995}
	for _, c := range []struct {
		by     float64
		higher bool
		want   string
	}{{1, false, Same}, {1.03, false, Same}, {1.2, false, Worse}, {0.8, false, Better}, {1.2, true, Better},
		{0.8, true, Worse}} {
		got := Compare(result(base, c.higher), result(scaled(base, c.by), c.higher), 0.05)
		if len(got) != 1 || got[0].Verdict != c.want || Regressed(got) != (c.want == Worse) {
			t.Errorf("×%v: %+v, want %s", c.by, got, c.want)
		}
	}
}

// What the machine itself changed by is nobody's merit or fault; what goes beyond is.
func TestCompareMachine(t *testing.T) {
	base := []float64{1, 1.01, 0.99, 1.02, 0.98, 1.005, 0.995}
	with := func(by, machine float64, unit string, higher bool) *Result {
		r := result(scaled(base, by), higher)
		r.Measures[0].Unit = unit
		r.Measures = append(r.Measures, Measure{
			Entry: "yardsticks", Name: yardSystemCall, Place: Bare, Unit: "s", Values: scaled(base, machine),
		},
			Measure{Entry: "yardsticks", Name: yardRoundTrip, Place: Bare, Unit: "s", Values: base})
		return r
	}
	for _, c := range []struct {
		by, machine float64
		unit        string
		higher      bool
		want        string
	}{
		{1.3, 1.4, "s", false, Moved}, {1.6, 1.4, "s", false, Worse}, {0.8, 1.4, "s", false, Better},
		{1, 1.4, "s", false, Same},
		{0.8, 0.7, "s", false, Moved}, {0.6, 0.7, "s", false, Better}, {1.3, 0.7, "s", false, Worse},
		{0.75, 1.4, "1/s", true, Moved}, {0.6, 1.4, "1/s", true, Worse}, {1.3, 1.4, "B", false, Worse},
	} {
		got := Compare(with(1, 1, c.unit, c.higher), with(c.by, c.machine, c.unit, c.higher), 0.05)
		if got[0].Verdict != c.want || got[1].Verdict != Moved || got[2].Verdict != Same ||
			Regressed(got) != (c.want == Worse) {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// What one distribution gives twice is hardly ever called a change; a result is never worse than itself.
func TestCompareNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Float64Range(0.5, 2), 1, 9).Draw(t, "values")
		if c := Compare(result(v, false), result(v, false), 0); c[0].Verdict != Same {
			t.Errorf("a result differs from itself: %+v", c)
		}
	})
}

// A program that measures nothing real, to see what a run makes of it.
func TestRun(t *testing.T) {
	folder := t.TempDir()
	script := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bench := script("bench", `echo '{"one call": 0.000002, "memory (MiB)": 3}'`)
	load := script("load", `[ "$1" = bad ] && { echo "no such thing" >&2; exit 3; }
if [ "$3" = 0 ]; then echo ready; read s; fi
echo 1000; echo 3000; echo 2000`)
	suite, err := ParseSuite([]byte(`{"version":1,"repetitions":2,"entries":[
		{"name":"m","kind":"machine","places":["machine"]},
		{"name":"b","kind":"bench","places":["sim","native"]},
		{"name":"l","kind":"load","load":"up","sizes":[4,8],"count":3,"places":["sim"],"delays":["0s","1ms"]},
		{"name":"c","kind":"load","load":"launch","clients":[2],"seconds":0.5,"places":["sim"]},
		{"name":"s","kind":"syscalls","command":["sh","-c","exec 4</dev/null 5</dev/null 6</dev/null"],
			"base":["sh","-c",":"],"places":["sim"]},
		{"name":"y","kind":"command","places":["sim"],
			"command":["sh","-c","echo hello; echo '{\"a step\": 0.5, \"trips (count)\": 4}'"]},
		{"name":"x","kind":"load","load":"bad","count":3,"places":["sim"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	closed := 0
	r, err := Run(t.Context(), Options{Suite: suite, Bench: bench, Load: load,
		Open: func(_ context.Context, s Site) (*Where, error) {
			if s.Place == Native {
				return nil, errors.New("no GPU here")
			}
			return &Where{Close: func() { closed++ }}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Failed(); err == nil || !strings.Contains(err.Error(), "no such thing") ||
		strings.Contains(err.Error(), "no GPU here") {
		t.Errorf("what failed: %v", err)
	}
	got, bare := map[string]float64{}, 0
	for _, m := range r.Measures {
		if len(m.Values) != 2 {
			t.Errorf("%s has %d values", m.Key(), len(m.Values))
		}
		if m.Place == Bare {
			if m.Median() <= 0 {
				t.Errorf("%s takes %v", m.Key(), m.Median())
			}
			bare++
			continue
		}
		got[m.Key()] = m.Median()
		if m.Entry == "s" && m.Name != "open, openat" {
			delete(got, m.Key()) // how a shell moves descriptors is its own affair
		}
	}
	want := map[string]float64{"sim · b · one call": 2e-6, "sim · b · memory (MiB)": 3 << 20, "sim · l · 4 B": 2e-6,
		"sim · l · 8 B": 2e-6, "sim · l · 4 B · +1ms": 2e-6,
		"sim · l · 8 B · +1ms": 2e-6, "sim · c · throughput · 2 clients": 12, "sim · c · fairness · 2 clients": 1,
		"sim · c · p99 · 2 clients": 3e-6, "sim · c · worst · 2 clients": 3e-6,
		"sim · s · open, openat": 3, "sim · y · a step": 0.5, "sim · y · trips (count)": 4}
	for k, v := range want {
		if math.Abs(got[k]-v) > 1e-12*v {
			t.Errorf("%s: %v, want %v", k, got[k], v)
		}
	}
	if len(got) != len(want) || bare != len(yardsticks) || closed != 3 || len(r.Skipped) != 2 {
		t.Errorf("%d measures, %d places closed, skipped %+v", len(got), closed, r.Skipped)
	}
}

// An interruption does not lose what was measured before.
func TestInterrupted(t *testing.T) {
	suite, err := ParseSuite([]byte(`{"version":1,"repetitions":2,"entries":[
		{"name":"y","kind":"command","command":["sh","-c","echo '{\"a step\": 0.5}'"],"places":["sim"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := Run(ctx, Options{Suite: suite,
		Progress: func(done, all int64, what string) {
			if strings.HasPrefix(what, "repetition 2 of 2") {
				if done != 1 || all != 2 {
					t.Errorf("%d of %d at %q", done, all, what)
				}
				cancel()
			}
		},
		Open: func(context.Context, Site) (*Where, error) { return &Where{Close: func() {}}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Partial || len(r.Measures) != 1 || len(r.Measures[0].Values) != 1 || len(r.Skipped) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestMerge(t *testing.T) {
	m := Machine{Processor: "p", Processors: 2, GPUs: []string{"g"}, Driver: "1"}
	measure := func(name string, v ...float64) Measure {
		return Measure{Entry: name, Name: name, Place: Sim, Values: v}
	}
	first := &Result{
		Schema: Schema, Machine: m, Repetitions: 5, Seconds: 2, Measures: []Measure{measure("a", 1), measure("b", 2)},
		Skipped: []Skipped{{"x", Sim, "why", false}},
	}
	second := &Result{
		Schema: Schema, Machine: m, Repetitions: 3, Seconds: 3, Measures: []Measure{measure("b", 7), measure("c", 3)},
		Skipped: []Skipped{{"x", Sim, "why", false}},
	}
	all, err := Merge(first, second)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range all.Measures {
		got[m.Name] = m.Median()
	}
	if want := map[string]float64{"a": 1, "b": 7, "c": 3}; !maps.Equal(got, want) || all.Repetitions != 3 ||
		all.Seconds != 5 || len(all.Skipped) != 1 {
		t.Errorf("%v, %+v", got, all)
	}
	if len(first.Measures) != 2 || first.Measures[1].Median() != 2 {
		t.Error("a part was changed")
	}
	other := *second
	other.Machine.Driver = "2"
	if _, err := Merge(first, &other); !errors.Is(err, ErrResult) {
		t.Errorf("results of different machines: %v", err)
	}
	quick := *second
	quick.Quick = true
	if _, err := Merge(first, &quick); !errors.Is(err, ErrResult) {
		t.Errorf("a quick result among others: %v", err)
	}
	if _, err := Merge(); !errors.Is(err, ErrResult) {
		t.Errorf("nothing: %v", err)
	}
}

func TestOnly(t *testing.T) {
	s, err := Default().Only([]string{"many clients"})
	if err != nil || len(s.Entries) != 1 || s.Entries[0].Name != "many clients" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := Default().Only([]string{"nonsense"}); !errors.Is(err, ErrSuite) {
		t.Errorf("%v", err)
	}
}

// The page works in a browser: it shows plots, asks for nothing else and says nothing on the console.
func TestPageInBrowser(t *testing.T) {
	r, err := ReadResult("testdata/result.json")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	path := filepath.Join(folder, "report.html")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(HTML(f, r, Compare(r, r, 0.05)), f.Close()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "chromium", "--headless", "--no-sandbox", "--disable-gpu",
		"--user-data-dir="+folder, "--enable-logging=stderr", "--dump-dom", "file://"+path)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	dom, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium (make packages installs it): %v\n%s", err, stderr.String())
	}
	if strings.Contains(stderr.String(), "CONSOLE") {
		t.Errorf("the console says: %s", stderr.String())
	}
	for _, want := range []string{"<svg", "<polyline", "class=\"mark sim\"", "How many clients", "</html>"} {
		if !strings.Contains(string(dom), want) {
			t.Errorf("the page has no %s", want)
		}
	}
	for _, never := range []string{"http:", "https:", "<script", "ZgotmplZ"} {
		if strings.Contains(string(dom), never) {
			t.Errorf("the page has %s", never)
		}
	}
}
