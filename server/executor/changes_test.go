package executor

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

func TestAppendChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old := make([]byte, rapid.IntRange(1, 8*changeBlock).Draw(t, "bytes"))
		now := bytes.Clone(old)
		for _, at := range rapid.SliceOfN(rapid.IntRange(0, len(now)-1), 0, 4).Draw(t, "changed") {
			now[at] = 1
		}
		known := slices.Repeat([]bool{true}, 8)
		for _, b := range rapid.SliceOfN(rapid.IntRange(0, 7), 0, 2).Draw(t, "unknown") {
			known[b] = false
		}
		list := appendChanged(nil, old, now, known)
		at := 0
		for i, d := range list {
			if d.from < at || d.from >= d.to || i > 0 && d.from == at {
				t.Fatalf("stretches %v are empty, overlap or touch", list)
			}
			if !bytes.Equal(old[at:d.from], now[at:d.from]) {
				t.Fatalf("a change before %v is missing", d)
			}
			for b := d.from; b < d.to; b += changeBlock {
				if end := min(b+changeBlock, len(now)); known[b/changeBlock] && bytes.Equal(old[b:end], now[b:end]) {
					t.Fatalf("%v holds a block that did not change", d)
				}
			}
			at = d.to
		}
		if !bytes.Equal(old[at:], now[at:]) {
			t.Fatal("a change at the end is missing")
		}
	})
}

// changes asks for what kernels changed of a stretch, into dst.
func (c *client) changes(address, from uint64, dst []byte) wire.Changes {
	c.t.Helper()
	c.mu.Lock()
	c.transfers[0] = dst
	c.mu.Unlock()
	p := wire.HostChanges{Address: address, From: from, Bytes: uint64(len(dst))}
	m := c.await(c.start(0, wire.OpHostChanges, 0, wire.Bytes(&p), nil))
	if m.Result != 0 || len(m.payload) != wire.SizeChanges {
		c.t.Fatalf("changes: %s, %d bytes", resultText(cuda.CUresult(m.Result)), len(m.payload))
	}
	return wire.Changes{Low: word(m.payload, 0), High: word(m.payload, 1), Bytes: word(m.payload, 2)}
}

func TestHostChanges(t *testing.T) {
	c := connect(t)
	const address, size = 0x600000000000, 3<<20 + 100
	device := word(c.must(wire.OpHostMap, wire.Bytes(&wire.HostMap{Address: address, Bytes: size})), 0)
	model := make([]byte, size)
	for i := range model {
		model[i] = byte(i / 7)
	}
	for at := 0; at < size; at += maxInline {
		c.upload(device+uint64(at), model[at:min(at+maxInline, size)], 0, flagSync|flagMirror)
	}
	here := bytes.Clone(model)
	set := func(at, n int, v byte) {
		c.must(cuda.OpCuMemsetD8_v2, words(device+uint64(at), uint64(v), uint64(n)))
		copy(model[at:], bytes.Repeat([]byte{v}, n))
	}
	for _, step := range []struct {
		name string
		do   func()
		want wire.Changes
	}{
		{"nothing", func() {}, wire.Changes{Low: size}},
		{"one byte", func() { set(5000, 1, 255) }, wire.Changes{Low: 4096, High: 8192, Bytes: 4096}},
		{"the end", func() { set(size-1, 1, 254) }, wire.Changes{Low: size &^ 4095, High: size, Bytes: size % 4096}},
		{"two pieces far apart", func() {
			set(0, 10, 253)
			set(2<<20, 9000, 253)
		}, wire.Changes{Low: 0, High: 2<<20 + 12288, Bytes: 4096 + 12288}},
		{"the same again", func() { set(0, 10, 253) }, wire.Changes{Low: size}},
		{"what the client sent", func() {
			copy(model[100:], "sent")
			copy(here[100:], "sent")
			c.upload(device+100, []byte("sent"), 0, flagSync|flagMirror)
		}, wire.Changes{Low: size}},
		{"everything", func() { set(0, size, 1) }, wire.Changes{Low: 0, High: size, Bytes: size}},
	} {
		step.do()
		if got := c.changes(address, 0, here); got != step.want {
			t.Errorf("%s: changes %+v, want %+v", step.name, got, step.want)
		}
		if !slices.Equal(here, model) {
			t.Fatalf("%s: the bytes are wrong", step.name)
		}
	}
	c.expect(cuda.CUDA_ERROR_INVALID_VALUE, wire.OpHostChanges,
		wire.Bytes(&wire.HostChanges{Address: address + 8, Bytes: 4096}))
	c.must(wire.OpHostUnmap, wire.Bytes(&wire.HostUnmap{Address: address, Bytes: size}))
	c.expect(cuda.CUDA_ERROR_INVALID_VALUE, wire.OpHostChanges,
		wire.Bytes(&wire.HostChanges{Address: address, Bytes: 4096}))
}

// What the client has of unified memory is forgotten when it travels in another way, and learned by stretches.
func TestHostChangesOfStretches(t *testing.T) {
	c := connect(t)
	const address, size = 0x680000000000, 1<<20 + 100
	device := word(c.must(wire.OpHostMap, wire.Bytes(&wire.HostMap{Address: address, Bytes: size})), 0)
	model, here := make([]byte, size), make([]byte, size)
	set := func(at, n int, v byte) {
		c.must(cuda.OpCuMemsetD8_v2, words(device+uint64(at), uint64(v), uint64(n)))
		copy(model[at:], bytes.Repeat([]byte{v}, n))
	}
	set(0, size, 1)
	for _, step := range []struct {
		name     string
		do       func()
		from, to int
		sent     uint64
	}{
		{"never sent", func() {}, 65536, 131072, 65536},
		{"sent", func() {}, 65536, 131072, 0},
		{"half of it sent", func() {}, 0, 131072, 65536},
		{"changed", func() { set(70000, 1, 2) }, 0, 131072, 4096},
		{"written by the client", func() {
			set(0, 65536, 3)
			c.upload(device, bytes.Repeat([]byte{1}, 8192), 0, flagSync|flagManaged) // what was sent before
			copy(model, bytes.Repeat([]byte{1}, 8192))
			copy(here, bytes.Repeat([]byte{9}, 8192))
		}, 0, 65536, 65536},
		{"the end", func() {}, size &^ 4095, size, size % 4096},
	} {
		step.do()
		if got := c.changes(address, uint64(step.from), here[step.from:step.to]); got.Bytes != step.sent {
			t.Errorf("%s: changes %+v, want %d bytes", step.name, got, step.sent)
		}
		if !slices.Equal(here[step.from:step.to], model[step.from:step.to]) {
			t.Fatalf("%s: the bytes are wrong", step.name)
		}
	}
	for _, wrong := range []wire.HostChanges{{From: 1, Bytes: 4096}, {Bytes: 4097}, {From: 4096, Bytes: size},
		{From: 1 << 63, Bytes: 1 << 63}, {}} {
		wrong.Address = address
		c.expect(cuda.CUDA_ERROR_INVALID_VALUE, wire.OpHostChanges, wire.Bytes(&wrong))
	}
}
