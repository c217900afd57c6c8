package perf

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
)

// crew are the clients of a party: what they run, and what each operation of each of them took, in seconds.
type crew struct {
	party   *Party // with all its defaults; of an entry without parties one without a name
	command []string
	env     []string
	took    [][]float64 // by client
}

// Names of measures. Jain's index (1 is even, 1/n one takes all; R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984) is of
// what each client does for its weight, the share of its party divided by its clients.
const (
	throughputName = "throughput"
	fairnessName   = "fairness"
	p99Name        = "p99"
	worstName      = "worst"
	workName       = "work to weight"
	ofAloneName    = "throughput to alone"
	p99AloneName   = "p99 to alone"
)

const usualShare = 100

// crews are what works at once.
func (t *task) crews(ctx context.Context, o *Options, w *Where) (list []*crew, err error) {
	if len(t.entry.Parties) == 0 {
		c := &crew{party: &Party{Clients: t.clients, Share: usualShare, Class: "normal"}, env: w.Env}
		c.command = t.clientCommand(o, &Party{Size: t.bytes})
		return []*crew{c}, nil
	}
	for i := range t.entry.Parties {
		p := t.entry.Parties[i]
		p.Clients, p.Share, p.Class = max(p.Clients, 1), cmp.Or(p.Share, usualShare), cmp.Or(p.Class, "normal")
		c := &crew{party: &p, command: t.clientCommand(o, &p), env: w.Env}
		if w.Lease != nil {
			if c.env, err = w.Lease(ctx, &p); err != nil {
				return nil, fmt.Errorf("a lease for %s: %w", p.Name, err)
			}
		}
		list = append(list, c)
	}
	return list, nil
}

// clientCommand is what a client of a party runs. It gets ready, and works when it is told for how long.
func (t *task) clientCommand(o *Options, p *Party) []string {
	load := p.Load
	if load == "" && len(p.Command) == 0 {
		load = t.entry.Load
	}
	if load != "" {
		return []string{o.Load, load, strconv.FormatInt(p.Size, 10), "0"}
	}
	command := p.Command
	if len(command) == 0 {
		command = t.entry.Command
	}
	return o.resolve(command)
}

// runClients lets several processes work at once: of all, and of each party, the throughput, the 99th percentile of the
// operations and the worst; how evenly work is shared, and how it is beside the weights, among those that do the same
// work in one class; and what is left of what a party does alone.
func (t *task) runClients(ctx context.Context, o *Options, w *Where) error {
	list, err := t.crews(ctx, o, w)
	if err != nil {
		return err
	}
	alone := make([]*crew, len(list))
	if t.entry.Alone {
		for i, c := range list {
			only := *c
			if err := t.work(ctx, w, &only); err != nil {
				return fmt.Errorf("%s alone: %w", c.party.Name, err)
			}
			alone[i] = &only
		}
	}
	if err := t.work(ctx, w, list...); err != nil {
		return err
	}
	all := &crew{party: &Party{}, command: list[0].command}
	for _, c := range list {
		all.took = append(all.took, c.took...)
	}
	t.clients = len(all.took)
	if all.count() == 0 {
		return errors.New("the clients did nothing")
	}
	if err := t.times(all); err != nil {
		return err
	}
	if same(list) {
		t.note(all, fairnessName, "1", true, jain(list))
	}
	if len(t.entry.Parties) == 0 {
		return nil
	}
	for i, c := range list {
		if err := t.times(c); err != nil {
			return err
		}
		if r, ok := workToWeight(peersOf(list, c), c); ok {
			t.note(c, workName, "1", true, r)
		}
		if a := alone[i]; a != nil && a.count() > 0 {
			t.note(c, ofAloneName, "1", true, float64(c.count())/float64(a.count()))
			if c.count() > 0 {
				t.note(c, p99AloneName, "1", false, c.percentile(99)/a.percentile(99))
			}
		}
	}
	return nil
}

// note adds a value of a repetition to a measure of a crew.
func (t *task) note(c *crew, name, unit string, higher bool, v float64) *Measure {
	m := t.measureOf(key{name, c.party.Name}, unit, c.command)
	m.Higher = higher
	m.Values = append(m.Values, v)
	if c.party.Name != "" {
		m.Party, m.Clients = c.party, c.party.Clients
	}
	return m
}

// times notes what tells of operations.
func (t *task) times(c *crew) error {
	t.note(c, throughputName, "1/s", true, float64(c.count())/t.entry.Seconds)
	if c.count() == 0 {
		return nil
	}
	err := t.note(c, p99Name, "s", false, c.percentile(99)).record(c.sorted())
	t.note(c, worstName, "s", false, c.percentile(100))
	return err
}

func (c *crew) count() (n int) {
	for _, took := range c.took {
		n += len(took)
	}
	return n
}

func (c *crew) sorted() []float64 {
	all := slices.Concat(c.took...)
	slices.Sort(all)
	return all
}

func (c *crew) percentile(p int) float64 {
	all := c.sorted()
	return all[min(len(all)*p/100, len(all)-1)]
}

// comparable says whether two crews do the same work with the same right to go first.
func (c *crew) comparable(o *crew) bool {
	return c.party.Class == o.party.Class && slices.Equal(c.command, o.command)
}

func same(list []*crew) bool {
	return !slices.ContainsFunc(list, func(c *crew) bool { return !c.comparable(list[0]) })
}

func peersOf(list []*crew, c *crew) (peers []*crew) {
	for _, o := range list {
		if c.comparable(o) {
			peers = append(peers, o)
		}
	}
	return peers
}

// jain is Jain's index of what clients do for their weights.
func jain(list []*crew) float64 {
	n, sum, squares := 0., 0., 0.
	for _, c := range list {
		weight := float64(c.party.Share) / float64(c.party.Clients)
		for _, took := range c.took {
			x := float64(len(took)) / weight
			n, sum, squares = n+1, sum+x, squares+x*x
		}
	}
	return sum * sum / (n * squares)
}

// workToWeight is a crew's part of the work to its part of the weights: 1 is what is meant. It says nothing of a crew
// without peers.
func workToWeight(peers []*crew, c *crew) (ratio float64, ok bool) {
	work, weight := 0., 0.
	for _, o := range peers {
		work, weight = work+float64(o.count()), weight+float64(o.party.Share)
	}
	if len(peers) < 2 || work == 0 {
		return 0, false
	}
	return float64(c.count()) / work / (float64(c.party.Share) / weight), true
}

// client is a process of a crew.
type client struct {
	of  *crew
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(ctx context.Context, w *Where, of *crew) (*client, error) {
	p := program(ctx, &Where{Env: of.env, Close: w.Close}, of.command)
	in, err := p.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &client{of, p, in, bufio.NewReaderSize(out, 64<<10)}, p.Start()
}

// ready waits until a client says that it could begin. What programs print before that is theirs.
func (c *client) ready() error {
	for {
		line, err := c.out.ReadString('\n')
		switch {
		case err != nil:
			_ = c.cmd.Wait()
			return failure(c.cmd, fmt.Errorf("a client did not get ready: %w", err))
		case line == "ready\n":
			return nil
		}
	}
}

// work lets all clients of crews work at once, for as long as the entry says.
func (t *task) work(ctx context.Context, w *Where, crews ...*crew) error {
	ctx, cancel := context.WithCancel(ctx)
	var list []*client
	defer func() {
		cancel()
		for _, c := range list {
			_ = c.cmd.Wait()
		}
	}()
	for _, of := range crews {
		for range of.party.Clients {
			c, err := start(ctx, w, of)
			if err != nil {
				return err
			}
			list = append(list, c)
		}
	}
	for _, c := range list {
		if err := c.ready(); err != nil {
			return err
		}
	}
	for _, c := range list {
		fmt.Fprintln(c.in, t.entry.Seconds)
	}
	type answer struct {
		of    *crew
		times []float64
		err   error
	}
	answers := make(chan answer, len(list))
	for _, c := range list {
		go func() {
			out, err := io.ReadAll(c.out)
			a := answer{of: c.of, err: err}
			if err := c.cmd.Wait(); err != nil {
				a.err = errors.Join(a.err, failure(c.cmd, err))
			}
			if a.err == nil && len(out) > 0 { // one that was let do nothing says nothing
				a.times, a.err = parseTimes(out)
			}
			answers <- a
		}()
	}
	var failed error
	for _, of := range crews {
		of.took = nil
	}
	for range list {
		a := <-answers
		failed = errors.Join(failed, a.err)
		a.of.took = append(a.of.took, a.times)
	}
	return failed
}
