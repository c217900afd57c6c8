package timeline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// Timeline is what the processes of a program did. All times are the client's CLOCK_MONOTONIC, in ns.
type Timeline struct {
	Processes []*Process
	GPUs      []*GPU
	From, To  int64
	Clock     Clock            // how far times of servers and GPUs can be trusted
	Clocks    map[uint16]Clock // likewise, by server
	Lost      uint64
}

// Process is one of the program's.
type Process struct {
	PID          uint32
	Program      string
	Began, Ended int64 // of its use of the GPU, or of NVTX
	Threads      map[uint32]string
	Calls        []Call
	Runtime      []Call // of CUDA's runtime, around them
	Waits        []Wait
	Work         []Work // of the GPUs, by its begin
	Commands     []Command
	Turns        []Command // commands that were kept back for others, while they were
	Traffic      []Traffic
	Ranges       []Range
	Marks        []Mark
	Kept         uint32 // what the server recorded: wire.Profile...
	GPU, NVTX    bool   // which libraries wrote
	Orderly      bool   // the process ended by itself
	LostAtServer uint64

	byID map[uint32]int // the call that has a correlation
}

// Work is what a GPU did.
type Work struct {
	Span
	Kind            cuda.WorkKind
	Name            string
	Server          uint16
	Device, Stream  uint32
	Context         uint32
	Correlation     uint32
	Bytes           uint64
	Grid, Block     [3]uint32
	Registers       uint32
	Shared          uint32
	Graph           uint32
	Source, Target  cuda.MemoryKind
	Call            int // of the process; -1: not known
	lane            int // of its stream: branches of a graph run at a time
	server, through int64
}

// Command is what a server carried out.
type Command struct {
	Span
	Server      uint16
	Op          uint16
	Correlation uint32
	server      int64
}

// Range is a range of NVTX.
type Range struct {
	Span
	Thread   uint32
	Own      bool // it began and ended on its thread, in order (push and pop)
	Domain   string
	Category string
	Text     string
	Color    uint32 // 0: none
	Payload  any    // nil: none
}

// Mark is a mark of NVTX.
type Mark struct {
	Thread                 uint32
	At                     int64
	Domain, Category, Text string
	Color                  uint32
	Payload                any
}

// GPU is one of the servers', as the program used it.
type GPU struct {
	Device uint32
	Server uint16 // whose it is
	Span          // in which it is looked at: the lives of the processes that used it
	Busy   []Span // by this program
	Gaps   []Reason
	Items  int
}

// Operation names an operation of the protocol.
func Operation(op uint16) string {
	if op >= wire.FirstOp {
		return wire.OpName(op)
	}
	return cuda.OpName(op)
}

// Build joins the files of a program.
func Build(parts []*Part) *Timeline {
	t := &Timeline{Clocks: map[uint16]Clock{}}
	by := map[uint32]*Process{}
	for _, part := range parts {
		p := by[part.PID]
		if p == nil {
			p = &Process{PID: part.PID, Began: part.Began, Threads: map[uint32]string{}, byID: map[uint32]int{}}
			by[part.PID] = p
			t.Processes = append(t.Processes, p)
		}
		t.Lost += part.Lost
		for of, c := range p.take(part) {
			t.Clocks[of] = t.Clocks[of].join(c)
		}
	}
	for _, of := range slices.Sorted(maps.Keys(t.Clocks)) {
		t.Clock = t.Clock.join(t.Clocks[of])
	}
	slices.SortFunc(t.Processes, func(a, b *Process) int {
		return cmp.Or(cmp.Compare(a.Began, b.Began), cmp.Compare(a.PID, b.PID))
	})
	for i, p := range t.Processes {
		p.finish()
		if t.To = max(t.To, p.Ended); i == 0 || p.Began < t.From {
			t.From = p.Began
		}
	}
	t.explain()
	return t
}

// take adds what one file has. It gives how far times of the servers can be trusted.
func (p *Process) take(part *Part) map[uint16]Clock {
	p.Began = min(p.Began, part.Began)
	p.Ended = max(p.Ended, part.Began, part.Ended)
	p.Orderly = p.Orderly || part.Ended != 0
	if part.Program != "" {
		p.Program = part.Program // of the last one that the process executed
	}
	for id, name := range part.threads {
		if name != "" {
			p.Threads[id] = name
		}
	}
	if len(part.ranges) > 0 {
		p.NVTX = true
		p.ranges(part)
	}
	if len(part.calls)+len(part.waits)+len(part.answers) == 0 {
		return nil
	}
	p.GPU = true
	first := len(p.Calls)
	p.Calls = append(p.Calls, part.calls...)
	slices.SortStableFunc(p.Calls[first:], func(a, b Call) int { return cmp.Compare(a.Began, b.Began) })
	for i := first; i < len(p.Calls); i++ {
		if c := &p.Calls[i]; p.prefer(c) {
			p.byID[c.Correlation] = i
		}
	}
	p.Runtime = append(p.Runtime, part.runtime...)
	for _, w := range part.waits {
		if w.Op != wire.OpProfile && w.Op != wire.OpProfileRead && w.Op != wire.OpProfileNumber { // the timeline's own
			p.Waits = append(p.Waits, w)
		}
	}
	p.Traffic = append(p.Traffic, part.traffic...)
	return p.servers(part.answers)
}

// prefer says whether a call is the one that work with its correlation came with: of the driver's calls in one of the
// runtime's, which have one correlation, the first that hands over work.
func (p *Process) prefer(c *Call) bool {
	before, found := p.byID[c.Correlation]
	return !found || (!handsOver(p.Calls[before].Name) && handsOver(c.Name))
}

func handsOver(name string) bool {
	return strings.Contains(name, "Launch") || strings.Contains(name, "Memcpy") || strings.Contains(name, "Memset")
}

// finish sorts what there is, and ends what has no end.
func (p *Process) finish() {
	for i := range p.Calls {
		p.Began = min(p.Began, p.Calls[i].Began)
		p.Ended = max(p.Ended, p.Calls[i].Ended)
	}
	for i := range p.Runtime {
		p.Began = min(p.Began, p.Runtime[i].Began)
		p.Ended = max(p.Ended, p.Runtime[i].Ended)
	}
	for i := range p.Waits {
		p.Ended = max(p.Ended, p.Waits[i].Ended)
	}
	for i := range p.Work {
		p.Ended = max(p.Ended, p.Work[i].To)
	}
	for i := range p.Marks {
		p.Ended = max(p.Ended, p.Marks[i].At)
	}
	for i := range p.Ranges {
		p.Ended = max(p.Ended, p.Ranges[i].From, p.Ranges[i].To)
	}
	for i := range p.Ranges {
		if p.Ranges[i].To == 0 {
			p.Ranges[i].To = p.Ended
		}
	}
	slices.SortStableFunc(p.Work, func(a, b Work) int { return cmp.Compare(a.From, b.From) })
	ends := map[[2]uint32][]int64{}
	for i := range p.Work {
		w := &p.Work[i]
		lanes := ends[[2]uint32{w.Device, w.Stream}]
		if w.lane = slices.IndexFunc(lanes, func(end int64) bool { return end <= w.From }); w.lane < 0 {
			w.lane = len(lanes)
			lanes = append(lanes, 0)
		}
		lanes[w.lane] = w.To
		ends[[2]uint32{w.Device, w.Stream}] = lanes
	}
	slices.SortStableFunc(p.Commands, func(a, b Command) int { return cmp.Compare(a.From, b.From) })
	slices.SortFunc(p.Traffic, func(a, b Traffic) int { return cmp.Compare(a.Time, b.Time) })
	slices.SortStableFunc(p.Ranges, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
}

// explain says of each GPU when it was busy, and why not.
func (t *Timeline) explain() {
	by := map[uint32]*GPU{}
	for _, p := range t.Processes {
		for i := range p.Work {
			w := &p.Work[i]
			g := by[w.Device]
			if g == nil {
				g = &GPU{Device: w.Device, Server: w.Server, Span: Span{p.Began, p.Ended}}
				by[w.Device] = g
				t.GPUs = append(t.GPUs, g)
			}
			g.From, g.To = min(g.From, p.Began), max(g.To, p.Ended)
			g.Busy = append(g.Busy, w.Span)
			g.Items++
		}
	}
	slices.SortFunc(t.GPUs, func(a, b *GPU) int { return cmp.Compare(a.Device, b.Device) })
	for _, g := range t.GPUs {
		g.Busy = Union(g.Busy)
		var reasons []Reason
		for _, p := range t.Processes {
			reasons = append(reasons, p.reasons(g)...)
		}
		g.Gaps = Explain(g.From, g.To, g.Busy, reasons)
	}
}

// reasons are what may hold up a GPU. What another server has in hand does not.
func (p *Process) reasons(g *GPU) (list []Reason) {
	add := func(from, to int64, c Cause, detail string) {
		if to > from {
			list = append(list, Reason{Span{from, to}, c, detail})
		}
	}
	for i := range p.Waits {
		w := &p.Waits[i]
		add(w.Began, w.Ended, Network, waited(w))
	}
	taken := map[uint32]int64{} // by correlation: when the server had it in hand
	for i := range p.Commands {
		c := &p.Commands[i]
		if c.Server != g.Server {
			continue
		}
		if at, found := taken[c.Correlation]; !found || c.From < at {
			taken[c.Correlation] = c.From
		}
		add(c.From, c.To, Server, "carries out "+Operation(c.Op))
		if call, found := p.byID[c.Correlation]; found {
			add(p.Calls[call].Began, c.From, Network, Operation(c.Op)+" on its way")
		}
	}
	for i := range p.Turns {
		c := &p.Turns[i]
		if c.Server != g.Server {
			continue
		}
		add(c.From, c.To, Others, "its turn, before "+Operation(c.Op))
	}
	for i := range p.Work {
		w := &p.Work[i]
		if w.Device != g.Device {
			continue
		}
		at, found := taken[w.Correlation]
		switch {
		case w.Kind == cuda.WorkCopy && w.Source != cuda.MemoryDevice && w.Source != cuda.MemoryArray && w.Call >= 0:
			add(p.Calls[w.Call].Began, w.From, Network, "bytes of a copy on their way")
		case found:
			add(at, w.From, Server, "the driver starts "+w.what())
		case w.Call >= 0:
			add(p.Calls[w.Call].Began, w.From, Network, "network or server: "+w.what()+" on its way")
		}
	}
	return list
}

func waited(w *Wait) string {
	switch w.Why {
	case WaitAnswer:
		return "a thread waits for the answer of " + Operation(w.Op)
	case WaitData:
		return "a thread waits for the bytes of " + Operation(w.Op)
	case WaitQueue:
		return "the queue of commands is full"
	case WaitConnect:
		return "the program connects to the server"
	}
	return "a thread waits for: " + w.Why.String()
}

func (w *Work) what() string {
	switch w.Kind {
	case cuda.WorkKernel:
		return "a kernel"
	case cuda.WorkCopy:
		return "a copy"
	case cuda.WorkGraph:
		return "a graph"
	}
	return "a memset"
}

// Title is what a piece of work is called.
func (w *Work) Title() string {
	place := func(m cuda.MemoryKind) string {
		switch m {
		case cuda.MemoryDevice:
			return "device"
		case cuda.MemoryArray:
			return "array"
		case cuda.MemoryManaged:
			return "managed"
		}
		return "host"
	}
	switch w.Kind {
	case cuda.WorkKernel:
		return w.Name
	case cuda.WorkCopy:
		return fmt.Sprintf("copy, %s to %s", place(w.Source), place(w.Target))
	case cuda.WorkGraph: // a profiler of the program's wants them as a whole
		return fmt.Sprintf("graph %d", w.Graph)
	}
	return "memset"
}
