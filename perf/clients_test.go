package perf

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What parties did is told of each and of all: throughput, p99 and worst; Jain's index and the work beside the weights
// of those that do the same in one class.
func TestParties(t *testing.T) {
	folder := t.TempDir()
	load := filepath.Join(folder, "load")
	// The lease says how much a client does.
	const text = `#!/bin/sh
echo "hello from a library"; echo ready; read s
i=0; while [ $i -lt "$DOES" ]; do echo 2000; i=$((i + 1)); done`
	if err := os.WriteFile(load, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	suite, err := ParseSuite([]byte(`{"version":1,"repetitions":2,"entries":[
		{"name":"weights","kind":"load","load":"batch","seconds":0.5,"places":["sim"],"modes":["plain","turns","mps"],
			"gpu":"sim:1,turns=1ms","parties":[{"name":"large","share":300,"clients":2},{"name":"small"},
			{"name":"first","class":"high","load":"infer","size":7}]},
		{"name":"alike","kind":"load","load":"batch","seconds":0.5,"places":["sim","native"],"modes":["plain","turns"],
			"parties":[{"name":"large","share":300},{"name":"small"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	does := map[string]int{"large": 6, "small": 4, "first": 1} // 12 of 16, where 3 of 4 were meant
	var sites []string
	r, err := Run(t.Context(), Options{Suite: suite, Load: load, Open: func(_ context.Context, s Site) (*Where, error) {
		sites = append(sites, s.text())
		env := os.Environ()
		w := &Where{Env: append(env, "DOES=5"), Close: func() {}}
		if s.Place == Sim {
			w.Lease = func(_ context.Context, p *Party) ([]string, error) {
				return append(slices.Clone(env), fmt.Sprint("DOES=", does[p.Name])), nil
			}
		}
		return w, nil
	}})
	if err != nil || r.Failed() != nil {
		t.Fatal(err, r.Failed())
	}
	want := "sim, sim:1,turns=1ms|sim, turns, sim:1,turns=1ms|sim|sim, turns|native"
	if got := strings.Join(sites, "|"); got != want {
		t.Errorf("sites %s, want %s", got, want)
	}
	got := map[string]float64{}
	for _, m := range r.Measures {
		if len(m.Values) != 2 {
			t.Errorf("%s has %d values", m.Key(), len(m.Values))
		}
		got[m.Key()] = m.Median()
	}
	for k, v := range map[string]float64{
		"sim · weights · throughput · 4 clients":                   34,
		"sim · weights · throughput · 2 clients · large":           24,
		"sim · weights · throughput · 1 clients · small · turns":   8,
		"sim · weights · work to weight · 2 clients · large":       1,
		"sim · weights · work to weight · 1 clients · small":       1,
		"sim · weights · p99 · 1 clients · first":                  2e-6,
		"sim · weights · worst · 4 clients":                        2e-6,
		"sim · alike · fairness · 2 clients":                       .9,
		"sim · alike · work to weight · 1 clients · large · turns": .8,
		"sim · alike · work to weight · 1 clients · small":         1.6,
		"native · alike · throughput · 1 clients · large":          10,
		"native · alike · work to weight · 1 clients · large":      2. / 3,
		"native · alike · fairness · 2 clients":                    .8,
	} {
		if math.Abs(got[k]-v) > 1e-9 {
			t.Errorf("%s: %v, want %v", k, got[k], v)
		}
	}
	for k := range got {
		for _, never := range []string{"weights · fairness", "first · work to weight", "to alone", "mps",
			"native · alike · throughput · 1 clients · large · turns"} {
			if strings.Contains(k, never) {
				t.Errorf("there is %s", k)
			}
		}
	}
	var b strings.Builder
	if err := Markdown(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"| where | who | share | class | clients | throughput | work to weight | p99 | worst |",
		"| sim | all |  |  | 4 | 34/s |  | 2.0 µs | 2.0 µs |",
		"| sim, turns | large | 300 | normal | 2 | 24/s | 1 | 2.0 µs | 2.0 µs |",
		"| sim | first | 100 | high | 1 | 2/s |  | 2.0 µs | 2.0 µs |",
		"| native | small | 100 | normal | 1 | 10/s | 2 |  | 2.0 µs | 2.0 µs |",
		"| native | all |  |  | 2 | 20/s |  | 0.8 | 2.0 µs | 2.0 µs |",
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("no line %q in\n%s", line, b.String())
		}
	}
	b.Reset()
	if err := HTML(&b, r, nil); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{sharing, "<th>work to weight</th>", "<td>large</td><td>300</td><td>normal</td>"} {
		if !strings.Contains(b.String(), text) {
			t.Errorf("the page has no %q", text)
		}
	}
}

// Each party works alone first where the entry says so, and what it does beside the others is told beside that.
func TestPartiesAlone(t *testing.T) {
	load := filepath.Join(t.TempDir(), "load")
	// The first of a party's two clients in a repetition is alone.
	const text = `#!/bin/sh
echo ready; read s
if mkdir "$FOLDER/$NAME" 2>/dev/null; then echo 1000; echo 1000; echo 1000; echo 1000
else rmdir "$FOLDER/$NAME"; echo 3000; fi`
	if err := os.WriteFile(load, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	suite, err := ParseSuite([]byte(`{"version":1,"repetitions":2,"entries":[
		{"name":"a","kind":"load","load":"batch","seconds":0.5,"places":["sim"],"alone":true,
			"parties":[{"name":"x"},{"name":"y","class":"low"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Options{Suite: suite, Load: load, Open: func(context.Context, Site) (*Where, error) {
		return &Where{Close: func() {}, Lease: func(_ context.Context, p *Party) ([]string, error) {
			return append(os.Environ(), "FOLDER="+filepath.Dir(load), "NAME="+p.Name), nil
		}}, nil
	}})
	if err != nil || r.Failed() != nil {
		t.Fatal(err, r.Failed())
	}
	n := 0
	for _, m := range r.Measures {
		switch {
		case m.Name == ofAloneName && m.Median() == .25, m.Name == p99AloneName && math.Abs(m.Median()-3) < 1e-9:
			n++
		case strings.HasSuffix(m.Name, "alone"), m.Name == fairnessName, m.Name == workName:
			t.Errorf("%s: %v", m.Key(), m.Median())
		}
	}
	if n != 4 {
		t.Errorf("%d measures beside alone, want 4", n)
	}
}

// A client that fails while it works is an error, and not one that did little.
func TestClientFails(t *testing.T) {
	load := filepath.Join(t.TempDir(), "load")
	const text = "#!/bin/sh\necho ready; read s; echo 1000; echo 'out of memory' >&2; exit 3"
	if err := os.WriteFile(load, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	suite, err := ParseSuite([]byte(`{"version":1,"repetitions":1,"entries":[
		{"name":"c","kind":"load","load":"launch","clients":[2],"seconds":0.5,"places":["sim"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Options{Suite: suite, Load: load, Open: func(context.Context, Site) (*Where, error) {
		return &Where{Close: func() {}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Failed(); err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("got %v", err)
	}
}
