package turn

import "sync/atomic"

// Word is what a worker is told. 0: nobody takes turns, and it need not say anything.
type Word uint32

// What a word may hold.
const (
	Report Word = 1 << iota // say what you do
	Pace                    // let the GPU have little work at a time: others may get the turn
	Brief                   // ... and less still: a higher class may want it at once
	Wait                    // hand nothing over, it is not your turn
)

// Doing is what a worker says.
type Doing uint32

// What a worker may be doing. Without either it has nothing to do.
const (
	Busy  Doing = 1 << iota // a GPU has work of it
	Wants                   // it keeps work back until its word allows it
)

// Slot is what a worker and its supervisor tell each other, in memory that both see and nobody else.
type Slot struct {
	word   atomic.Uint32 // the supervisor writes it
	doing  atomic.Uint32 // the worker writes the rest
	handed atomic.Uint64
	gpus   atomic.Uint64
}

// Tell gives the worker its word.
func (s *Slot) Tell(w Word) { s.word.Store(uint32(w)) }

// Word is what the worker was told last.
func (s *Slot) Word() Word { return Word(s.word.Load()) }

// Do says what the worker does.
func (s *Slot) Do(d Doing) { s.doing.Store(uint32(d)) }

// Hand says how many pieces of work the worker has handed to the driver so far.
func (s *Slot) Hand(n uint64) { s.handed.Store(n) }

// Use says that the worker has a context on one of its GPUs.
func (s *Slot) Use(gpu int) {
	if gpu >= 0 && gpu < GPUs {
		s.gpus.Or(1 << gpu)
	}
}

// GPUs is how many GPUs are told from each other.
const GPUs = 64

// Seen is what somebody read in a slot.
type Seen struct {
	Doing
	Handed uint64
	GPUs   uint64 // a bit for each, by the reader's numbers
}

// Read reads what the worker says. Its GPUs are numbered as the worker numbers them.
func (s *Slot) Read() Seen {
	return Seen{Doing: Doing(s.doing.Load()), Handed: s.handed.Load(), GPUs: s.gpus.Load()}
}
