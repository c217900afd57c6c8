package timeline

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"time"

	"scuda.dev/scuda/config"
)

// columns is how finely the page draws time.
const columns = 1000

// classes are those of causes in the page's style, and of busy time.
var classes = [causes]string{"program", "network", "server", "others"}

const busyClass = "busy"

// band is a piece of a drawn row.
type band struct {
	X, Width float64 // of columns
	Class    string
	Title    string
}

// lane is a drawn row.
type lane struct {
	Name  string
	Bands []band
}

// picture is time from left to right.
type picture struct {
	Lanes []lane
	Ticks []tick
}

type tick struct {
	X    float64
	Text string
}

// painter draws spans into columns: of what lies in one column, what takes most of it is seen.
type painter struct {
	from, to int64
	of       [columns]map[string]int64 // time by class
	titles   map[string]string
}

func (p *painter) add(s Span, class, title string) {
	s.From, s.To = max(s.From, p.from), min(s.To, p.to)
	if s.To <= s.From {
		return
	}
	if p.titles == nil {
		p.titles = map[string]string{}
	}
	p.titles[class] = title
	width := max(float64(p.to-p.from)/columns, 1)
	for at := s.From; at < s.To; {
		i := min(int(float64(at-p.from)/width), columns-1)
		end := s.To
		if i < columns-1 {
			end = min(end, max(p.from+int64(float64(i+1)*width), at+1))
		}
		if p.of[i] == nil {
			p.of[i] = map[string]int64{}
		}
		p.of[i][class] += end - at
		at = end
	}
}

func (p *painter) bands() (list []band) {
	for i, m := range p.of {
		best := ""
		for class, d := range m {
			if best == "" || d > m[best] || (d == m[best] && class < best) {
				best = class
			}
		}
		if best == "" {
			continue
		}
		if n := len(list) - 1; n >= 0 && list[n].Class == best && list[n].X+list[n].Width == float64(i) {
			list[n].Width++
		} else {
			list = append(list, band{float64(i), 1, best, p.titles[best]})
		}
	}
	return list
}

// mostLanes keeps the picture within a screen.
const mostLanes = 24

func (t *Timeline) picture() picture {
	var pic picture
	paint := func(name string, f func(*painter)) {
		p := &painter{from: t.From, to: t.To}
		f(p)
		if b := p.bands(); len(b) > 0 && len(pic.Lanes) < mostLanes {
			pic.Lanes = append(pic.Lanes, lane{name, b})
		}
	}
	for _, g := range t.GPUs {
		paint(fmt.Sprintf("GPU %d", g.Device), func(p *painter) {
			for _, s := range g.Busy {
				p.add(s, busyClass, "busy")
			}
			for i := range g.Gaps {
				c := g.Gaps[i].Cause
				p.add(g.Gaps[i].Span, classes[c], c.String()+": "+meaning[c])
			}
		})
	}
	for _, p := range t.Processes {
		streams := map[[2]uint32]bool{}
		for i := range p.Work {
			streams[[2]uint32{p.Work[i].Device, p.Work[i].Stream}] = true
		}
		byNumber := func(a, b [2]uint32) int { return slices.Compare(a[:], b[:]) }
		for _, key := range slices.SortedFunc(maps.Keys(streams), byNumber) {
			paint(fmt.Sprintf("GPU %d, stream %d (%d)", key[0], key[1], p.PID), func(a *painter) {
				for i := range p.Work {
					if w := &p.Work[i]; w.Device == key[0] && w.Stream == key[1] {
						a.add(w.Span, busyClass, "kernels, copies, memsets")
					}
				}
			})
		}
		threads := map[uint32]bool{}
		for i := range p.Calls {
			threads[p.Calls[i].Thread] = true
		}
		for _, thread := range slices.Sorted(maps.Keys(threads)) {
			paint(fmt.Sprintf("%s (%d)", p.Threads[thread], thread), func(a *painter) { p.thread(a, thread) })
		}
	}
	for i := range 6 {
		x := float64(i) * columns / 5
		at := time.Duration(float64(t.To-t.From) * x / columns)
		pic.Ticks = append(pic.Ticks, tick{x, round(at).String()})
	}
	return pic
}

// thread paints a thread's calls, and within them what it waited for.
func (p *Process) thread(a *painter, thread uint32) {
	var waits []Span
	for i := range p.Waits {
		if w := &p.Waits[i]; w.Thread == thread {
			waits = append(waits, Span{w.Began, w.Ended})
			a.add(Span{w.Began, w.Ended}, "network", "it waits: for answers, bytes, room in the queue")
		}
	}
	waits = Union(waits)
	next := 0
	for i := range p.Calls {
		c := &p.Calls[i]
		if c.Thread != thread {
			continue
		}
		for next < len(waits) && waits[next].To <= c.Began {
			next++
		}
		end := next
		for end < len(waits) && waits[end].From < c.Ended {
			end++
		}
		for _, s := range Without(Span{c.Began, c.Ended}, waits[next:end]) {
			a.add(s, "call", "in calls of the driver")
		}
	}
}

// sums is one of the page's tables.
type sums struct {
	Title, Of string
	Bytes     bool
	Rows      []*Sum
}

const mostRows = 20

// tables sum up what took time.
func (t *Timeline) tables() (list []sums) {
	var work, copies, calls, waits, ranges adder
	for _, p := range t.Processes {
		for i := range p.Work {
			w := &p.Work[i]
			if w.Bytes > 0 {
				copies.add(w.Title(), 0, w.Span, w.Bytes)
			} else {
				work.add(w.Title(), 0, w.Span, 0)
			}
		}
		for i := range p.Calls {
			c := &p.Calls[i]
			calls.add(c.Name, 0, Span{c.Began, c.Ended}, 0)
		}
		for i := range p.Waits {
			w := &p.Waits[i]
			waits.add(w.Why.String()+", "+Operation(w.Op), 0, Span{w.Began, w.Ended}, w.Bytes)
		}
		for i := range p.Ranges {
			r := &p.Ranges[i]
			name := r.Text
			if r.Domain != "" {
				name = r.Domain + ": " + name
			}
			ranges.add(name, 0, r.Span, 0)
		}
	}
	for _, x := range []sums{
		{"Kernels", "kernel", false, work.longest()},
		{"Copies and memsets", "copy", true, copies.longest()},
		{"Waits of the program's threads", "wait for", true, waits.longest()},
		{"Calls of the driver", "call", false, calls.longest()},
		{"Ranges of NVTX", "range", false, ranges.longest()},
	} {
		if len(x.Rows) > 0 {
			x.Rows = x.Rows[:min(len(x.Rows), mostRows)]
			list = append(list, x)
		}
	}
	return list
}

// transport is how many bytes went by what.
type transport struct {
	Name           string
	Sent, Received config.Size
}

func (t *Timeline) transports() (list []transport) {
	var sent, received, sentR, receivedR config.Size
	for _, p := range t.Processes {
		if n := len(p.Traffic); n > 0 {
			last := &p.Traffic[n-1]
			sent, received = sent+config.Size(last.Sent), received+config.Size(last.Received)
			sentR, receivedR = sentR+config.Size(last.SentR), receivedR+config.Size(last.ReceivedR)
		}
	}
	list = append(list, transport{"TCP", sent, received})
	if sentR+receivedR > 0 {
		list = append(list, transport{"RDMA", sentR, receivedR})
	}
	return list
}

// headline says the most important in a sentence.
func (t *Timeline) headline() string {
	if len(t.GPUs) == 0 {
		return "No kernel or copy was recorded on a GPU"
	}
	g := t.GPUs[0]
	most := slices.MaxFunc(g.Causes(), func(a, b *Sum) int { return int(a.Time - b.Time) })
	text := fmt.Sprintf("GPU %d was busy for %s of the time", g.Device, share(g.BusyTime(), g.Time()))
	if most.Time > 0 {
		text += fmt.Sprintf("; it was idle mostly because of: %s", most.What)
	}
	return text
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("timeline").Funcs(template.FuncMap{
	"round": round, "share": share,
	"size":    func(n uint64) config.Size { return config.Size(n) },
	"class":   func(c Cause) string { return classes[c] },
	"meaning": func(c Cause) string { return meaning[c] },
	"percent": func(part, of time.Duration) string { return fmt.Sprintf("%.3f", 100*float64(part)/float64(max(of, 1))) },
	"first":   func(list []*Sum) []*Sum { return list[:min(len(list), mostDetails)] },
	"gaps":    longestGaps,
	"since":   func(t *Timeline, at int64) time.Duration { return round(time.Duration(at - t.From)) },
	"lasts":   func(s Span) time.Duration { return round(time.Duration(s.To - s.From)) },
	"y":       func(i int) int { return 28 * i },
	"add":     func(a, b int) int { return a + b },
}).Parse(pageText))

func longestGaps(g *GPU) []Reason {
	list := slices.Clone(g.Gaps)
	slices.SortStableFunc(list, func(a, b Reason) int { return int((b.To - b.From) - (a.To - a.From)) })
	return list[:min(len(list), 10)]
}

// HTML writes the timeline as a page that needs nothing else.
func (t *Timeline) HTML(w io.Writer) error {
	return page.Execute(w, struct {
		T          *Timeline
		Headline   string
		Picture    picture
		Tables     []sums
		Transports []transport
		Notes      []string
	}{t, t.headline(), t.picture(), t.tables(), t.transports(), t.Notes()})
}
