package perf

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Markdown writes a result as a table for each entry.
func Markdown(w io.Writer, r *Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s with scuda %s on %s.\nMedians of %d repetitions.\n",
		r.Started.Format(time.DateOnly), r.Scuda, r.Machine.text(), r.Repetitions)
	for _, g := range groups(r) {
		if g.Shares != nil {
			g.Shares.markdown(&b)
			continue
		}
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

// text says what machine it was.
func (m *Machine) text() string {
	if m.Where != "" {
		return strings.Join(append(slices.Clone(m.GPUs), m.Where), ", ")
	}
	gpu := "no GPU"
	if len(m.GPUs) > 0 {
		gpu = fmt.Sprintf("%d × %s (driver %s)", len(m.GPUs), m.GPUs[0], m.Driver)
	}
	return fmt.Sprintf("%s:\n%d × %s, %.0f GiB, Linux %s, %s", m.Host, m.Processors, m.Processor,
		float64(m.Memory)/(1<<30), m.Kernel, gpu)
}

// group is an entry in a report: columns are places and delays, rows what else differs.
type group struct {
	Title   string
	Columns []string
	Rows    []row
	Shares  *shares // where parties worked
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
		if m.Mode != "" {
			column += ", " + m.Mode
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
		case m.Party != nil:
			name = m.Name + ", " + m.Party.Name
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
		g.Shares = sharesOf(r, g.Title)
		for i := range g.Rows {
			for len(g.Rows[i].Cells) < len(g.Columns) {
				g.Rows[i].Cells = append(g.Rows[i].Cells, nil)
			}
		}
	}
	return list
}
