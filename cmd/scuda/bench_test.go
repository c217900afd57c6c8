package main

import (
	"strings"
	"testing"
)

// The table names a measure first; without a GPU here there are no columns for it.
func TestBenchTable(t *testing.T) {
	r := benchResult{
		Measures: []string{"a call", "16 MiB up"}, Connections: 4,
		Remote: map[string]float64{"a call": 2e-6, "16 MiB up": 2e-3},
		TCP:    map[string]float64{"16 MiB over plain TCP": 1e-3, benchRoundTrip: 1e-5},
	}
	const alone = "" +
		"measure    over scuda  of plain TCP\n" +
		"a call         2.0 µs             -\n" +
		"16 MiB up      2.0 ms          0.50\n\nPlain TCP"
	const both = "" +
		"measure    native  over scuda  ratio  of plain TCP\n" +
		"a call     1.0 µs      2.0 µs   2.00             -\n" +
		"16 MiB up       -      2.0 ms      -          0.50\n\nPlain TCP"
	for want, native := range map[string]map[string]float64{alone: nil, both: {"a call": 1e-6}} {
		var out strings.Builder
		r.Native = native
		if err := r.table(&out); err != nil || !strings.HasPrefix(out.String(), want) {
			t.Errorf("%v, got\n%s", err, out.String())
		}
	}
}
