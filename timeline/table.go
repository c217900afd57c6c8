package timeline

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Sum is how long something took in all.
type Sum struct {
	What    string
	Cause   Cause
	Count   int
	Time    time.Duration
	Longest time.Duration
	Bytes   uint64
}

// adder sums up by what, in the order in which that is first seen.
type adder struct {
	list []*Sum
	by   map[string]*Sum
}

func (a *adder) add(what string, cause Cause, s Span, bytes uint64) {
	x := a.by[what]
	if x == nil {
		if a.by == nil {
			a.by = map[string]*Sum{}
		}
		x = &Sum{What: what, Cause: cause}
		a.by[what] = x
		a.list = append(a.list, x)
	}
	d := time.Duration(s.To - s.From)
	x.Count++
	x.Time += d
	x.Longest = max(x.Longest, d)
	x.Bytes += bytes
}

// longest gives the sums, the longest first.
func (a *adder) longest() []*Sum {
	slices.SortStableFunc(a.list, func(a, b *Sum) int { return cmp.Compare(b.Time, a.Time) })
	return a.list
}

// Time is how long the GPU is looked at.
func (g *GPU) Time() time.Duration { return time.Duration(g.To - g.From) }

// BusyTime is how long it did something for the program.
func (g *GPU) BusyTime() (d time.Duration) {
	for _, s := range g.Busy {
		d += time.Duration(min(s.To, g.To) - max(s.From, g.From))
	}
	return d
}

// Causes sums idle time up by its causes, all of them, in the order in which they are declared.
func (g *GPU) Causes() []*Sum {
	var a adder
	for c := range causes {
		a.add(c.String(), c, Span{}, 0)
		a.list[c].Count = 0
	}
	for _, r := range g.Gaps {
		a.add(r.Cause.String(), r.Cause, r.Span, 0)
	}
	return a.list
}

// Details sums idle time up by what was told of its causes, the longest first.
func (g *GPU) Details() []*Sum {
	var a adder
	for _, r := range g.Gaps {
		what := r.Detail
		if what == "" {
			what = meaning[r.Cause]
		}
		a.add(what, r.Cause, r.Span, 0)
	}
	return a.longest()
}

// meaning says in words what the causes are.
var meaning = [causes]string{
	Program: "the program gave it no work",
	Network: "something was on its way, or a thread waited for an answer",
	Server:  "the server had the work in hand",
	Others:  "it was another session's turn",
}

func share(part, of time.Duration) string {
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(max(of, 1)))
}

// round leaves three digits.
func round(d time.Duration) time.Duration {
	for unit := time.Second; unit > 1; unit /= 10 {
		if d >= 100*unit {
			return d.Round(unit)
		}
	}
	return d
}

const mostDetails = 12

// Table writes why the GPUs were idle.
func (t *Timeline) Table(w io.Writer) error {
	for _, g := range t.GPUs {
		busy := g.BusyTime()
		fmt.Fprintf(w, "\nGPU %d: busy %v of %v (%s) with %d kernels, copies and memsets; why is it idle?\n", g.Device,
			round(busy), round(g.Time()), share(busy, g.Time()), g.Items)
		x := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(x, "time\tshare\tcount\tlongest\t  because of\n")
		line := func(s *Sum, what string) {
			fmt.Fprintf(x, "%v\t%s\t%d\t%v\t  %s\n", round(s.Time), share(s.Time, g.Time()), s.Count, round(s.Longest), what)
		}
		for _, s := range g.Causes() {
			line(s, s.What+": "+meaning[s.Cause])
		}
		fmt.Fprint(x, "\t\t\t\t\n")
		for i, s := range g.Details() {
			if i == mostDetails {
				break
			}
			line(s, s.Cause.String()+": "+s.What)
		}
		if err := x.Flush(); err != nil {
			return err
		}
	}
	if len(t.GPUs) == 0 {
		fmt.Fprint(w, "\nno kernel or copy was recorded on a GPU\n")
	}
	for _, line := range t.Notes() {
		fmt.Fprintln(w, line)
	}
	return nil
}

// Notes say how far the timeline can be trusted.
func (t *Timeline) Notes() (list []string) {
	if len(t.GPUs) > 0 {
		const what = "times are by this machine's clock; those of the server and its GPUs may be wrong by %v, or by %v if " +
			"one way takes far longer than the other (shortest round trip: %v)"
		c := &t.Clock
		list = append(list, fmt.Sprintf(what, round(time.Duration(c.Likely)), round(time.Duration(c.Most)),
			round(time.Duration(c.Shortest))))
	}
	if n := t.Lost; n > 0 {
		list = append(list, fmt.Sprintf("%d events are missing: a process keeps 256 MiB, and the disk has to have room", n))
	}
	if n := t.lostAtServer(); n > 0 {
		list = append(list, fmt.Sprintf("%d records are missing: the server had no room for more until they were fetched", n))
	}
	if pids := t.killed(); len(pids) > 0 {
		list = append(list, fmt.Sprintf("the processes %v did not end in order: what their last 100 ms did on the GPU is "+
			"missing", pids))
	}
	return list
}
