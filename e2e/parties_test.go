package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scuda.dev/scuda/perf"
)

// `scuda perf run` gives parties leases of their own, with and without turns, and tells what each did: three times the
// share is more work with turns than it is without.
func TestPerfParties(t *testing.T) {
	if gpu != "sim" {
		t.Skip("it needs kernels that take turns")
	}
	folder := t.TempDir()
	suite, result := filepath.Join(folder, "suite.json"), filepath.Join(folder, "result.json")
	const text = `{"version":1,"repetitions":1,"entries":[{"name":"shares","kind":"load","load":"batch","seconds":3,
		"places":["sim"],"gpu":"sim:1,turns=1ms","modes":["plain","turns"],"parties":[
		{"name":"large","share":300,"size":10},{"name":"small","size":10}]}]}`
	if err := os.WriteFile(suite, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ask(t, nil, 0, "perf", "run", "--suite", suite, "-o", result)
	r, err := perf.ReadResult(result)
	if err != nil {
		t.Fatal(err)
	}
	work := map[string]float64{}
	for i := range r.Measures {
		m := &r.Measures[i]
		if m.Name == "work to weight" && m.Party != nil {
			work[m.Party.Name+m.Mode] = m.Median()
		}
	}
	if len(work) != 4 || work["largeturns"] <= work["large"] || work["smallturns"] >= work["small"] {
		t.Errorf("work beside weights: %v", work)
	}
	page := ask(t, nil, 0, "perf", "report", result).out.String()
	for _, want := range []string{"| sim, turns | large | 300 | normal | 1 |", "| sim | small | 100 | normal | 1 |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the report has no %q:\n%s", want, page)
		}
	}
}
