package timeline

import (
	"cmp"
	"container/heap"
	"slices"
)

// Cause is why a GPU had nothing to do. The greater one counts where several are true: work that is at the server
// already is not held up by the network, and where another session has its turn nothing else matters.
type Cause int

// The causes.
const (
	Program Cause = iota // the program had given it no work: what is left where nothing else is true
	Network              // something was on its way, or a thread of the program waited for an answer
	Server               // the server had the work, or something before it, in hand
	Others               // it was the turn of another session
	causes
)

func (c Cause) String() string {
	return [causes]string{"program", "network", "server", "other session"}[c]
}

// Span is a time from its first ns to behind its last.
type Span struct{ From, To int64 }

// Reason is a time in which something is true that may be a cause.
type Reason struct {
	Span
	Cause  Cause
	Detail string
}

// Explain gives the time between from and to in which a GPU was not busy, in order, in pieces with a cause each. The
// pieces and the busy time within from and to sum up to all of it. busy and reasons may be in any order and overlap; of
// reasons with the same cause the one that began first counts.
func Explain(from, to int64, busy []Span, reasons []Reason) (gaps []Reason) {
	if to <= from {
		return nil
	}
	reasons = slices.Clone(reasons)
	slices.SortStableFunc(reasons, func(a, b Reason) int { return cmp.Compare(a.From, b.From) })
	var now [causes]active
	next := 0
	for _, idle := range Without(Span{from, to}, busy) {
		for at := idle.From; at < idle.To; {
			until := idle.To
			for ; next < len(reasons) && reasons[next].From <= at; next++ {
				if r := &reasons[next]; r.To > at {
					heap.Push(&now[r.Cause], entry{next, r.To})
				}
			}
			if next < len(reasons) {
				until = min(until, reasons[next].From)
			}
			piece := Reason{Span{at, until}, Program, ""}
			for c := Others; c >= Program; c-- {
				if first := now[c].first(at); first >= 0 {
					piece.Cause, piece.Detail = c, reasons[first].Detail
					piece.To = min(piece.To, reasons[first].To)
					break
				}
			}
			at = piece.To
			if n := len(gaps) - 1; n >= 0 && gaps[n].To == piece.From && gaps[n].Cause == piece.Cause &&
				gaps[n].Detail == piece.Detail {
				gaps[n].To = piece.To
			} else {
				gaps = append(gaps, piece)
			}
		}
	}
	return gaps
}

// Without gives what is left of a time without others, in order.
func Without(all Span, others []Span) (rest []Span) {
	at := all.From
	for _, s := range Union(others) {
		if s.To <= at {
			continue
		}
		if s.From >= all.To {
			break
		}
		if s.From > at {
			rest = append(rest, Span{at, s.From})
		}
		at = s.To
	}
	if at < all.To {
		rest = append(rest, Span{at, all.To})
	}
	return rest
}

// Union joins times that touch or overlap; empty ones vanish. The result is in order.
func Union(list []Span) (joined []Span) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	for _, s := range list {
		if s.To <= s.From {
			continue
		}
		if n := len(joined) - 1; n >= 0 && s.From <= joined[n].To {
			joined[n].To = max(joined[n].To, s.To)
		} else {
			joined = append(joined, s)
		}
	}
	return joined
}

// entry is a reason by its place in the order, and its end.
type entry struct {
	index int
	to    int64
}

// active are the reasons of a cause that have begun, the first on top; those that are over are removed when they get
// there.
type active []entry

func (a *active) first(at int64) int {
	for len(*a) > 0 {
		if top := (*a)[0]; top.to > at {
			return top.index
		}
		heap.Pop(a)
	}
	return -1
}

func (a active) Len() int           { return len(a) }
func (a active) Less(i, j int) bool { return a[i].index < a[j].index }
func (a active) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *active) Push(x any)        { *a = append(*a, x.(entry)) }
func (a *active) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}
