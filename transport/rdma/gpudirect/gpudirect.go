// Package gpudirect chooses, for each pair of a GPU and a network card, how chunks get between them: straight, with the
// GPU's memory registered through a dma-buf or by nvidia-peermem, or staged through page-locked memory. What is
// possible is probed; what is better is found by a short trial of each way.
//
// The worker calls [Choose] when a session opens its RDMA, on a goroutine of its own, because a trial makes calls of
// the driver.
package gpudirect

import (
	"errors"
	"fmt"
	"strings"

	"scuda.dev/scuda/verbs"
)

// Method is a way between a GPU and a card.
type Method string

// Ways, from the most direct.
const (
	DMABuf  Method = "dma-buf"
	PeerMem Method = "nvidia-peermem"
	Staged  Method = "staged"
)

// Key is a registration of a GPU's memory with a card.
type Key interface{ Close() error }

// Card is the network card's side: package verbs, or an invention of a test.
type Card interface {
	// SupportsDMABuf is the answer to a registration with a bad descriptor.
	SupportsDMABuf() bool
	// RegisterDMABuf registers so many bytes of a dma-buf, which lie at addr for requests.
	RegisterDMABuf(fd int, bytes, addr uint64) (Key, error)
	// RegisterAddress registers memory by its address; for a GPU's that works with nvidia-peermem only.
	RegisterAddress(addr, bytes uint64) (Key, error)
	// Trial moves data between the card and registered memory for a moment and gives the bytes a second of the slower
	// direction. A nil key means page-locked memory and a copy between that and the GPU.
	Trial(k Key) (float64, error)
}

// GPU is the graphics card's side.
type GPU interface {
	// SupportsDMABuf is CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED.
	SupportsDMABuf() bool
	// Scratch gives memory of the GPU for a trial, and takes it back.
	Scratch(bytes uint64) (addr uint64, free func(), err error)
	// Export gives a descriptor of a dma-buf of memory, which the caller closes by done.
	Export(addr, bytes uint64) (fd int, done func(), err error)
}

// Choice is what [Choose] found.
type Choice struct {
	Method Method
	Rate   float64 // bytes a second in the trial
	Why    string  // for people: what the others lack
}

const (
	trialBytes = 1 << 20
	// margin is by how much staging may be better than a direct way, in trials that vary, before it is taken.
	margin = 1.05
)

// ErrNoWay is a pair whose trial failed even through page-locked memory.
var ErrNoWay = errors.New("no way between GPU and network card works")

// Choose tries the ways that card and GPU offer and chooses. The more direct way wins unless staging is clearly better,
// as it is across the sockets of some machines. A way that fails its trial is left out, whatever the probes said.
func Choose(card Card, gpu GPU) (Choice, error) {
	direct, reasons := tryDirect(card, gpu)
	staged, err := card.Trial(nil)
	switch {
	case err != nil && direct.Method == "":
		return Choice{}, fmt.Errorf("%w: %s; %s: %w", ErrNoWay, strings.Join(reasons, "; "), Staged, err)
	case err != nil:
		reasons = append(reasons, fmt.Sprintf("%s: %v", Staged, err))
	case direct.Method == "":
		direct = Choice{Method: Staged, Rate: staged}
	case staged > margin*direct.Rate:
		reasons = append(reasons, fmt.Sprintf("%s moves %.1f GB/s, staging %.1f (are GPU and card on different sockets?)",
			direct.Method, direct.Rate/1e9, staged/1e9))
		direct = Choice{Method: Staged, Rate: staged}
	}
	direct.Why = strings.Join(reasons, "; ")
	return direct, nil
}

// Direct is [Choose] without staging: the first direct way that works.
func Direct(card Card, gpu GPU) (Choice, error) {
	c, reasons := tryDirect(card, gpu)
	c.Why = strings.Join(reasons, "; ")
	if c.Method == "" {
		return c, fmt.Errorf("%w: %s", ErrNoWay, c.Why)
	}
	return c, nil
}

// tryDirect gives the first direct way that works, and what those before it lack.
func tryDirect(card Card, gpu GPU) (c Choice, reasons []string) {
	for _, way := range []struct {
		m   Method
		try func(Card, GPU) (float64, error)
	}{{DMABuf, tryDMABuf}, {PeerMem, tryPeerMem}} {
		rate, err := way.try(card, gpu)
		if err == nil {
			return Choice{Method: way.m, Rate: rate}, reasons
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", way.m, err))
	}
	return Choice{}, reasons
}

func tryDMABuf(card Card, gpu GPU) (float64, error) {
	switch {
	case !gpu.SupportsDMABuf():
		return 0, errors.New("the GPU's driver exports none (it needs the open kernel modules)")
	case !card.SupportsDMABuf():
		return 0, errors.New("the card's driver takes none")
	}
	return trial(card, gpu, func(addr uint64) (Key, error) {
		fd, done, err := gpu.Export(addr, trialBytes)
		if err != nil {
			return nil, err
		}
		defer done()
		return card.RegisterDMABuf(fd, trialBytes, addr)
	})
}

func tryPeerMem(card Card, gpu GPU) (float64, error) {
	return trial(card, gpu, func(addr uint64) (Key, error) { return card.RegisterAddress(addr, trialBytes) })
}

// trial moves data over a registration of scratch memory.
func trial(card Card, gpu GPU, register func(addr uint64) (Key, error)) (float64, error) {
	addr, free, err := gpu.Scratch(trialBytes)
	if err != nil {
		return 0, err
	}
	defer free()
	k, err := register(addr)
	if err != nil {
		return 0, err
	}
	rate, err := card.Trial(k)
	return rate, errors.Join(err, k.Close())
}

// Range is a GPU's memory that a session registers directly: by the descriptor of a dma-buf, or by its address where FD
// is negative.
type Range struct {
	Addr, Bytes uint64
	FD          int
	Offset      uint64 // of Addr in the dma-buf
}

// Part is a part of the range.
func (r Range) Part(from, bytes uint64) Range {
	return Range{Addr: r.Addr + from, Bytes: bytes, FD: r.FD, Offset: r.Offset + from}
}

// Register registers the range on a path's protection domain.
func (r Range) Register(pd *verbs.PD, access verbs.Access) (*verbs.MR, error) {
	if r.FD >= 0 {
		return pd.RegisterDMABuf(r.FD, r.Offset, r.Bytes, r.Addr, access)
	}
	return pd.RegisterRange(r.Addr, r.Bytes, access)
}
