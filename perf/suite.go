package perf

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Modes of sharing a GPU.
const (
	Plain = "plain" // as the driver shares it
	Turns = "turns" // scuda serve --turns
	MPS   = "mps"   // programs, or the server's workers, under NVIDIA's MPS
)

var modes = []string{Plain, Turns, MPS}

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
	Parties []Party    `json:"parties,omitempty"` // that work at once, for Seconds; instead of Clients
	Alone   bool       `json:"alone,omitempty"`   // each party also works by itself, with which it is compared
	Places  []string   `json:"places"`
	Modes   []string   `json:"modes,omitempty"`  // of sharing; natively there are no turns, on a simulated GPU no MPS
	GPU     string     `json:"gpu,omitempty"`    // what is simulated at the place sim; default: sim
	Delays  []Duration `json:"delays,omitempty"` // added to round trips; natively there are none
	// prints a JSON object of seconds by measure (as its last line), with clients or parties what scuda-load with a
	// count of 0 does; scuda-load and scuda-bench are found
	Command []string `json:"command,omitempty"`
	Base    []string `json:"base,omitempty"` // of kind "syscalls": the same program without what is of interest
	// also a part of quick runs, with the first and last of its sizes and delays below 10 ms
	Quick bool `json:"quick,omitempty"`
}

// Party are clients with one lease: they have a share (a weight) and a class together.
type Party struct {
	Name    string   `json:"name"`
	Clients int      `json:"clients,omitempty"` // default: 1
	Share   uint32   `json:"share,omitempty"`   // default: the server's
	Class   string   `json:"class,omitempty"`   // low, normal or high; default: normal
	Load    string   `json:"load,omitempty"`    // of scuda-load; default: the entry's
	Size    int64    `json:"size,omitempty"`
	Command []string `json:"command,omitempty"` // default: the entry's
}

func (p *Party) check(e *Entry) bool {
	return p.Name != "" && p.Clients >= 0 && p.Clients <= 256 && p.Share <= 10_000 && p.Size >= 0 &&
		slices.Contains([]string{"", "low", "normal", "high"}, p.Class) && (p.Load == "" || len(p.Command) == 0) &&
		(p.Load != "" || len(p.Command) > 0 || e.Load != "" || len(e.Command) > 0)
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
		case len(e.Parties) > 0 && (e.Kind != "load" && e.Kind != "command" || len(e.Clients)+len(e.Sizes) > 0),
			slices.ContainsFunc(e.Parties, func(p Party) bool { return !p.check(e) || e.named(p.Name) != 1 }),
			e.Alone && len(e.Parties) < 2:
			return nil, bad("parties go with kinds load and command, without clients and sizes; they have names of their own, " +
				"shares of up to 10000 and a class (low, normal, high); alone goes with several of them")
		case len(e.Parties) == 0 && ((e.Kind == "load") != (e.Load != "") ||
			(e.Kind == "command" || e.Kind == "syscalls") != (len(e.Command) > 0) || len(e.Base) > 0 && e.Kind != "syscalls"):
			return nil, bad("load goes with kind load, command with kinds command and syscalls, base with syscalls")
		case slices.ContainsFunc(e.Modes, func(m string) bool { return !slices.Contains(modes, m) }),
			len(e.Modes) > 0 && e.Kind == "machine":
			return nil, bad("modes are plain, turns and mps")
		case e.GPU != "" && e.GPU != "sim" && !strings.HasPrefix(e.GPU, "sim:"):
			return nil, bad("gpu is what is simulated, such as sim:1,turns=1ms")
		case len(e.Places) == 0 || slices.ContainsFunc(e.Places, func(p string) bool { return !slices.Contains(places, p) }):
			return nil, bad("places are native, tcp, rdma, sim and machine")
		case slices.ContainsFunc(e.Places, func(p string) bool { return (p == Bare) != (e.Kind == "machine") }):
			return nil, bad("the place machine goes with kind machine")
		case e.Kind == "load" && !e.atOnce() && e.Count < 1, e.atOnce() && e.Seconds <= 0:
			return nil, bad("a load needs a count, or clients or parties and seconds")
		case slices.ContainsFunc(e.Sizes, func(n int64) bool { return n < 0 }),
			slices.ContainsFunc(e.Clients, func(n int) bool { return n < 1 || n > 256 }),
			slices.ContainsFunc(e.Delays, func(d Duration) bool { return d < 0 }):
			return nil, bad("sizes and delays are not negative, clients are 1 to 256")
		}
	}
	return &s, nil
}

// named is how many parties have a name.
func (e *Entry) named(name string) (n int) {
	for _, p := range e.Parties {
		if p.Name == name {
			n++
		}
	}
	return n
}

// atOnce says whether several clients work at once.
func (e *Entry) atOnce() bool { return len(e.Clients)+len(e.Parties) > 0 }

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
		e.Modes = slices.DeleteFunc(slices.Clone(e.Modes), func(m string) bool { return m == MPS })
		e.Count = min(e.Count, 100)
		if len(e.Parties) == 0 { // half a second is few turns
			e.Seconds = min(e.Seconds, 0.5)
		}
		q.Entries = append(q.Entries, e)
	}
	return q
}
