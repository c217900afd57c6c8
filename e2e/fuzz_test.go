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

const fuzzBytes = 2 << 20 // of a session

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
	sessions := 0
	end := time.Now().Add(limit)
	for worker := range uint64(3) {
		group.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, worker))
			for time.Now().Before(end) && !t.Failed() {
				r, began := all[rnd.IntN(len(all))], s.err.Len()
				if b := r.mutate(rnd); !s.replay(t, b) {
					return
				} else if strings.Contains(s.err.Since(began), "worker crashed") {
					keepFuzzed(t, r.program, b)
					return
				}
				mu.Lock()
				sessions++
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

// replay sends a stream and reads what comes until the server closes.
func (s *server) replay(t *testing.T, b []byte) bool {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Errorf("the server is gone: %v", err)
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	go func() {
		_, _ = c.Write(b)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
		t.Errorf("a session of %d bytes does not end within 20 s", len(b))
		return false
	}
	return true
}

// keepFuzzed leaves what ended a worker where it can be looked at.
func keepFuzzed(t *testing.T, program string, b []byte) {
	f, err := os.CreateTemp("", "scuda-fuzz-"+program+"-") //nolint:usetesting // outlives the test
	if err == nil {
		_, err = f.Write(b)
		f.Close()
	}
	t.Errorf("a worker crashed by a changed session of %s, kept in %s: %v", program, fmt.Sprint(f.Name()), err)
}
