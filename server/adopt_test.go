package server

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/usage"
	"scuda.dev/scuda/transport"
)

// What is asked while a supervisor takes over is asked once, when that is ready, and so is what another was asked.
func TestQuestionsForAnotherSupervisor(t *testing.T) {
	line, theirs, err := handoff.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	worker, err := handoff.FromFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	var r requests
	type body struct{ Request uint64 }
	ask := func() *question {
		q := &question{line: worker, kind: "ask", fd: -1}
		if err := r.begin(q, func(n uint64) any { return body{n} }); err != nil {
			t.Fatal(err)
		}
		return q
	}
	next := func() (kind string, n uint64) {
		m, err := line.Receive()
		if err != nil {
			t.Fatal(err)
		}
		var b body
		if err := m.Decode(&b); err != nil {
			t.Fatal(err)
		}
		return m.Type, b.Request
	}
	ask()
	if kind, n := next(); kind != "ask" || n != 1 { // and the supervisor is killed
		t.Fatalf("%s %d", kind, n)
	}
	if err := r.hold(func() error { return worker.Send(msgAdopted, body{}, -1) }); err != nil {
		t.Fatal(err)
	}
	ask()
	if kind, _ := next(); kind != msgAdopted {
		t.Fatalf("%s before the supervisor is ready", kind)
	}
	if err := r.resume(); err != nil {
		t.Fatal(err)
	}
	ask()
	var got []uint64
	for range 3 {
		_, n := next()
		got = append(got, n)
	}
	if !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Errorf("asked %v", got)
	}
}

// A record gives the next supervisor what the one before knew, as of the last change.
func TestRecord(t *testing.T) {
	first, err := newRecord(&sessionRecord{Contract: contract, ID: "a", Secret: "s", Grace: time.Minute},
		changing{Meter: usage.NewMeter(time.Now()).State()})
	if err != nil {
		t.Fatal(err)
	}
	defer first.close()
	x := &session{record: first, used: map[string]bool{"bulk 1": true}, epochs: map[uint32]uint64{3: 7}}
	x.permitted()
	fd, err := unix.FcntlInt(uintptr(first.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	second, info, err := openRecord(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer second.close()
	if info.ID != "a" || info.Secret != "s" || info.Grace != time.Minute || info.Contract != contract {
		t.Errorf("%+v", info)
	}
	if !second.now.Used["bulk 1"] || second.now.Epochs[3] != 7 {
		t.Errorf("%+v", second.now)
	}
}

// Another form of a message is another contract.
func TestContract(t *testing.T) {
	type a struct{ N uint32 }
	type b struct{ N uint64 }
	type c struct{ M uint32 }
	if contractOf(a{}) == contractOf(b{}) || contractOf(a{}) == contractOf(c{}) {
		t.Error("forms are not told apart")
	}
}

// A session's used-up tickets and all that changes fit their page.
func TestRecordHasRoom(t *testing.T) {
	r, err := newRecord(&sessionRecord{}, changing{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	used := usage.Used{Seconds: -math.MaxFloat64, GPU: -math.MaxFloat64, Memory: -math.MaxFloat64, Turn: -math.MaxFloat64,
		Waited: -math.MaxFloat64, ToDevice: math.MaxUint64, ToHost: math.MaxUint64, Calls: math.MaxUint64}
	c := changing{Used: map[string]bool{}, Epochs: map[uint32]uint64{}, Spent: used,
		Meter: usage.State{Used: used, Before: usage.Sample{Memory: math.MaxUint64, ToDevice: math.MaxUint64,
			ToHost: math.MaxUint64, Calls: math.MaxUint64, Turn: math.MaxInt64, Waited: math.MaxInt64, Taken: math.MaxInt64}}}
	for kind, n := range tickets {
		if kind == transport.KindIntroduce {
			continue // which are bits of a word
		}
		for i := range min(n, 64) {
			c.Used[kind+" "+string(rune('0'+i%10))+string(rune('0'+i/10))] = true
		}
	}
	for i := range uint32(40) {
		c.Epochs[i] = 1<<64 - 1
	}
	c.Introduced, c.Peers = introductions{Next: math.MaxInt, Used: math.MaxUint64}, map[uint32]peerUse{}
	for i := range uint32(transport.MaxServers) {
		c.Peers[i] = peerUse{math.MaxUint32, 1<<(transport.PeerPath+1) - 1}
	}
	r.now = c
	if err := r.write(); err != nil {
		t.Error(err)
	}
}

// What is no record is refused, and of one of another release is read whose session it is.
func TestRecordsOfOthers(t *testing.T) {
	unsealed, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unsealed)
	text := func(page, info string) int {
		b := append(append([]byte(page), make([]byte, recordPage-len(page))...), info...)
		return memoryWith(t, int64(len(b)), b)
	}
	for name, fd := range map[string]int{
		"unsealed": unsealed, "nothing": memoryWith(t, recordPage, nil), "huge": memoryWith(t, maxRecord+1, nil),
		"empty": text("", "{}"), "cut off": text("{}", `{"Contract":"`+contract+`","ID":"a`),
		"no page":    text("{", `{"Contract":"`+contract+`","ID":"a"}`),
		"of nobody":  text("{}", `{"Contract":"`+contract+`"}`),
		"of no kind": text("{}", `{"ID":"a"}`),
		"mistyped":   text("{}", `{"Contract":"`+contract+`","ID":"a","Grace":"a minute"}`),
	} {
		if _, info, err := openRecord(fd); err == nil || errors.Is(err, errContract) {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	fd := text(`{"Meter":7}`, `{"Contract":"other","Grace":"a minute","ID":"a","Secret":"s","Tenant":"alice","New":[]}`)
	_, info, err := openRecord(fd)
	if !errors.Is(err, errContract) || info.ID != "a" || info.Secret != "s" || info.Tenant != "alice" {
		t.Errorf("%+v, %v", info, err)
	}
}
