package timeline

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// servers takes in what servers recorded. Each has a clock of its own, and its own numbers of names. It gives how far
// the times can be trusted, by server.
func (p *Process) servers(answers []answer) map[uint16]Clock {
	by := map[uint16][]answer{}
	for _, a := range answers {
		by[a.of] = append(by[a.of], a)
	}
	trust := map[uint16]Clock{}
	for _, of := range slices.Sorted(maps.Keys(by)) {
		trust[of] = p.server(of, by[of])
	}
	return trust
}

// server takes in what a server recorded, by the client's clock: no work begins before the call that it came with, and
// none ends after the return of a wait that was for it. It gives how far the times can be trusted.
func (p *Process) server(of uint16, answers []answer) (trust Clock) {
	slices.SortStableFunc(answers, func(a, b answer) int { return cmp.Compare(a.asked, b.asked) })
	c := newClock()
	work, commands, turns := len(p.Work), len(p.Commands), len(p.Turns)
	names := map[uint32]string{}
	lost := uint64(0)
	for i := range answers {
		a := &answers[i]
		if a.control {
			names, lost = map[uint32]string{}, 0
			if p.Kept |= a.kept; a.server != 0 {
				c.question(a.asked, a.answered, a.server, 0)
			}
			continue
		}
		head, ok := p.records(of, a.payload, names)
		if !ok {
			continue
		}
		c.question(a.asked, a.answered, int64(head.Now), int64(head.Held))
		if head.Lost > lost {
			p.LostAtServer += head.Lost - lost
			lost = head.Lost
		}
	}
	p.bound(c, p.Commands[commands:])
	if !c.fit() {
		p.Work, p.Commands, p.Turns = p.Work[:work], p.Commands[:commands], p.Turns[:turns]
		return Clock{}
	}
	trust.Shortest, trust.Offset = c.shortest, c.knots[0].offset
	at := func(server int64) int64 {
		at, likely, most := c.client(server)
		trust.Likely, trust.Most = max(trust.Likely, likely), max(trust.Most, most)
		return at
	}
	for _, list := range [][]Command{p.Commands[commands:], p.Turns[turns:]} {
		for i := range list {
			x := &list[i]
			x.From, x.To = at(x.From), at(x.To)
			if call, found := p.byID[x.Correlation]; found {
				x.From = max(x.From, p.Calls[call].Began)
			}
			x.To = max(x.To, x.From)
		}
	}
	seen := p.waitsForStreams()
	for i := range p.Work[work:] {
		w := &p.Work[work+i]
		w.From, w.To = at(w.server), at(w.through)
		p.clamp(w, seen)
	}
	keepOrder(p.Work[work:])
	return trust
}

// records reads one answer. It says whether it is as it should be.
func (p *Process) records(of uint16, b []byte, names map[uint32]string) (head *wire.ProfileRecords, ok bool) {
	head, b, ok = wire.View[wire.ProfileRecords](b)
	if !ok {
		return nil, false
	}
	for range head.Names {
		n, rest, ok := wire.View[wire.ProfileName](b)
		if !ok || (uint64(n.Bytes)+7)/8*8 > uint64(len(rest)) {
			return nil, false
		}
		names[n.ID] = strings.ToValidUTF8(string(rest[:n.Bytes]), "?")
		b = rest[(uint64(n.Bytes)+7)/8*8:]
	}
	if uint64(head.Records)*wire.SizeProfileRecord > uint64(len(b)) {
		return nil, false
	}
	for range head.Records {
		var r *wire.ProfileRecord
		r, b, _ = wire.View[wire.ProfileRecord](b)
		span := Span{int64(r.Start), int64(r.End)}
		switch r.Kind {
		case wire.ProfileCommands:
			p.Commands = append(p.Commands, Command{span, of, uint16(r.Value), r.Correlation, span.From})
		case wire.ProfileTurns:
			p.Turns = append(p.Turns, Command{span, of, uint16(r.Value), r.Correlation, span.From})
		case wire.ProfileKernels, wire.ProfileCopies, wire.ProfileMemsets, wire.ProfileGraphs:
			w := Work{Kind: cuda.WorkKind(r.Kind), Name: names[r.Name], Server: of, Device: r.Device, Stream: r.Stream,
				Context: r.Context, Correlation: r.Correlation, Bytes: r.Bytes, Grid: r.Grid, Block: r.Block,
				Registers: r.Registers, Shared: r.StaticShared + r.DynamicShared, Graph: r.Graph,
				Source: cuda.MemoryKind(r.Source), Target: cuda.MemoryKind(r.Target), Call: -1,
				server: span.From, through: span.To}
			if call, found := p.byID[r.Correlation]; found {
				w.Call = call
			}
			p.Work = append(p.Work, w)
		}
	}
	return head, true
}

// bound adds what commands say of the clocks: the server takes one in hand after the call began that sent it, and
// before the answer came, where the call waited for that.
func (p *Process) bound(c *clock, commands []Command) {
	type question struct {
		call int
		op   uint16
	}
	answered := map[question]int64{}
	threads := map[uint32][]int{} // calls, by their begin
	for i := range p.Calls {
		threads[p.Calls[i].Thread] = append(threads[p.Calls[i].Thread], i)
	}
	for i := range p.Waits {
		w := &p.Waits[i]
		list := threads[w.Thread]
		at := sort.Search(len(list), func(i int) bool { return p.Calls[list[i]].Began > w.Began }) - 1
		if at < 0 || p.Calls[list[at]].Ended < w.Ended || w.Why != WaitAnswer {
			continue // bytes of an upload may have left before the server takes its command in hand
		}
		q := question{list[at], w.Op}
		answered[q] = max(answered[q], w.Ended)
	}
	for i := range commands {
		x := &commands[i]
		call, found := p.byID[x.Correlation]
		if !found {
			continue
		}
		c.after(p.Calls[call].Began, x.server)
		if end, waited := answered[question{call, x.Op}]; waited {
			c.before(end, x.server)
		}
	}
}

// ends are the waits for a stream, or for all of a context, by their begins; earliest[i] is the first end of i and
// those behind.
type ends struct{ began, ended, earliest []int64 }

type waitedFor struct{ stream, context uint32 }

func (p *Process) waitsForStreams() map[waitedFor]*ends {
	all := map[waitedFor]*ends{}
	for i := range p.Calls {
		c := &p.Calls[i]
		if c.stream == 0 || c.Result != 0 {
			continue
		}
		key := waitedFor{stream: c.stream}
		if c.stream == allStreams {
			key = waitedFor{context: c.context}
		}
		e := all[key]
		if e == nil {
			e = &ends{}
			all[key] = e
		}
		e.began, e.ended = append(e.began, c.Began), append(e.ended, c.Ended)
	}
	for _, e := range all {
		e.earliest = slices.Clone(e.ended)
		for i := len(e.earliest) - 2; i >= 0; i-- {
			e.earliest[i] = min(e.earliest[i], e.earliest[i+1])
		}
	}
	return all
}

// after gives when the first wait that began at a time or later had returned.
func (e *ends) after(at int64) int64 {
	if e == nil {
		return math.MaxInt64
	}
	i, _ := slices.BinarySearch(e.began, at)
	if i == len(e.began) {
		return math.MaxInt64
	}
	return e.earliest[i]
}

func (p *Process) clamp(w *Work, seen map[waitedFor]*ends) {
	if w.Call < 0 {
		w.To = max(w.To, w.From)
		return
	}
	c := &p.Calls[w.Call]
	latest := min(seen[waitedFor{stream: w.Stream}].after(c.Ended), seen[waitedFor{context: w.Context}].after(c.Ended))
	toHost := w.Kind == cuda.WorkCopy && w.Target != cuda.MemoryDevice && w.Target != cuda.MemoryArray
	if toHost && !strings.Contains(c.Name, "Async") && strings.Contains(c.Name, "Memcpy") {
		latest = min(latest, c.Ended)
	}
	w.To = min(w.To, latest)
	w.From = max(min(w.From, w.To), c.Began)
	w.To = max(w.To, w.From)
}

// keepOrder: what ended at the server before other work of its stream began did so here.
func keepOrder(list []Work) {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(list[a].server, list[b].server) })
	type end struct{ server, here int64 }
	last := map[[2]uint32]end{}
	for _, i := range order {
		w := &list[i]
		key := [2]uint32{w.Device, w.Stream}
		e := last[key]
		if e.server != 0 && e.server <= w.server && w.From < e.here {
			w.From = e.here
			w.To = max(w.To, w.From)
		}
		if w.through >= e.server {
			last[key] = end{w.through, w.To}
		}
	}
}
