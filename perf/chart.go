package perf

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"
)

// A chart is drawn by rows of text with a track beside it, so labels are text that wraps: nothing is cut off, on a
// phone and on paper either.
type chart struct {
	Title, Note string
	Places      []string // that are drawn, for the key
	Goals       bool     // that some rows have marks of what is asked
	Ticks       []tick
	Rows        []chartRow
}

// tick is a line of the axis, at a percentage of the track.
type tick struct {
	At   float64
	Text string
	Main bool // native, on an axis of ratios
}

type chartRow struct {
	Name   string
	Marks  []mark
	Values []value
	Goal   *Goal
}

// mark is a point of a track. Its class is a place, "goal", or one of both with "low" or "high" where the axis ends
// before it.
type mark struct {
	At    float64
	Class string
	Title string
}

type value struct{ Class, Text string }

// axis maps values to percentages of a track.
type axis struct {
	low, high float64
	log       bool
}

func (a axis) at(v float64) (percent float64, edge string) {
	x := (v - a.low) / (a.high - a.low)
	if a.log {
		x = math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	switch {
	case x < 0:
		return 0, " low"
	case x > 1:
		return 100, " high"
	}
	return math.Round(x*1e4) / 100, ""
}

// pair is what one thing took at the places where it was measured, natively or over scuda.
type pair struct {
	name   string
	unit   string
	first  *Measure // of them, for order and meaning
	native *Measure
	remote map[string]*Measure
}

// ratio is what it took over scuda of what it takes natively; 0 where that is not known.
func (p *pair) ratio() float64 {
	m := p.best()
	if p.native == nil || m == nil || p.native.Median() <= 0 {
		return 0
	}
	return m.Median() / p.native.Median()
}

// best is the measure over scuda that counts: on a GPU before a simulated one, as over any network before RDMA.
func (p *pair) best() *Measure {
	for _, place := range []string{TCP, RDMA, Sim} {
		if m := p.remote[place]; m != nil {
			return m
		}
	}
	return nil
}

func (p *pair) measures() (list []*Measure) {
	for _, m := range []*Measure{p.native, p.remote[TCP], p.remote[RDMA], p.remote[Sim]} {
		if m != nil {
			list = append(list, m)
		}
	}
	return list
}

// pairs puts together what belongs together.
func pairs(r *Result) (list []*pair) {
	byName := map[string]*pair{}
	for i := range r.Measures {
		m := &r.Measures[i]
		if m.Place == Bare || m.Place == Link || len(m.Values) == 0 || m.Party != nil {
			continue // parties have tables
		}
		key := fmt.Sprint(m.Entry, "\x00", m.Name, "\x00", m.Bytes, "\x00", m.Clients, "\x00", m.Delay, "\x00", m.Unit,
			"\x00", m.Mode)
		p := byName[key]
		if p == nil {
			p = &pair{name: label(m), unit: m.Unit, first: m, remote: map[string]*Measure{}}
			byName[key] = p
			list = append(list, p)
		}
		if m.Place == Native {
			p.native = m
		} else {
			p.remote[m.Place] = m
		}
	}
	return list
}

func label(m *Measure) string {
	name := m.Name
	if program, ok := strings.CutPrefix(m.Entry, "system calls of "); ok {
		name = program + ": " + name
	}
	for _, unit := range []string{" (MiB)", " (count)", " (cores)"} {
		name = strings.TrimSuffix(name, unit)
	}
	if m.Bytes > 0 {
		name += ", " + Size(m.Bytes)
	}
	if m.Delay > 0 {
		name += ", " + time.Duration(m.Delay).String() + " further"
	}
	if m.Mode != "" {
		name += ", " + m.Mode
	}
	return name
}

// ratios draws what each took over scuda, as a multiple of the native time.
func ratios(title string, list []*pair) *chart {
	const low, high = 1. / 8, 8.
	a := axis{low, high, true}
	c := &chart{Title: title, Places: []string{TCP}, Note: "Left of the line scuda is faster than the driver itself. " +
		"An arrow: beyond the axis."}
	for _, v := range []float64{low, .25, .5, 1, 2, 4, high} {
		at, _ := a.at(v)
		text := fmt.Sprintf("%g ×", v)
		if v < 1 {
			text = fmt.Sprintf("1/%g ×", 1/v)
		}
		c.Ticks = append(c.Ticks, tick{at, text, v == 1})
	}
	for _, p := range list {
		m := p.best()
		ratio := p.ratio()
		if ratio <= 0 {
			continue
		}
		row := chartRow{Name: p.name, Goal: m.Goal, Values: []value{
			{"ratio", fmt.Sprintf("%.2f ×", ratio)},
			{"times", Quantity(p.native.Median(), p.unit) + " → " + Quantity(m.Median(), p.unit)},
		}}
		row.goal(a, p.native.Median(), c)
		at, edge := a.at(ratio)
		row.Marks = append(row.Marks, mark{at, m.Place + edge, ""})
		c.Rows = append(c.Rows, row)
	}
	return c.orNil()
}

// goal marks what is asked of the row.
func (row *chartRow) goal(a axis, of float64, c *chart) {
	if row.Goal == nil || row.Goal.Most <= 0 {
		return
	}
	if at, edge := a.at(row.Goal.Most / of); edge == "" {
		row.Marks = append(row.Marks, mark{at, "goal", "asked: " + row.Goal.Text})
		c.Goals = true
	}
}

// amounts draws what each took as points on an axis of the unit: a logarithmic one for times, one from zero for others.
func amounts(title string, list []*pair) *chart {
	low, high := math.Inf(1), 0.
	for _, p := range list {
		for _, m := range p.measures() {
			if v := m.Median(); v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if high == 0 || len(list) == 0 {
		return nil
	}
	unit := list[0].unit
	c := &chart{Title: title}
	a := axis{0, nice(high), false}
	if unit == "B" {
		a.high = nice(high/(1<<20)) * (1 << 20)
	}
	if unit == "s" {
		a = axis{math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high))), true}
		if a.low == a.high {
			a.high *= 10
		}
		decades := int(math.Round(math.Log10(a.high / a.low)))
		for d := 0; d <= decades; d += max(1, (decades+4)/5) {
			v := a.low * math.Pow(10, float64(d))
			at, _ := a.at(v)
			c.Ticks = append(c.Ticks, tick{at, short(v, unit), false})
		}
	} else {
		for i := range 5 {
			v := a.high * float64(i) / 4
			c.Ticks = append(c.Ticks, tick{float64(i) * 25, short(v, unit), false})
		}
	}
	for _, p := range list {
		row := chartRow{Name: p.name}
		if m := p.best(); m != nil {
			row.Goal = m.Goal
		}
		row.goal(a, 1, c)
		for _, m := range p.measures() {
			text := Quantity(m.Median(), unit)
			row.Values = append(row.Values, value{m.Place, text})
			if !slices.Contains(c.Places, m.Place) {
				c.Places = append(c.Places, m.Place)
			}
			if at, edge := a.at(m.Median()); m.Median() > 0 || !a.log {
				row.Marks = append(row.Marks, mark{at, m.Place + edge, m.Place + ": " + text})
			}
		}
		c.Rows = append(c.Rows, row)
	}
	slices.SortFunc(c.Places, func(x, y string) int {
		return cmp.Compare(slices.Index(places, x), slices.Index(places, y))
	})
	return c.orNil()
}

func (c *chart) orNil() *chart {
	if len(c.Rows) == 0 {
		return nil
	}
	return c
}

// nice is a round number not below v.
func nice(v float64) float64 {
	e := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 3, 4, 5, 6, 8, 10} {
		if f*e >= v {
			return f * e
		}
	}
	return 10 * e
}

// short is a value on an axis.
func short(v float64, unit string) string {
	if unit == "B" {
		return fmt.Sprintf("%.4g MiB", v/(1<<20))
	}
	return strings.Replace(Quantity(v, unit), ".0 ", " ", 1)
}

// A line is a measure over a size or a number of clients, at a place.
type line struct {
	Place  string
	Points map[int64]float64
}

// lines are plots that share their axes.
type lines struct {
	unit  string // of y, as a text behind its numbers
	size  func(int64) string
	high  float64
	plots []*plot
}

type plot struct {
	Title string
	lines []*line
}

func (l *lines) add(title, place string, x int64, y float64) {
	i := slices.IndexFunc(l.plots, func(p *plot) bool { return p.Title == title })
	if i < 0 {
		i = len(l.plots)
		l.plots = append(l.plots, &plot{Title: title})
	}
	p := l.plots[i]
	k := slices.IndexFunc(p.lines, func(n *line) bool { return n.Place == place })
	if k < 0 {
		k = len(p.lines)
		p.lines = append(p.lines, &line{place, map[int64]float64{}})
	}
	p.lines[k].Points[x] = y
	l.high = max(l.high, y)
}

// places are all that are drawn.
func (l *lines) places() (list []string) {
	for _, p := range append(slices.Clone(places), Link) {
		if slices.ContainsFunc(l.plots, func(q *plot) bool {
			return slices.ContainsFunc(q.lines, func(n *line) bool { return n.Place == p })
		}) {
			list = append(list, p)
		}
	}
	return list
}

// SVG draws a plot. Its text is as big as the page's where the plot is as wide as a phone.
func (l *lines) svg(p *plot) template.HTML {
	const width, height, left, right, top, bottom = 340., 220., 44., 10., 10., 28.
	var xs []int64
	for _, q := range l.plots {
		for _, n := range q.lines {
			for x := range n.Points {
				xs = append(xs, x)
			}
		}
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	high := nice(l.high)
	x := func(v int64) float64 {
		i, _ := slices.BinarySearch(xs, v)
		return left + (width-left-right)*(float64(i)+.5)/float64(len(xs))
	}
	y := func(v float64) float64 { return top + (height-top-bottom)*(1-v/high) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="plot" viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, height,
		template.HTMLEscapeString(p.Title))
	for i := range 5 {
		v := high * float64(i) / 4
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text x="%g" y="%.1f" `+
			`text-anchor="end">%s</text>`, left, width-right, y(v), y(v), left-5, y(v)+4, trimmed(v))
	}
	for i, v := range xs {
		if len(xs) <= 5 || i%2 == (len(xs)-1)%2 {
			fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, x(v), height-8, l.size(v))
		}
	}
	for _, n := range p.lines {
		var points []string
		class := template.HTMLEscapeString(n.Place) // whatever a result says
		for _, v := range xs {
			if w, ok := n.Points[v]; ok {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(v), y(w)))
				fmt.Fprintf(&b, `<circle class="%s" cx="%.1f" cy="%.1f" r="3.5"><title>%s, %s: %s %s</title></circle>`, class,
					x(v), y(w), class, l.size(v), trimmed(w), l.unit)
			}
		}
		fmt.Fprintf(&b, `<polyline class="%s" points="%s"/>`, class, strings.Join(points, " "))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

func trimmed(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
