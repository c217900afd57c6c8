package timeline

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// ranges joins the begins and ends of what a process said by NVTX.
func (p *Process) ranges(part *Part) {
	events := slices.Clone(part.ranges)
	slices.SortStableFunc(events, func(a, b rangeEvent) int { return cmp.Compare(a.time, b.time) })
	type stackOf struct{ thread, domain uint32 }
	stacks := map[stackOf][]int{} // places in p.Ranges
	open := map[uint64]int{}
	for i := range events {
		e := &events[i]
		domain, category := part.domains[e.domain], part.categories[[2]uint32{e.domain, e.category}]
		if category == "" && e.category != 0 {
			category = fmt.Sprint(e.category)
		}
		stack := stackOf{e.thread, e.domain}
		r := Range{Span{e.time, 0}, e.thread, e.kind == eventPush, domain, category, e.text, e.color, e.value()}
		switch e.kind {
		case eventPush:
			stacks[stack] = append(stacks[stack], len(p.Ranges))
			p.Ranges = append(p.Ranges, r)
		case eventPop:
			if n := len(stacks[stack]); n > 0 { // else it was pushed before the library was there
				p.Ranges[stacks[stack][n-1]].To = e.time
				stacks[stack] = stacks[stack][:n-1]
			}
		case eventStart:
			open[e.id] = len(p.Ranges)
			p.Ranges = append(p.Ranges, r)
		case eventEnd:
			if at, found := open[e.id]; found {
				p.Ranges[at].To = e.time
				delete(open, e.id)
			}
		case eventMark:
			p.Marks = append(p.Marks, Mark{e.thread, e.time, domain, category, e.text, e.color, r.Payload})
		}
	}
}

// value is the payload, by NVTX's types of it.
func (e *rangeEvent) value() any {
	switch e.payloadType {
	case 1:
		return e.payload
	case 2:
		return int64(e.payload)
	case 3:
		if v := math.Float64frombits(e.payload); !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
	case 4:
		return uint32(e.payload)
	case 5:
		return int32(e.payload)
	case 6:
		if v := math.Float32frombits(uint32(e.payload)); v == v && !math.IsInf(float64(v), 0) {
			return v
		}
	}
	return nil
}
