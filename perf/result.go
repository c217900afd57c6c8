package perf

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// Schema is the version of a result's format; see testdata/result.json and testdata/parties.json. Fields are added
// without a new version where an older scuda does not mistake one measure for another without them, and never changed.
// Since 2 measures tell modes of sharing and parties apart; results of 1 can be read.
const Schema = 2

// ErrResult is wrapped by the errors of [ParseResult].
var ErrResult = errors.New("unusable result")

// Result is what a run measured.
type Result struct {
	Schema      int       `json:"schema"`
	Scuda       string    `json:"scuda"` // its version
	Started     time.Time `json:"started"`
	Seconds     float64   `json:"seconds"` // that the run took
	Quick       bool      `json:"quick"`
	Partial     bool      `json:"partial,omitempty"` // the run was interrupted: measures have fewer values, or none
	Repetitions int       `json:"repetitions"`
	Machine     Machine   `json:"machine"`
	Measures    []Measure `json:"measures"`
	Skipped     []Skipped `json:"skipped"` // what could not be measured
}

// Machine says where a result was made.
type Machine struct {
	Host       string   `json:"host"`
	Kernel     string   `json:"kernel"`
	Processor  string   `json:"processor"`
	Processors int      `json:"processors"`
	Memory     uint64   `json:"memory_bytes"`
	GPUs       []string `json:"gpus"`
	Driver     string   `json:"driver"`
	Where      string   `json:"where,omitempty"` // all of it in words, where that is all that is known
}

// Measure is a quantity in all repetitions. What is lower is better unless Higher says otherwise.
type Measure struct {
	Entry        string       `json:"entry"`
	Name         string       `json:"name"`
	Place        string       `json:"place"`
	Delay        Duration     `json:"delay"`
	Bytes        int64        `json:"bytes,omitempty"`
	Clients      int          `json:"clients,omitempty"`
	Mode         string       `json:"mode,omitempty"`  // of sharing, where it is not plain
	Party        *Party       `json:"party,omitempty"` // whose it is; none: of all
	Unit         string       `json:"unit"`            // "s", "B", "1/s" or "1"
	Higher       bool         `json:"higher_is_better,omitempty"`
	Command      []string     `json:"command"`
	Values       []float64    `json:"values"` // one a repetition
	Distribution *Percentiles `json:"distribution,omitempty"`
	Goal         *Goal        `json:"goal,omitempty"` // what is asked of it

	all *hdrhistogram.Histogram
}

// Goal is what is asked of a measure.
type Goal struct {
	Text string  `json:"text"`
	Most float64 `json:"most,omitempty"` // in the measure's unit; 0: it cannot be said as a number
	Met  bool    `json:"met"`
}

// Percentiles are of all single operations, in the measure's unit.
type Percentiles struct {
	Count     int64   `json:"count"`
	P50       float64 `json:"p50"`
	P90       float64 `json:"p90"`
	P99       float64 `json:"p99"`
	P999      float64 `json:"p99.9"`
	Max       float64 `json:"max"`
	Histogram string  `json:"hdr"` // compressed, of nanoseconds
}

// Skipped is an entry, or a part of one, that was not measured.
type Skipped struct {
	Entry  string `json:"entry"`
	Place  string `json:"place"`
	Reason string `json:"reason"`
	Failed bool   `json:"failed,omitempty"` // it should have worked: not something that this machine lacks
}

// Failed is what of the suite should have worked and did not, as an error; nil where there is nothing.
func (r *Result) Failed() error {
	var errs []error
	for _, s := range r.Skipped {
		if s.Failed {
			errs = append(errs, fmt.Errorf("%s (%s): %s", s.Entry, s.Place, s.Reason))
		}
	}
	return errors.Join(errs...)
}

// Key names a measure in comparisons.
func (m *Measure) Key() string {
	parts := []string{m.Place, m.Entry}
	if m.Name != m.Entry {
		parts = append(parts, m.Name)
	}
	if m.Bytes > 0 {
		parts = append(parts, Size(m.Bytes))
	}
	if m.Clients > 0 {
		parts = append(parts, fmt.Sprintf("%d clients", m.Clients))
	}
	if m.Party != nil {
		parts = append(parts, m.Party.Name)
	}
	if m.Mode != "" {
		parts = append(parts, m.Mode)
	}
	if m.Delay > 0 {
		parts = append(parts, "+"+time.Duration(m.Delay).String())
	}
	return strings.Join(parts, " · ")
}

// Median is the middle of the repetitions' values.
func (m *Measure) Median() float64 { return median(m.Values) }

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// Size writes a number of bytes.
func Size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	i := 0
	for n >= 1024 && n%1024 == 0 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	return fmt.Sprintf("%d %s", n, units[i])
}

// Quantity writes a value with a unit that suits it.
func Quantity(v float64, unit string) string {
	switch unit {
	case "s":
		switch {
		case v < 1e-6:
			return fmt.Sprintf("%.0f ns", v*1e9)
		case v < 1e-3:
			return fmt.Sprintf("%.1f µs", v*1e6)
		case v < 1:
			return fmt.Sprintf("%.1f ms", v*1e3)
		}
		return fmt.Sprintf("%.2f s", v)
	case "B":
		return fmt.Sprintf("%.1f MiB", v/(1<<20))
	case "1/s":
		return fmt.Sprintf("%.0f/s", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// ParseResult reads a result.
func ParseResult(r io.Reader) (*Result, error) {
	var text json.RawMessage
	if err := json.NewDecoder(r).Decode(&text); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResult, err)
	}
	// What has no schema at all is another kind of file: its fields would only confuse.
	var kind struct {
		Schema int
		Speed
	}
	if err := json.Unmarshal(text, &kind); err == nil && kind.Schema == 0 && len(kind.Calls.Measures) > 0 {
		return kind.Speed.result(), nil
	}
	if kind.Schema == 0 {
		return nil, fmt.Errorf("%w: it has no schema, so scuda perf run has not written it", ErrResult)
	}
	if kind.Schema < 1 || kind.Schema > Schema {
		return nil, fmt.Errorf("%w: schema %d, this scuda knows up to %d; use the release that wrote it", ErrResult,
			kind.Schema, Schema)
	}
	var x Result
	if err := json.Unmarshal(text, &x); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResult, err)
	}
	return &x, nil
}

// ReadResult reads a result's file.
func ReadResult(path string) (*Result, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	x, err := ParseResult(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return x, nil
}

// Write writes the result as JSON.
func (r *Result) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

func machine() Machine {
	m := Machine{Processors: runtime.NumCPU()}
	m.Host, _ = os.Hostname()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = info.Totalram * uint64(info.Unit)
	}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if name, ok := strings.CutPrefix(s.Text(), "model name"); ok {
				m.Processor = strings.TrimLeft(name, "\t :")
				break
			}
		}
	}
	if out, err := exec.Command("nvidia-smi", "--query-gpu=name,driver_version",
		"--format=csv,noheader").Output(); err == nil {
		for line := range strings.Lines(string(out)) {
			name, driver, _ := strings.Cut(strings.TrimSpace(line), ", ")
			m.GPUs, m.Driver = append(m.GPUs, name), driver
		}
	}
	return m
}
