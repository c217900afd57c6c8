package perf

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Markdown writes a result as a table for each entry.
func Markdown(w io.Writer, r *Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s with scuda %s on %s:\n%d × %s, %.0f GiB, Linux %s%s.\nMedians of %d repetitions.\n",
		r.Started.Format("2006-01-02"), r.Scuda, r.Machine.Host, r.Machine.Processors, r.Machine.Processor,
		float64(r.Machine.Memory)/(1<<30), r.Machine.Kernel, gpuText(&r.Machine), r.Repetitions)
	for _, g := range groups(r) {
		fmt.Fprintf(&b, "\n### %s\n\n| measure |", g.Title)
		for _, p := range g.Columns {
			fmt.Fprintf(&b, " %s |", p)
		}
		fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---|", len(g.Columns)))
		for _, row := range g.Rows {
			fmt.Fprintf(&b, "| %s |", row.Name)
			for _, m := range row.Cells {
				if m == nil {
					b.WriteString("  |")
					continue
				}
				fmt.Fprintf(&b, " %s |", Quantity(m.Median(), m.Unit))
			}
			b.WriteString("\n")
		}
	}
	if len(r.Skipped) > 0 {
		b.WriteString("\nNot measured:\n\n")
		for _, s := range r.Skipped {
			fmt.Fprintf(&b, "- %s (%s): %s\n", s.Entry, s.Place, s.Reason)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func gpuText(m *Machine) string {
	if len(m.GPUs) == 0 {
		return ", no GPU"
	}
	return fmt.Sprintf(", %d × %s (driver %s)", len(m.GPUs), m.GPUs[0], m.Driver)
}

// group is an entry in a report: columns are places and delays, rows what else differs.
type group struct {
	Title   string
	Columns []string
	Rows    []row
}

type row struct {
	Name  string
	X     float64
	Cells []*Measure
}

func groups(r *Result) (list []*group) {
	byEntry := map[string]*group{}
	for i := range r.Measures {
		m := &r.Measures[i]
		g := byEntry[m.Entry]
		if g == nil {
			g = &group{Title: m.Entry}
			byEntry[m.Entry] = g
			list = append(list, g)
		}
		column := m.Place
		if m.Delay > 0 {
			column += " +" + time.Duration(m.Delay).String()
		}
		c := slices.Index(g.Columns, column)
		if c < 0 {
			c = len(g.Columns)
			g.Columns = append(g.Columns, column)
		}
		name, x := m.Name, float64(m.Bytes)
		switch {
		case m.Bytes > 0:
			name = Size(m.Bytes)
		case m.Clients > 0:
			name, x = fmt.Sprintf("%s, %d clients", m.Name, m.Clients), float64(m.Clients)
		}
		k := slices.IndexFunc(g.Rows, func(o row) bool { return o.Name == name })
		if k < 0 {
			k = len(g.Rows)
			g.Rows = append(g.Rows, row{Name: name, X: x})
		}
		for len(g.Rows[k].Cells) <= c {
			g.Rows[k].Cells = append(g.Rows[k].Cells, nil)
		}
		g.Rows[k].Cells[c] = m
	}
	for _, g := range list {
		for i := range g.Rows {
			for len(g.Rows[i].Cells) < len(g.Columns) {
				g.Rows[i].Cells = append(g.Rows[i].Cells, nil)
			}
		}
	}
	return list
}

var colours = []string{"#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#5b5b5b", "#0f9d9d", "#a83279"}

func colour(i int) string { return colours[i%len(colours)] }

const (
	plotWidth, plotHeight = 720.0, 280.0
	left, bottom, top     = 80.0, 40.0, 12.0
)

// plot draws the group: lines over sizes or clients where these vary, else bars. Only the measures with the first one's
// unit are drawn.
func (g *group) plot() template.HTML {
	var b strings.Builder
	lowest, highest := math.Inf(1), 0.0
	unit := ""
	for _, r := range g.Rows {
		for _, m := range r.Cells {
			if m != nil && m.Median() > 0 && (unit == "" || m.Unit == unit) {
				unit = m.Unit
				lowest, highest = min(lowest, m.Median()), max(highest, m.Median())
			}
		}
	}
	if highest == 0 {
		return ""
	}
	low, high := math.Floor(math.Log10(lowest)), math.Ceil(math.Log10(highest))
	if low == high {
		high++
	}
	var rows []row // those that go together on one axis
	for _, r := range g.Rows {
		if slices.ContainsFunc(r.Cells, func(m *Measure) bool { return m != nil && m.Unit == unit }) {
			rows = append(rows, r)
		}
	}
	if len(rows) < 2 || rows[0].X == 0 {
		return g.bars(rows, unit, low, high)
	}
	y := func(v float64) float64 {
		return top + (plotHeight-top-bottom)*(1-(math.Log10(v)-low)/(high-low))
	}
	fmt.Fprintf(&b, `<svg class="plot" viewBox="0 0 %g %g" role="img" aria-label="%s">`, plotWidth, plotHeight,
		template.HTMLEscapeString(g.Title))
	for d := low; d <= high; d++ {
		fmt.Fprintf(&b,
			`<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`,
			left, plotWidth, y(math.Pow(10, d)), y(math.Pow(10, d)), left-6, y(math.Pow(10, d))+4,
			template.HTMLEscapeString(Quantity(math.Pow(10, d), unit)))
	}
	step := (plotWidth - left - 16) / float64(len(rows))
	at := func(i int) float64 { return left + 8 + step*(float64(i)+0.5) }
	for i, r := range rows {
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, at(i), plotHeight-bottom+18,
			template.HTMLEscapeString(r.Name))
	}
	for c, column := range g.Columns {
		var points []string
		for i, r := range rows {
			m := r.Cells[c]
			if m == nil || m.Unit != unit || m.Median() <= 0 {
				continue
			}
			spread := slices.Sorted(slices.Values(m.Values))
			title := template.HTMLEscapeString(fmt.Sprintf("%s, %s: %s (%s to %s)", column, r.Name, Quantity(m.Median(), unit),
				Quantity(spread[0], unit), Quantity(spread[len(spread)-1], unit)))
			points = append(points, fmt.Sprintf("%.1f,%.1f", at(i), y(m.Median())))
			if spread[0] > 0 {
				fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="%s"/>`, at(i), at(i),
					clamp(y(spread[len(spread)-1])), clamp(y(spread[0])), colour(c))
			}
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s</title></circle>`, at(i), y(m.Median()),
				colour(c), title)
		}
		if len(points) > 1 {
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>`, colour(c),
				strings.Join(points, " "))
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// bars draws a bar for each place of each row, from 10^low on.
func (g *group) bars(rows []row, unit string, low, high float64) template.HTML {
	const names, thick, gap = 300.0, 11.0, 6.0
	each := thick*float64(len(g.Columns)) + gap
	height := each*float64(len(rows)) + 24
	x := func(v float64) float64 { return names + (plotWidth-names-80)*(math.Log10(v)-low)/(high-low) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="plot" viewBox="0 0 %g %g" role="img" aria-label="%s">`, plotWidth, height,
		template.HTMLEscapeString(g.Title))
	for d := low; d <= high; d++ {
		v := math.Pow(10, d)
		if high-low > 5 && math.Mod(d-low, 3) != 0 {
			continue // no room for its label
		}
		fmt.Fprintf(&b,
			`<line class="grid" x1="%.1f" x2="%.1f" y1="0" y2="%g"/><text x="%.1f" y="%g" text-anchor="middle">%s</text>`,
			x(v), x(v), height-20, x(v), height-6, template.HTMLEscapeString(Quantity(v, unit)))
	}
	for i, r := range rows {
		at := each * float64(i)
		fmt.Fprintf(&b, `<text x="%g" y="%.1f" text-anchor="end">%s</text>`, names-6, at+each/2+1,
			template.HTMLEscapeString(r.Name))
		for c, m := range r.Cells {
			if m == nil || m.Unit != unit || m.Median() <= 0 {
				continue
			}
			fmt.Fprintf(&b, `<rect x="%g" y="%.1f" width="%.1f" height="%g" fill="%s"/><text x="%.1f" y="%.1f">%s</text>`,
				names, at+thick*float64(c), max(x(m.Median())-names, 1), thick-1, colour(c), x(m.Median())+4, at+thick*float64(c)+9,
				template.HTMLEscapeString(Quantity(m.Median(), unit)))
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

func clamp(y float64) float64 { return min(max(y, top), plotHeight-bottom) }

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"plot": (*group).plot, "colour": colour, "quantity": Quantity, "gpu": func(m Machine) string { return gpuText(&m) },
	"gib":   func(n uint64) string { return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30)) },
	"delay": func(d Duration) string { return time.Duration(d).String() },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>scuda: measurements of {{.R.Started.Format "2006-01-02"}}</title>
<link rel="icon" href="data:,">
<style>
body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2.2rem}
table{border-collapse:collapse;font-size:13px}td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}
.plot{width:100%;height:auto}.plot text{font-size:11px;fill:#555}.grid{stroke:#e4e4e4}
.key span{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}.worse{color:#b3261e}.better{color:#2e7d32}
details{margin:.6rem 0}
</style></head><body>
<h1>scuda {{.R.Scuda}}: measurements</h1>
<p>{{.R.Started.Format "2006-01-02 15:04 MST"}}, {{.R.Machine.Host}}: {{.R.Machine.Processors}} ×
{{.R.Machine.Processor}}, {{gib .R.Machine.Memory}}, Linux {{.R.Machine.Kernel}}{{gpu .R.Machine}}.
{{.R.Repetitions}} interleaved repetitions{{if .R.Quick}} of the quick suite{{end}}; medians. Axes are logarithmic;
lines across points are the range of the repetitions.</p>
{{if .Changes}}<h2>Against the older result</h2><table>
<tr><th>measure</th><th>before</th><th>now</th><th>ratio</th><th>95 %</th><th>p</th><th></th></tr>
{{range .Changes}}<tr><td>{{.Key}}</td><td>{{quantity .Old .Unit}}</td><td>{{quantity .New .Unit}}</td>
<td>{{printf "%.2f" .Ratio}}</td><td>{{printf "%.2f–%.2f" .Low .High}}</td><td>{{printf "%.3f" .P}}</td>
<td class="{{.Verdict}}">{{.Verdict}}</td></tr>
{{end}}</table>{{end}}
{{range .Groups}}{{$g := .}}<section><h2>{{.Title}}</h2>
<p class="key">{{range $i, $c := .Columns}}<span style="background:{{colour $i}}"></span>{{$c}}{{end}}</p>
{{plot .}}
<details><summary>figures</summary><table><tr><th>measure</th>{{range .Columns}}<th>{{.}}</th>{{end}}</tr>
{{range .Rows}}<tr><td>{{.Name}}</td>
{{- range .Cells}}<td>{{if .}}{{quantity .Median .Unit}}
{{- with .Distribution}}<br><small>p99 {{quantity .P99 "s"}}</small>{{end}}{{end}}</td>{{end}}</tr>
{{end}}</table></details></section>
{{end}}{{if .R.Skipped}}<h2>Not measured</h2><ul>
{{- range .R.Skipped}}<li>{{.Entry}} ({{.Place}}): {{.Reason}}</li>{{end}}</ul>{{end}}
</body></html>
`))

// HTML writes a result, and a comparison if there is one, as a page that needs nothing else.
func HTML(w io.Writer, r *Result, changes []Change) error {
	return page.Execute(w, struct {
		R       *Result
		Groups  []*group
		Changes []Change
	}{r, groups(r), changes})
}
