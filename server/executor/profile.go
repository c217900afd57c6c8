package executor

import (
	"math"
	"sync"
	"time"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// Profiles. While the client's libcupti.so records, each command says in its header whose work it brings
// (Correlation), and the GPU is told so before it gets that work. What the GPU did comes back from threads of the
// driver, is kept here, and goes to the client when it asks.

// workKinds are all kinds of work, which are bits of wire.Profile.Kinds.
const workKinds = wire.ProfileKernels | wire.ProfileCopies | wire.ProfileMemsets | wire.ProfileGraphs

// ownKinds are what the executor itself tells of, which takes no recorder.
const ownKinds = wire.ProfileCommands | wire.ProfileTurns

// profileMost is how much work is kept that the client has not asked for yet: some 20 MiB.
const profileMost = 1 << 17

// profile is the engine of profiles.
//
// mu guards what threads of the driver add: work and what belongs to it. The rest belongs to the executor's thread.
type profile struct {
	*base
	recorder cuda.Recorder // nil: nobody can tell what the GPU does
	on       bool
	graphs   bool              // are told of as a whole
	own      uint32            // those of ownKinds that are recorded
	numbers  bool              // of graphs can be asked for, until the session ends
	conn     transport.Timed   // nil: the connection cannot tell
	names    map[string]uint32 // that the client knows
	told     string            // the reason that was logged why nobody can tell

	mu     sync.Mutex
	kinds  uint32
	work   []cuda.Work
	copies map[uint32]int // by correlation: its place in work, of a copy that may go on in parts
	fresh  map[uint32]bool
	lost   uint64
}

func newProfile(s *Session, cfg Config) profile {
	recorder := cfg.Recorder
	if recorder == nil {
		recorder, _ = cfg.GPU.(cuda.Recorder)
	}
	conn, _ := cfg.Conn.(transport.Timed)
	return profile{base: &s.base, recorder: recorder, conn: conn}
}

// waited is for how long, in ns, what has been received had been on this machine, as far as a profile wants to know:
// no time that it takes to wake the executor is to be taken for the network's.
func (p *profile) waited() int64 {
	if p.conn == nil || (!p.on && p.own == 0) {
		return 0
	}
	return int64(p.conn.Since())
}

// control begins and ends recording.
func (p *profile) control(c *command) (cuda.CUresult, error) {
	m, rest, err := view[wire.Profile](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 {
		return 0, protocolError("profile with %d bytes behind it", len(rest))
	}
	kinds := p.begin(m.Kinds & (workKinds | ownKinds))
	if m.Kinds&wire.ProfileNumbers != 0 && p.recorder != nil && p.recorder.Numbers() == nil {
		p.numbers = true
		kinds |= wire.ProfileNumbers
	}
	answerWith(&p.arena, c, wire.ProfileState{Held: p.held(), Now: now(), Kinds: kinds}, 0)
	return cuda.CUDA_SUCCESS, nil
}

// begin says which of the kinds are recorded from now on.
func (p *profile) begin(kinds uint32) uint32 {
	if graphs := kinds&wire.ProfileGraphs != 0; graphs != p.graphs {
		p.end()
		p.graphs = graphs
	}
	p.names, p.own = map[string]uint32{}, kinds&ownKinds
	work := kinds & workKinds
	if work == 0 {
		p.end()
	} else if !p.on && !p.record() {
		work = 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kinds, p.work, p.lost = work|p.own, nil, 0
	p.copies, p.fresh = map[uint32]int{}, map[uint32]bool{}
	return p.kinds
}

// record has the GPU tell what it does. It says whether it will.
func (p *profile) record() bool {
	if p.recorder == nil {
		p.log.Info("a client records a profile; this server cannot tell what its GPUs do, so it has calls alone")
		return false
	}
	if err := p.recorder.Record(p.add, p.graphs); err != nil {
		if p.told != err.Error() {
			p.told = err.Error()
			p.log.Warn("a client records a profile, but what the GPU does cannot be told; it has calls alone", "error", err)
		}
		return false
	}
	p.on = true
	p.log.Debug("recording a profile")
	return true
}

// end stops recording, also at the session's end.
func (p *profile) end() {
	if p.on {
		p.on = false
		p.recorder.Correlate(0)
		_ = p.recorder.Record(nil, false) // nothing that could be done about it
	}
}

// correlate says whom the work belongs to that the executor's thread is about to hand over. What the client's library
// does on its own behalf is nobody's.
func (p *profile) correlate(h *transport.CommandHeader) {
	if h.Flags&transport.FlagOwn != 0 {
		p.recorder.Correlate(0)
	} else {
		p.recorder.Correlate(h.Correlation)
	}
}

// begun gives the time at which a command is taken in hand, 0 where nobody wants to know.
func (p *profile) begun(c *command) int64 {
	if p.own&wire.ProfileCommands == 0 || c.Correlation == 0 || c.Flags&transport.FlagOwn != 0 {
		return 0
	}
	return time.Now().UnixNano()
}

// tell records what the executor did with a command since then.
func (p *profile) tell(kind cuda.WorkKind, c *command, since int64) {
	p.add(&cuda.Work{Kind: kind, Correlation: c.Correlation, Start: since, End: max(time.Now().UnixNano(), since),
		Value: uint32(c.Op)})
}

// keptBack is told by the turns how long the present command had to wait for other sessions.
func (s *Session) keptBack(ns int64) {
	if p := &s.profile; p.own&wire.ProfileTurns != 0 && s.cmd.Correlation != 0 {
		p.tell(cuda.WorkTurn, &s.cmd, time.Now().UnixNano()-ns)
	}
}

// add takes in what the GPU has done.
func (p *profile) add(w *cuda.Work) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if uint32(w.Kind)&p.kinds == 0 {
		return
	}
	// A copy of the program's may have been made in parts, and a recorder may tell of a graph by what is in it.
	parts := w.Kind == cuda.WorkCopy && w.Node == 0 || w.Kind == cuda.WorkGraph
	if at, found := p.copies[w.Correlation]; found && parts {
		of := &p.work[at]
		if of.Kind == w.Kind && of.Source == w.Source && of.Target == w.Target &&
			(of.Stream == w.Stream || w.Kind == cuda.WorkGraph) {
			of.Start, of.End, of.Bytes = min(of.Start, w.Start), max(of.End, w.End), of.Bytes+w.Bytes
			p.fresh[w.Correlation] = true
			return
		}
	}
	if len(p.work) >= profileMost {
		p.lost++
		return
	}
	if parts {
		p.copies[w.Correlation], p.fresh[w.Correlation] = len(p.work), true
	}
	p.work = append(p.work, *w)
}

// read answers with what was recorded.
func (p *profile) read(c *command) (cuda.CUresult, error) {
	m, rest, err := view[wire.ProfileRead](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 || m.Bytes < wire.SizeProfileRecords {
		return 0, protocolError("profile_read of %d bytes with %d behind it", m.Bytes, len(rest))
	}
	if p.conn != nil {
		p.conn.KeepTimes() // of another socket, too, where the client had to come back
	}
	if m.Bytes < wire.SizeProfileRecords+wire.SizeProfileRecord { // a question about the clock, which shall cost little
		answerWith(&p.arena, c, wire.ProfileRecords{Held: p.held(), Now: now()}, 0)
		return cuda.CUDA_SUCCESS, nil
	}
	if p.on {
		p.recorder.Flush()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.reply = p.take(int(min(m.Bytes, codec.MaxPayload)), m.All != 0)
	return cuda.CUDA_SUCCESS, nil
}

// number answers by which number records know a graph or a node.
func (p *profile) number(c *command) (cuda.CUresult, error) {
	m, rest, err := view[wire.ProfileNumber](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 {
		return 0, protocolError("profile_number with %d bytes behind it", len(rest))
	}
	if !p.numbers {
		return cuda.CUDA_ERROR_NOT_FOUND, nil
	}
	kinds := [...]cuda.Kind{wire.ProfileObjectGraph: cuda.KindGraph, wire.ProfileObjectExec: cuda.KindGraphExec,
		wire.ProfileObjectNode: cuda.KindGraphNode}
	if m.Kind >= uint32(len(kinds)) {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	h, ok := p.table.Real(kinds[m.Kind], m.Object)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	var n uint64
	var of uint32
	var r cuda.CUresult
	switch m.Kind {
	case wire.ProfileObjectGraph:
		of, r = p.recorder.GraphNumber(cuda.CUgraph(h))
	case wire.ProfileObjectExec:
		of, r = p.recorder.ExecNumber(cuda.CUgraphExec(h))
	case wire.ProfileObjectNode:
		n, r = p.recorder.NodeNumber(cuda.CUgraphNode(h))
	}
	if r == cuda.CUDA_SUCCESS {
		answerWith(&p.arena, c, wire.ProfileNumbered{Number: n | uint64(of)}, 0)
	}
	return r, nil
}

// take gives the oldest work in so many bytes, and keeps what is left. p.mu is held.
func (p *profile) take(most int, all bool) []byte {
	room := most - wire.SizeProfileRecords
	head := wire.ProfileRecords{Lost: p.lost}
	var names, records []byte
	kept := p.work[:0]
	copies := make(map[uint32]int)
	for i := range p.work {
		w := &p.work[i]
		at, found := p.copies[w.Correlation]
		open := found && at == i
		if head.More == 0 && (!open || all || !p.fresh[w.Correlation]) {
			id, known := p.names[w.Name]
			bytes := wire.SizeProfileRecord
			name := w.Name[:min(len(w.Name), most/2)]
			if w.Name != "" && !known {
				bytes += wire.SizeProfileName + int(transport.Pad(uint64(len(name))))
			}
			if len(names)+len(records)+bytes <= room {
				if w.Name != "" && !known {
					id = uint32(len(p.names) + 1)
					p.names[w.Name] = id
					head.Names++
					names = appendName(names, id, name)
				}
				head.Records++
				records = appendWork(records, w, id)
				continue
			}
			head.More = 1
		}
		if open {
			copies[w.Correlation] = len(kept)
			if head.More == 0 {
				p.fresh[w.Correlation] = false
			}
		}
		kept = append(kept, *w)
	}
	for id := range p.fresh {
		if _, open := copies[id]; !open {
			delete(p.fresh, id)
		}
	}
	clear(p.work[len(kept):])
	p.work, p.copies = kept, copies
	head.Held, head.Now = p.held(), now()
	out := append(wire.Bytes(&head), names...)
	return append(out, records...)
}

func appendName(b []byte, id uint32, name string) []byte {
	b = append(b, wire.Bytes(&wire.ProfileName{ID: id, Bytes: uint32(len(name))})...)
	b = append(b, name...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendWork(b []byte, w *cuda.Work, name uint32) []byte {
	return append(b, wire.Bytes(&wire.ProfileRecord{
		Start: uint64(w.Start), End: uint64(w.End), Bytes: w.Bytes, Node: w.Node,
		Kind: uint32(w.Kind), Correlation: w.Correlation, Device: uint32(w.Device), Context: uint32(w.Context),
		Stream: uint32(w.Stream), Graph: w.Graph, Name: name, Value: w.Value, Grid: w.Grid, Block: w.Block,
		Registers: w.Registers, StaticShared: w.Static, DynamicShared: w.Dynamic,
		Source: uint32(w.Source), Target: uint32(w.Target),
	})...)
}

func now() uint64 { return uint64(time.Now().UnixNano()) }

// held is for how long the server has had the question in hand: so much of the client's round trip was no travelling.
// It is asked before the clock: it may only seem shorter than it was.
func (p *profile) held() uint32 { return uint32(min(metrics.Now()-p.came, math.MaxUint32)) }
