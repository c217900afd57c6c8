package executor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// Whatever a client sends, the session ends with a reason, at once, and the process lives on.
func TestHostileInput(t *testing.T) {
	huge := func(b []byte, at int, v uint32) []byte {
		binary.LittleEndian.PutUint32(b[at:], v)
		return b
	}
	payload := func(v any) []byte {
		switch v := v.(type) {
		case wire.CopyH2D:
			return wire.Bytes(&v)
		case wire.CopyD2H:
			return wire.Bytes(&v)
		case wire.CopyH2DPull:
			return wire.Bytes(&v)
		case wire.Launch:
			return wire.Bytes(&v)
		case wire.GetFunction:
			return wire.Bytes(&v)
		case wire.ModulePut:
			return wire.Bytes(&v)
		case wire.LibraryLoad:
			return wire.Bytes(&v)
		case wire.PointerAttributes:
			return wire.Bytes(&v)
		case wire.GraphNode:
			return wire.Bytes(&v)
		case wire.GraphNodeGet:
			return wire.Bytes(&v)
		case wire.Copy3D:
			return wire.Bytes(&v)
		case wire.ShareExport:
			return wire.Bytes(&v)
		case wire.ShareImport:
			return wire.Bytes(&v)
		}
		panic("no such payload")
	}
	for name, input := range map[string]func(c *client) []byte{
		"garbage":           func(*client) []byte { return bytes.Repeat([]byte("GET / HTTP/1.0\r\n"), 4) },
		"zero frame":        func(*client) []byte { return huge(frame(), 4, 0) },
		"frame too long":    func(*client) []byte { return huge(frame(), 4, 64<<20+8) },
		"odd frame":         func(*client) []byte { return huge(frame(), 4, 33) },
		"command too short": func(c *client) []byte { return huge(frame(c.command(0, wire.OpPing, 0, words(0))), 8, 8) },
		"command too long": func(c *client) []byte {
			return huge(frame(c.command(0, wire.OpPing, 0, words(0))), 8, 2<<20)
		},
		"command beyond frame": func(c *client) []byte {
			return huge(frame(c.command(0, wire.OpPing, 0, words(0))), 8, 4096)
		},
		"thread out of range": func(c *client) []byte {
			return huge(frame(c.command(0, wire.OpPing, 0, words(0))), 8+24, 1<<16)
		},
		"unknown flags":     func(c *client) []byte { return frame(c.command(0, wire.OpPing, 0x80, words(0))) },
		"unknown operation": func(c *client) []byte { return frame(c.command(0, 0xfff0, 0, words(0))) },
		"operation 0":       func(c *client) []byte { return frame(c.command(0, 0, 0, words(0))) },
		"no payload":        func(c *client) []byte { return frame(c.command(0, wire.OpLaunch, 0, nil)) },
		"3-D copy without a shape": func(c *client) []byte {
			return frame(c.command(0, wire.OpCopy3D, 0, payload(wire.Copy3D{Flags: copy3DData})))
		},
		"3-D copy that overflows": func(c *client) []byte {
			return frame(c.command(0, wire.OpCopy3D, 0,
				payload(wire.Copy3D{Copy: upload(1<<40, 1<<40, 1, 1<<40), Flags: copy3DPull, Bytes: 1 << 62})))
		},
		"3-D copy without its data": func(c *client) []byte {
			return frame(
				c.command(0, wire.OpCopy3D, 0, payload(wire.Copy3D{Copy: upload(8, 4, 1, 16), Flags: copy3DData, Bytes: 32})))
		},
		"3-D copy with other data": func(c *client) []byte {
			return frame(c.command(0, wire.OpCopy3D, 0,
				append(payload(wire.Copy3D{Copy: upload(8, 4, 1, 16), Flags: copy3DData, Bytes: 24}), make([]byte, 24)...)))
		},
		"3-D copy within the host": func(c *client) []byte {
			b := upload(8, 4, 1, 16)
			copy3DOf(&b).DstMemoryType = cuda.CU_MEMORYTYPE_HOST
			return frame(c.command(0, wire.OpCopy3D, 0, payload(wire.Copy3D{Copy: b, Flags: copy3DPull, Bytes: 56})))
		},
		"export of what is not": func(c *client) []byte {
			return frame(c.command(0, wire.OpShareExport, 1, payload(wire.ShareExport{Kind: 2})))
		},
		"import of what is not": func(c *client) []byte {
			return frame(c.command(0, wire.OpShareImport, 1, payload(wire.ShareImport{Kind: 2})))
		},
		"generic, too short": func(c *client) []byte { return frame(c.command(0, cuda.OpCuMemAlloc_v2, 0, words(1))) },
		"generic, huge array": func(c *client) []byte {
			return frame(c.command(0, cuda.OpCuMemAlloc_v2, 0, words(1<<60, 8)))
		},
		"server op, too short": func(c *client) []byte { return frame(c.command(0, cuda.OpCuStreamSynchronize, 0, nil)) },
		"bulk in the middle": func(c *client) []byte {
			p := payload(wire.CopyH2D{Bytes: 1 << 20})
			return frame(c.command(0, wire.OpCopyH2D, transport.FlagBulk, append(p, words(1<<20)...)),
				c.command(0, wire.OpPing, 0, words(0)))
		},
		"bulk for another operation": func(c *client) []byte {
			return frame(c.command(0, wire.OpPing, transport.FlagBulk, words(0)))
		},
		"bulk of another size": func(c *client) []byte {
			return frame(
				c.command(0, wire.OpCopyH2D, transport.FlagBulk, append(payload(wire.CopyH2D{Bytes: 1 << 20}), words(1<<30)...)))
		},
		"inline upload, too long": func(c *client) []byte {
			return frame(c.command(0, wire.OpCopyH2D, 0, payload(wire.CopyH2D{Bytes: 1 << 40})))
		},
		"inline upload, no data": func(c *client) []byte {
			return frame(c.command(0, wire.OpCopyH2D, 0, payload(wire.CopyH2D{Bytes: 100})))
		},
		"download, too long": func(c *client) []byte {
			return frame(c.command(0, wire.OpCopyD2H, 0, payload(wire.CopyD2H{Bytes: 1 << 60})))
		},
		"deferred, too long": func(c *client) []byte {
			return frame(c.command(0, wire.OpCopyH2DPull, 0, payload(wire.CopyH2DPull{Bytes: 1 << 60})))
		},
		"launch, many attributes": func(c *client) []byte {
			return frame(c.command(0, wire.OpLaunch, 0, payload(wire.Launch{AttrCount: 1 << 31})))
		},
		"launch, many parameters": func(c *client) []byte {
			return frame(c.command(0, wire.OpLaunch, 0, payload(wire.Launch{ParamBytes: 1 << 31})))
		},
		"name without end": func(c *client) []byte {
			return frame(c.command(0, wire.OpGetFunction, 0, append(payload(wire.GetFunction{NameBytes: 8}), "nonsense"...)))
		},
		"image too large": func(c *client) []byte {
			return frame(c.command(0, wire.OpModulePut, transport.FlagBulk,
				append(payload(wire.ModulePut{Bytes: 1 << 50}), words(1<<50)...)))
		},
		"many options": func(c *client) []byte {
			return frame(c.command(0, wire.OpLibraryLoad, 0, payload(wire.LibraryLoad{JITCount: 1 << 31, LibCount: 1 << 31})))
		},
		"many variables": func(c *client) []byte {
			return frame(c.command(0, wire.OpLibraryLoad, 0, payload(wire.LibraryLoad{Symbols: 1 << 31})))
		},
		"a name without an end": func(c *client) []byte {
			return frame(c.command(0, wire.OpLibraryLoad, 0,
				append(payload(wire.LibraryLoad{Symbols: 1, SymbolBytes: 3}), words(0x1000, 0x636261)...)))
		},
		"many pointer attributes": func(c *client) []byte {
			return frame(c.command(0, wire.OpPointerAttributes, 0, payload(wire.PointerAttributes{Count: 1<<32 - 1})))
		},
		"node, many dependencies": func(c *client) []byte {
			return frame(c.command(0, wire.OpGraphNode, 0, payload(wire.GraphNode{Deps: 1<<32 - 1})))
		},
		"node, many edges": func(c *client) []byte {
			return frame(
				c.command(0, wire.OpGraphNode, 0, append(payload(wire.GraphNode{Deps: 1, Flags: nodeEdges}), words(0)...)))
		},
		"node, many parameters": func(c *client) []byte {
			return frame(c.command(0, wire.OpGraphNode, 0, payload(wire.GraphNode{TailBytes: 1<<32 - 1})))
		},
		"node, unknown verb": func(c *client) []byte {
			return frame(c.command(0, wire.OpGraphNode, 0, payload(wire.GraphNode{Verb: 3})))
		},
		"node query, too long": func(c *client) []byte {
			return frame(c.command(0, wire.OpGraphNodeGet, 0, append(payload(wire.GraphNodeGet{}), 1, 2, 3, 4, 5, 6, 7, 8)))
		},
		"handle used twice": func(c *client) []byte {
			return frame(c.command(0, cuda.OpCuStreamCreate, 0, words(c.context, 0)))
		},
		"handle of nobody": func(c *client) []byte { return frame(c.command(0, cuda.OpCuStreamCreate, 0, words(12345, 0))) },
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t)
			c.write(input(c))
			if err := c.wait(); !errors.Is(err, ErrProtocol) {
				t.Fatalf("ended with %v, want a protocol error", err)
			}
			<-c.lost
			if len(c.notices) != 1 {
				t.Errorf("notices %q, want the reason", c.notices)
			}
		})
	}
}

// Garbage handles and values are the driver's or the table's to refuse; the session goes on.
func TestGarbageHandlesAreAnswered(t *testing.T) {
	c := connect(t)
	for name, x := range map[string]struct {
		op      uint16
		payload []byte
		want    cuda.CUresult
	}{
		"stream":     {cuda.OpCuStreamSynchronize, words(0x1234), cuda.CUDA_ERROR_INVALID_HANDLE},
		"other kind": {cuda.OpCuStreamSynchronize, words(c.context), cuda.CUDA_ERROR_INVALID_HANDLE},
		"event":      {cuda.OpCuEventSynchronize, words(1 << 63), cuda.CUDA_ERROR_INVALID_HANDLE},
		"context":    {cuda.OpCuCtxDestroy_v2, words(77), cuda.CUDA_ERROR_INVALID_CONTEXT},
		"function": {wire.OpLaunch, wire.Bytes(&wire.Launch{
			Func: 3, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
		}), cuda.CUDA_ERROR_INVALID_HANDLE},
		"copy stream":  {wire.OpCopyD2H, wire.Bytes(&wire.CopyD2H{Stream: 5, Bytes: 8}), cuda.CUDA_ERROR_INVALID_HANDLE},
		"copy source":  {wire.OpCopyD2H, wire.Bytes(&wire.CopyD2H{Src: 8, Bytes: 8}), cuda.CUDA_ERROR_INVALID_VALUE},
		"no image":     {wire.OpLibraryLoad, wire.Bytes(&wire.LibraryLoad{}), cuda.CUDA_ERROR_NOT_FOUND},
		"no mapping":   {wire.OpHostUnmap, wire.Bytes(&wire.HostUnmap{Address: 1 << 21}), cuda.CUDA_ERROR_INVALID_VALUE},
		"capture mode": {wire.OpCaptureMode, wire.Bytes(&wire.CaptureMode{Mode: 9}), cuda.CUDA_SUCCESS},
	} {
		if r, _ := c.call(x.op, x.payload); r != x.want {
			t.Errorf("%s: %s, want %s", name, resultText(r), resultText(x.want))
		}
	}
}

// Commands may arrive in any pieces.
func TestFramesInPieces(t *testing.T) {
	c := connect(t)
	dst := c.alloc(3 << 20)
	data := pattern(3<<20+1, 5)[:3<<20-3]
	p := wire.CopyH2D{Dst: dst, Bytes: uint64(len(data))}
	c.wmu.Lock()
	b := append(frame(c.command(0, wire.OpPing, 0, words(0)),
		c.command(0, wire.OpCopyH2D, transport.FlagBulk, append(bytes.Clone(wire.Bytes(&p)), words(p.Bytes)...))), data...)
	b = append(b, make([]byte, transport.Pad(len(data))-len(data))...)
	for n := 1; len(b) > 0; n = n*3/2 + 1 {
		k := min(n, len(b))
		c.write(b[:k])
		b = b[k:]
	}
	c.wmu.Unlock()
	same(t, c.download(dst, len(data), 0), data)
}

// A client that does not read its answers does not make the server's memory grow without bound, and is served on when
// it reads.
func TestSlowReader(t *testing.T) {
	c := connect(t)
	const n, size = 40, 8 << 20
	src := c.alloc(size)
	dst := make([]byte, size)
	c.mu.Lock() // stops the reader
	c.transfers[1<<16] = dst
	p := wire.CopyD2H{Src: src, Bytes: size, Transfer: 1 << 16}
	for range n {
		c.send(wire.OpCopyD2H, wire.Bytes(&p))
	}
	until(t, "data are queued", func() bool { return c.session.out.pending() > 4*largeBytes })
	if k := c.session.out.pending(); k > outputLimit+largeBytes {
		t.Errorf("%d bytes are queued", k)
	}
	c.mu.Unlock()
	c.must(cuda.OpCuCtxSynchronize, nil)
}

func TestCallbackConnectionIsNeeded(t *testing.T) {
	c := connect(t)
	c.hostFunc(0, 1, func() {})
	c.session.callback.fail(errCallbackClosed)
	if err := c.wait(); !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
}

func TestHostileCallback(t *testing.T) {
	for name, m := range map[string]transport.MessageHeader{
		"answer to nothing": {Type: transport.MsgRan, Seq: 99},
		"too many bytes":    {Type: transport.MsgPulled, Seq: 1, Len: 1 << 20},
		"wrong type":        {Type: transport.MsgRan, Seq: 1, Len: 8},
		"reply":             {Type: transport.MsgReply},
		"long ping":         {Type: transport.MsgPing, Len: 1 << 20},
		"unknown":           {Type: 99},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t)
			fd, conn := fdPair(t)
			theirs := fileConn(t, fd)
			if err := c.session.AttachCallback(lineOf(t, theirs)); err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			c.send(wire.OpCopyH2DPull, wire.Bytes(&wire.CopyH2DPull{Dst: c.alloc(8), Bytes: 8, Source: 1}))
			c.must(wire.OpPing, words(0))
			b := append(m.Append(nil), make([]byte, 16)...)
			new(transport.Chain).Number(b)
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
			if err := c.wait(); !errors.Is(err, ErrProtocol) || strings.Contains(err.Error(), "missing") {
				t.Fatalf("the session ended with %v", err)
			}
		})
	}
}

// While something is on its way to the client, its question for a sign of life does not keep its other messages from
// being read: it may be that it reads what is on its way only after they were.
func TestPingWhileTheServerSends(t *testing.T) {
	c := connect(t)
	c.openCallback()
	callback := c.session.callback
	callback.write.Lock()
	defer callback.write.Unlock()
	for seq := range uint64(3) {
		if err := c.sayBack(transport.MessageHeader{Type: transport.MsgPing, Seq: seq}, nil); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all were read", func() bool { return callback.heard.Load() == 3 })
}

func FuzzSession(f *testing.F) {
	c := &client{t: f}
	f.Add(frame(c.command(0, wire.OpPing, transport.FlagAnswer, words(0))))
	f.Add(frame(c.command(0, cuda.OpCuMemAlloc_v2, transport.FlagAnswer, words(1, 64))))
	f.Add(frame(c.command(0, wire.OpLaunch, 0, wire.Bytes(&wire.Launch{AttrCount: 1}))))
	f.Add(
		frame(c.command(0, wire.OpCopyH2D, transport.FlagBulk, append(wire.Bytes(&wire.CopyH2D{Bytes: 16}), words(16)...))))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := connectBare(t, func(cfg *Config) { cfg.GPU = nothing{} })
		_ = c.conn.SetWriteDeadline(time.Now().Add(deadline))
		_, _ = c.conn.Write(data)
		c.conn.Close()
		if err := c.wait(); err != nil && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}
	})
}

// nothing is a GPU that has no function but what a session needs to start.
type nothing struct{ cuda.Unimplemented }

func (nothing) CuInit(uint32) cuda.CUresult                  { return 0 }
func (nothing) CuCtxSetCurrent(cuda.CUcontext) cuda.CUresult { return 0 }
func (nothing) HostFunc(cuda.CUstream, func()) cuda.CUresult { return cuda.CUDA_ERROR_NOT_SUPPORTED }
func (nothing) LaunchNode(cuda.CUstream, cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return cuda.CUDA_ERROR_NOT_SUPPORTED
}
func (nothing) HostNode(func()) cuda.CUDA_HOST_NODE_PARAMS { return cuda.CUDA_HOST_NODE_PARAMS{} }
func (nothing) DropNode(cuda.CUDA_HOST_NODE_PARAMS)        {}
func (nothing) PrimaryContext(cuda.CUdevice) (cuda.CUcontext, cuda.CUresult) {
	return 0, cuda.CUDA_ERROR_NOT_SUPPORTED
}
func (nothing) ThreadInit()  {}
func (nothing) Close() error { return nil }

// upload describes a 3-D copy that goes to the device.
func upload(width, height, depth, pitch uint64) (words [25]uint64) {
	b := copy3DOf(&words)
	b.SrcMemoryType, b.DstMemoryType = cuda.CU_MEMORYTYPE_HOST, cuda.CU_MEMORYTYPE_DEVICE
	b.WidthInBytes, b.Height, b.Depth = width, height, depth
	b.SrcPitch, b.SrcHeight, b.DstPitch, b.DstHeight = pitch, height, pitch, height
	return words
}
