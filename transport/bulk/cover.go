package bulk

import "sort"

// maxGaps bounds the gaps in what has arrived of a transfer. Chunks come in the order in which they were cut, but for
// those that are under way together: there are fewer of them.
const maxGaps = 4096

// cover says which bytes of a transfer have arrived. The zero value is a transfer of which nothing has.
type cover struct {
	bytes uint64
	spans []span // in their order; two that touch are one
}

type span struct{ from, to uint64 }

// add notes a chunk. It says no where some of its bytes have arrived before, or where there are more gaps than any
// peer makes.
func (v *cover) add(c Chunk) bool {
	from, to := c.Offset, c.Offset+uint64(c.Bytes)
	s := v.spans
	i := sort.Search(len(s), func(i int) bool { return s[i].to >= from }) // the first that is not quite before it
	joins := i < len(s) && s[i].to == from
	next := i
	if joins {
		next++
	}
	if to < from || next < len(s) && s[next].from < to {
		return false
	}
	v.bytes += uint64(c.Bytes)
	meets := next < len(s) && s[next].from == to
	switch {
	case joins && meets:
		s[i].to = s[next].to
		v.spans = append(s[:next], s[next+1:]...)
	case joins:
		s[i].to = to
	case meets:
		s[next].from = from
	case len(s) == maxGaps:
		return false
	default:
		v.spans = append(s, span{})
		copy(v.spans[i+1:], v.spans[i:])
		v.spans[i] = span{from, to}
	}
	return true
}

// reset forgets everything.
func (v *cover) reset() { v.bytes, v.spans = 0, v.spans[:0] }
