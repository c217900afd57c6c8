package executor

import (
	"cmp"
	"slices"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// hostmem is the engine of the client's memory that kernels reach: device memory at the addresses of pinned memory,
// what of it the client has, and memory that sessions share through file descriptors.
//
// No locks: it belongs to the executor's thread alone.
type hostmem struct {
	*base
	loop   hostmemLoop
	out    *output
	sharer Sharer // nil: memory cannot be shared with other sessions
	room   Room   // nil: no addresses were taken from the process

	mappings  []*mapping
	spare     []*mapping            // those of mappings without users, the largest first
	ranges    map[uint64]*hostRange // by the client's address
	windows   map[uint64]bool       // windows of addresses that are reserved
	sentBytes uint64                // of the ranges' sent.mem
	stretches []stretch             // of sendChanges
}

// Room is where the client's memory has its place in a process that is kept to a window of addresses; package
// addresses has it.
type Room interface {
	// Lend has use called while addresses are free. Those that it has not used, as it says, are taken again.
	Lend(at, bytes uint64, use func() bool) error
}

// hostmemLoop is what it asks of the loop.
type hostmemLoop interface {
	// start enqueues a download whose end answers its command.
	start(st *stream, t *transfer, src cuda.CUdeviceptr, bytes uint64) (cuda.CUresult, error)
}

func newHostmem(s *Session, cfg *Config) hostmem {
	return hostmem{
		base: &s.base, loop: &s.copies.downloads, out: &s.out, sharer: cfg.Sharer, room: cfg.Room,
		ranges: make(map[uint64]*hostRange), windows: make(map[uint64]bool),
	}
}

// mapping is device memory at addresses of the client's, whole units of the driver's granularity. Ranges of pinned
// memory that touch the same unit share it.
type mapping struct {
	start, bytes uint64
	handle       cuda.CUmemGenericAllocationHandle
	device       int32
	users        int
}

// maxSpare bounds the mappings without users that a session keeps: programs that allocate and free small pieces all
// the time would otherwise map and unmap a unit for each, which takes the driver about a millisecond.
const maxSpare = 32 << 20

// hostRange is a range of the client's pinned memory that kernels may use.
type hostRange struct {
	bytes  uint64
	device cuda.CUdeviceptr // where kernels find it
	// those that it lies in; nil: it has memory of its own, since something else was at its address
	under []*mapping
	sent  sent
}

const (
	maxHostRange = 1 << 46
	// The driver honours an address only for reservations that are large (measured on an H200, driver 580: never for
	// 2 MiB, always for 64 GiB where nothing else lies there), so addresses are reserved in windows of this size.
	hostWindow = 64 << 30
)

// mapRange puts device memory at the address of the client's pinned memory, so that both have the same pointers.
func (hm *hostmem) mapRange(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.HostMap](c)
	if err != nil {
		return 0, err
	}
	if hm.entered == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT, nil
	}
	dev, unit := alloc[cuda.CUdevice](&hm.arena), alloc[uint64](&hm.arena)
	prop := alloc[cuda.CUmemAllocationProp](&hm.arena)
	if r := hm.gpu.CuCtxGetDevice(dev); r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	prop.Type = cuda.CU_MEM_ALLOCATION_TYPE_PINNED
	prop.Location.Type, prop.Location.Id = cuda.CU_MEM_LOCATION_TYPE_DEVICE, int32(*dev)
	r := hm.gpu.CuMemGetAllocationGranularity(unit, prop, cuda.CU_MEM_ALLOC_GRANULARITY_MINIMUM)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	_, twice := hm.ranges[p.Address]
	if twice || p.Bytes == 0 || p.Bytes > maxHostRange || *unit == 0 || p.Address > 1<<63 {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	start, end := p.Address / *unit * *unit, (p.Address+p.Bytes+*unit-1) / *unit * *unit
	var under []*mapping
	for at := start; at < end; {
		m, next := hm.mappingAt(at, end)
		if m == nil {
			var r cuda.CUresult
			if m, r = hm.mapUnits(at, next-at, prop); r != cuda.CUDA_SUCCESS && len(hm.spare) > 0 {
				hm.trimSpare(0)
				m, r = hm.mapUnits(at, next-at, prop)
			}
			if r != cuda.CUDA_SUCCESS {
				hm.dropMappings(under)
				return hm.mapElsewhere(c, p.Address, p.Bytes), nil
			}
		}
		if m.users == 0 {
			hm.spare = slices.DeleteFunc(hm.spare, func(o *mapping) bool { return o == m })
			if m.device != prop.Location.Id {
				hm.unmapUnits(m)
				continue
			}
		}
		m.users++
		under = append(under, m)
		at = m.start + m.bytes
	}
	hm.ranges[p.Address] = &hostRange{bytes: p.Bytes, device: cuda.CUdeviceptr(p.Address), under: under}
	answerWith(&hm.arena, c, wire.GlobalInfo{Address: p.Address, Bytes: p.Bytes}, 0)
	return cuda.CUDA_SUCCESS, nil
}

// mapElsewhere gives the client's memory device memory at another address, for what lies where the worker has
// something else.
func (hm *hostmem) mapElsewhere(c *command, address, bytes uint64) cuda.CUresult {
	at := alloc[cuda.CUdeviceptr](&hm.arena)
	if r := hm.gpu.CuMemAlloc_v2(at, bytes); r != cuda.CUDA_SUCCESS {
		return r
	}
	hm.ranges[address] = &hostRange{bytes: bytes, device: *at}
	answerWith(&hm.arena, c, wire.GlobalInfo{Address: uint64(*at), Bytes: bytes}, 0)
	return cuda.CUDA_SUCCESS
}

// mappingAt gives the mapping at an address, or where the next one begins, at most end.
func (hm *hostmem) mappingAt(at, end uint64) (*mapping, uint64) {
	for _, m := range hm.mappings {
		switch {
		case m.start <= at && at < m.start+m.bytes:
			return m, 0
		case at < m.start && m.start < end:
			end = m.start
		}
	}
	return nil, end
}

func (hm *hostmem) mapUnits(start, bytes uint64, prop *cuda.CUmemAllocationProp) (*mapping, cuda.CUresult) {
	for w := start / hostWindow; w*hostWindow < start+bytes; w++ {
		if r := hm.reserveWindow(w); r != cuda.CUDA_SUCCESS {
			return nil, r
		}
	}
	at, mem := cuda.CUdeviceptr(start), alloc[cuda.CUmemGenericAllocationHandle](&hm.arena)
	if r := hm.gpu.CuMemCreate(mem, bytes, prop, 0); r != cuda.CUDA_SUCCESS {
		return nil, r
	}
	if r := hm.gpu.CuMemMap(at, bytes, 0, *mem, 0); r != cuda.CUDA_SUCCESS {
		hm.gpu.CuMemRelease(*mem)
		return nil, r
	}
	m := &mapping{start: start, bytes: bytes, handle: *mem, device: prop.Location.Id}
	hm.mappings = append(hm.mappings, m)
	access := hm.accessors(prop.Location)
	r := hm.gpu.CuMemSetAccess(at, bytes, &access[0], uint64(len(access)))
	if r != cuda.CUDA_SUCCESS && len(access) > 1 {
		r = hm.gpu.CuMemSetAccess(at, bytes, &access[0], 1)
	}
	if r != cuda.CUDA_SUCCESS {
		hm.unmapUnits(m)
		return nil, r
	}
	return m, cuda.CUDA_SUCCESS
}

// accessors says that a GPU, the first, and those that can reach its memory, may use some of it: kernels of any GPU
// use pinned and unified memory.
func (hm *hostmem) accessors(where cuda.CUmemLocation) []cuda.CUmemAccessDesc {
	list := []cuda.CUmemAccessDesc{{Location: where, Flags: cuda.CU_MEM_ACCESS_FLAGS_PROT_READWRITE}}
	count, can := alloc[int32](&hm.arena), alloc[int32](&hm.arena)
	if hm.gpu.CuDeviceGetCount(count) != cuda.CUDA_SUCCESS {
		return list
	}
	for d := range *count {
		if d == where.Id {
			continue
		}
		r := hm.gpu.CuDeviceCanAccessPeer(can, cuda.CUdevice(d), cuda.CUdevice(where.Id))
		if r == cuda.CUDA_SUCCESS && *can != 0 {
			where := where
			where.Id = d
			list = append(list, cuda.CUmemAccessDesc{Location: where, Flags: cuda.CU_MEM_ACCESS_FLAGS_PROT_READWRITE})
		}
	}
	return list
}

// reserveWindow takes one window of addresses for the rest of the session.
func (hm *hostmem) reserveWindow(w uint64) (r cuda.CUresult) {
	if hm.windows[w] {
		return cuda.CUDA_SUCCESS
	}
	if hm.room == nil {
		return hm.reserveNow(w)
	}
	err := hm.room.Lend(w*hostWindow, hostWindow, func() bool {
		r = hm.reserveNow(w)
		return r == cuda.CUDA_SUCCESS
	})
	if err != nil {
		hm.log.Warn("the worker keeps to its window of addresses no longer", "error", err)
	}
	return r
}

// reserveNow takes a window whose addresses are free, if ever.
func (hm *hostmem) reserveNow(w uint64) cuda.CUresult {
	at := alloc[cuda.CUdeviceptr](&hm.arena)
	if r := hm.gpu.CuMemAddressReserve(at, hostWindow, 0, cuda.CUdeviceptr(w*hostWindow), 0); r != cuda.CUDA_SUCCESS {
		return r
	}
	if uint64(*at) != w*hostWindow {
		hm.gpu.CuMemAddressFree(*at, hostWindow)
		hm.log.Debug("device memory cannot be mapped at the client's address: something else lies there in the worker",
			"address", w*hostWindow)
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	hm.windows[w] = true
	return cuda.CUDA_SUCCESS
}

func (hm *hostmem) unmapRange(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.HostUnmap](c)
	if err != nil {
		return 0, err
	}
	h, ok := hm.ranges[p.Address]
	if !ok {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	delete(hm.ranges, p.Address)
	hm.sentBytes -= uint64(len(h.sent.mem))
	if h.under == nil {
		return hm.gpu.CuMemFree_v2(h.device), nil
	}
	return hm.dropMappings(h.under), nil
}

// dropMappings takes a range's hold from its mappings and gives the first failure of those that went.
func (hm *hostmem) dropMappings(under []*mapping) cuda.CUresult {
	for _, m := range under {
		if m.users--; m.users == 0 {
			hm.spare = append(hm.spare, m)
		}
	}
	slices.SortStableFunc(hm.spare, func(a, b *mapping) int { return cmp.Compare(b.bytes, a.bytes) })
	return hm.trimSpare(maxSpare)
}

// trimSpare unmaps what has no users, the largest first and then what has had none for longest, until no more than a
// number of bytes is left of it.
func (hm *hostmem) trimSpare(most uint64) cuda.CUresult {
	kept, first := uint64(0), cuda.CUDA_SUCCESS
	for _, m := range hm.spare {
		kept += m.bytes
	}
	for kept > most {
		m := hm.spare[0]
		hm.spare = hm.spare[1:]
		kept -= m.bytes
		if r := hm.unmapUnits(m); first == cuda.CUDA_SUCCESS {
			first = r
		}
	}
	return first
}

func (hm *hostmem) unmapUnits(m *mapping) cuda.CUresult {
	hm.mappings = slices.DeleteFunc(hm.mappings, func(o *mapping) bool { return o == m })
	at := cuda.CUdeviceptr(m.start)
	first := cuda.CUDA_SUCCESS
	for _, r := range []cuda.CUresult{hm.gpu.CuMemUnmap(at, m.bytes), hm.gpu.CuMemRelease(m.handle)} {
		if first == cuda.CUDA_SUCCESS {
			first = r
		}
	}
	return first
}
