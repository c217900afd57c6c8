package ebpf

import "time"

// Buckets is the number of a histogram's buckets. Bucket i counts what took from 2^i to 2^(i+1)-1 ns, the last all that
// took longer.
const Buckets = 40

// Histogram counts calls by their length.
type Histogram [Buckets]uint64

// Upper is the first length, in nanoseconds, that is too long for bucket i.
func Upper(i int) float64 { return float64(uint64(1) << (i + 1)) }

// Count gives the number of calls.
func (h *Histogram) Count() (n uint64) {
	for _, c := range h {
		n += c
	}
	return n
}

// Quantile gives the length that the share q of the calls does not exceed; within a bucket lengths count as evenly
// spread. 0 without calls.
func (h *Histogram) Quantile(q float64) time.Duration {
	all := h.Count()
	if all == 0 {
		return 0
	}
	rank := q * float64(all)
	var below uint64
	for i, c := range h {
		if c > 0 && float64(below+c) >= rank {
			low := Upper(i) / 2
			return time.Duration(low + low*max(rank-float64(below), 0)/float64(c))
		}
		below += c
	}
	return time.Duration(Upper(Buckets - 1))
}
