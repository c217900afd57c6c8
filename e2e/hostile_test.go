package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"scuda.dev/scuda/api"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// A client of its own that says what no library of ours says. It speaks docs/protocol.md; on a machine with a GPU the
// worker behind it has NVIDIA's driver.

const (
	hostileBase  = 0x10_0000_0000
	hostileSlots = 1 << 16
	hostileBytes = 64 << 10        // of each of its pieces of device memory
	hostileWait  = 3 * time.Second // for what need not come
)

var errSessionOver = errors.New("the server ended the session")

// hostile is one session of such a client, without callback and bulk connections.
type hostile struct {
	began   int // how long the log of the server was
	t       *testing.T
	conn    net.Conn
	id      string
	seq     uint64
	context uint64
	slots   uint64
	notices []string
	data    []byte // of the last download

	handles map[string][]uint64 // by C type, what was made rightly
	memory  [2]uint64           // device memory
	secret  []byte              // bytes of the worker's that must not come
	victim  uint64              // where they lie
}

func (s *server) hostile(t *testing.T) *hostile {
	t.Helper()
	began := s.err.Len()
	c, welcome, err := transport.DialNet(t.Context(), transport.Target{Address: s.addr},
		&transport.Hello{Kind: transport.KindCUDA, Digest: cuda.Digest, Version: "hostile", Program: "hostile",
			ClientBase: hostileBase, ClientSlots: hostileSlots, ServerBase: 2 * hostileBase, ServerSlots: hostileSlots})
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{t: t, conn: c, id: welcome.Session, began: began, handles: map[string][]uint64{}}
	h.context = h.slot("CUcontext")
	h.must(wire.OpPrimary, wire.Bytes(&wire.Primary{Context: h.context}))
	return h
}

func (h *hostile) close() { h.conn.Close() }

// slot gives a new handle and keeps it for its type.
func (h *hostile) slot(ctype string) uint64 {
	v := hostileBase + h.slots*64
	h.slots++
	h.handles[ctype] = append(h.handles[ctype], v)
	return v
}

// call sends a command and waits for its answer; errSessionOver where the server ends the session instead.
func (h *hostile) call(op uint16, payload []byte) (cuda.CUresult, []byte, error) {
	return h.callWithin(patience, op, payload)
}

// callWithin is call for what may have no answer.
func (h *hostile) callWithin(limit time.Duration, op uint16, payload []byte) (cuda.CUresult, []byte, error) {
	size := transport.CommandHeaderSize + transport.Pad(len(payload))
	head := transport.CommandHeader{
		Size: uint32(size), Op: op, Flags: transport.FlagAnswer, Seq: h.seq, Context: h.context, Thread: 1,
	}
	h.seq += uint64(size)
	b := transport.FrameHeader{Len: uint32(size)}.Append(nil)
	b = append(head.Append(b), payload...)
	b = append(b, make([]byte, transport.Pad(len(payload))-len(payload))...)
	_ = h.conn.SetDeadline(time.Now().Add(limit))
	if _, err := h.conn.Write(b); err != nil {
		return 0, nil, h.over(err)
	}
	for {
		m, payload, err := h.message()
		if err != nil {
			return 0, nil, h.over(err)
		}
		switch m.Type {
		case transport.MsgReply:
			return cuda.CUresult(m.Result), payload, nil
		case transport.MsgData:
			h.data = payload
		case transport.MsgNotice:
			h.notices = append(h.notices, string(payload))
		}
	}
}

func (h *hostile) over(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	for { // what was said before the end
		_ = h.conn.SetReadDeadline(time.Now().Add(patience))
		m, payload, err := h.message()
		if err != nil {
			return errSessionOver
		}
		if m.Type == transport.MsgNotice {
			h.notices = append(h.notices, string(payload))
		}
	}
}

func (h *hostile) message() (transport.MessageHeader, []byte, error) {
	var head [transport.MessageHeaderSize]byte
	if _, err := io.ReadFull(h.conn, head[:]); err != nil {
		return transport.MessageHeader{}, nil, err
	}
	m, _, err := transport.ParseMessage(head[:])
	if err != nil {
		return m, nil, err
	}
	payload := make([]byte, transport.Pad(int(m.Len)))
	if _, err := io.ReadFull(h.conn, payload); err != nil {
		return m, nil, err
	}
	return m, payload[:m.Len], nil
}

func (h *hostile) must(op uint16, payload []byte) []byte {
	h.t.Helper()
	r, reply, err := h.call(op, payload)
	if err != nil || r != cuda.CUDA_SUCCESS {
		h.t.Fatalf("%s: %v, %v; notices %q", cuda.OpName(op), r, err, h.notices)
	}
	return reply
}

func hostileWords(v ...uint64) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func bytesOf[T any](v T) []byte {
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)))
}

// prepare makes one object of many kinds, so that calls get as far as the driver.
func (h *hostile) prepare(s *server) {
	h.t.Helper()
	for i := range h.memory {
		h.memory[i] = binary.LittleEndian.Uint64(h.must(cuda.OpCuMemAlloc_v2, hostileWords(1, hostileBytes))[8:])
		h.must(cuda.OpCuMemsetD8_v2, hostileWords(h.memory[i], 0x11, hostileBytes))
	}
	h.must(cuda.OpCuStreamCreate, hostileWords(h.slot("CUstream"), 1))
	h.must(cuda.OpCuEventCreate, hostileWords(h.slot("CUevent"), 0))
	graph := h.slot("CUgraph")
	h.must(cuda.OpCuGraphCreate, hostileWords(graph, 0))
	for range 2 {
		h.must(cuda.OpCuGraphAddEmptyNode, hostileWords(h.slot("CUgraphNode"), graph, 0, 0))
	}
	h.must(cuda.OpCuGraphInstantiateWithFlags, hostileWords(h.slot("CUgraphExec"), graph, 0))
	h.must(cuda.OpCuArrayCreate_v2, append(hostileWords(h.slot("CUarray"), 1),
		bytesOf(cuda.CUDA_ARRAY_DESCRIPTOR{
			Width: 64, Height: 4, Format: cuda.CU_AD_FORMAT_UNSIGNED_INT8, NumChannels: 4,
		})...))
	prop := cuda.CUmemAllocationProp{Type: cuda.CU_MEM_ALLOCATION_TYPE_PINNED}
	prop.Location.Type = cuda.CU_MEM_LOCATION_TYPE_DEVICE
	mem := h.must(cuda.OpCuMemCreate, slices.Concat(hostileWords(1, 2<<20, 1), bytesOf(prop), hostileWords(0)))
	h.handles["CUmemGenericAllocationHandle"] = []uint64{binary.LittleEndian.Uint64(mem[8:])}
	h.spy(s)
}

// spy finds code of the worker's: a write there ends the worker, and what is read there is known.
func (h *hostile) spy(s *server) {
	h.t.Helper()
	var pid string
	named := regexp.MustCompile(`session=` + h.id + ` worker=(\d+)`)
	eventually(h.t, patience, "the log names the session's worker", func() bool {
		m := named.FindStringSubmatch(s.err.Since(h.began))
		if m != nil {
			pid = m[1]
		}
		return m != nil
	})
	maps, err := os.ReadFile("/proc/" + pid + "/maps")
	if err != nil {
		h.t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^([0-9a-f]+)-[0-9a-f]+ r-xp .*/scuda$`).FindSubmatch(maps)
	if m == nil {
		h.t.Fatalf("no code of the worker:\n%s", maps)
	}
	start, err := strconv.ParseUint(string(m[1]), 16, 64)
	if err != nil {
		h.t.Fatal(err)
	}
	f, err := os.Open("/proc/" + pid + "/mem")
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	h.victim, h.secret = start+4096, make([]byte, 64)
	if _, err := f.ReadAt(h.secret, int64(h.victim)); err != nil {
		h.t.Fatal(err)
	}
}

// leaked says whether code of the worker's lies in the device memory by now.
func (h *hostile) leaked() bool {
	for _, at := range h.memory {
		h.data = nil
		copies := wire.CopyD2H{Src: at, Bytes: hostileBytes, Transfer: 1, Flags: 1}
		r, _, err := h.callWithin(hostileWait, wire.OpCopyD2H, wire.Bytes(&copies)) // behind work that may not end
		if err == nil && r == cuda.CUDA_SUCCESS && bytes.Contains(h.data, h.secret[:16]) {
			return true
		}
	}
	return false
}

// The takeover of a worker of old: copies whose ends are called UNIFIED and are the worker's memory, and a graph's copy
// that begins elsewhere than it says.
func TestClientDoesNotReachItsWorker(t *testing.T) {
	s := serve(t)
	copy2 := func(h *hostile, up bool) []byte { // 2D, one row
		b := cuda.CUDA_MEMCPY2D{SrcMemoryType: cuda.CU_MEMORYTYPE_DEVICE, SrcDevice: cuda.CUdeviceptr(h.memory[0]),
			DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE, DstDevice: cuda.CUdeviceptr(h.memory[0]), WidthInBytes: 64, Height: 1,
			SrcPitch: 64, DstPitch: 64}
		if up {
			b.DstMemoryType, b.DstDevice = cuda.CU_MEMORYTYPE_UNIFIED, cuda.CUdeviceptr(h.victim)
		} else {
			b.SrcMemoryType, b.SrcDevice = cuda.CU_MEMORYTYPE_UNIFIED, cuda.CUdeviceptr(h.victim)
		}
		return append(hostileWords(1), bytesOf(b)...)
	}
	copy3 := func(h *hostile, up bool) cuda.CUDA_MEMCPY3D {
		b := cuda.CUDA_MEMCPY3D{SrcMemoryType: cuda.CU_MEMORYTYPE_DEVICE, SrcDevice: cuda.CUdeviceptr(h.memory[0]),
			DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE, DstDevice: cuda.CUdeviceptr(h.memory[0]), WidthInBytes: 64, Height: 1,
			Depth: 1}
		if up {
			b.DstMemoryType, b.DstDevice = cuda.CU_MEMORYTYPE_UNIFIED, cuda.CUdeviceptr(h.victim)
		} else {
			b.SrcMemoryType, b.SrcDevice = cuda.CU_MEMORYTYPE_UNIFIED, cuda.CUdeviceptr(h.victim)
		}
		return b
	}
	stream := func(h *hostile) []byte { return hostileWords(h.handles["CUstream"][0]) }
	node := func(h *hostile, b cuda.CUDA_MEMCPY3D, flags uint32) []byte {
		p := wire.GraphNode{Graph: h.handles["CUgraph"][0], Node: h.slot("CUgraphNode"), Flags: flags}
		params := cuda.CUgraphNodeParams{Type: cuda.CU_GRAPH_NODE_TYPE_MEMCPY}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&params.U)), unsafe.Sizeof(params.U)),
			bytesOf(cuda.CUDA_MEMCPY_NODE_PARAMS{CopyParams: b}))
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&p.Params)), unsafe.Sizeof(p.Params)), bytesOf(params))
		return wire.Bytes(&p)
	}
	for name, call := range map[string]func(h *hostile, up bool) (uint16, []byte){
		"2D":           func(h *hostile, up bool) (uint16, []byte) { return cuda.OpCuMemcpy2D_v2, copy2(h, up) },
		"2D unaligned": func(h *hostile, up bool) (uint16, []byte) { return cuda.OpCuMemcpy2DUnaligned_v2, copy2(h, up) },
		"2D async": func(h *hostile, up bool) (uint16, []byte) {
			return cuda.OpCuMemcpy2DAsync_v2, append(copy2(h, up), stream(h)...)
		},
		"3D": func(h *hostile, up bool) (uint16, []byte) {
			return cuda.OpCuMemcpy3D_v2, append(hostileWords(1), bytesOf(copy3(h, up))...)
		},
		"3D async": func(h *hostile, up bool) (uint16, []byte) {
			return cuda.OpCuMemcpy3DAsync_v2, slices.Concat(hostileWords(1), bytesOf(copy3(h, up)), stream(h))
		},
		"3D between GPUs": func(h *hostile, up bool) (uint16, []byte) {
			return cuda.OpCuMemcpy3DPeer, append(hostileWords(1), bytesOf(copy3(h, up))...)
		},
		"3D between GPUs, async": func(h *hostile, up bool) (uint16, []byte) {
			return cuda.OpCuMemcpy3DPeerAsync, slices.Concat(hostileWords(1), bytesOf(copy3(h, up)), stream(h))
		},
		"a 3-D copy": func(h *hostile, up bool) (uint16, []byte) {
			b := copy3(h, up)
			p := wire.Copy3D{Bytes: 64, Flags: 1}
			if !up {
				p.Flags |= 16 // a download from the victim
			}
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&p.Copy)), unsafe.Sizeof(p.Copy)), bytesOf(b))
			if up {
				p.Flags |= 4
				return wire.OpCopy3D, append(slices.Clone(wire.Bytes(&p)), make([]byte, 64)...)
			}
			return wire.OpCopy3D, wire.Bytes(&p)
		},
		"a graph's node": func(h *hostile, up bool) (uint16, []byte) { return wire.OpGraphNode, node(h, copy3(h, up), 0) },
		"a graph's node of its own call": func(h *hostile, up bool) (uint16, []byte) {
			return cuda.OpCuGraphAddMemcpyNode, slices.Concat(hostileWords(h.slot("CUgraphNode"), h.handles["CUgraph"][0], 0, 0,
				1), bytesOf(copy3(h, up)), hostileWords(h.context))
		},
		"a graph's node with the client's memory": func(h *hostile, up bool) (uint16, []byte) {
			b := copy3(h, up)
			if up {
				b.SrcMemoryType, b.SrcDevice = cuda.CU_MEMORYTYPE_HOST, 0
			} else {
				b.DstMemoryType, b.DstDevice = cuda.CU_MEMORYTYPE_HOST, 0
			}
			return wire.OpGraphNode, node(h, b, 4)
		},
	} {
		for _, up := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/write=%t", name, up), func(t *testing.T) {
				h := s.hostile(t)
				defer h.close()
				h.prepare(s)
				op, payload := call(h, up)
				if r, _, err := h.call(op, payload); !errors.Is(err, errSessionOver) {
					t.Fatalf("%v, %v: want the session's end", r, err)
				}
				if len(h.notices) != 1 || !strings.Contains(h.notices[0], "broke the protocol") {
					t.Errorf("notices %q, want the reason", h.notices)
				}
			})
		}
	}
	s.noCrash(t)
	s.run(t, "compute")
}

// The host end of a copy in a graph begins where the server says, whatever offsets the client gives it.
func TestOffsetsOfTheHostEndAreNotTaken(t *testing.T) {
	s := serve(t)
	for _, x := range []uint64{64 << 10, 1 << 40, ^uint64(4095)} {
		h := s.hostile(t)
		h.prepare(s)
		params := cuda.CUgraphNodeParams{Type: cuda.CU_GRAPH_NODE_TYPE_MEMCPY}
		wanted := cuda.CUDA_MEMCPY_NODE_PARAMS{CopyParams: cuda.CUDA_MEMCPY3D{SrcMemoryType: cuda.CU_MEMORYTYPE_HOST,
			SrcXInBytes: x, SrcY: 1, SrcZ: 1,
			DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE, DstDevice: cuda.CUdeviceptr(h.memory[0]), WidthInBytes: 64, Height: 1,
			Depth: 1}}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&params.U)), unsafe.Sizeof(params.U)), bytesOf(wanted))
		p := wire.GraphNode{Graph: h.handles["CUgraph"][0], Node: h.slot("CUgraphNode"), Flags: 1 | 4, Host: 1}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&p.Params)), unsafe.Sizeof(p.Params)), bytesOf(params))
		h.must(wire.OpGraphNode, wire.Bytes(&p))
		node := h.handles["CUgraphNode"][len(h.handles["CUgraphNode"])-1]
		reply := h.must(wire.OpGraphNodeGet,
			wire.Bytes(&wire.GraphNodeGet{Node: node, Type: uint32(cuda.CU_GRAPH_NODE_TYPE_MEMCPY)}))
		got := *(*cuda.CUDA_MEMCPY3D)(unsafe.Pointer(&reply[16+unsafe.Offsetof(wanted.CopyParams)]))
		if got.SrcXInBytes != 0 || got.SrcY != 0 || got.SrcZ != 0 {
			t.Errorf("an offset of %#x reached the driver: %+v", x, got)
		}
		h.close()
	}
	s.noCrash(t)
}

// crashed waits for what the log says of a session's end.
func (s *server) crashed(t *testing.T, h *hostile) (crashed bool) {
	t.Helper()
	end := regexp.MustCompile(`msg="([^"]*)"[^\n]* session=` + h.id + ` [^\n]*lasted=`)
	eventually(t, patience, "the log tells of the end of session "+h.id, func() bool {
		m := end.FindStringSubmatch(s.err.Since(h.began))
		crashed = m != nil && strings.Contains(m[1], "crashed")
		return m != nil
	})
	return crashed
}

// noCrash fails where a worker ended by itself.
func (s *server) noCrash(t *testing.T) {
	t.Helper()
	eventually(t, patience, "all sessions have ended", func() bool {
		log := s.err.String()
		return s.closed() == strings.Count(log, `msg="session opened"`) || strings.Contains(log, "worker crashed")
	})
	if log := s.err.String(); strings.Contains(log, "worker crashed") || strings.Contains(log, "panic:") {
		t.Errorf("a worker crashed:\n%s", log)
	}
}

// Calls of every operation with words of every kind, wrong ones among them, made from what the description says of
// each: no worker crashes, nothing of a worker's memory comes to the GPU. SCUDA_HOSTILE is "ROUNDS" or "ROUNDS:SEED" (a
// day's worth: 5000).
func TestHostileCalls(t *testing.T) {
	rounds, seed := 12, uint64(1)
	if v := hostileSetting; v != "" {
		if _, err := fmt.Sscanf(v, "%d:%d", &rounds, &seed); err != nil && rounds == 0 {
			t.Fatalf("SCUDA_HOSTILE=%s: %v", v, err)
		}
	}
	s := serve(t, "--warm", "4")
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	calls := hostileCalls(spec)
	work := make(chan hostileCall)
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 4 {
		group.Go(func() {
			defer cancel() // also where the test has failed: nobody would take what is left
			for c := range work {
				s.attack(t, spec, c, rounds, seed)
			}
		})
	}
feed:
	for _, c := range calls {
		select {
		case work <- c:
		case <-ctx.Done():
			break feed
		}
	}
	close(work)
	group.Wait()
	s.noCrash(t)
	s.run(t, "compute")
	t.Logf("%d operations, %d calls each", len(calls), rounds)
}

// attack makes calls of one operation, with a new session where the server ended one or nothing more is heard of it.
func (s *server) attack(t *testing.T, spec *api.Spec, c hostileCall, rounds int, seed uint64) {
	var h *hostile
	for i := range rounds {
		if h == nil {
			h = s.hostile(t)
			h.prepare(s)
		}
		r := rand.New(rand.NewPCG(seed, uint64(i)<<16|uint64(c.op)))
		payload := c.payload(&words{h: h, spec: spec, rand: r})
		if _, _, err := h.callWithin(hostileWait, c.op, payload); err != nil {
			h.close()
			if s.crashed(t, h) {
				t.Errorf("%s, call %d of seed %d: the worker crashed; payload %x", c.name, i, seed, payload)
				return
			}
			h = nil
		}
	}
	if h != nil {
		if h.leaked() {
			t.Errorf("%s, seed %d: memory of the worker came to the GPU", c.name, seed)
		}
		h.close()
	}
}
