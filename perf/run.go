package perf

import (
	"bufio"
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

// Where is a place in a run: the environment of programs there. Close ends what serves it.
type Where struct {
	Env   []string
	Close func()
}

// Options are what a run needs to know.
type Options struct {
	Suite *Suite
	Quick bool
	Scuda string // version, for the result
	Bench string // path of scuda-bench
	Load  string // path of scuda-load
	// Open prepares a place with a further delay of the network. Its error says why there is none, which skips what would
	// run there.
	Open func(ctx context.Context, place string, delay time.Duration) (*Where, error)
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
	entry   *Entry
	place   string
	delay   time.Duration
	bytes   int64
	clients int
	failed  bool
	found   map[string]*Measure
	order   []string
}

// Run carries a suite out. What cannot be measured is listed in the result, which an interruption does not lose; an
// error means that there is none.
func Run(ctx context.Context, o Options) (*Result, error) {
	r := &Result{Schema: Schema, Scuda: o.Scuda, Started: time.Now().UTC().Truncate(time.Second), Quick: o.Quick,
		Repetitions: o.Suite.Repetitions, Machine: machine(),
		Measures: []Measure{}, Skipped: []Skipped{}}
	began := time.Now()
	opened := map[string]*Where{}
	defer func() {
		for _, w := range opened {
			w.Close()
		}
	}()
	tasks := o.Suite.tasks()
	for _, t := range tasks {
		key := t.place + t.delay.String()
		if _, ok := opened[key]; ok || t.failed {
			continue
		}
		w, err := o.Open(ctx, t.place, t.delay)
		if err == nil {
			opened[key] = w
			continue
		}
		r.Skipped = append(r.Skipped, Skipped{
			"everything", strings.TrimSuffix(t.place+" +"+t.delay.String(), " +0s"), err.Error(), t.place == Sim,
		})
		for _, other := range tasks {
			other.failed = other.failed || other.place == t.place && other.delay == t.delay
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
			if err := t.run(ctx, &o, opened[t.place+t.delay.String()]); err != nil {
				if ctx.Err() != nil {
					r.Partial = true
					break repetitions
				}
				t.failed = true
				r.Skipped = append(r.Skipped, Skipped{t.title(), t.place, err.Error(), !errors.Is(err, baseline.ErrNoCounter)})
			}
		}
	}
	for _, t := range tasks {
		for _, name := range t.order {
			m := t.found[name]
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
		for _, place := range e.Places {
			for _, delay := range or(e.Delays, 0) {
				if place == Native && delay != 0 {
					continue
				}
				for _, size := range or(e.Sizes, 0) {
					for _, clients := range or(e.Clients, 0) {
						list = append(list, &task{
							entry: e, place: place, delay: time.Duration(delay), bytes: size, clients: clients, found: map[string]*Measure{},
						})
					}
				}
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
	return (&Measure{
		Entry: t.entry.Name, Name: t.entry.Name, Place: t.place, Bytes: t.bytes, Clients: t.clients, Delay: Duration(t.delay),
	}).Key()
}

// measure gives the measure of a name, made when it is first asked for.
func (t *task) measure(name, unit string, command []string) *Measure {
	m := t.found[name]
	if m == nil {
		command = append([]string{filepath.Base(command[0])}, command[1:]...) // the folder says nothing to others
		m = &Measure{
			Entry: t.entry.Name, Name: name, Place: t.place, Delay: Duration(t.delay), Bytes: t.bytes, Clients: t.clients,
			Unit: unit, Command: command,
		}
		t.found[name] = m
		t.order = append(t.order, name)
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
		return t.runJSON(ctx, w, []string{o.Bench})
	case t.entry.Kind == "command":
		return t.runJSON(ctx, w, o.resolve(t.entry.Command))
	case t.entry.Kind == "syscalls":
		return t.runSystemCalls(ctx, o, w)
	case t.clients > 0:
		return t.runClients(ctx, o.Load, w)
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
	if t.delay > 0 {
		n = min(n, int(2*time.Second/t.delay))
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

// runClients lets several processes work at once: their throughput, how evenly it is shared (Jain's index: 1 is even,
// 1/n one takes all; R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984) and the 99th percentile of their operations.
func (t *task) runClients(ctx context.Context, load string, w *Where) error {
	command := t.command(load, 0)
	type client struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out *bufio.Reader
	}
	ctx, cancel := context.WithCancel(ctx)
	var list []client
	defer func() {
		cancel()
		for _, c := range list {
			_ = c.cmd.Wait()
		}
	}()
	for range t.clients {
		p := program(ctx, w, command)
		in, err := p.StdinPipe()
		if err != nil {
			return err
		}
		out, err := p.StdoutPipe()
		if err != nil {
			return err
		}
		if err := p.Start(); err != nil {
			return err
		}
		list = append(list, client{p, in, bufio.NewReaderSize(out, 64<<10)})
	}
	for _, c := range list {
		if line, err := c.out.ReadString('\n'); err != nil || line != "ready\n" {
			_ = c.cmd.Wait()
			return failure(c.cmd, fmt.Errorf("a client did not get ready: %w", err))
		}
	}
	for _, c := range list {
		fmt.Fprintln(c.in, t.entry.Seconds)
	}
	type answer struct {
		times []float64
		err   error
	}
	answers := make(chan answer, len(list))
	for _, c := range list {
		go func() {
			out, err := io.ReadAll(c.out)
			var a answer
			if a.err = err; err == nil {
				a.times, a.err = parseTimes(out)
			}
			answers <- a
		}()
	}
	var all []float64
	var sum, squares float64
	var failed error
	for range list {
		a := <-answers
		failed = errors.Join(failed, a.err)
		n := float64(len(a.times))
		sum, squares = sum+n, squares+n*n
		all = append(all, a.times...)
	}
	if failed != nil {
		return failed
	}
	add := func(name, unit string, higher bool, v float64) {
		m := t.measure(name, unit, command)
		m.Higher = higher
		m.Values = append(m.Values, v)
	}
	add("throughput", "1/s", true, sum/t.entry.Seconds)
	add("fairness", "1", true, sum*sum/(float64(t.clients)*squares))
	slices.Sort(all)
	add("p99", "s", false, all[len(all)*99/100])
	return t.found["p99"].record(all)
}
