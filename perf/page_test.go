package perf

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// Every committed result can be read and drawn, also the one of the older form.
func TestCommittedResults(t *testing.T) {
	for file, want := range map[string]struct {
		headline  string
		questions []string
	}{
		"2026-11-22-h200-speed.json": {
			"Training over scuda takes 1.00 times the native time; a launch and its answer take 22.6 µs, natively 9.4 µs",
			[]string{programs, starts, copies, single, unified, distance, effort},
		},
		"2026-11-21-h200.json": {
			"Training over scuda takes 1.01 times the native time; a launch and its answer take 15.0 µs, natively 7.4 µs",
			[]string{programs, starts, copies, single, distance, effort},
		},
		"quick.json": {
			"A launch and its answer take ",
			[]string{starts, copies, single, unified, distance, clients, sharing, effort},
		},
	} {
		r, err := ReadResult("results/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if got := headline(r); !strings.HasPrefix(got, want.headline) {
			t.Errorf("%s: %s", file, got)
		}
		var titles []string
		for _, q := range questions(r) {
			titles = append(titles, q.Title)
		}
		if !slices.Equal(titles, want.questions) {
			t.Errorf("%s answers %q", file, titles)
		}
	}
}

// What scuda bench and bench.py measured becomes a result: units, places, and what was asked.
func TestSpeed(t *testing.T) {
	r, err := ReadResult("results/2026-11-22-h200-speed.json")
	if err != nil {
		t.Fatal(err)
	}
	if got := targets(r); got != "All 58 targets are met." || r.Scuda == "" || r.Started.IsZero() {
		t.Errorf("%s, %q, %s", got, r.Scuda, r.Started)
	}
	find := func(place, name string) *Measure {
		for i := range r.Measures {
			if m := &r.Measures[i]; m.Place == place && m.Name == name {
				return m
			}
		}
		t.Fatalf("no %s at %s", name, place)
		return nil
	}
	memory := find(TCP, "resident memory that this adds (MiB)")
	if memory.Unit != "B" || math.Abs(memory.Median()/(1<<20)-11) > 1 || math.Abs(memory.Goal.Most/(1<<20)-140) > 1 {
		t.Errorf("%+v, %+v", memory, memory.Goal)
	}
	training := find(TCP, "ResNet-50 training b64, 10 steps")
	if native := find(Native, training.Name); len(training.Values) != 5 ||
		math.Abs(training.Goal.Most-1.02*native.Median()) > 1e-9 {
		t.Errorf("%+v, %+v", training, training.Goal)
	}
	if m := find(Link, "16 MiB over plain TCP"); m.Unit != "s" {
		t.Errorf("%+v", m)
	}
}

func TestTargets(t *testing.T) {
	r := &Result{Measures: []Measure{{Name: "a", Goal: &Goal{Text: "≤ 1", Met: true}}, {Name: "b"}}}
	if got := targets(r); got != "All 1 targets are met." {
		t.Error(got)
	}
	r.Measures[1].Goal = &Goal{Text: "≤ 2"}
	if got := targets(r); got != "1 of 2 targets are missed: b (≤ 2)." {
		t.Error(got)
	}
}

func TestPlainSize(t *testing.T) {
	for name, want := range map[string]struct {
		n    int64
		what string
	}{
		"16 MiB pinned to the host":    {16 << 20, "pinned to the host"},
		"64 KiB to the host, pageable": {64 << 10, "pageable to the host"},
		"4 B to the device":            {4, "pageable to the device"},
		"256 MiB of unified memory":    {0, ""}, "launch call": {0, ""},
	} {
		if n, what := plainSize(name); n != want.n || what != want.what {
			t.Errorf("%s: %d, %q", name, n, what)
		}
	}
}

// A point beyond the axis stands at its end, as an arrow; the native time is in its middle.
func TestRatios(t *testing.T) {
	var list []*pair
	for _, remote := range []float64{1, 16, .001} {
		list = append(list, &pair{name: "x", unit: "s", native: &Measure{Values: []float64{1}},
			remote: map[string]*Measure{TCP: {Place: TCP, Values: []float64{remote}, Goal: &Goal{Most: 2}}}})
	}
	c := ratios("", append(list, &pair{name: "alone", native: &Measure{Values: []float64{1}}}))
	var got []string
	for _, row := range c.Rows {
		for _, m := range row.Marks {
			got = append(got, trimmed(m.At)+" "+m.Class)
		}
	}
	if want := "66.7 goal, 50 tcp, 66.7 goal, 100 tcp high, 66.7 goal, 0 tcp low"; strings.Join(got, ", ") != want {
		t.Errorf("%q", got)
	}
}

// Copies are drawn over their size as bytes a second, beside what the link carries.
func TestThroughput(t *testing.T) {
	l := throughput(&Result{Measures: []Measure{
		{Name: "16 MiB pinned to the host", Place: TCP, Unit: "s", Values: []float64{float64(16<<20) / 2e9}},
		{Name: "16 MiB over plain TCP", Place: Link, Unit: "s", Values: []float64{float64(16<<20) / 3e9}},
	}})
	if len(l.plots) != 1 || l.plots[0].Title != "pinned to the host" || !slices.Equal(l.places(), []string{TCP, Link}) {
		t.Fatalf("%+v, %q", l.plots, l.places())
	}
	for i, want := range []float64{2, 3} {
		if got := l.plots[0].lines[i].Points[16<<20]; math.Abs(got-want) > 1e-9 {
			t.Errorf("%v GB/s, want %v", got, want)
		}
	}
}
