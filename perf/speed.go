package perf

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Speed is the form in which perf/bench/table keeps a result of `scuda bench --json` and those of perf/gpu/bench.py.
// [ParseResult] reads it, too.
type Speed struct {
	Scuda    string     `json:"scuda,omitempty"` // its version
	Date     string     `json:"date,omitempty"`
	Machine  string     `json:"machine"`
	Calls    Calls      `json:"calls"`
	Programs []Programs `json:"programs"`
}

// Times are the medians of a measure natively and over scuda; 0 where it was not measured there.
func (s *Speed) Times(name string) (native, remote float64) {
	native, remote = s.Calls.Native[name], s.Calls.Remote[name]
	for _, p := range s.Programs {
		for _, row := range p.Rows {
			if row.Name == name && row.Native != nil && row.Remote != nil {
				native, remote = *row.Native, *row.Remote
			}
		}
	}
	return native, remote
}

// Calls is a result of scuda bench: medians by measure.
type Calls struct {
	Rounds      int                `json:"rounds"`
	Connections int                `json:"connections"`
	Native      map[string]float64 `json:"native"`
	Remote      map[string]float64 `json:"remote"`
	TCP         map[string]float64 `json:"tcp"`
	Measures    []string           `json:"measures"`
}

// Programs is what bench.py writes.
type Programs struct {
	Rounds int     `json:"rounds"`
	Trip   float64 `json:"round trip"`
	Rows   []Row   `json:"rows"`
}

// Row is a measure of bench.py.
type Row struct {
	Name   string               `json:"name"`
	Native *float64             `json:"native"`
	Remote *float64             `json:"remote"`
	Ratio  *float64             `json:"ratio"`
	Asked  string               `json:"asked"`
	Met    *bool                `json:"met"`
	Values map[string][]float64 `json:"values"`
}

// RoundTrip is the name of what a byte takes to and fro over plain TCP.
const RoundTrip = "a round trip over plain TCP"

// Plain is the time of the same bytes over plain TCP connections; 0 for what is no big copy.
func (m *Calls) Plain(name string) float64 {
	size, rest, _ := strings.Cut(name, " MiB ")
	if rest == "" {
		return 0
	}
	return m.TCP[size+" MiB over plain TCP"]
}

// Goal is what is asked of a measure, in words and as the most that it may be; 0 where that cannot be said without a
// native measurement.
func (m *Calls) Goal(name string) (asked string, most float64) {
	const ns, us = 1e-9, 1e-6
	native := m.Native[name]
	trip := 1.2 * m.TCP[RoundTrip]
	after := func(words string, more float64) (string, float64) {
		if native == 0 {
			return words, 0
		}
		return words, native + more
	}
	switch name {
	case "cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetAttribute", "cuFuncGetAttribute", "cuKernelGetAttribute":
		return "≤ 25 ns", 25 * ns
	case "launch call":
		return "≤ 0.5 µs", .5 * us
	case "launch call, p99":
		return "≤ 2 µs", 2 * us
	case "each of 20000 launches and a synchronise":
		return "≤ 1.10 ×", 1.1 * native
	case "each launch of 4 threads on 4 streams":
		return "≤ 2.2 ×", 2.2 * native
	case "launch and synchronise":
		return after("≤ native + 1.2 round trips + 3 µs", trip+3*us)
	case "synchronise an idle stream", "synchronise a finished event", "4 B to the device":
		return "≤ 1 µs", us
	case "record an event", "query a finished event", "query an idle stream", "wait for an event":
		return "≤ 0.3 µs", .3 * us
	case "64 KiB to the device, pageable":
		return "≤ 20 µs", 20 * us
	case "4 B to the host", "allocate and free 1 MiB":
		return after("≤ native + 1.2 round trips", trip)
	case "64 KiB to the host, pageable":
		return after("≤ native + 1.2 round trips + 64 KiB over plain TCP", trip+m.TCP["256 MiB over plain TCP"]/4096)
	case "resident memory that this adds (MiB)":
		return after("≤ native + 40 MiB", 40)
	case "unified memory: a fault of the CPU far from others":
		return "≤ 2 round trips + 30 µs", 2*m.TCP[RoundTrip] + 30*us
	case "256 MiB of unified memory read after a kernel":
		return "≥ 0.8 of the plain download", m.Remote["256 MiB pageable to the host"] / .8
	case "256 MiB of unified memory sent with a launch":
		return "≥ 0.8 of the plain upload", m.Remote["256 MiB pageable to the device"] / .8
	case "256 MiB of unified memory read for the first time, after a kernel":
		return "", 0
	case "launch and synchronise with 1 GiB of unified memory that nobody touched",
		"launch and synchronise with 1 GiB of unified memory that the CPU has read":
		return "≤ 5 µs more than without", m.Remote["launch and synchronise"] + 5*us
	}
	if v := m.Plain(name); v > 0 {
		return "≥ 0.9 of plain TCP", v / .9
	}
	return "", 0
}

// result gives all of it as a result of the suite.
func (s *Speed) result() *Result {
	r := &Result{Schema: Schema, Scuda: s.Scuda, Repetitions: s.Calls.Rounds, Measures: s.Calls.measures()}
	r.Started, _ = time.Parse(time.DateOnly, s.Date) // unknown in older files
	gpu, rest, _ := strings.Cut(s.Machine, ", ")
	r.Machine = Machine{GPUs: []string{gpu}, Where: rest}
	for _, p := range s.Programs {
		for _, row := range p.Rows {
			if native := row.measure(Native, row.Native, row.Values["native"]); len(native.Values) > 0 {
				r.Measures = append(r.Measures, native)
			}
			if remote := row.measure(TCP, row.Remote, row.Values["remote"]); len(remote.Values) > 0 {
				remote.Goal = row.goal()
				r.Measures = append(r.Measures, remote)
			}
		}
	}
	return r
}

func (row *Row) measure(place string, median *float64, values []float64) Measure {
	m := Measure{Entry: "programs", Name: row.Name, Place: place, Values: values}
	if len(values) == 0 && median != nil {
		m.Values = []float64{*median}
	}
	m.setUnit()
	return m
}

func (row *Row) goal() *Goal {
	if row.Met == nil {
		return nil
	}
	g := &Goal{Text: row.Asked, Met: *row.Met}
	if text, ok := strings.CutSuffix(row.Asked, " ×"); ok && row.Native != nil {
		times, _ := strconv.ParseFloat(strings.TrimPrefix(text, "≤ "), 64)
		g.Most = times * *row.Native
	}
	return g
}

// measures are those of scuda bench; those of plain connections are at the place [Link].
func (m *Calls) measures() (list []Measure) {
	add := func(name, place string, v float64, goal *Goal) {
		x := Measure{Entry: "micro", Name: name, Place: place, Values: []float64{v}, Goal: goal}
		x.setUnit()
		list = append(list, x)
	}
	for _, name := range m.Measures {
		if v, ok := m.Native[name]; ok {
			add(name, Native, v, nil)
		}
		if v, ok := m.Remote[name]; ok {
			text, most := m.Goal(name)
			var goal *Goal
			if most > 0 {
				goal = &Goal{Text: text, Most: most, Met: v <= most}
			}
			add(name, TCP, v, goal)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.TCP)) {
		add(name, Link, m.TCP[name], nil)
	}
	return list
}

// setUnit takes the unit from the end of the name, as scuda bench and bench.py put it there.
func (m *Measure) setUnit() {
	m.Unit = "s"
	switch {
	case strings.HasSuffix(m.Name, "(MiB)"):
		m.Unit = "B"
		m.Values = slices.Clone(m.Values)
		for i := range m.Values {
			m.Values[i] *= 1 << 20
		}
		if m.Goal != nil {
			m.Goal.Most *= 1 << 20
		}
	case strings.HasSuffix(m.Name, "(cores)"), strings.HasSuffix(m.Name, "(count)"):
		m.Unit = "1"
	}
}
