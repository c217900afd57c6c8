package e2e

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"scuda.dev/scuda/api/cuda"
)

// Handles of memory and events for other processes are tokens of the server's: they say nothing of its driver, the same
// memory has the same one, and bytes of a client's making stand for nothing, not even those that the driver itself
// would take.
func TestTokensForOtherProcesses(t *testing.T) {
	s := serve(t)
	from, to := s.hostile(t), s.hostile(t)
	defer from.close()
	defer to.close()
	from.prepare(s)
	to.prepare(s)
	event := from.slot("CUevent")
	from.must(cuda.OpCuEventCreate, hostileWords(event, uint64(cuda.CU_EVENT_INTERPROCESS|cuda.CU_EVENT_DISABLE_TIMING)))
	handle := func(op uint16, of uint64) [64]byte { return [64]byte(from.must(op, hostileWords(1, of))[8:]) }
	memory := handle(cuda.OpCuIpcGetMemHandle, from.memory[0])
	events := handle(cuda.OpCuIpcGetEventHandle, event)
	if again := handle(cuda.OpCuIpcGetMemHandle, from.memory[0]); again != memory {
		t.Errorf("the same memory has the handles %x and %x", memory, again)
	}
	if other := handle(cuda.OpCuIpcGetMemHandle, from.memory[1]); other == memory {
		t.Error("two allocations have one handle")
	}
	for _, h := range [][64]byte{memory, events} {
		if !bytes.Equal(h[16:], make([]byte, 48)) {
			t.Errorf("%x is more than a token", h)
		}
	}
	open := func(h [64]byte) cuda.CUresult {
		r, _, err := to.call(cuda.OpCuIpcOpenMemHandle_v2,
			append(append(hostileWords(1), h[:]...), hostileWords(uint64(cuda.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))...))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	openEvent := func(h [64]byte) cuda.CUresult {
		r, _, err := to.call(cuda.OpCuIpcOpenEventHandle, append(hostileWords(to.slot("CUevent")), h[:]...))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if gpu == "sim" { // what the simulated driver makes of the server's own memory: process, descriptor 1, offset, size
		var own [64]byte
		copy(own[:], "scudasim")
		binary.LittleEndian.PutUint32(own[8:], uint32(os.Getpid()))
		binary.LittleEndian.PutUint32(own[12:], 1)
		binary.LittleEndian.PutUint64(own[24:], 4096)
		binary.LittleEndian.PutUint32(own[36:], 1)
		if r := open(own); r != cuda.CUDA_ERROR_INVALID_VALUE {
			t.Errorf("a handle in the driver's form is answered %d", r)
		}
	}
	longer, flipped := memory, memory
	longer[63] = 1
	flipped[3] ^= 1
	for name, h := range map[string][64]byte{"nothing": {}, "longer": longer, "flipped": flipped, "an event": events} {
		if r := open(h); r != cuda.CUDA_ERROR_INVALID_VALUE {
			t.Errorf("memory by %s is answered %d", name, r)
		}
	}
	if r := openEvent(memory); r != cuda.CUDA_ERROR_INVALID_VALUE {
		t.Errorf("an event by a handle of memory is answered %d", r)
	}
	if r := open(memory); r != cuda.CUDA_SUCCESS {
		t.Errorf("the right handle of memory is answered %d", r)
	}
	if r := openEvent(events); r != cuda.CUDA_SUCCESS {
		t.Errorf("the right handle of an event is answered %d", r)
	}
}
