package perf

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"scuda.dev/scuda/perf/baseline"
)

// Site says where and how programs run.
type Site struct {
	Place string
	Delay time.Duration // added to round trips
	Mode  string        // of sharing
	GPU   string        // that is simulated, at the place sim
}

func (s *Site) text() string {
	text := s.Place
	if s.Delay > 0 {
		text += " +" + s.Delay.String()
	}
	if s.Mode != Plain {
		text += ", " + s.Mode
	}
	if s.GPU != "" {
		text += ", " + s.GPU
	}
	return text
}

// Where is a site in a run: the environment of programs there. Close ends what serves it. Lease gives an environment
// to the clients of a party, and is nil where there are no leases: natively.
type Where struct {
	Env   []string
	Lease func(ctx context.Context, p *Party) (env []string, err error)
	Close func()
}

// Options are what a run needs to know.
type Options struct {
	Suite *Suite
	Quick bool
	Scuda string // version, for the result
	Bench string // path of scuda-bench
	Load  string // path of scuda-load
	// Open prepares a site. Its error says why there is none, which skips what would run there.
	Open func(ctx context.Context, s Site) (*Where, error)
	// Progress is told what begins, and how much of all is done; nil: nobody wants to know.
	Progress func(done, all int64, what string)
}

const (
	leastCount   = 3
	mostBytes    = int64(2) << 30 // of one repetition of a load
	loadTimeout  = 3 * time.Minute
	longestValue = int64(10 * time.Minute)
)

// task is one program at one place with one set of parameters.
type task struct {
	entry *Entry
	Site
	bytes   int64
	clients int
	failed  bool
	found   map[key]*Measure
	order   []key
}

// Run carries a suite out. What cannot be measured is listed in the result, which an interruption does not lose; an
// error means that there is none.
func Run(ctx context.Context, o Options) (*Result, error) {
	r := &Result{Schema: Schema, Scuda: o.Scuda, Started: time.Now().UTC().Truncate(time.Second), Quick: o.Quick,
		Repetitions: o.Suite.Repetitions, Machine: machine(),
		Measures: []Measure{}, Skipped: []Skipped{}}
	began := time.Now()
	opened := map[Site]*Where{}
	defer func() {
		for _, w := range opened {
			w.Close()
		}
	}()
	tasks := o.Suite.tasks()
	for _, t := range tasks {
		if _, ok := opened[t.Site]; ok || t.failed {
			continue
		}
		w, err := o.Open(ctx, t.Site)
		if err == nil {
			opened[t.Site] = w
			continue
		}
		r.Skipped = append(r.Skipped, Skipped{"everything", t.Site.text(), err.Error(), t.Place == Sim})
		for _, other := range tasks {
			other.failed = other.failed || other.Site == t.Site
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// The repetitions of a task lie as far apart as they can, so that a disturbance of the machine falls on one of each.
repetitions:
	for i := range o.Suite.Repetitions {
		for k, t := range tasks {
			if t.failed {
				continue
			}
			if o.Progress != nil {
				o.Progress(int64(i*len(tasks)+k), int64(o.Suite.Repetitions*len(tasks)),
					fmt.Sprintf("repetition %d of %d: %s", i+1, o.Suite.Repetitions, t.title()))
			}
			if err := t.run(ctx, &o, opened[t.Site]); err != nil {
				if ctx.Err() != nil {
					r.Partial = true
					break repetitions
				}
				t.failed = true
				r.Skipped = append(r.Skipped, Skipped{t.title(), t.Place, err.Error(), !errors.Is(err, baseline.ErrNoCounter)})
			}
		}
	}
	for _, t := range tasks {
		for _, k := range t.order {
			m := t.found[k]
			if m.all != nil {
				if err := m.distribute(); err != nil {
					return nil, err
				}
			}
			r.Measures = append(r.Measures, *m)
		}
	}
	r.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	return r, nil
}

func (s *Suite) tasks() (list []*task) {
	for i := range s.Entries {
		e := &s.Entries[i]
		for _, site := range e.sites() {
			for _, size := range or(e.Sizes, 0) {
				for _, clients := range or(e.Clients, 0) {
					list = append(list, &task{entry: e, Site: site, bytes: size, clients: clients, found: map[key]*Measure{}})
				}
			}
		}
	}
	return list
}

// sites are where an entry's programs run.
func (e *Entry) sites() (list []Site) {
	for _, place := range e.Places {
		for _, delay := range or(e.Delays, 0) {
			for _, mode := range or(e.Modes, Plain) {
				if place == Native && (delay != 0 || mode == Turns) || place == Sim && mode == MPS {
					continue
				}
				s := Site{Place: place, Delay: time.Duration(delay), Mode: mode}
				if place == Sim && e.GPU != "sim" {
					s.GPU = e.GPU
				}
				list = append(list, s)
			}
		}
	}
	return list
}

func or[T any](list []T, otherwise T) []T {
	if len(list) == 0 {
		return []T{otherwise}
	}
	return list
}

func (t *task) title() string {
	m := t.blank(key{name: t.entry.Name})
	return m.Key()
}

// key tells the measures of a task apart. The party is none for those of all.
type key struct{ name, party string }

// blank is a measure of this task without values.
func (t *task) blank(k key) *Measure {
	m := &Measure{Entry: t.entry.Name, Name: k.name, Place: t.Place, Delay: Duration(t.Delay), Bytes: t.bytes,
		Clients: t.clients}
	if t.Mode != Plain {
		m.Mode = t.Mode
	}
	return m
}

// measure gives the measure of a name, made when it is first asked for.
func (t *task) measure(name, unit string, command []string) *Measure {
	return t.measureOf(key{name: name}, unit, command)
}

func (t *task) measureOf(k key, unit string, command []string) *Measure {
	m := t.found[k]
	if m == nil {
		command = append([]string{filepath.Base(command[0])}, command[1:]...) // the folder says nothing to others
		m = t.blank(k)
		m.Unit, m.Command = unit, command
		t.found[k] = m
		t.order = append(t.order, k)
	}
	return m
}

func (t *task) run(ctx context.Context, o *Options, w *Where) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	switch {
	case t.entry.Kind == "machine":
		return t.runMachine()
	case t.entry.Kind == "bench":
		command := []string{o.Bench}
		if o.Quick {
			command = append(command, "few")
		}
		return t.runJSON(ctx, w, command)
	case t.entry.atOnce():
		return t.runClients(ctx, o, w)
	case t.entry.Kind == "command":
		return t.runJSON(ctx, w, o.resolve(t.entry.Command))
	case t.entry.Kind == "syscalls":
		return t.runSystemCalls(ctx, o, w)
	}
	return t.runLoad(ctx, o.Load, w)
}

// program starts a program and gives its output.
func program(ctx context.Context, w *Where, command []string) *exec.Cmd {
	p := exec.CommandContext(ctx, command[0], command[1:]...)
	p.Env, p.Stderr = w.Env, new(bytes.Buffer)
	return p
}

func failure(p *exec.Cmd, err error) error {
	if text := strings.TrimSpace(p.Stderr.(*bytes.Buffer).String()); text != "" {
		lines := strings.Split(text, "\n")
		return fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return err
}

// resolve finds scuda's own programs.
func (o *Options) resolve(command []string) []string {
	command = slices.Clone(command)
	switch command[0] {
	case "scuda-load":
		command[0] = o.Load
	case "scuda-bench":
		command[0] = o.Bench
	}
	return command
}

// runSystemCalls counts the system calls that a program makes, less those of its base.
func (t *task) runSystemCalls(ctx context.Context, o *Options, w *Where) error {
	count := func(command []string) (*baseline.Run, error) {
		var text bytes.Buffer
		r, err := baseline.Config{Command: o.resolve(command), Env: w.Env, Stdout: io.Discard, Stderr: &text}.Count(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", command[0], failure(&exec.Cmd{Stderr: &text}, err))
		}
		return r, nil
	}
	base := new(baseline.Run)
	if len(t.entry.Base) > 0 {
		var err error
		if base, err = count(t.entry.Base); err != nil {
			return err
		}
	}
	run, err := count(t.entry.Command)
	if err != nil {
		return err
	}
	add := func(name string, calls []string, class string) {
		m := t.measure(name, "1", t.entry.Command)
		m.Values = append(m.Values, float64(run.Sum(calls, class))-float64(base.Sum(calls, class)))
	}
	for _, row := range baseline.Rows {
		add(row.Name, row.Calls, "")
		if row.ByDescriptor {
			add(row.Name+", network", row.Calls, "network")
		}
	}
	return nil
}

// runJSON runs a program that prints seconds (MiB where a name says so) by measure.
func (t *task) runJSON(ctx context.Context, w *Where, command []string) error {
	p := program(ctx, w, command)
	out, err := p.Output()
	if err != nil {
		return failure(p, err)
	}
	if i := bytes.LastIndex(out, []byte("\n{")); i >= 0 { // what programs print before it is theirs
		out = out[i+1:]
	}
	var v map[string]float64
	if err := json.Unmarshal(out, &v); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		unit, value := "s", v[name]
		switch {
		case strings.HasSuffix(name, "(MiB)"):
			unit, value = "B", value*(1<<20)
		case strings.HasSuffix(name, "(count)"), strings.HasSuffix(name, "(cores)"):
			unit = "1"
		}
		m := t.measure(name, unit, command)
		m.Values = append(m.Values, value)
	}
	return nil
}

// count is how many operations of a size a repetition has.
func (t *task) count() int {
	n := t.entry.Count
	if t.bytes > 0 {
		n = min(n, int(mostBytes/t.bytes))
	}
	if t.Delay > 0 {
		n = min(n, int(2*time.Second/t.Delay))
	}
	return max(n, leastCount)
}

func (t *task) command(load string, count int) []string {
	return []string{load, t.entry.Load, strconv.FormatInt(t.bytes, 10), strconv.Itoa(count)}
}

func (t *task) runLoad(ctx context.Context, load string, w *Where) error {
	command := t.command(load, t.count())
	p := program(ctx, w, command)
	out, err := p.Output()
	if err != nil {
		return failure(p, err)
	}
	times, err := parseTimes(out)
	if err != nil {
		return err
	}
	m := t.measure(t.entry.Name, "s", command)
	m.Values = append(m.Values, median(times))
	return m.record(times)
}

func parseTimes(out []byte) (times []float64, err error) {
	for line := range strings.Lines(string(out)) {
		ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return nil, err
		}
		times = append(times, float64(ns)*1e-9)
	}
	if len(times) == 0 {
		return nil, errors.New("the load timed nothing")
	}
	return times, nil
}

// record adds single operations to the measure's distribution.
func (m *Measure) record(times []float64) error {
	if m.all == nil {
		m.all = hdrhistogram.New(1, longestValue, 3)
	}
	for _, v := range times {
		if err := m.all.RecordValue(max(int64(v*1e9), 1)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Measure) distribute() error {
	code, err := m.all.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return err
	}
	if _, err := base64.StdEncoding.DecodeString(string(code)); err != nil {
		code = []byte(base64.StdEncoding.EncodeToString(code))
	}
	at := func(q float64) float64 { return float64(m.all.ValueAtQuantile(q)) * 1e-9 }
	m.Distribution = &Percentiles{
		m.all.TotalCount(), at(50), at(90), at(99), at(99.9), float64(m.all.Max()) * 1e-9, string(code),
	}
	return nil
}
