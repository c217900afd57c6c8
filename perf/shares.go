package perf

import (
	"fmt"
	"strings"
	"time"
)

// shares is the table of an entry with parties: a row for each party at each place, in each mode, and one for all.
type shares struct {
	Title string
	Head  []string
	Rows  [][]string
}

// sharesOf gives the table of an entry; nil: it has no parties.
func sharesOf(r *Result, entry string) *shares {
	s := &shares{Title: entry}
	type place struct {
		place, mode string
		delay       Duration
	}
	type who struct {
		place
		party string
	}
	found := map[who]map[string]*Measure{}
	var order []who
	with := false
	columns := map[string]bool{}
	for i := range r.Measures {
		m := &r.Measures[i]
		if m.Entry != entry {
			continue
		}
		w := who{place{m.Place, m.Mode, m.Delay}, ""}
		if m.Party != nil {
			w.party, with = m.Party.Name, true
		}
		if found[w] == nil {
			found[w] = map[string]*Measure{}
			order = append(order, w)
		}
		found[w][m.Name] = m
		columns[m.Name] = true
	}
	if !with {
		return nil
	}
	var names []string
	s.Head = []string{"where", "who", "share", "class", "clients"}
	for _, name := range []string{throughputName, workName, fairnessName, p99Name, worstName, ofAloneName, p99AloneName} {
		if columns[name] {
			names = append(names, name)
			if name == fairnessName {
				name = "Jain's index"
			}
			s.Head = append(s.Head, name)
		}
	}
	for _, w := range order {
		where := w.place.place
		if w.delay > 0 {
			where += " +" + time.Duration(w.delay).String()
		}
		if w.mode != "" {
			where += ", " + w.mode
		}
		row := []string{where, "all", "", ""}
		clients := 0
		for _, m := range found[w] {
			clients = m.Clients
			if p := m.Party; p != nil {
				row = []string{where, p.Name, fmt.Sprint(p.Share), p.Class}
			}
		}
		row = append(row, fmt.Sprint(clients))
		for _, name := range names {
			text := ""
			if m := found[w][name]; m != nil {
				text = Quantity(m.Median(), m.Unit)
			}
			row = append(row, text)
		}
		s.Rows = append(s.Rows, row)
	}
	return s
}

func (s *shares) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s\n\n| %s |\n|%s\n", s.Title, strings.Join(s.Head, " | "), strings.Repeat("---|", len(s.Head)))
	for _, row := range s.Rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
}
