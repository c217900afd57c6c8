package timeline

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// ErrFormat is a file that is not in the Trace Event Format.
var ErrFormat = errors.New("not in the Trace Event Format")

// Validate reads a file in the Trace Event Format, and says where it is not what that asks for: the fields that each
// phase has to have, slices of a row that nest, flows and asynchronous events that begin and end, names of all rows.
// Tests use it on what [Timeline.Chrome] wrote.
func Validate(b []byte) ([]Event, error) {
	var file struct {
		Unit   string  `json:"displayTimeUnit"`
		Events []Event `json:"traceEvents"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if file.Unit != "ns" && file.Unit != "ms" {
		return nil, fmt.Errorf("%w: displayTimeUnit %q", ErrFormat, file.Unit)
	}
	v := validator{named: map[[2]uint64]bool{}, groups: map[uint64]bool{}, flows: map[uint64]*Event{},
		open: map[uint64]*Event{}, rows: map[[2]uint64][]*Event{}}
	for i := range file.Events {
		if err := v.event(&file.Events[i]); err != nil {
			return nil, fmt.Errorf("%w: event %d, %+v: %w", ErrFormat, i, file.Events[i], err)
		}
	}
	if err := v.end(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return file.Events, nil
}

type validator struct {
	named  map[[2]uint64]bool // rows
	groups map[uint64]bool    // processes
	flows  map[uint64]*Event  // that have begun
	open   map[uint64]*Event  // asynchronous events
	rows   map[[2]uint64][]*Event
}

func (v *validator) event(e *Event) error {
	row := [2]uint64{e.PID, e.TID}
	switch {
	case e.PID >= 1<<32 || e.TID >= 1<<32:
		return errors.New("a number of more than the 32 bits that Perfetto reads")
	case e.Time < 0:
		return errors.New("it is before the beginning")
	case e.Phase != "X" && e.Duration != nil:
		return errors.New("a duration")
	case (e.Phase == "s" || e.Phase == "f" || e.Phase == "b" || e.Phase == "e") != (e.ID != 0):
		return errors.New("an id too many or too few")
	}
	switch e.Phase {
	case "M":
		name, isText := e.Args["name"].(string)
		_, isNumber := e.Args["sort_index"].(float64)
		switch e.Name {
		case "process_name":
			v.groups[e.PID] = true
		case "thread_name":
			v.named[row] = true
		case "process_sort_index", "thread_sort_index":
			isText, name = isNumber, "x"
		}
		if !isText || name == "" {
			return errors.New("metadata without a value")
		}
	case "X":
		if e.Duration == nil || *e.Duration < 0 {
			return errors.New("a complete event without a duration")
		}
		v.rows[row] = append(v.rows[row], e)
	case "s":
		v.flows[e.ID] = e
	case "f":
		begin := v.flows[e.ID]
		if begin == nil || begin.Time > e.Time || begin.Name != e.Name || begin.Category != e.Category || e.Binding != "e" {
			return errors.New("the end of a flow without its begin, or before it")
		}
		delete(v.flows, e.ID)
	case "b":
		v.open[e.ID] = e
	case "e":
		begin := v.open[e.ID]
		if begin == nil || begin.Time > e.Time || begin.Name != e.Name || begin.Category != e.Category {
			return errors.New("an end without its begin, or before it")
		}
		delete(v.open, e.ID)
	case "i":
		if e.Scope != "t" && e.Scope != "p" && e.Scope != "g" {
			return errors.New("an instant without a scope")
		}
	case "C":
		for _, x := range e.Args {
			if _, number := x.(float64); !number {
				return errors.New("a counter that is no number")
			}
		}
	default:
		return errors.New("an unknown phase")
	}
	return nil
}

func (v *validator) end() error {
	if len(v.flows)+len(v.open) > 0 {
		return fmt.Errorf("%d flows and %d asynchronous events do not end", len(v.flows), len(v.open))
	}
	for row, list := range v.rows {
		if !v.named[row] || !v.groups[row[0]] {
			return fmt.Errorf("row %v has no name", row)
		}
		if err := nest(list); err != nil {
			return fmt.Errorf("row %v: %w", row, err)
		}
	}
	return nil
}

// nest says whether slices of a row lie in each other or beside each other. Times are rounded to a ns.
func nest(list []*Event) error {
	slices.SortStableFunc(list, func(a, b *Event) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(*b.Duration, *a.Duration))
	})
	const ns = 1.5e-3
	var around []*Event
	for _, e := range list {
		for len(around) > 0 && around[len(around)-1].Time+*around[len(around)-1].Duration <= e.Time+ns {
			around = around[:len(around)-1]
		}
		if n := len(around); n > 0 && e.Time+*e.Duration > around[n-1].Time+*around[n-1].Duration+ns {
			return fmt.Errorf("%q at %v for %v begins in %q and ends behind it", e.Name, e.Time, *e.Duration, around[n-1].Name)
		}
		around = append(around, e)
	}
	return nil
}
