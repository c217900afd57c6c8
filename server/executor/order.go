package executor

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/order"
)

// Order between sessions whose programs share memory of the GPU. Natively a launch or a copy that has returned is in the GPU's hands, and a program that
// tells another one of it, by whatever means, can rely on that. Here it may still be on its way. So the client's library sees how far the libraries of
// the other programs have come, and says so (ORDER) before the next command; the session waits there until those sessions have got there too. Positions
// are those of calls that have returned, so sessions cannot wait for each other in a circle, except through work of the GPU's that one of them
// waits for: patience.

// sharing is what the session has of it once it takes part.
type sharing struct {
	place *order.Place
	reply wire.OrderPlace
	at    uint64            // behind the last command that was carried out, or lies in the run
	stuck map[uint32]uint64 // by place: the position at which somebody's patience was at its end
}

// coreThread is the ordinal of the client's core, whose commands have no position.
const coreThread = 65535

// callPatience is how long others wait for a session that is in a call which waits for the GPU: what it waits for may be theirs.
const callPatience = 20 * time.Millisecond

// fullPatience is how long others wait for a session whose GPU has as much work as it may have, because that may wait for them.
const fullPatience = 2 * time.Millisecond

// orderJoin: the program is about to share memory with others.
func (s *Session) orderJoin(c *command) (cuda.CUresult, error) {
	if len(c.payload) != 0 {
		return 0, protocolError("order_join with a payload of %d bytes", len(c.payload))
	}
	if s.board == nil {
		return cuda.CUDA_ERROR_OPERATING_SYSTEM, nil // the client has its calls answered
	}
	if s.sharing == nil {
		var id [8]byte
		if _, err := rand.Read(id[:]); err != nil {
			return 0, fmt.Errorf("a number for the session: %w", err)
		}
		reply := wire.OrderPlace{ID: binary.NativeEndian.Uint64(id[:]) | 1}
		n, place, ok := s.board.Claim(reply.ID, os.Getpid())
		if !ok {
			return cuda.CUDA_ERROR_OUT_OF_MEMORY, nil
		}
		reply.Place = uint32(n)
		s.sharing = &sharing{place: place, reply: reply, at: c.Seq, stuck: make(map[uint32]uint64)}
		s.base.order = s
	}
	answerWith(&s.arena, c, s.sharing.reply, 0)
	return cuda.CUDA_SUCCESS, nil
}

// handedOver says that the driver has all commands so far. The run is empty.
func (s *Session) handedOver() { s.sharing.place.Reach(s.sharing.at) }

// carriedOut notes that a command was carried out or lies in the run. One with bulk data was once those have come.
func (s *Session) carriedOut(c *command) {
	if s.sharing != nil && s.bulk == nil && c.Thread < coreThread {
		s.sharing.at = c.Seq + uint64(c.Size)
	}
}

// mayWait goes before a call in which the driver may wait for the context's work, and after it the function that it gives.
func (s *Session) mayWait() (after func()) {
	if s.sharing == nil || !s.busy(s.entered) {
		return func() {}
	}
	s.sharing.place.SetPatience(callPatience)
	return func() { s.sharing.place.SetPatience(order.Patience) }
}

// busy says whether the GPU has work of a context.
func (s *Session) busy(ctx *context) bool {
	if ctx == nil || len(s.captures) > 0 {
		return len(s.captures) > 0
	}
	s.launchAll()
	for _, st := range append([]*stream{&ctx.legacy}, ctx.streams...) {
		if st.used && s.gpu.CuStreamQuery(st.real) == cuda.CUDA_ERROR_NOT_READY {
			return true
		}
	}
	return false
}

// queueMost is how much a stream takes behind something unfinished before the driver holds the caller: 1021 launches or copies on an H200, less the
// launches of a run and the chunks of a copy.
const queueMost = 900

// limitWork lets a stream have only so much work that the driver does not hold the session up. Natively a launch does not return while there is no room for it, so
// the program would not have told others of it yet.
func (s *Session) limitWork(st *stream) {
	if st.sent++; st.sent%(queueMost/2) != 0 || s.isCapturing(st) {
		return
	}
	s.launchAll()
	if st.half != 0 {
		s.sharing.place.SetPatience(fullPatience)
		for began := time.Now(); s.gpu.CuEventQuery(st.half) == cuda.CUDA_ERROR_NOT_READY; {
			if s.napAfter(time.Since(began)) != nil {
				return // the session is over
			}
		}
		s.sharing.place.SetPatience(order.Patience)
		st.ctx.events = append(st.ctx.events, st.half)
		st.half = 0
	}
	if e, r := s.recordEvent(st); r == cuda.CUDA_SUCCESS {
		st.half = e
	}
}

// order: what follows comes behind what other sessions have been asked for.
func (s *Session) order(c *command) error {
	p, rest, err := view[wire.Order](c)
	if err != nil {
		return err
	}
	if uint64(p.Count)*wire.SizeOrderAfter != uint64(len(rest)) {
		return protocolError("order behind %d sessions with %d bytes", p.Count, len(rest))
	}
	if s.sharing == nil {
		return protocolError("order without a place")
	}
	for ; len(rest) > 0; rest = rest[wire.SizeOrderAfter:] {
		a, _, _ := wire.View[wire.OrderAfter](rest)
		if err := s.await(a); err != nil {
			return err
		}
	}
	return nil
}

// await waits until another session has come far enough.
func (s *Session) await(a *wire.OrderAfter) error {
	place := s.board.Find(a.Place, a.ID)
	if place == nil || place == s.sharing.place || place.Position() >= a.Position {
		return nil
	}
	s.launchAll() // others may wait for that
	at := place.Position()
	if stuck, found := s.sharing.stuck[a.Place]; found && stuck == at {
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
			s.sharing.stuck[a.Place] = at
			if quiet > callPatience {
				s.log.Warn("a session that shares memory with this one does not get on; its work may come late", "waited", quiet)
			}
			return nil
		}
		if quiet < shortTurn {
			continue
		}
		if err := s.napAfter(quiet); err != nil {
			return err
		}
	}
	return nil
}
