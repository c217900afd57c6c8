package timeline

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// Event is an entry of a file in the Trace Event Format of Chrome, which Perfetto reads as well. Times are in µs.
type Event struct {
	Phase    string         `json:"ph"`
	Name     string         `json:"name,omitempty"`
	Category string         `json:"cat,omitempty"`
	PID      uint64         `json:"pid"`
	TID      uint64         `json:"tid"`
	Time     float64        `json:"ts"`
	Duration *float64       `json:"dur,omitempty"` // of a complete event (X)
	ID       uint64         `json:"id,omitempty"`  // of flows and asynchronous events
	Binding  string         `json:"bp,omitempty"`  // of the end of a flow: e, it ends in the slice around it
	Scope    string         `json:"s,omitempty"`   // of an instant
	Color    string         `json:"cname,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// firstRow is where numbers of rows begin that are no process or thread of the machine: above all of those, and, as
// Perfetto wants them, below 1 << 32.
const firstRow = mostProcesses

// colors are Chrome's names for those of causes; Perfetto chooses its own.
var colors = [causes]string{Program: "thread_state_runnable", Network: "thread_state_iowait", Server: "bad",
	Others: "terrible"}

// place is a group of rows that is no process of the machine: of a GPU, or of the server.
type place struct {
	what   string
	of     uint32 // the process
	device uint32 // or the server
}

// chrome writes events.
type chrome struct {
	t     *Timeline
	pids  map[place]uint64
	w     *bufio.Writer
	err   error
	comma bool
}

// pid is the number of a group of rows.
func (c *chrome) pid(p place) uint64 {
	if _, found := c.pids[p]; !found {
		c.pids[p] = firstRow + uint64(len(c.pids))
	}
	return c.pids[p]
}

func (c *chrome) time(at int64) float64 { return float64(at-c.t.From) / 1e3 }

func (c *chrome) put(e Event) {
	b, err := json.Marshal(e)
	if err != nil && c.err == nil {
		c.err = err
	}
	separator := "\n"
	if c.comma {
		separator = ",\n"
	}
	c.comma = true
	fmt.Fprintf(c.w, "%s%s", separator, b) // the writer remembers what failed
}

func (c *chrome) slice(pid, tid uint64, s Span, name, category string, args map[string]any) Event {
	d := float64(s.To-s.From) / 1e3
	return Event{Phase: "X", Name: name, Category: category, PID: pid, TID: tid, Time: c.time(s.From), Duration: &d,
		Args: args}
}

func (c *chrome) process(pid uint64, order int, name string) {
	c.put(Event{Phase: "M", Name: "process_name", PID: pid, Args: map[string]any{"name": name}})
	c.put(Event{Phase: "M", Name: "process_sort_index", PID: pid, Args: map[string]any{"sort_index": order}})
}

func (c *chrome) row(pid, tid uint64, order int, name string) {
	c.put(Event{Phase: "M", Name: "thread_name", PID: pid, TID: tid, Args: map[string]any{"name": name}})
	c.put(Event{Phase: "M", Name: "thread_sort_index", PID: pid, TID: tid, Args: map[string]any{"sort_index": order}})
}

// Chrome writes the timeline as a JSON object in the Trace Event Format.
func (t *Timeline) Chrome(w io.Writer) error {
	c := &chrome{t: t, pids: map[place]uint64{}, w: bufio.NewWriterSize(w, 1<<20)}
	b, err := json.Marshal(t.metadata())
	if err != nil {
		return err
	}
	fmt.Fprintf(c.w, `{"displayTimeUnit":"ns","otherData":%s,"traceEvents":[`, b)
	for i, g := range t.GPUs {
		pid := c.pid(place{what: "idle", device: g.Device})
		c.process(pid, 10*i, fmt.Sprintf("GPU %d: why it is idle", g.Device))
		c.row(pid, 1, 0, "idle, because of")
		for _, r := range g.Gaps {
			e := c.slice(pid, 1, r.Span, r.Cause.String(), "idle", map[string]any{"what": r.Detail})
			e.Color = colors[r.Cause]
			c.put(e)
		}
	}
	flow := uint64(0)
	for i, p := range t.Processes {
		flow = c.program(p, 1000+10*i, flow)
		c.gpus(p, 2000+10*i)
		c.server(p, 3000+10*i)
	}
	fmt.Fprint(c.w, "\n]}\n")
	if err := c.w.Flush(); err != nil {
		return err
	}
	return c.err
}

// metadata says by which clock the times are, and how far they can be trusted.
func (t *Timeline) metadata() map[string]any {
	m := map[string]any{
		"writer":               "scuda trace --kernels",
		"clock":                "CLOCK_MONOTONIC of the client's machine, in µs since its beginning_ns",
		"beginning_ns":         t.From,
		"server_clock_ns":      t.Clock.Offset,
		"server_error_ns":      t.Clock.Likely,
		"server_error_most_ns": t.Clock.Most,
		"round_trip_ns":        t.Clock.Shortest,
		"lost_events":          t.Lost,
		"lost_at_server":       t.lostAtServer(),
		"ended_by_a_signal":    t.killed(),
	}
	if len(t.Clocks) > 1 {
		clocks := []int64{}
		for _, of := range slices.Sorted(maps.Keys(t.Clocks)) {
			clocks = append(clocks, t.Clocks[of].Offset)
		}
		m["server_clocks_ns"] = clocks
	}
	return m
}

func (t *Timeline) lostAtServer() (n uint64) {
	for _, p := range t.Processes {
		n += p.LostAtServer
	}
	return n
}

// killed are the processes that used the GPU and did not end in order.
func (t *Timeline) killed() []uint32 {
	list := []uint32{}
	for _, p := range t.Processes {
		if p.GPU && !p.Orderly {
			list = append(list, p.PID)
		}
	}
	return list
}

// program writes the rows of a process: a thread's calls, of the runtime and of the driver, and waits, and rows of
// NVTX. It gives the last flow's number.
func (c *chrome) program(p *Process, order int, flow uint64) uint64 {
	pid := uint64(p.PID)
	c.process(pid, order, p.Program)
	for i, tid := range slices.Sorted(maps.Keys(p.Threads)) {
		c.row(pid, uint64(tid), 100+i, fmt.Sprintf("%s (%d)", p.Threads[tid], tid))
	}
	for i := range p.Runtime {
		x := &p.Runtime[i]
		args := map[string]any{}
		if x.Result != 0 {
			args["result"] = x.Result // cudaError_t, of which only the runtime knows the names
		}
		c.put(c.slice(pid, uint64(x.Thread), Span{x.Began, x.Ended}, x.Name, "runtime", args))
	}
	for i := range p.Calls {
		x := &p.Calls[i]
		args := map[string]any{"correlation": x.Correlation}
		if x.Result != 0 {
			args["result"] = cuda.ResultName(cuda.CUresult(x.Result))
		}
		c.put(c.slice(pid, uint64(x.Thread), Span{x.Began, x.Ended}, x.Name, "call", args))
	}
	for i := range p.Waits {
		w := &p.Waits[i]
		args := map[string]any{"of": Operation(w.Op)}
		if w.Bytes != 0 {
			args["bytes"] = w.Bytes
		}
		c.put(c.slice(pid, uint64(w.Thread), Span{w.Began, w.Ended}, "waits: "+w.Why.String(), "wait", args))
	}
	for i := range p.Work {
		w := &p.Work[i]
		if w.Call < 0 {
			continue
		}
		call := &p.Calls[w.Call]
		flow++
		c.put(Event{Phase: "s", Name: "launch", Category: "flow", PID: pid, TID: uint64(call.Thread), ID: flow,
			Time: c.time(call.Began)})
		c.put(Event{Phase: "f", Name: "launch", Category: "flow", PID: c.gpu(p, w.Device), TID: c.stream(w), ID: flow,
			Time: c.time(w.From), Binding: "e"})
	}
	c.nvtx(p)
	for i := 1; i < len(p.Traffic); i++ {
		a, b := &p.Traffic[i-1], &p.Traffic[i]
		rate := func(from, to uint64) float64 { return float64(to-from) * 1e3 / float64(max(b.Time-a.Time, 1)) }
		c.put(Event{Phase: "C", Name: "MB/s by transport", PID: pid, Time: c.time(a.Time), Args: map[string]any{
			"sent by TCP": rate(a.Sent, b.Sent), "received by TCP": rate(a.Received, b.Received),
			"sent by RDMA": rate(a.SentR, b.SentR), "received by RDMA": rate(a.ReceivedR, b.ReceivedR)}})
	}
	return flow
}

// gpu is the number of the rows of a GPU's streams; they are a process's own, since streams are.
func (c *chrome) gpu(p *Process, device uint32) uint64 { return c.pid(place{"GPU", p.PID, device}) }

// stream is the row of a stream, or of what it does at the same time.
func (c *chrome) stream(w *Work) uint64 {
	if w.lane == 0 {
		return uint64(w.Stream) % firstRow
	}
	return c.pid(place{fmt.Sprintf("lane %d", w.lane), w.Stream, w.Device})
}

// gpus writes the rows of the streams on which a process had work.
func (c *chrome) gpus(p *Process, order int) {
	known := map[uint64]map[uint64]bool{}
	for i := range p.Work {
		w := &p.Work[i]
		pid, tid := c.gpu(p, w.Device), c.stream(w)
		if known[pid] == nil {
			known[pid] = map[uint64]bool{}
			c.process(pid, order, fmt.Sprintf("GPU %d, of process %d", w.Device, p.PID))
		}
		if !known[pid][tid] {
			known[pid][tid] = true
			name := fmt.Sprintf("stream %d", w.Stream)
			if w.lane > 0 {
				name += fmt.Sprintf(", at the same time (%d)", w.lane+1)
			}
			c.row(pid, tid, int(w.Stream), name)
		}
		args := map[string]any{"correlation": w.Correlation, "context": w.Context}
		category := "kernel"
		if w.Kind == cuda.WorkKernel {
			args["grid"], args["block"], args["registers"], args["shared"] = w.Grid, w.Block, w.Registers, w.Shared
		} else {
			category, args["bytes"] = "copy", w.Bytes
		}
		switch w.Kind {
		case cuda.WorkMemset:
			category = "memset"
		case cuda.WorkGraph:
			category = "graph"
		}
		if w.Graph != 0 {
			args["graph"] = w.Graph
		}
		c.put(c.slice(pid, tid, w.Span, w.Title(), category, args))
	}
}

// server writes what servers had in hand for a process.
func (c *chrome) server(p *Process, order int) {
	const carriesOut, keptBack = 1, 2
	known := map[[2]uint64]bool{}
	row := func(of uint16, tid uint64, name string) uint64 {
		pid := c.pid(place{"server", p.PID, uint32(of)})
		if !known[[2]uint64{pid}] {
			known[[2]uint64{pid}] = true
			which := ""
			if len(c.t.Clocks) > 1 {
				which = fmt.Sprintf(" %d", of+1)
			}
			c.process(pid, order, fmt.Sprintf("server%s, for process %d", which, p.PID))
		}
		if key := [2]uint64{pid, tid}; !known[key] {
			known[key] = true
			c.row(pid, tid, int(tid), name)
		}
		return pid
	}
	for i := range p.Commands {
		x := &p.Commands[i]
		args := map[string]any{"correlation": x.Correlation}
		if call, found := p.byID[x.Correlation]; found {
			args["queue_us"] = float64(x.From-p.Calls[call].Began) / 1e3 // from the call to here
		}
		c.put(c.slice(row(x.Server, carriesOut, "carries out"), carriesOut, x.Span, Operation(x.Op), "server", args))
	}
	for i := range p.Turns {
		x := &p.Turns[i]
		pid := row(x.Server, keptBack, "kept back: another session's turn")
		c.put(c.slice(pid, keptBack, x.Span, Operation(x.Op), "turn", map[string]any{"correlation": x.Correlation}))
	}
}

// nvtx writes ranges and marks: those of a thread in rows below it, one a domain, since only within that do they nest.
func (c *chrome) nvtx(p *Process) {
	type row struct {
		thread uint32
		domain string
	}
	rows := map[row]uint64{}
	pid := uint64(p.PID)
	at := func(thread uint32, domain string) uint64 {
		key := row{thread, domain}
		if _, found := rows[key]; !found {
			rows[key] = firstRow + uint64(len(rows))
			name := "NVTX of " + p.Threads[thread]
			if domain != "" {
				name = domain + ": " + name
			}
			c.row(pid, rows[key], len(rows), fmt.Sprintf("%s (%d)", name, thread))
		}
		return rows[key]
	}
	describe := func(category string, color uint32, payload any) map[string]any {
		args := map[string]any{}
		if category != "" {
			args["category"] = category
		}
		if color != 0 {
			args["color"] = fmt.Sprintf("#%06x", color&0xffffff)
		}
		if payload != nil {
			args["payload"] = payload
		}
		return args
	}
	for i := range p.Ranges {
		r := &p.Ranges[i]
		args := describe(r.Category, r.Color, r.Payload)
		if r.Own {
			c.put(c.slice(pid, at(r.Thread, r.Domain), r.Span, r.Text, "nvtx", args))
			continue
		}
		if r.Domain != "" {
			args["domain"] = r.Domain
		}
		e := Event{Phase: "b", Name: r.Text, Category: "nvtx", PID: pid, TID: uint64(r.Thread), ID: uint64(i) + 1,
			Time: c.time(r.From), Args: args}
		c.put(e)
		e.Phase, e.Time, e.Args = "e", c.time(r.To), nil
		c.put(e)
	}
	for i := range p.Marks {
		m := &p.Marks[i]
		c.put(Event{Phase: "i", Name: m.Text, Category: "nvtx", PID: pid, TID: at(m.Thread, m.Domain),
			Time: c.time(m.At), Scope: "t", Args: describe(m.Category, m.Color, m.Payload)})
	}
}
