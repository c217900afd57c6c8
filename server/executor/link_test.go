package executor

import (
	"bytes"
	"os"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

func (c *client) linkAdd(link uint64, text []byte) (cuda.CUresult, []byte) {
	c.t.Helper()
	for piece := range bytesIn(text, 1000) {
		padded := append(bytes.Clone(piece), make([]byte, transport.Pad(len(piece))-len(piece))...)
		c.send(wire.OpLinkData, append(wire.Bytes(&wire.LinkData{Link: link, Bytes: uint64(len(piece))}), padded...))
	}
	return c.call(wire.OpLinkAdd, wire.Bytes(&wire.LinkAdd{Link: link, Type: uint32(cuda.CU_JIT_INPUT_PTX)}))
}

func bytesIn(b []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			k := min(n, len(b))
			if !yield(b[:k]) {
				return
			}
			b = b[k:]
		}
	}
}

func TestLink(t *testing.T) {
	c := connect(t)
	link := c.newHandle()
	c.must(wire.OpLinkCreate, wire.Bytes(&wire.LinkCreate{Link: link}))
	text, err := os.ReadFile("../../testdata/kernels/print.ptx")
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := c.linkAdd(link, append(text, 0)); r != cuda.CUDA_SUCCESS {
		t.Fatal(r)
	}
	wrong := c.newHandle()
	c.must(wire.OpLinkCreate, wire.Bytes(&wire.LinkCreate{Link: wrong}))
	if r, logs := c.linkAdd(wrong, []byte(".version 7.0\n.target sm_52\nnonsense\x00")); r !=
		cuda.CUDA_ERROR_INVALID_PTX || len(logs) <= wire.SizeLoadInfo {
		t.Errorf("wrong text: %v, logs %q", r, logs)
	}
	reply := c.must(wire.OpLinkComplete, wire.Bytes(&wire.LinkComplete{Link: link}))
	size := word(reply, 0)
	if size == 0 {
		t.Fatal("empty")
	}
	whole := c.must(wire.OpLinkRead, wire.Bytes(&wire.LinkRead{Link: link, Bytes: size}))
	part := c.must(wire.OpLinkRead, wire.Bytes(&wire.LinkRead{Link: link, Offset: 10, Bytes: size - 10}))
	if !bytes.Equal(whole[10:], part) {
		t.Error("a part differs from the whole")
	}
	c.expect(cuda.CUDA_ERROR_INVALID_VALUE, wire.OpLinkRead,
		wire.Bytes(&wire.LinkRead{Link: link, Offset: size, Bytes: 1}))
	c.expect(cuda.CUDA_ERROR_INVALID_VALUE, wire.OpLinkRead,
		wire.Bytes(&wire.LinkRead{Link: link, Offset: 1 << 63, Bytes: 1 << 63}))
	c.must(wire.OpLinkDestroy, wire.Bytes(&wire.LinkDestroy{Link: link}))
	for _, op := range []uint16{wire.OpLinkComplete, wire.OpLinkDestroy} {
		c.expect(cuda.CUDA_ERROR_INVALID_HANDLE, op, words(link))
	}
	c.loadModule(whole)
}
