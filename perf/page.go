package perf

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

var placeNames = map[string]string{Native: "native", TCP: "scuda over TCP", RDMA: "scuda over RDMA",
	Sim: "scuda with the simulated GPU", Link: "the link: plain TCP connections", Bare: "the machine"}

// question is a section of the page: measures are grouped by what a reader asks.
type question struct {
	Title  string
	Charts []*chart
	Plots  *lines
	Unit   string // of the plots
	Shares []*shares
}

// subject says which question a pair answers.
func subject(p *pair) string {
	m, name := p.first, p.name
	switch {
	case m.Clients > 0:
		return clients // of parties, too: their tables stand for themselves
	case m.Delay > 0 || strings.HasSuffix(name, " further"):
		return distance
	case m.Unit != "s" && m.Unit != "1/s":
		return effort
	case copied(m) > 0:
		return copies
	case strings.Contains(name, "unified memory"):
		return unified
	case strings.HasPrefix(name, "import ") || strings.HasPrefix(name, "first tensor") ||
		strings.HasPrefix(name, "from cuInit") || strings.HasPrefix(name, "loading"):
		return starts
	case m.Entry == "micro" || slices.Contains([]string{"launch and synchronise", "allocate and free"}, m.Entry):
		return single
	}
	return programs
}

const (
	programs = "How fast do programs run?"
	starts   = "How long until a program starts?"
	single   = "What does a call cost?"
	copies   = "How fast are copies?"
	unified  = "How fast is unified memory?"
	distance = "What if the server is further away?"
	clients  = "How many clients does a server bear?"
	sharing  = "Who gets how much of a GPU?"
	effort   = "What does it take of the machine?"
)

var bulk = regexp.MustCompile(`^(\d+) (B|KiB|MiB|GiB) (.*to the (?:device|host).*)$`)

// copied is how many bytes a measure copies between program and GPU; 0: it is no such copy.
func copied(m *Measure) int64 {
	if m.Bytes > 0 && (strings.Contains(m.Name, "to the device") || strings.Contains(m.Name, "to the host")) {
		return m.Bytes
	}
	n, _ := plainSize(m.Name)
	return n
}

// plainSize reads names such as "16 MiB pinned to the host" and "64 KiB to the host, pageable".
func plainSize(name string) (bytes int64, what string) {
	match := bulk.FindStringSubmatch(name)
	if match == nil {
		return 0, ""
	}
	var n int64
	_, _ = fmt.Sscan(match[1], &n)
	n <<= 10 * slices.Index([]string{"B", "KiB", "MiB", "GiB"}, match[2])
	what = match[3]
	if rest, ok := strings.CutSuffix(what, ", pageable"); ok {
		what = "pageable " + rest
	}
	if strings.HasPrefix(what, "to the") {
		what = "pageable " + what
	}
	return n, what
}

// questions are the sections of a result.
func questions(r *Result) (list []*question) {
	by := map[string][]*pair{}
	for _, p := range pairs(r) {
		by[subject(p)] = append(by[subject(p)], p)
	}
	for _, title := range []string{programs, starts, copies, single, unified, distance, clients, sharing, effort} {
		q := &question{Title: title}
		group := by[title]
		switch title {
		case programs, starts, unified:
			slices.SortStableFunc(group, func(x, y *pair) int { return cmp.Compare(x.rank(), y.rank()) })
			q.add(ratios("Time over scuda, natively 1", group))
			q.add(amounts("Times", withoutRatio(group)))
		case copies:
			q.Unit, q.Plots = "GB/s, by the size of a copy", throughput(r)
		case single:
			slices.SortStableFunc(group, func(x, y *pair) int { return cmp.Compare(x.time(), y.time()) })
			q.add(amounts("Time of a call, where it is made", group))
		case distance:
			slices.SortStableFunc(group, func(x, y *pair) int { return cmp.Compare(x.first.Delay, y.first.Delay) })
			q.add(amounts("Times; the axis is logarithmic", group))
		case clients:
			q.Unit, q.Plots = "operations a second of all, by clients", perClients(r, group)
		case sharing:
			for _, g := range groups(r) {
				if g.Shares != nil {
					q.Shares = append(q.Shares, g.Shares)
				}
			}
		case effort:
			for _, kind := range []struct{ title, suffix, unit string }{
				{"Memory", "", "B"}, {"Processors", "(cores)", "1"}, {"How often", "", "1"},
			} {
				var same []*pair
				for _, p := range group {
					cores := strings.HasSuffix(p.first.Name, "(cores)")
					if p.unit == kind.unit && cores == (kind.suffix != "") {
						same = append(same, p)
					}
				}
				q.add(amounts(kind.title, same))
			}
		}
		if len(q.Charts) > 0 || q.Plots != nil || len(q.Shares) > 0 {
			list = append(list, q)
		}
	}
	return list
}

func (q *question) add(c *chart) {
	if c != nil {
		q.Charts = append(q.Charts, c)
	}
}

// rank sorts programs by what most readers came for.
func (p *pair) rank() int {
	order := []string{"training", "inference", "generating", "graph", "JAX", "compiled", "Triton"}
	if i := slices.IndexFunc(order, func(s string) bool { return strings.Contains(p.name, s) }); i >= 0 {
		return i
	}
	return len(order)
}

func (p *pair) time() float64 {
	if m := p.best(); m != nil {
		return m.Median()
	}
	return p.native.Median()
}

func withoutRatio(list []*pair) (rest []*pair) {
	for _, p := range list {
		if p.ratio() == 0 {
			rest = append(rest, p)
		}
	}
	return rest
}

// throughput is bytes a second over the size, a plot for each kind of copy; with what plain connections carry.
func throughput(r *Result) *lines {
	l := &lines{unit: "GB/s", size: Size}
	add := func(m *Measure, what string, n int64) {
		if m.Median() > 0 {
			l.add(what, m.Place, n, float64(n)/m.Median()/1e9)
		}
	}
	for i := range r.Measures {
		m := &r.Measures[i]
		n := copied(m)
		if n == 0 || m.Delay > 0 || m.Place == Link || m.Place == Bare {
			continue
		}
		// What the suite measures by itself counts more than the same among the single calls.
		if _, what := plainSize(m.Name); what == "" {
			add(m, m.Name, n)
		} else if !slices.ContainsFunc(r.Measures, func(x Measure) bool { return x.Bytes > 0 && x.Name == what }) {
			add(m, what, n)
		}
	}
	if len(l.plots) == 0 {
		return nil
	}
	for i := range r.Measures {
		m := &r.Measures[i]
		if name, ok := strings.CutSuffix(m.Name, " over plain TCP"); ok && m.Place == Link {
			if n, _ := plainSize(name + " to the host"); n > 0 {
				for _, p := range l.plots {
					add(m, p.Title, n)
				}
			}
		}
	}
	return l
}

// perClients is the throughput over the number of clients.
func perClients(r *Result, group []*pair) *lines {
	l := &lines{unit: "a second", size: func(n int64) string { return fmt.Sprint(n) }}
	for _, p := range group {
		for _, m := range p.measures() {
			if m.Unit == "1/s" && sharesOf(r, m.Entry) == nil {
				l.add(strings.TrimSuffix(m.Entry+": "+m.Name+", "+m.Mode, ", "), m.Place, int64(m.Clients), m.Median())
			}
		}
	}
	if len(l.plots) == 0 {
		return nil
	}
	return l
}

// headline is what a result says, in a sentence.
func headline(r *Result) string {
	low, high := math.Inf(1), 0.
	launch := ""
	for _, p := range pairs(r) {
		if p.first.Delay > 0 || p.unit != "s" || strings.HasSuffix(p.name, "further") {
			continue
		}
		if v := p.ratio(); v > 0 && strings.Contains(p.name, "training") {
			low, high = min(low, v), max(high, v)
		}
		if m := p.best(); m != nil && p.name == "launch and synchronise" && launch == "" {
			launch = fmt.Sprintf("a launch and its answer take %s", Quantity(m.Median(), "s"))
			if m.Place == Sim {
				launch += " on a simulated GPU"
			}
			if p.native != nil {
				launch += fmt.Sprintf(", natively %s", Quantity(p.native.Median(), "s"))
			}
		}
	}
	parts := []string{}
	if high > 0 {
		from, to := fmt.Sprintf("%.2f", low), fmt.Sprintf("%.2f", high)
		if from != to {
			to = from + " to " + to
		}
		parts = append(parts, "Training over scuda takes "+to+" times the native time")
	}
	if launch != "" {
		parts = append(parts, launch)
	}
	if len(parts) == 0 {
		return fmt.Sprintf("%d measures of scuda %s", len(r.Measures), r.Scuda)
	}
	text := strings.Join(parts, "; ")
	return strings.ToUpper(text[:1]) + text[1:]
}

// targets says how many of the goals are met, and names the others.
func targets(r *Result) string {
	all, missed := 0, []string{}
	for i := range r.Measures {
		if g := r.Measures[i].Goal; g != nil {
			all++
			if !g.Met {
				missed = append(missed, r.Measures[i].Name+" ("+g.Text+")")
			}
		}
	}
	switch {
	case all == 0:
		return ""
	case len(missed) == 0:
		return fmt.Sprintf("All %d targets are met.", all)
	}
	return fmt.Sprintf("%d of %d targets are missed: %s.", len(missed), all, strings.Join(missed, "; "))
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"svg": (*lines).svg, "quantity": Quantity, "place": func(p string) string { return placeNames[p] },
	"met": func(g *Goal) string {
		if g.Met {
			return "met"
		}
		return "missed"
	},
}).Parse(pageText))

// HTML writes a result, and a comparison if there is one, as a page that needs nothing else.
func HTML(w io.Writer, r *Result, changes []Change) error {
	day := ""
	if !r.Started.IsZero() {
		day = r.Started.Format(time.DateOnly)
	}
	return page.Execute(w, struct {
		R                               *Result
		Headline, Targets, Day, Machine string
		Questions                       []*question
		Groups                          []*group
		Changes                         []Change
	}{r, headline(r), targets(r), day, r.Machine.text(), questions(r), groups(r), changes})
}

// Plots are the drawings, for the page.
func (l *lines) Plots() []*plot { return l.plots }

// Places are those of the key.
func (l *lines) Places() []string { return l.places() }
