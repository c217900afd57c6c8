package perf

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/perf/benchmath"
)

// Change is what became of a measure between two results.
type Change struct {
	Key     string  `json:"key"`
	Unit    string  `json:"unit"`
	Old     float64 `json:"old"` // medians
	New     float64 `json:"new"`
	Ratio   float64 `json:"ratio"` // of new to old
	Low     float64 `json:"low"`   // its 95 % confidence interval
	High    float64 `json:"high"`
	P       float64 `json:"p"` // of the Mann-Whitney test
	Verdict string  `json:"verdict"`
}

// Verdicts.
const (
	Same   = "same" // no difference that the noise allows to see, or a small one
	Better = "better"
	Worse  = "worse"
	Moved  = "machine" // a yardstick that changed, or a time that changed by no more than the machine's yardsticks did
)

const (
	alpha    = 0.05
	resample = 2000
)

// Compare compares what both results have. A measure is better or worse if the Mann-Whitney test finds a difference (p
// < 0.05), the confidence interval of the ratio excludes 1, and the medians differ by more than threshold (0.05 is 5
// %); and, of times and rates, if the interval lies beyond what the machine's own yardsticks changed by.
func Compare(old, new *Result, threshold float64) (list []Change) {
	byKey := map[string]*Measure{}
	for i := range old.Measures {
		byKey[old.Measures[i].Key()] = &old.Measures[i]
	}
	var measures []*Measure // of list
	slower, faster := 1.0, 1.0
	for i := range new.Measures {
		n := &new.Measures[i]
		o := byKey[n.Key()]
		if o == nil || len(o.Values) == 0 || len(n.Values) == 0 || o.Median() == 0 {
			continue
		}
		c := Change{
			Key: n.Key(), Unit: n.Unit, Old: o.Median(), New: n.Median(), P: mannWhitney(o.Values, n.Values), Verdict: Same,
		}
		c.Ratio = c.New / c.Old
		c.Low, c.High = ratioInterval(o.Values, n.Values)
		if c.P < alpha && (c.Low > 1 || c.High < 1) && math.Abs(c.Ratio-1) > threshold {
			c.Verdict = Worse
			if (c.Ratio > 1) == n.Higher {
				c.Verdict = Better
			}
			if n.Place == Bare {
				c.Verdict = Moved
				slower, faster = max(slower, c.Ratio), min(faster, c.Ratio)
			}
		}
		list, measures = append(list, c), append(measures, n)
	}
	for i := range list {
		c, m := &list[i], measures[i]
		low, high := c.Low, c.High // of the time that it takes
		if m.Higher {
			low, high = 1/c.High, 1/c.Low
		}
		timed := m.Unit == "s" || m.Unit == "1/s"
		if timed && (c.Verdict == Worse && low <= slower || c.Verdict == Better && high >= faster) {
			c.Verdict = Moved
		}
	}
	return list
}

// Regressed says whether something is worse.
func Regressed(list []Change) bool {
	return slices.ContainsFunc(list, func(c Change) bool { return c.Verdict == Worse })
}

// WriteChanges prints a comparison for people: what changed, or all.
func WriteChanges(w io.Writer, list []Change, all bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	counts := map[string]int{}
	for _, c := range list {
		counts[c.Verdict]++
		if all || c.Verdict != Same && (c.Verdict != Moved || strings.HasPrefix(c.Key, Bare)) {
			fmt.Fprintf(t, "%s\t%s\t%s → %s\t×%.2f [%.2f, %.2f]\tp=%.3f\n", c.Verdict, c.Key, Quantity(c.Old, c.Unit),
				Quantity(c.New, c.Unit), c.Ratio, c.Low, c.High, c.P)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w,
		"%d measures: %d worse, %d better, %d changed with the machine, %d the same within the noise\n", len(list),
		counts[Worse], counts[Better], counts[Moved], counts[Same])
	return err
}

// ratioInterval is the 95 % percentile bootstrap interval of the ratio of medians (B. Efron, R. Tibshirani, An
// Introduction to the Bootstrap, 1993, chapter 13), with a fixed seed so that the same results compare the same.
func ratioInterval(old, new []float64) (low, high float64) {
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(from, to []float64) float64 {
		for i := range to {
			to[i] = from[random.IntN(len(from))]
		}
		return median(to)
	}
	a, b := make([]float64, len(old)), make([]float64, len(new))
	ratios := make([]float64, 0, resample)
	for range resample {
		if o := draw(old, a); o != 0 {
			ratios = append(ratios, draw(new, b)/o)
		}
	}
	if len(ratios) == 0 {
		return math.Inf(-1), math.Inf(1)
	}
	slices.Sort(ratios)
	return ratios[int(0.025*float64(len(ratios)))], ratios[min(int(0.975*float64(len(ratios))), len(ratios)-1)]
}

// mannWhitney is the two-sided p value of the Mann-Whitney U test, as benchstat has it.
func mannWhitney(x, y []float64) float64 {
	sample := func(v []float64) *benchmath.Sample {
		return benchmath.NewSample(slices.Clone(v), &benchmath.DefaultThresholds) // which sorts what it is given
	}
	return benchmath.AssumeNothing.Compare(sample(x), sample(y)).P
}
