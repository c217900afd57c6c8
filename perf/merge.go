package perf

import (
	"fmt"
	"slices"
)

// Merge puts the results of parts of a suite together, which were measured on one kind of machine. Of a measure that
// several have, the last counts.
func Merge(list ...*Result) (*Result, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: nothing to put together", ErrResult)
	}
	all := *list[0]
	all.Measures, all.Skipped, all.Seconds = []Measure{}, []Skipped{}, 0
	for _, r := range list {
		a, b := &all.Machine, &r.Machine
		if a.Processor != b.Processor || a.Processors != b.Processors || a.Driver != b.Driver ||
			!slices.Equal(a.GPUs, b.GPUs) || a.Where != b.Where {
			return nil, fmt.Errorf("%w: of different machines: %s, and %s", ErrResult, a.text(), b.text())
		}
		if r.Quick != all.Quick {
			return nil, fmt.Errorf("%w: a quick run and a whole one do not go together", ErrResult)
		}
		for _, m := range r.Measures {
			same := func(o Measure) bool { return o.Key() == m.Key() }
			if i := slices.IndexFunc(all.Measures, same); i >= 0 {
				all.Measures[i] = m
			} else {
				all.Measures = append(all.Measures, m)
			}
		}
		for _, s := range r.Skipped {
			if !slices.Contains(all.Skipped, s) {
				all.Skipped = append(all.Skipped, s)
			}
		}
		all.Seconds += r.Seconds
		all.Repetitions = min(all.Repetitions, r.Repetitions)
		if r.Started.After(all.Started) {
			all.Started, all.Scuda = r.Started, r.Scuda
		}
	}
	return &all, nil
}
