package metrics

import "github.com/prometheus/client_golang/prometheus"

// Turns is what has come of the turns of a class of sessions.
type Turns struct {
	Class  string
	Turns  uint64
	Waited float64 // seconds, of all that waited
}

// TurnCounts offers what it gives: what has come of turns, by class; none where nobody takes turns.
type TurnCounts func() []Turns

var (
	turnsDesc = prometheus.NewDesc("scuda_turns_total",
		"Turns on a GPU that tenants and leases were given, by class.", []string{"class"}, nil)
	turnWaitDesc = prometheus.NewDesc("scuda_turn_wait_seconds_total",
		"Seconds that tenants and leases waited for a turn on a GPU with work to hand over, by class.",
		[]string{"class"}, nil)
)

// Describe is of prometheus.Collector, as Collect is.
func (TurnCounts) Describe(ch chan<- *prometheus.Desc) {
	ch <- turnsDesc
	ch <- turnWaitDesc
}

// Collect asks.
func (c TurnCounts) Collect(ch chan<- prometheus.Metric) {
	for _, t := range c() {
		ch <- prometheus.MustNewConstMetric(turnsDesc, prometheus.CounterValue, float64(t.Turns), t.Class)
		ch <- prometheus.MustNewConstMetric(turnWaitDesc, prometheus.CounterValue, t.Waited, t.Class)
	}
}
