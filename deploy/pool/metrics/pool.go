// Package metrics says to Prometheus how a pool is: servers, GPUs, the queue, leases, and whether etcd answers.
//
// etcd is asked at each scrape, and its answer is not kept: where etcd is away, the pool's figures are missing, and are
// not those of before. Whoever may write to etcd chooses texts there, so next to none becomes a label. Kinds of GPUs
// have a bound. Tenants and addresses are no labels; the servers say themselves what their tenants have. The servers
// that this process announces are labels, as whoever started it has named them.
package metrics

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/transport"
)

// readTime is how long etcd has to answer. A scrape of Prometheus lasts 10 s at most, if nobody says otherwise.
const readTime = 2 * time.Second

// Bounds of the label kind.
const (
	mostKinds   = 32 // in the life of this process: others get no label later, whatever is announced
	longestKind = 96 // bytes, as NVML's names of products
	otherKinds  = "(others)"
)

// States of a GPU.
const (
	free     = "free"
	kept     = "kept"     // nobody has it, and somebody who waits gets it
	leased   = "leased"   // through the pool
	outside  = "outside"  // it is leased otherwise
	draining = "draining" // nobody has it, and nobody gets it, as its server drains
)

var states = []string{free, kept, leased, outside, draining}

// Agent announces a server.
type Agent interface {
	Now() (answers, announced bool)
}

// Pool is the collector of what is known of a pool.
type Pool struct {
	see    func(context.Context) (plan.State, error)
	agents map[string]Agent

	turn  chan struct{} // whoever has put something in may use what follows, and ask etcd
	kinds map[string]bool
	last  answer
	fails float64 // reads, so far
}

// answer is what etcd said.
type answer struct {
	asked time.Time
	took  time.Duration
	st    plan.State
	err   error
}

// New gives the collector. see asks etcd; agents are those of this process, by the addresses of their servers.
func New(see func(context.Context) (plan.State, error), agents map[string]Agent) *Pool {
	return &Pool{see: see, agents: agents, turn: make(chan struct{}, 1), kinds: map[string]bool{}}
}

// read asks etcd, one scrape after the other. Whoever comes meanwhile and has to wait shares the next answer with the
// others who do, so that a scrape lasts as long as two answers at most. It is never older than the scrape.
func (p *Pool) read(came time.Time) {
	if p.last.asked.After(came) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	p.last.asked = time.Now()
	if p.last.st, p.last.err = p.see(ctx); p.last.err != nil {
		p.fails++
	}
	p.last.took = time.Since(p.last.asked)
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	readableDesc = describe("scuda_pool_readable",
		"Whether etcd said how the pool is (1) or not (0); then what else it says of the pool is missing.")
	failuresDesc = describe("scuda_pool_read_failures_total", "Times that etcd did not say it to a scrape.")
	tookDesc     = describe("scuda_pool_read_seconds", "How long etcd took to say it last, or not to.")
	serversDesc  = describe("scuda_pool_servers", "Servers that are announced, by state.", "state")
	gpusDesc     = describe("scuda_pool_gpus", "GPUs of the servers that are announced, by kind and by state.", "kind",
		"state")
	waitingDesc = describe("scuda_pool_waiting", "Requests in the queue.")
	longestDesc = describe("scuda_pool_longest_wait_seconds",
		"How long the oldest request in the queue has waited, by the clock of who waits; 0: there is none.")
	leasesDesc = describe("scuda_pool_leases", "Leases that hold and were taken through the pool.")
	takenDesc  = describe("scuda_pool_leases_taken_total", "Leases that were taken through the pool since etcd was empty.")
	answerDesc = describe("scuda_pool_server_readable",
		"Whether a server that this process announces said how it is when it was asked last (1).", "server")
	announcedDesc = describe("scuda_pool_server_announced",
		"Whether a server that this process announces is in the pool because of it (1).", "server")
)

// Describe is of prometheus.Collector, as Collect is.
func (p *Pool) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{readableDesc, failuresDesc, tookDesc, serversDesc, gpusDesc, waitingDesc,
		longestDesc, leasesDesc, takenDesc, answerDesc, announcedDesc} {
		ch <- d
	}
}

// Collect asks.
func (p *Pool) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for server, a := range p.agents {
		answers, announced := a.Now()
		gauge(answerDesc, number(answers), server)
		gauge(announcedDesc, number(announced), server)
	}
	came := time.Now()
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.read(came)
	st := &p.last.st
	gauge(readableDesc, number(p.last.err == nil))
	ch <- prometheus.MustNewConstMetric(failuresDesc, prometheus.CounterValue, p.fails)
	gauge(tookDesc, p.last.took.Seconds())
	if p.last.err != nil {
		return
	}
	drain := 0
	for i := range st.Servers {
		if st.Servers[i].Draining {
			drain++
		}
	}
	gauge(serversDesc, float64(len(st.Servers)-drain), "open")
	gauge(serversDesc, float64(drain), draining)
	count := p.gpus(st)
	for kind := range p.kinds { // also of servers that are away, so that it is seen
		for _, state := range states {
			gauge(gpusDesc, count[gpu{kind, state}], kind, state)
		}
	}
	for _, state := range states {
		gauge(gpusDesc, count[gpu{otherKinds, state}], otherKinds, state)
	}
	gauge(waitingDesc, float64(len(st.Queue)))
	gauge(longestDesc, longest(st).Seconds())
	gauge(leasesDesc, leases(st))
	ch <- prometheus.MustNewConstMetric(takenDesc, prometheus.CounterValue, float64(st.Taken))
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// gpu is what GPUs are counted by.
type gpu struct{ kind, state string }

// gpus counts them.
func (p *Pool) gpus(st *plan.State) map[gpu]float64 {
	through, other := map[string]owned{}, map[string]owned{} // what the leases of each server have
	for _, h := range st.Held {
		take(through, h.Server, h.GPUs)
	}
	left := map[string]owned{}
	for server, list := range st.Left() {
		take(left, server, list)
	}
	count := map[gpu]float64{}
	for i := range st.Servers {
		s := &st.Servers[i]
		for _, l := range s.Leases {
			of := other
			if strings.HasPrefix(l.Label, plan.Label) {
				of = through
			}
			take(of, s.Address, l.GPUs)
			if len(l.GPUs) == 0 {
				for _, g := range s.GPUs {
					of[s.Address][g.UUID] = true
				}
			}
		}
		for _, g := range s.GPUs {
			state := kept
			switch {
			case through[s.Address][g.UUID]:
				state = leased
			case other[s.Address][g.UUID]:
				state = outside
			case s.Draining:
				state = draining
			case left[s.Address][g.UUID]:
				state = free
			}
			count[gpu{p.kind(g.Name), state}]++
		}
	}
	return count
}

// owned are the UUIDs of a server's GPUs.
type owned map[string]bool

func take(of map[string]owned, server string, uuids []string) {
	if of[server] == nil {
		of[server] = owned{}
	}
	for _, uuid := range uuids {
		of[server][uuid] = true
	}
}

// kind is what GPUs of a name are counted as.
func (p *Pool) kind(name string) string {
	if p.kinds[name] {
		return name
	}
	if len(p.kinds) >= mostKinds || name == "" || len(name) > longestKind || transport.Printable(name) != name {
		return otherKinds
	}
	p.kinds[name] = true
	return name
}

// longest is for how long the oldest request has waited. Clocks may be wrong, and a request may not say it.
func longest(st *plan.State) (wait time.Duration) {
	for i := range st.Queue {
		if since := st.Queue[i].Since; !since.IsZero() {
			wait = max(wait, time.Since(since))
		}
	}
	return wait
}

// leases counts those of the pool. A new one is not in its server's list yet; and one whose program has died, or that
// etcd has forgotten, is only there.
func leases(st *plan.State) float64 {
	type lease struct{ server, id string }
	all := map[lease]bool{}
	for _, h := range st.Held {
		all[lease{h.Server, h.Lease}] = true
	}
	for i := range st.Servers {
		for _, l := range st.Servers[i].Leases {
			if strings.HasPrefix(l.Label, plan.Label) {
				all[lease{st.Servers[i].Address, l.ID}] = true
			}
		}
	}
	return float64(len(all))
}

// NewRegistry has the pool's metrics and those of this process, whose release is said.
func NewRegistry(p *Pool, version string) *prometheus.Registry {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "scuda_pool_build_info", Help: "The release of scuda-pool."},
		[]string{"version", "goversion"})
	info.WithLabelValues(version, runtime.Version()).Set(1)
	r := prometheus.NewRegistry()
	r.MustRegister(p, info, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
