package perf

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrSuite is wrapped by the errors of [ParseSuite].
var ErrSuite = errors.New("unusable suite")

// Places where an entry can run.
const (
	Native = "native"  // on the machine's own driver
	TCP    = "tcp"     // over scuda, big copies over TCP
	RDMA   = "rdma"    // over scuda, big copies over RDMA
	Sim    = "sim"     // over scuda, on a simulated GPU
	Bare   = "machine" // the machine alone, without CUDA
	Link   = "link"    // plain TCP connections that carry the same bytes; scuda bench measures them
)

var places = []string{Native, TCP, RDMA, Sim, Bare}

// Suite is what is measured.
type Suite struct {
	Version     int     `json:"version"` // of this format: 1
	Repetitions int     `json:"repetitions"`
	Entries     []Entry `json:"entries"`
}

// Entry is a program with all combinations of its parameters.
type Entry struct {
	Name string `json:"name"`
	// "bench": scuda-bench; "load": scuda-load; "command": Command; "syscalls": what Command makes beyond Base; "machine":
	// yardsticks
	Kind    string     `json:"kind"`
	Load    string     `json:"load,omitempty"`    // operation of scuda-load
	Sizes   []int64    `json:"sizes,omitempty"`   // bytes; default: 0
	Clients []int      `json:"clients,omitempty"` // processes at once, for Seconds; default: one, Count times
	Count   int        `json:"count,omitempty"`   // operations of a repetition at most; big sizes do fewer
	Seconds float64    `json:"seconds,omitempty"`
	Places  []string   `json:"places"`
	Delays  []Duration `json:"delays,omitempty"` // added to round trips; natively there are none
	// prints a JSON object of seconds by measure (as its last line); scuda-load and scuda-bench are found
	Command []string `json:"command,omitempty"`
	Base    []string `json:"base,omitempty"` // of kind "syscalls": the same program without what is of interest
	// also a part of quick runs, with the first and last of its sizes and delays below 10 ms
	Quick bool `json:"quick,omitempty"`
}

// Duration is a time.Duration written as text.
type Duration time.Duration

// MarshalText gives text such as "1ms".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads it.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

//go:embed suite.json
var defaultSuite []byte

// Default is the suite that comes with scuda.
func Default() *Suite {
	s, err := ParseSuite(defaultSuite)
	if err != nil {
		panic(err) // a test reads it
	}
	return s
}

// ParseSuite reads a suite and checks it.
func ParseSuite(b []byte) (*Suite, error) {
	var s Suite
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSuite, err)
	}
	if s.Version != 1 {
		return nil, fmt.Errorf("%w: version %d, this scuda knows 1", ErrSuite, s.Version)
	}
	if s.Repetitions < 1 || len(s.Entries) == 0 {
		return nil, fmt.Errorf("%w: it needs repetitions and entries", ErrSuite)
	}
	for i := range s.Entries {
		e := &s.Entries[i]
		bad := func(what string) error { return fmt.Errorf("%w: entry %d (%q): %s", ErrSuite, i+1, e.Name, what) }
		switch {
		case e.Name == "" || slices.ContainsFunc(s.Entries[:i], func(o Entry) bool { return o.Name == e.Name }):
			return nil, bad("entries need names of their own")
		case !slices.Contains([]string{"bench", "load", "command", "syscalls", "machine"}, e.Kind):
			return nil, bad("kind is bench, load, command, syscalls or machine")
		case (e.Kind == "load") != (e.Load != "") || (e.Kind == "command" || e.Kind == "syscalls") != (len(e.Command) > 0) ||
			len(e.Base) > 0 && e.Kind != "syscalls":
			return nil, bad("load goes with kind load, command with kinds command and syscalls, base with syscalls")
		case len(e.Places) == 0 || slices.ContainsFunc(e.Places, func(p string) bool { return !slices.Contains(places, p) }):
			return nil, bad("places are native, tcp, rdma, sim and machine")
		case slices.ContainsFunc(e.Places, func(p string) bool { return (p == Bare) != (e.Kind == "machine") }):
			return nil, bad("the place machine goes with kind machine")
		case e.Kind == "load" && len(e.Clients) == 0 && e.Count < 1, len(e.Clients) > 0 && e.Seconds <= 0:
			return nil, bad("a load needs a count, or clients and seconds")
		case slices.ContainsFunc(e.Sizes, func(n int64) bool { return n < 0 }),
			slices.ContainsFunc(e.Clients, func(n int) bool { return n < 1 || n > 256 }),
			slices.ContainsFunc(e.Delays, func(d Duration) bool { return d < 0 }):
			return nil, bad("sizes and delays are not negative, clients are 1 to 256")
		}
	}
	return &s, nil
}

// Only is the suite's entries of these names.
func (s *Suite) Only(names []string) (*Suite, error) {
	o := &Suite{Version: s.Version, Repetitions: s.Repetitions}
	var all []string
	for _, e := range s.Entries {
		all = append(all, e.Name)
		if slices.Contains(names, e.Name) {
			o.Entries = append(o.Entries, e)
		}
	}
	for _, n := range names {
		if !slices.Contains(all, n) {
			return nil, fmt.Errorf("%w: no entry %q; there are %q", ErrSuite, n, all)
		}
	}
	return o, nil
}

// QuickVersion is a shorter suite: the entries that are marked so, with fewer sizes and delays, on the simulated GPU.
func (s *Suite) QuickVersion() *Suite {
	q := &Suite{Version: s.Version, Repetitions: min(s.Repetitions, 5)}
	for _, e := range s.Entries {
		if !e.Quick {
			continue
		}
		if e.Kind != "machine" {
			e.Places = []string{Sim}
		}
		if n := len(e.Sizes); n > 2 {
			e.Sizes = []int64{e.Sizes[0], e.Sizes[n/2]}
		}
		e.Delays = slices.DeleteFunc(slices.Clone(e.Delays), func(d Duration) bool {
			return time.Duration(d) != 0 && time.Duration(d) != time.Millisecond
		})
		e.Clients = slices.DeleteFunc(slices.Clone(e.Clients), func(n int) bool { return n > 4 })
		e.Count, e.Seconds = min(e.Count, 100), min(e.Seconds, 0.5)
		q.Entries = append(q.Entries, e)
	}
	return q
}
