package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/transport"
)

var fuzzSetting = os.Getenv("SCUDA_FUZZ") // before TestMain takes the settings away

// recorded is what a program sent on its main connection.
type recorded struct {
	program  string
	preface  []byte
	commands []recordedCommand
}

// recordedCommand is a command with its header, and the bulk data that followed it.
type recordedCommand struct{ text, bulk []byte }

const (
	fuzzBytes   = 2 << 20 // of a session
	mostCrashes = 10      // of a run, which tells them all
)

// record runs a program through a proxy.
func record(t *testing.T, s *server, name string) *recorded {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var streams [][]byte
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", s.addr)
			if err != nil {
				c.Close()
				continue
			}
			group.Go(func() {
				_, _ = io.Copy(c, up)
				c.Close()
			})
			group.Go(func() {
				var b bytes.Buffer
				_, _ = io.Copy(io.MultiWriter(up, &b), c)
				up.Close()
				mu.Lock()
				streams = append(streams, b.Bytes())
				mu.Unlock()
			})
		}
	})
	p := start(t, clientEnv(l.Addr().String(), "SCUDA_BULK=0"), program(name), kernels)
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("%s: exit status %d\n%s%s", name, code, p.out, p.err)
	}
	l.Close()
	group.Wait()
	for _, b := range streams {
		if r := split(b); r != nil && bytes.Contains(r.preface, []byte(`"Kind":"cuda"`)) {
			r.program = name
			return r
		}
	}
	t.Fatalf("%s opened no session", name)
	return nil
}

// split takes a stream apart; nil where it is none of commands.
func split(b []byte) *recorded {
	in := bytes.NewReader(b)
	if _, err := transport.ReadPreface(in, nil); err != nil {
		return nil
	}
	n := len(b) - in.Len()
	r := &recorded{preface: b[:n]}
	for b = b[n:]; len(b) > 0; {
		f, n, err := transport.ParseFrame(b)
		if err != nil || int(f.Len) > len(b)-n {
			break // the program's last words
		}
		frame := b[n : n+int(f.Len)]
		b = b[n+int(f.Len):]
		for len(frame) > 0 {
			h, payload, err := transport.ParseCommand(frame)
			if err != nil {
				return r
			}
			c := recordedCommand{text: frame[:h.Size]}
			if frame = frame[h.Size:]; h.Flags&transport.FlagBulk != 0 {
				size := transport.Pad(h.BulkBytes(payload))
				if size > uint64(len(b)) {
					return r
				}
				c.bulk, b = b[:size], b[size:]
			}
			r.commands = append(r.commands, c)
		}
	}
	return r
}

// mutate makes the stream of a session from a recorded one.
func (r *recorded) mutate(rnd *rand.Rand) []byte {
	out := slices.Clone(r.preface)
	if rnd.IntN(20) == 0 {
		garbage := make([]byte, rnd.IntN(4096))
		for i := range garbage {
			garbage[i] = byte(rnd.Uint32())
		}
		return append(out, garbage...)
	}
	n := min(len(r.commands), 20+rnd.IntN(1480))
	list := make([]recordedCommand, 0, n+12)
	for i, size := 0, 0; i < n && size < fuzzBytes; i++ {
		c := r.commands[i]
		size += len(c.text) + len(c.bulk)
		list = append(list, recordedCommand{slices.Clone(c.text), c.bulk})
	}
	for range 1 + rnd.IntN(12) {
		if len(list) > 0 {
			list = change(list, rnd)
		}
	}
	seq := uint64(0)
	for _, c := range list {
		if len(c.text) >= transport.CommandHeaderSize {
			binary.LittleEndian.PutUint64(c.text[8:], seq)
		}
		seq += uint64(len(c.text))
		out = transport.FrameHeader{Len: uint32(len(c.text))}.Append(out)
		out = append(append(out, c.text...), c.bulk...)
	}
	return out
}

// change changes a list of commands at one place.
func change(list []recordedCommand, rnd *rand.Rand) []recordedCommand {
	i := rnd.IntN(len(list))
	c := &list[i]
	words := len(c.text) / 8
	set := func(v uint64) { binary.LittleEndian.PutUint64(c.text[8*rnd.IntN(words):], v) }
	some := func() uint64 {
		other := list[rnd.IntN(len(list))].text
		return binary.LittleEndian.Uint64(other[8*rnd.IntN(len(other)/8):])
	}
	switch rnd.IntN(11) {
	case 0:
		set([]uint64{0, 1, ^uint64(0), 2, 4, 1 << 31, 1 << 32, 1 << 63}[rnd.IntN(8)])
	case 1:
		set(1 << rnd.IntN(64))
	case 2, 3: // a foreign handle, an address, a size of another command
		set(some())
	case 4:
		at := rnd.IntN(len(c.text))
		c.text[at] ^= 1 << rnd.IntN(8)
	case 5: // another operation with the same payload
		binary.LittleEndian.PutUint16(c.text[4:], binary.LittleEndian.Uint16(list[rnd.IntN(len(list))].text[4:]))
	case 6:
		list = slices.Insert(list, i, recordedCommand{slices.Clone(c.text), c.bulk})
	case 7:
		list = slices.Delete(list, i, i+1)
	case 8:
		j := rnd.IntN(len(list))
		list[i], list[j] = list[j], list[i]
	case 9: // flags, thread, context
		at := []int{6, 16, 24}[rnd.IntN(3)]
		c.text[at] = byte(rnd.Uint32())
	case 10:
		if len(c.bulk) > 0 {
			c.bulk = c.bulk[:rnd.IntN(len(c.bulk))&^7]
		} else {
			v := uint64(int64(some()) + int64(rnd.IntN(3)) - 1)
			set(v)
		}
	}
	return list
}

// Sessions of real programs with changes in them: the server lives on and no worker crashes. SCUDA_FUZZ says for how
// long ("30m").
func TestFuzzedSessions(t *testing.T) {
	limit := 10 * time.Second
	if fuzzSetting != "" {
		var err error
		if limit, err = time.ParseDuration(fuzzSetting); err != nil {
			t.Fatalf("SCUDA_FUZZ=%s: %v", fuzzSetting, err)
		}
	}
	s := serve(t, "--warm", "3")
	var all []*recorded
	for _, name := range []string{"compute", "copies", "graph", "graph_nodes", "graph_edits", "boxes", "batches", "arrays",
		"textures", "vmm", "linker", "streams", "settings", "occupancy", "managed"} {
		all = append(all, record(t, s, name))
	}
	seed := uint64(time.Now().UnixNano())
	var group sync.WaitGroup
	var mu sync.Mutex
	sessions, crashes := 0, 0
	end := time.Now().Add(limit)
	for worker := range uint64(3) {
		group.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, worker))
			for goesOn := true; goesOn; {
				r, began := all[rnd.IntN(len(all))], s.err.Len()
				b := r.mutate(rnd)
				peer, ok := s.replay(t, b)
				if !ok {
					return
				}
				crashed := s.crashedSession(t, peer, began)
				mu.Lock()
				sessions++
				if crashed {
					crashes++
					r.keep(t, b)
				}
				goesOn = time.Now().Before(end) && crashes < mostCrashes
				mu.Unlock()
			}
		})
	}
	group.Wait()
	s.noCrash(t)
	s.run(t, "compute")
	t.Logf("%d sessions of %d programs, seed %d", sessions, len(all), seed)
	if sessions == 0 {
		t.Error("no session was tried")
	}
}

// replay sends a stream and reads what comes until the server closes. It gives the address that it sent from.
func (s *server) replay(t *testing.T, b []byte) (peer string, ok bool) {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Errorf("the server is gone: %v", err)
		return "", false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	go func() {
		_, _ = c.Write(b)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
		t.Errorf("a session of %d bytes does not end within 20 s", len(b))
		return "", false
	}
	return c.LocalAddr().String(), true
}

// crashedSession says whether the worker of an address's session crashed, by what was logged behind a place.
func (s *server) crashedSession(t *testing.T, peer string, began int) bool {
	if !strings.Contains(s.err.Since(began), `msg="session opened" peer=`+peer+" ") {
		return false
	}
	var last string
	eventually(t, patience, "the log tells of the end of the session of "+peer, func() bool {
		for line := range strings.Lines(s.err.Since(began)) {
			if strings.Contains(line, " peer="+peer+" ") && strings.Contains(line, " lasted=") {
				last = line
			}
		}
		return last != ""
	})
	return strings.Contains(last, "worker crashed")
}

// keep leaves what ended a worker where it can be looked at, and says how it differs from what the program sent.
func (r *recorded) keep(t *testing.T, b []byte) {
	f, err := os.CreateTemp("", "scuda-fuzz-"+r.program+"-")
	if err == nil {
		_, err = f.Write(b)
		f.Close()
	}
	t.Errorf("a worker crashed by a changed session of %s, kept in %s: %v\n%s", r.program, fmt.Sprint(f.Name()), err,
		r.explain(b))
}

// explain lists the commands of a changed stream: places in the recorded one, and what is not found there.
func (r *recorded) explain(b []byte) string {
	places := make(map[string][]int)
	for i, c := range r.commands {
		places[unnumbered(c.text)] = append(places[unnumbered(c.text)], i)
	}
	changed := split(b)
	if changed == nil {
		return "no commands"
	}
	var out strings.Builder
	next, from := 0, -1 // the run of commands that follow each other as recorded
	end := func() {
		if from >= 0 {
			fmt.Fprintf(&out, "%d to %d as recorded\n", from, next-1)
		}
		from = -1
	}
	for _, c := range changed.commands {
		found := places[unnumbered(c.text)]
		if len(found) > 0 && !slices.Contains(found, next) {
			end()
			next = found[0]
		}
		if len(found) > 0 {
			if from < 0 {
				from = next
			}
			next++
			continue
		}
		end()
		h, payload, _ := transport.ParseCommand(c.text)
		fmt.Fprintf(&out, "in place of %d (%s): %s flags %#x thread %d context %#x % x\n", next, opName(r.at(next)),
			executor.OpName(h.Op), h.Flags, h.Thread, h.Context, payload)
		next++
	}
	end()
	return out.String()
}

// at is the text of a recorded command, or nothing.
func (r *recorded) at(i int) []byte {
	if i >= len(r.commands) {
		return nil
	}
	return r.commands[i].text
}

func opName(text []byte) string {
	h, _, err := transport.ParseCommand(text)
	if err != nil {
		return "nothing"
	}
	return executor.OpName(h.Op)
}

// unnumbered is a command without its position.
func unnumbered(text []byte) string {
	if len(text) < 16 {
		return string(text)
	}
	return string(text[:8]) + string(text[16:])
}

// What a changed stream is told to be.
func TestExplainedStream(t *testing.T) {
	var r recorded
	for i := range 4 {
		text := transport.CommandHeader{Size: transport.CommandHeaderSize + 8, Op: uint16(i), Seq: uint64(40 * i)}.Append(nil)
		r.commands = append(r.commands, recordedCommand{text: append(text, byte(i), 0, 0, 0, 0, 0, 0, 0)})
	}
	var err error
	if r.preface, err = transport.AppendPreface(nil, nil, &transport.Hello{}); err != nil {
		t.Fatal(err)
	}
	b := slices.Clone(r.preface)
	for _, i := range []int{0, 1, 3, 3} {
		text := slices.Clone(r.commands[i].text)
		if len(b) > len(r.preface)+3*(len(text)+transport.FrameHeaderSize)-1 {
			text[len(text)-1] = 7
		}
		b = append(transport.FrameHeader{Len: uint32(len(text))}.Append(b), text...)
	}
	want := "0 to 1 as recorded\n3 to 3 as recorded\nin place of 4 (nothing): " + executor.OpName(3) +
		" flags 0x0 thread 0 context 0x0 03 00 00 00 00 00 00 07\n"
	if got := r.explain(b); got != want {
		t.Errorf("explained as\n%swant\n%s", got, want)
	}
}
