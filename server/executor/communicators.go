package executor

import (
	"encoding/binary"
	"strings"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nccl"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/liveness"
)

// How communicators begin: by an id, or as a part of another one. And reductions of the program's own, which belong to
// a communicator.

// mostReductions is how many a communicator may have at a time.
const mostReductions = 4096

// readConfig reads a configuration that follows a command's fixed part, and what else follows it: so many bytes, then
// the communicator's name.
func readConfig(rest []byte, between int) (cfg *nccl.Config, middle []byte, text string, err error) {
	m, rest, ok := wire.View[wire.NcclConfig](rest)
	if !ok || m.NameBytes > wire.MaxNcclName || len(rest) < between+int(m.NameBytes) { // a payload may end with padding
		return nil, nil, "", protocolError("a configuration of a communicator that is cut off")
	}
	if m.Given == 0 {
		return nil, rest[:between], "", nil
	}
	cfg = &nccl.Config{Hints: m.Hints, Name: string(rest[between : between+int(m.NameBytes)])}
	switch m.Net {
	case wire.NcclNetAny:
	case wire.NcclNetSockets:
		cfg.Net = "Socket"
	case wire.NcclNetInfiniband:
		cfg.Net = "IB"
	default:
		return nil, nil, "", protocolError("network %d of a communicator", m.Net)
	}
	return cfg, rest[:between], cfg.Check(), nil
}

// readSettings reads a program's variables: those that it may set where its calls are carried out, and the names of the
// others.
func readSettings(rest []byte, m *wire.NcclOpen) (taken, refused []string, err error) {
	if m.SettingBytes > wire.MaxNcclSettings || len(rest) < int(m.SettingBytes) {
		return nil, nil, protocolError("settings of NCCL in %d bytes", len(rest))
	}
	all := string(rest[:m.SettingBytes])
	if uint32(strings.Count(all, "\x00")) != m.Settings || !strings.HasSuffix("\x00"+all, "\x00") {
		return nil, nil, protocolError("%d settings of NCCL are not as many", m.Settings)
	}
	for s := range strings.SplitSeq(all, "\x00") {
		name, value, _ := strings.Cut(s, "=")
		switch {
		case s == "":
		case nccl.Setting(name, value):
			taken = append(taken, s)
		default:
			refused = append(refused, strings.ToValidUTF8(name, "?"))
		}
	}
	return taken, refused, nil
}

// newCommunicator takes a client's number for one that begins.
func (cl *collectives) newCommunicator(number uint64, ctx *context) *communicator {
	cm := &communicator{ctx: ctx, calls: make(chan *collectiveCall, mostCalls),
		reductions: map[uint32]nccl.ReduceOp{}}
	cl.comms[number] = cm
	go cl.serve(cm)
	return cm
}

// initRank: ncclCommInitRank and its like.
func (cl *collectives) initRank(c *command) (cuda.CUresult, error) {
	m, rest, ready, err := asked[wire.NcclInit](cl, c)
	switch {
	case err != nil:
		return 0, err
	case m.Ids < 1 || m.Ids > wire.MaxNcclIds || len(rest) < int(m.Ids)*nccl.IDBytes:
		return 0, protocolError("%d ids of a communicator in %d bytes", m.Ids, len(rest))
	case m.Comm == 0 || cl.comms[m.Comm] != nil:
		return 0, protocolError("a communicator by the number %d", m.Comm)
	}
	ids := make([]nccl.ID, m.Ids)
	for i := range ids {
		rest = rest[copy(ids[i][:], rest):]
	}
	cfg, _, text, err := readConfig(rest, 0)
	switch {
	case err != nil:
		return 0, err
	case !ready:
		return refuseCall(c, nccl.InvalidUsage, notOpen)
	case m.Ranks < 1 || m.Ranks > mostRanks || m.Rank < 0 || m.Rank >= m.Ranks || int(m.Ranks) < len(ids):
		return refuseCall(c, nccl.InvalidArgument, "there is no such rank, or there are more ids than ranks")
	case text != "":
		return refuseCall(c, nccl.InvalidArgument, text)
	case cl.entered == nil:
		return cuda.CUDA_ERROR_INVALID_CONTEXT, nil
	case len(cl.comms) >= mostComms:
		return refuseCall(c, nccl.InvalidUsage, tooManyComms)
	}
	number, cm := m.Comm, cl.newCommunicator(m.Comm, cl.entered)
	cm.rank, cm.ranks = m.Rank, m.Ranks
	cm.place, _ = liveness.Open(&ids[0])
	for i := range ids[1:] {
		liveness.Open(&ids[1+i])
	}
	var made nccl.Comm
	call := cl.call(c, nil)
	call.make = func() nccl.Result {
		r := cl.library.InitRank(&made, cm.ranks, cm.rank, ids, cfg)
		if r == nccl.Success && made != 0 {
			cl.watchRank(cm, made, cm.rank, call.real)
		}
		return r
	}
	call.contexts = []*context{cm.ctx}
	call.over = func(ok bool) { cl.begun(number, made, ok) }
	return cl.begin(c, cm, call)
}

const tooManyComms = "the session has too many communicators"

// begun is what becomes of a communicator whose beginning is over.
func (cl *collectives) begun(number uint64, made nccl.Comm, ok bool) {
	if cm := cl.comms[number]; ok && made != 0 && cm != nil {
		cm.comm = made
	} else if cm != nil {
		cl.forget(number)
	}
}

// split: ncclCommSplit and ncclCommShrink, which the parent's thread calls. A shrink that ends what is under way cannot
// wait for that thread.
func (cl *collectives) split(c *command) (cuda.CUresult, error) {
	m, rest, _, err := asked[wire.NcclSplit](cl, c)
	switch {
	case err != nil:
		return 0, err
	case m.Verb > wire.NcclSplitShrinkAbort || m.Excluded > wire.MaxNcclExcluded:
		return 0, protocolError("verb %d of a split, without %d ranks", m.Verb, m.Excluded)
	case m.Made == 0 || cl.comms[m.Made] != nil:
		return 0, protocolError("a communicator by the number %d", m.Made)
	}
	cfg, list, text, err := readConfig(rest, 4*int(m.Excluded))
	if err != nil {
		return 0, err
	}
	part := wire.NcclPart{Rank: -1}
	refuse := func(r nccl.Result, text string) (cuda.CUresult, error) {
		part.Result, part.TextBytes = int32(r), uint32(len(text))
		c.reply = append(wire.Bytes(&part), text...)
		return cuda.CUDA_SUCCESS, nil
	}
	parent := cl.comm(m.Comm)
	if parent == nil {
		return refuse(cl.refusal(m.Comm))
	}
	excluded, ok := ranksOf(list, parent)
	splits := m.Verb == wire.NcclSplitSplit
	switch {
	case text != "":
		return refuse(nccl.InvalidArgument, text)
	case splits && (m.Color < nccl.NoColor || len(excluded) > 0), !splits && !ok:
		return refuse(nccl.InvalidArgument, "there is no such colour or rank, or this rank is left out")
	case len(cl.comms) >= mostComms:
		return refuse(nccl.InvalidUsage, tooManyComms)
	}
	number, color, key, abort := m.Made, m.Color, m.Key, m.Verb == wire.NcclSplitShrinkAbort
	cm := cl.newCommunicator(number, parent.ctx)
	if splits {
		cm.place = parent.place.Split(parent.splits, color)
		parent.splits++
	} else {
		cm.place = parent.place.Shrink(excluded)
	}
	var made nccl.Comm
	call := cl.call(c, nil)
	call.contexts = []*context{parent.ctx}
	call.make = func() nccl.Result {
		var r nccl.Result
		if splits {
			r = cl.library.Split(parent.comm, &made, color, key, cfg)
		} else {
			r = cl.library.Shrink(parent.comm, &made, excluded, abort, cfg)
		}
		if r != nccl.Success || made == 0 {
			return r
		}
		if part.Rank, part.Ranks, r = cl.library.Place(made); r == nccl.Success {
			cl.watchRank(cm, made, part.Rank, call.real)
		}
		return r
	}
	call.answer = func(text string) []byte {
		part.Result, part.TextBytes = int32(call.result), uint32(len(text))
		return append(wire.Bytes(&part), text...)
	}
	call.over = func(ok bool) {
		cm.rank, cm.ranks = part.Rank, part.Ranks
		cl.begun(number, made, ok)
	}
	if abort {
		return cl.begin(c, nil, call)
	}
	return cl.begin(c, parent, call)
}

// ranksOf reads ranks that a shrink leaves out. They are ranks of the parent, each once, and not this one.
func ranksOf(list []byte, parent *communicator) (ranks []int32, ok bool) {
	seen := map[int32]bool{parent.rank: true}
	for ; len(list) >= 4; list = list[4:] {
		rank := int32(binary.LittleEndian.Uint32(list))
		if rank < 0 || rank >= parent.ranks || seen[rank] {
			return nil, false
		}
		seen[rank] = true
		ranks = append(ranks, rank)
	}
	return ranks, len(ranks) > 0
}

// makeReduction: ncclRedOpCreatePreMulSum.
func (cl *collectives) makeReduction(c *command) (cuda.CUresult, error) {
	m, _, _, err := asked[wire.NcclReduction](cl, c)
	if err != nil {
		return 0, err
	}
	if m.Residence > wire.NcclScalarHost {
		return 0, protocolError("residence %d of a scalar", m.Residence)
	}
	cm, of, scalar, device := cl.comm(m.Comm), nccl.DataType(m.Type), m.Scalar, m.Residence == wire.NcclScalarDevice
	if cm == nil {
		return cl.refuseComm(c, m.Comm)
	}
	if r := cl.enter(cm.ctx.handle); r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	number, found := cm.freeReduction()
	switch {
	case of.ElementBytes() == 0:
		return refuseCall(c, nccl.InvalidArgument, "there is no such type")
	case device && !newRangeCheck(cl.base).holds(scalar, of.ElementBytes()):
		return refuseCall(c, nccl.InvalidArgument, "the scalar does not lie in the GPU's memory")
	case !found:
		return refuseCall(c, nccl.InvalidUsage, "the communicator has too many reductions of the program's own")
	}
	cm.reductions[number] = 0 // it is taken
	var made nccl.ReduceOp
	call := cl.call(c, func() nccl.Result { return cl.library.MakeReduction(cm.comm, &made, scalar, device, of) })
	call.answer = func(text string) []byte { return ncclResult(call.result, number, text) }
	call.contexts = []*context{cm.ctx}
	call.over = func(ok bool) {
		if ok && made.Made() {
			cm.reductions[number] = made
		} else {
			delete(cm.reductions, number)
		}
	}
	return cl.begin(c, cm, call)
}

// freeReduction is a number that no reduction of the communicator has.
func (cm *communicator) freeReduction() (number uint32, found bool) {
	if len(cm.reductions) >= mostReductions {
		return 0, false
	}
	number = nccl.FirstReduction
	for {
		if _, taken := cm.reductions[number]; !taken {
			return number, true
		}
		number++
	}
}

// endReduction: ncclRedOpDestroy.
func (cl *collectives) endReduction(c *command) (cuda.CUresult, error) {
	m, _, _, err := asked[wire.NcclReductionEnd](cl, c)
	if err != nil {
		return 0, err
	}
	cm := cl.comm(m.Comm)
	if cm == nil || cm.reductions[m.Reduction] == 0 {
		return refuseCall(c, nccl.InvalidArgument, "the reduction is none, or has ended")
	}
	op := cm.reductions[m.Reduction]
	delete(cm.reductions, m.Reduction)
	call := cl.call(c, func() nccl.Result { return cl.library.EndReduction(cm.comm, op) })
	call.contexts = []*context{cm.ctx}
	return cl.begin(c, cm, call)
}
