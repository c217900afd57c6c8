package executor

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/commons"
)

// Order between sessions whose programs share memory of the GPU. Natively a launch or a copy that has returned is in
// the GPU's hands, and a program that tells another one of it, by whatever means, can rely on that. Here it may still
// be on its way. So the client's library sees how far the libraries of the other programs have come, and says so
// (ORDER) before the next command; the session waits there until those sessions have got there too. Positions are
// those of calls that have returned, so sessions cannot wait for each other in a circle, except through work of the
// GPU's that one of them waits for: patience.

// ordering is the engine of the order between sessions that share memory.
//
// No locks: it belongs to the executor's thread alone. Its place is memory that all sessions of its tenant see.
type ordering struct {
	*base
	loop orderingLoop
	seat *commons.Seat // nil: there are no other sessions

	place *commons.Place // nil: the program shares no memory
	reply wire.OrderPlace
	at    uint64            // behind the last command that was carried out, or lies in the run
	stuck map[uint32]uint64 // by place: the position at which somebody's patience was at its end
}

// orderingLoop is what it asks of the loop.
type orderingLoop interface {
	napAfter(quiet time.Duration) error // lets a moment pass; the error says that the session is over
}

func newOrdering(s *Session, seat *commons.Seat) ordering {
	return ordering{base: &s.base, loop: s, seat: seat, stuck: make(map[uint32]uint64)}
}

// coreThread is the ordinal of the client's core, whose commands have no position.
const coreThread = 65535

// callPatience is how long others wait for a session that is in a call which waits for the GPU: what it waits for may
// be theirs.
const callPatience = 20 * time.Millisecond

// fullPatience is how long others wait for a session whose GPU has as much work as it may have, because that may wait
// for them.
const fullPatience = 2 * time.Millisecond

// join: the program is about to share memory with others.
func (o *ordering) join(c *command) (cuda.CUresult, error) {
	if len(c.payload) != 0 {
		return 0, protocolError("order_join with a payload of %d bytes", len(c.payload))
	}
	if o.seat == nil {
		return cuda.CUDA_ERROR_OPERATING_SYSTEM, nil // the client has its calls answered
	}
	if o.place == nil {
		var id [8]byte
		if _, err := rand.Read(id[:]); err != nil {
			return 0, fmt.Errorf("a number for the session: %w", err)
		}
		reply := wire.OrderPlace{ID: binary.NativeEndian.Uint64(id[:]) | 1}
		n, place := o.seat.Join(reply.ID)
		reply.Place = uint32(n)
		o.place, o.reply, o.at = place, reply, c.Seq
		o.order = o
	}
	answerWith(&o.arena, c, o.reply, 0)
	return cuda.CUDA_SUCCESS, nil
}

// handedOver says that the driver has all commands so far. The run is empty.
func (o *ordering) handedOver() { o.place.Reach(o.at) }

// carriedOut notes that a command was carried out or lies in the run.
func (o *ordering) carriedOut(c *command) {
	if o.place != nil && c.Thread < coreThread {
		o.at = c.Seq + uint64(c.Size)
	}
}

// beforeWaitingCall goes before a call in which the driver may wait for the context's work, and after it the function
// that it gives.
func (o *ordering) beforeWaitingCall() (after func()) {
	if o.place == nil || !o.hasWork(o.entered) {
		return func() {}
	}
	o.place.SetPatience(callPatience)
	return func() { o.place.SetPatience(commons.Patience) }
}

// hasWork says whether the GPU has work of a context.
func (o *ordering) hasWork(ctx *context) bool {
	if ctx == nil || len(o.captures) > 0 {
		return len(o.captures) > 0
	}
	o.launchAll()
	for _, st := range append([]*stream{&ctx.legacy}, ctx.streams...) {
		if st.used && o.gpu.CuStreamQuery(st.real) == cuda.CUDA_ERROR_NOT_READY {
			return true
		}
	}
	return false
}

// queueMost is how much a stream takes behind something unfinished before the driver holds the caller: 1021 launches
// or copies on an H200, less the launches of a run and the chunks of a copy.
const queueMost = 900

// limitWork lets a stream have only so much work that the driver does not hold the session up. Natively a launch does
// not return while there is no room for it, so the program would not have told others of it yet.
func (o *ordering) limitWork(st *stream) {
	if st.sent++; st.sent%(queueMost/2) != 0 || o.isCapturing(st) {
		return
	}
	o.launchAll()
	if st.half != 0 {
		o.place.SetPatience(fullPatience)
		for began := time.Now(); o.gpu.CuEventQuery(st.half) == cuda.CUDA_ERROR_NOT_READY; {
			if o.loop.napAfter(time.Since(began)) != nil {
				return // the session is over
			}
		}
		o.place.SetPatience(commons.Patience)
		st.ctx.events = append(st.ctx.events, st.half)
		st.half = 0
	}
	if e, r := o.recordEvent(st); r == cuda.CUDA_SUCCESS {
		st.half = e
	}
}

// awaitOthers: what follows comes behind what other sessions have been asked for.
func (o *ordering) awaitOthers(c *command) error {
	p, rest, err := view[wire.Order](c)
	if err != nil {
		return err
	}
	if uint64(p.Count)*wire.SizeOrderAfter != uint64(len(rest)) {
		return protocolError("order behind %d sessions with %d bytes", p.Count, len(rest))
	}
	if o.place == nil {
		return protocolError("order without a place")
	}
	for ; len(rest) > 0; rest = rest[wire.SizeOrderAfter:] {
		a, _, _ := wire.View[wire.OrderAfter](rest)
		if err := o.awaitPlace(a); err != nil {
			return err
		}
	}
	return nil
}

// awaitPlace waits until another session has come far enough.
func (o *ordering) awaitPlace(a *wire.OrderAfter) error {
	place := o.seat.Find(a.Place, a.ID)
	if place == nil || place == o.place || place.Position() >= a.Position {
		return nil
	}
	o.launchAll() // others may wait for that
	at := place.Position()
	if stuck, found := o.stuck[a.Place]; found && stuck == at {
		return nil
	}
	for began := time.Now(); place.Is(a.ID); {
		switch now := place.Position(); {
		case now >= a.Position:
			return nil
		case now != at:
			at, began = now, time.Now()
		}
		quiet := time.Since(began)
		if quiet > place.Patience() {
			o.stuck[a.Place] = at
			if quiet > callPatience {
				o.log.Warn("a session that shares memory with this one does not get on; its work may come late", "waited", quiet)
			}
			return nil
		}
		if quiet < shortTurn {
			continue
		}
		if err := o.loop.napAfter(quiet); err != nil {
			return err
		}
	}
	return nil
}
