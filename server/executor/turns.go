package executor

import (
	"time"

	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/turn"
)

// turns is the engine that hands work for a GPU to the driver only while it is the session's turn, as its slot says.
// While that says nothing, which is always so where one session works, a piece of work costs a look at one word.
//
// What it keeps back is the next command of the client, whole: nothing is held then that others or the GPU wait for,
// other than later work of the same session, and the supervisor lets nobody wait without end. Downloads, waits and
// callbacks that are under way go on, and the session's pulse speaks meanwhile. A capture hands nothing to a GPU, so it
// is not kept back.
//
// Where others may get the turn, it also lets the GPU have little work at a time, so that the turn ends soon when it
// ends: about three times workAtATime, or two commands where one takes longer. That is measured by events behind every
// few commands, of the stream that the last one went to. A program that uses several streams may have more.
//
// Beside a higher class it is about briefWork, or one command, and then the GPU runs dry before it gets more: while a
// process has work for it, a driver leaves it the GPU for a slice of a millisecond or two, whoever else wants it.
//
// What the GPU has may itself wait for what is kept back (a kernel for a copy to another stream, say). So a command is
// handed over after pacePatience, whatever the GPU has.
//
// No locks: it belongs to the executor's thread alone.
type turns struct {
	*base
	loop   turnsLoop
	slot   *turn.Slot
	handed uint64 // commands with work for a GPU
	told   uint64 // as the slot has it

	active  bool       // the supervisor is told what the session does
	waits   bool       // a command is kept back
	doing   turn.Doing // as the slot has it
	looked  int64      // when streams were last asked, by metrics.Now
	lastOne int64      // when work was last handed over while it was active

	marks []turnMark
	since int   // commands since the last mark, with the present one; beside a higher class, since the GPU ran dry
	dry   int64 // when the first of these was handed over beside a higher class, by metrics.Now; 0: there is none
	every int   // commands between two marks
	brief bool  // a higher class waits for what the GPU has
	long  bool  // one command takes longer than it should
	fired int64 // when a mark was last seen to fire
}

// turnMark is an event behind a few commands.
type turnMark struct {
	event cuda.CUevent
	ctx   *context
	since int64
}

// turnsLoop is what it asks of the loop.
type turnsLoop interface {
	napAfter(quiet time.Duration) error // lets a moment pass; the error says that the session is over
	gpuHasWork() bool
	awaitsClient() bool // work of a GPU may wait for something that the client was asked for
	keptBack(ns int64)  // the command that is carried out has waited for others so long
}

const (
	workAtATime = 250 * time.Microsecond // of a GPU between two marks
	briefWork   = 50 * time.Microsecond  // the same, beside a higher class
	mostBetween = 512                    // commands
	marksAhead  = 2
	askEvery    = 20 * time.Microsecond // streams whether they have work
	// pacePatience is how long a command is kept back at most for what the GPU has.
	pacePatience = 50 * time.Millisecond
	turnQuiet    = 800 * time.Microsecond // naps for the turn do not become longer than after so long
	// hostPatience is how long what a session handed over last counts as work of the GPU while the client is asked for
	// something. That may be what it waits for.
	hostPatience = time.Millisecond
)

func newTurns(s *Session, slot *turn.Slot) turns {
	if slot == nil {
		slot = new(turn.Slot)
	}
	return turns{base: &s.base, loop: s, slot: slot, every: 8}
}

// usesGPU says which classes of calls hand work to a GPU.
var usesGPU = [class.Count]bool{class.Launch: true, class.Copy: true, class.Fill: true}

// handOver is called before a command that hands work to a GPU. It returns when the session may do that, or is over.
func (t *turns) handOver() error {
	t.handed++
	if t.slot.Word() == 0 {
		return nil
	}
	return t.await()
}

func (t *turns) await() error {
	if len(t.captures) > 0 {
		return nil
	}
	began := int64(0)
	for {
		word, now := t.slot.Word(), metrics.Now()
		if t.pacer = nil; word&turn.Pace != 0 {
			t.pacer = t
		}
		t.waits, t.brief = word&turn.Wait != 0, word&turn.Brief != 0
		if !t.waits && (t.pacer == nil || t.hasRoom() || began != 0 && now-began >= int64(pacePatience)) {
			t.active, t.lastOne = true, now
			switch t.since++; {
			case !t.brief:
				t.dry = 0
			case t.dry == 0:
				t.dry = now
			}
			t.say(turn.Busy)
			if began != 0 {
				t.loop.keptBack(now - began)
			}
			return nil
		}
		if t.active = true; t.waits {
			t.say(t.doing | turn.Wants)
		}
		if began == 0 {
			began = now
		}
		if err := t.loop.napAfter(min(time.Duration(now-began), turnQuiet)); err != nil {
			t.waits = false
			return err
		}
	}
}

func (t *turns) say(d turn.Doing) {
	if t.doing != d {
		t.doing = d
		t.slot.Do(d)
	}
}

// look tells the supervisor, from time to time, what the session does.
func (t *turns) look() {
	if !t.active {
		return
	}
	if t.slot.Word() == 0 && !t.waits {
		t.rest()
		return
	}
	t.collect()
	now := metrics.Now()
	if now-t.looked < int64(askEvery) {
		return
	}
	t.looked = now
	t.active = len(t.captures) == 0 && t.loop.gpuHasWork() // queries are not allowed while something is captured
	doing := turn.Doing(0)
	if t.active && (now-t.lastOne < int64(hostPatience) || !t.loop.awaitsClient()) {
		doing = turn.Busy
	}
	if t.waits {
		t.active, doing = true, doing|turn.Wants
	}
	t.say(doing)
}

// publish says how much was handed over, also while nothing else is said.
func (t *turns) publish() {
	if t.handed != t.told {
		t.told = t.handed
		t.slot.Hand(t.handed)
	}
}

// rest forgets all that is of no use while nobody takes turns.
func (t *turns) rest() {
	for _, m := range t.marks {
		m.ctx.events = append(m.ctx.events, m.event)
	}
	clear(t.marks)
	t.marks, t.active, t.pacer, t.since, t.dry = t.marks[:0], false, nil, 0, 0
	t.say(0)
}

// hasRoom says whether the GPU may have one more command.
func (t *turns) hasRoom() bool {
	if t.since < t.every {
		return true
	}
	t.collect()
	if t.brief {
		return t.ranDry()
	}
	if t.long {
		return len(t.marks) == 0
	}
	return len(t.marks) < marksAhead
}

// ranDry says whether the GPU has completed all that it had.
func (t *turns) ranDry() bool {
	t.launchAll()
	if t.loop.gpuHasWork() {
		return false
	}
	if t.dry != 0 {
		t.learn(time.Duration(metrics.Now() - t.dry))
	}
	t.since, t.dry = 0, 0
	return true
}

// mark puts an event behind what a stream has, where there were enough commands since the last one.
func (t *turns) mark(st *stream) {
	if t.brief || t.since <= t.every || len(t.captures) > 0 {
		return
	}
	t.launchAll()
	e, r := t.recordEvent(st)
	if r != cuda.CUDA_SUCCESS {
		return // there will be another stream, or an error that ends all
	}
	t.marks = append(t.marks, turnMark{e, st.ctx, metrics.Now()})
	t.since = 1
}

// collect looks which marks have fired, and learns from the time that they took.
func (t *turns) collect() {
	n := 0
	for ; n < len(t.marks); n++ {
		if t.enterAny(); t.gpu.CuEventQuery(t.marks[n].event) == cuda.CUDA_ERROR_NOT_READY {
			break
		}
		m, now := &t.marks[n], metrics.Now()
		t.learn(time.Duration(now - max(m.since, t.fired)))
		t.fired = now
		m.ctx.events = append(m.ctx.events, m.event)
	}
	if n > 0 {
		left := copy(t.marks, t.marks[n:])
		clear(t.marks[left:])
		t.marks = t.marks[:left]
	}
}

// learn fits the number of commands between two marks to the time that those before the last one took.
func (t *turns) learn(took time.Duration) {
	meant := workAtATime
	if t.brief {
		meant = briefWork
	}
	t.long = false
	switch {
	case took > 2*meant:
		t.long = t.every == 1
		t.every = max(t.every/2, 1)
	case took < meant/2:
		t.every = min(2*t.every, mostBetween)
	}
}

// abandon forgets the events of a context that ends.
func (t *turns) abandon(ctx *context) {
	kept := t.marks[:0]
	for _, m := range t.marks {
		if m.ctx != ctx {
			kept = append(kept, m)
		}
	}
	clear(t.marks[len(kept):])
	t.marks = kept
}

// What it asks of the loop, and tells others.

func (s *Session) awaitsClient() bool { return s.callback.awaits() }

func (s *Session) usesGPU(dev cuda.CUdevice) { s.turns.slot.Use(int(dev)) }

// gpuHasWork says whether a stream of the session has work. Nothing is captured.
func (s *Session) gpuHasWork() bool {
	for _, ctx := range s.contexts {
		r := s.within(ctx, func() cuda.CUresult {
			for i := -1; i < len(ctx.streams); i++ {
				st := &ctx.legacy
				if i >= 0 {
					st = ctx.streams[i]
				}
				if st.used && s.gpu.CuStreamQuery(st.real) == cuda.CUDA_ERROR_NOT_READY {
					return cuda.CUDA_ERROR_NOT_READY
				}
			}
			return cuda.CUDA_SUCCESS
		})
		if r == cuda.CUDA_ERROR_NOT_READY {
			return true
		}
	}
	return false
}
