package metrics

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// Times are kept twice: in classic buckets with upper bounds of 1 µs, 2 µs, 4 µs … 8.4 s, and in the buckets of a
// native histogram of Prometheus with schema 3, whose bounds are powers of 2^(1/8)
// (https://prometheus.io/docs/specs/native_histograms/).
const (
	classicBuckets = 24 // and one for what is longer
	schema         = 3
	perOctave      = 1 << schema
	lowest         = -30 * perOctave // 0.93 ns; index of the first native bucket
	nativeBuckets  = 40*perOctave + 1
)

// histogram is a distribution of times.
type histogram struct {
	sum     atomic.Uint64 // nanoseconds
	classic [classicBuckets + 1]atomic.Uint64
	native  [nativeBuckets]atomic.Uint64
}

func (h *histogram) observe(ns int64) {
	ns = max(ns, 1)
	h.sum.Add(uint64(ns))
	h.classic[classicIndex(ns)].Add(1)
	h.native[nativeIndex(float64(ns)*1e-9)-lowest].Add(1)
}

// classicIndex gives the bucket with the least upper bound 1 µs·2^i that is not below ns.
func classicIndex(ns int64) int {
	return min(bits.Len64(uint64(ns-1)/1000), classicBuckets)
}

func classicBound(i int) float64 { return math.Ldexp(1e-6, i) }

// bounds are the upper bounds of the eight buckets between 1/2 and 1.
var bounds = func() (b [perOctave]float64) {
	for i := range b {
		b[i] = math.Exp2(float64(i+1-perOctave) / perOctave)
	}
	return b
}()

// nativeIndex gives the native bucket whose bounds 2^((i-1)/8) < v <= 2^(i/8) enclose v, within what a page has.
func nativeIndex(v float64) int {
	frac, exp := math.Frexp(v) // frac in [1/2, 1)
	i := 0
	if frac == 0.5 { // the upper bound of the octave below
		frac, exp = 1, exp-1
	}
	for frac > bounds[i] {
		i++
	}
	return min(max((exp-1)*perOctave+i+1, lowest), lowest+nativeBuckets-1)
}
