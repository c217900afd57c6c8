package executor

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/driver/real"
	"scuda.dev/scuda/server/handle"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// The staging pipeline is measured on a real GPU with the test binary: perf/gpu/staging.sh runs TestStagingRates with
// these flags.
var (
	stagingGPU     = flag.Bool("staging.gpu", false, "TestStagingRates measures the machine's GPU, not a simulated one")
	stagingFeeders = flag.Int("staging.feeders", 0,
		"threads that copy between slots and other memory; 0: the slots count as written and read by a network card")
)

// TestStagingRates: the measured pipeline is the real one. On the simulated GPU it has to end and give figures; on a
// real one it prints them.
func TestStagingRates(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if *stagingGPU {
		gpu, err := real.Open("")
		if err != nil {
			t.Fatal(err)
		}
		r, err := measureStaging(gpu, 1<<30, DefaultRDMASlots, *stagingFeeders, 5)
		if err != nil {
			t.Fatal(err)
		}
		line, err := json.Marshal(map[string]any{
			"upload_gb_per_s": gigabytes(r.Upload), "download_gb_per_s": gigabytes(r.Download),
			"bytes": r.Bytes, "slots": r.Slots, "feeders": r.Feeders,
		})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(string(line))
		return
	}
	for _, feeders := range []int{0, 2} {
		r, err := measureStaging(openSim(t), 40<<20+5, 12, feeders, 1)
		if err != nil {
			t.Fatal(err)
		}
		if r.Upload <= 0 || r.Download <= 0 {
			t.Errorf("%+v", r)
		}
	}
}

func gigabytes(v float64) json.Number { return json.Number(fmt.Sprintf("%.1f", v/1e9)) }

// stagingResult is what the pipeline between RDMA's slots and a GPU moves, in bytes a second.
type stagingResult struct {
	Upload, Download float64
	Bytes            int // of one copy
	Slots            int
	// threads that copy between slots and other memory; 0: nobody does, as with a network card that writes the slots
	// itself
	Feeders int
}

// measureStaging moves copies of so many bytes through a session's staging for RDMA, with memory in the place of the
// network: everything between the arrival of a chunk in a slot and the GPU's memory, and back, is what sessions do. It
// gives the best of rounds. The caller must have locked its OS thread.
func measureStaging(gpu cuda.GPU, bytes, slots, feeders, rounds int) (*stagingResult, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fds[1])
	conn, err := transport.NewConn(fds[0], "nobody")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	const base, count = 0x10_0000_0000, 1 << 10
	s, err := New(Config{Conn: conn, GPU: gpu, RDMASlots: slots,
		Hello: transport.Hello{
			ClientBase: base, ClientSlots: count, ServerBase: base + count*handle.SlotBytes, ServerSlots: count,
		}})
	if err != nil {
		return nil, err
	}
	defer s.Free()
	gpu.ThreadInit()
	var real cuda.CUcontext
	device := alloc[cuda.CUdeviceptr](&s.arena)
	if r := gpu.CuInit(0); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("cuInit: %w", r)
	}
	held := alloc[cuda.CUcontext](&s.arena)
	if r := gpu.CuDevicePrimaryCtxRetain(held, 0); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("cuDevicePrimaryCtxRetain: %w", r)
	}
	defer gpu.CuDevicePrimaryCtxRelease_v2(0)
	real = *held
	if err := s.addContext(base, real); err != nil {
		return nil, err
	}
	if r := s.enter(base); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("cuCtxSetCurrent: %w", r)
	}
	if r := gpu.CuMemAlloc_v2(device, uint64(bytes)); r != cuda.CUDA_SUCCESS {
		return nil, fmt.Errorf("cuMemAlloc of %d bytes: %w", bytes, r)
	}
	dst := *device
	defer gpu.CuMemFree_v2(dst)
	mem, err := mapMemory(slots * largeBytes)
	if err != nil {
		return nil, err
	}
	other, err := mapMemory(bytes)
	if err != nil {
		return nil, err
	}
	defer unmapMemory(other)
	for i := 0; i < len(other); i += 4096 {
		other[i] = byte(i >> 12)
	}
	s.copies.path.mem = mem
	ups := s.copies.path.lay()
	card := newMemoryCard(s, ups, other, feeders)
	defer card.Close()
	s.copies.path.use(card)
	sink := &discarding{}
	s.copies.bulk.out.Fallback()
	sinks := sync.WaitGroup{}
	sinks.Go(func() { _ = s.copies.bulk.out.Feed(sink) })
	defer sinks.Wait()
	defer s.copies.bulk.fail(errCallbackClosed)
	s.copies.bulk.ready.Store(true)

	result := &stagingResult{Bytes: bytes, Slots: slots, Feeders: feeders}
	ctx := s.contexts[base]
	for range rounds + 1 {
		began := time.Now()
		b := &incoming{
			cmd: command{
				CommandHeader: transport.CommandHeader{Context: base, Flags: transport.FlagBulk | transport.FlagTransfer, Seq: 8},
			}, left: uint64(bytes), st: &ctx.legacy, ctx: ctx, dst: dst,
		}
		card.feed(8)
		if err := s.copies.uploads.receive(b); err != nil {
			return nil, err
		}
		if r := errors.Join(nonzero(b.result), nonzero(gpu.CuCtxSynchronize())); r != nil {
			return nil, r
		}
		result.Upload = max(result.Upload, float64(bytes)/time.Since(began).Seconds())
		s.poll()

		began = time.Now()
		t := &transfer{id: transport.FirstTransfer, seq: 9, beside: true, link: true}
		r, err := s.copies.downloads.download(&ctx.legacy, t, dst, uint64(bytes))
		if err = errors.Join(err, nonzero(r)); err != nil {
			return nil, err
		}
		for t.left > 0 {
			s.poll()
		}
		for card.taken.Load()+sink.bytes.Load() < int64(bytes) {
			runtime.Gosched()
		}
		card.taken.Store(0)
		sink.bytes.Store(0)
		s.poll()
		result.Download = max(result.Download, float64(bytes)/time.Since(began).Seconds())
	}
	return result, nil
}

// discarding takes the chunks that go to fallbacks, since no slot became free in time, and drops them.
type discarding struct{ bytes atomic.Int64 }

func (d *discarding) State() bulk.State                      { return bulk.Up }
func (d *discarding) ChunkBytes() int                        { return largeBytes }
func (d *discarding) Register([]byte) (bulk.Region, error)   { return nil, nil }
func (d *discarding) Send(p bulk.Piece, _ bulk.Region) error { d.bytes.Add(int64(p.N)); return nil }

// memoryCard is a network card without a network: it fills upload slots as they are granted, and takes the chunks of
// downloads.
type memoryCard struct {
	s       *Session
	memory  []byte
	credits chan uint32
	orders  chan copyOrder
	uploads chan uint64
	taken   atomic.Int64
	feeders int
	done    sync.WaitGroup
}

// copyOrder is one chunk's copy between a slot and the memory.
type copyOrder struct {
	chunk bulk.Chunk
	slot  uint32
	out   bulk.Piece // of a download
}

func newMemoryCard(s *Session, ups int, memory []byte, feeders int) *memoryCard {
	c := &memoryCard{
		s: s, memory: memory, credits: make(chan uint32, ups), orders: make(chan copyOrder, 2*MaxRDMASlots),
		uploads: make(chan uint64), feeders: feeders,
	}
	for i := range ups {
		c.credits <- uint32(i)
	}
	c.done.Go(func() {
		for seq := range c.uploads {
			for off := 0; off < len(c.memory); off += largeBytes {
				n := min(largeBytes, len(c.memory)-off)
				c.orders <- copyOrder{chunk: bulk.Chunk{Seq: seq, Offset: uint64(off), Bytes: uint32(n)}, slot: <-c.credits}
			}
		}
		close(c.orders)
	})
	for range max(feeders, 1) {
		c.done.Go(c.work)
	}
	return c
}

func (c *memoryCard) feed(seq uint64) { c.uploads <- seq }

func (c *memoryCard) work() {
	for o := range c.orders {
		part := c.memory[o.chunk.Offset:][:o.chunk.Bytes]
		if o.out.Transfer != nil {
			if c.feeders > 0 {
				copy(part, o.out.Data())
			}
			(*pathHandler)(&c.s.copies.path).Sent(o.out, true)
			c.taken.Add(int64(len(part)))
			continue
		}
		if c.feeders > 0 {
			copy(c.s.copies.path.slots[o.slot].mem, part)
		}
		(*pathHandler)(&c.s.copies.path).Arrived(o.chunk, int(o.slot))
	}
}

func (c *memoryCard) State() bulk.State                    { return bulk.Up }
func (c *memoryCard) ChunkBytes() int                      { return largeBytes }
func (c *memoryCard) Want(uint32, uint64, uint64) bool     { return true }
func (c *memoryCard) Forget(uint32, uint64)                {}
func (c *memoryCard) Close()                               { close(c.uploads); c.done.Wait() }
func (c *memoryCard) Register([]byte) (bulk.Region, error) { return nil, nil }
func (c *memoryCard) Send(p bulk.Piece, _ bulk.Region) error {
	c.orders <- copyOrder{chunk: p.Chunk(), out: p}
	return nil
}

func (c *memoryCard) Release(slots ...uint32) {
	for _, s := range slots {
		c.credits <- s
	}
}
