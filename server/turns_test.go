package server

import (
	"context"
	"testing"
	"time"

	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/server/turn"
	"scuda.dev/scuda/transport"
)

// working is a worker of a machine with two GPUs that has work for the n-th that it sees.
func working(n int, gpus ...byte) *process {
	p := &process{slot: new(turn.Slot)}
	for _, g := range gpus {
		p.ready.Devices = append(p.ready.Devices, transport.Device{UUID: [16]byte{g}})
	}
	p.slot.Use(n)
	p.slot.Hand(1)
	return p
}

// Workers are told by their own numbers of GPUs, and by what their tenants may; who has ended is not looked at.
func TestWords(t *testing.T) {
	s := newTurns(true)
	of := func(name string) bearer { return bearer{Identity: tenant.Identity{Name: name}} }
	high, low, alone := working(0, 1, 2), working(1, 2, 1), working(0, 2)
	ended := working(0, 1)
	s.join(high, of("a"), &lease.Terms{Share: 100, Class: lease.High})
	s.join(low, of("b"), &lease.Terms{Share: 100, Class: lease.Low})
	s.join(alone, of("c"), &lease.Terms{Share: 100})
	s.end(ended)
	s.join(ended, of("d"), &lease.Terms{Share: 300})
	s.look()
	paced := turn.Report | turn.Pace | turn.Brief
	if high.slot.Word() != turn.Report || low.slot.Word() != paced || alone.slot.Word() != 0 {
		t.Errorf("words %b, %b and %b", high.slot.Word(), low.slot.Word(), alone.slot.Word())
	}
	high.slot.Do(turn.Busy)
	low.slot.Do(turn.Wants)
	if again := s.look(); again != turn.Usual.Tick || low.slot.Word()&turn.Wait == 0 {
		t.Errorf("the low one is told %b; again in %v", low.slot.Word(), again)
	}
	if !s.waits(low) || s.waits(high) || s.waits(ended) {
		t.Error("who waits")
	}
	time.Sleep(time.Millisecond)
	if s.look(); s.got(low).Waited <= 0 || s.got(high).GPU <= 0 || s.got(alone) != (turn.Got{}) {
		t.Errorf("high %+v, low %+v, alone %+v", s.got(high), s.got(low), s.got(alone))
	}
	slot, got := high.slot, s.got(high)
	s.end(high)
	if s.got(high) != got || got == (turn.Got{}) {
		t.Errorf("%+v after its end, %+v before", s.got(high), got)
	}
	slot.Do(turn.Busy) // of whoever has the memory now
	if s.look(); low.slot.Word()&turn.Wait != 0 || s.waits(high) {
		t.Errorf("the other one has ended: %b", low.slot.Word())
	}
	turns := uint64(0)
	for _, c := range s.counts() {
		turns += c.Turns
	}
	if turns == 0 {
		t.Error("no turn is counted")
	}
}

// The thread that looks ends with the server, and without turns there is none.
func TestTurnsRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, over := newTurns(true), make(chan struct{})
	go func() {
		s.run(ctx)
		close(over)
	}()
	p := working(0, 1)
	q := working(0, 1)
	s.join(p, bearer{}, &lease.Terms{Share: 100})
	s.join(q, bearer{lease: "x"}, &lease.Terms{Share: 200})
	for end := time.Now().Add(20 * time.Second); p.slot.Word() == 0; {
		if time.Now().After(end) {
			t.Fatal("nobody looks")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-over
	none := newTurns(false)
	none.run(t.Context())
	none.join(p, bearer{}, &lease.Terms{})
	if none.end(p); none.waits(p) || none.counts() != nil || none.got(p) != (turn.Got{}) {
		t.Error("turns that nobody takes")
	}
}
