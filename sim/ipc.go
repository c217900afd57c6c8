package sim

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/internal/memfd"
)

// Processes that simulate the same GPUs share memory by memory files: a device's memory is one, and so is each
// allocation of virtual memory management. What travels is the name of a place in such a file. Another process of the
// same user opens it through /proc, or gets it where its server has an [Exchange].

// Exchange lets other processes have copies of descriptors, under names that nobody guesses.
type Exchange interface {
	Publish(fd int) (Name, error)
	Fetch(n Name) (int, error)
	Withdraw(n Name)
}

// Name is that of a descriptor in an [Exchange].
type Name = [16]byte

// sharedPlace is a place in a memory file of another process; it is what the bytes of IPC handles say.
type sharedPlace struct {
	Magic        [8]byte
	PID, FD      uint32
	Offset, Size uint64
	Device, Kind uint32
	Name         Name // of the file in the exchange, if there is one
}

const (
	sharedMemory = 1 + iota // sharedPlace.Kind
	sharedEvent
	sharedPool
)

var (
	sharedMagic = [8]byte{'s', 'c', 'u', 'd', 'a', 's', 'i', 'm'}

	errForeign = errors.New("sim: not a handle of the simulated GPU")
)

const page = 4096

// encode gives the place as the bytes of a handle.
func (p sharedPlace) encode() (b [64]byte) {
	p.Magic, p.PID = sharedMagic, uint32(unix.Getpid())
	_, _ = binary.Encode(b[:], binary.LittleEndian, &p) // 56 bytes
	return b
}

func decodePlace(b []byte, kind uint32) (sharedPlace, error) {
	var p sharedPlace
	if _, err := binary.Decode(b, binary.LittleEndian, &p); err != nil {
		return p, err
	}
	if p.Magic != sharedMagic || p.Kind != kind || p.Size == 0 || p.Size > 1<<46 || p.Offset > 1<<56 {
		return p, errForeign
	}
	return p, nil
}

// lending passes memory files by an exchange, if there is one. The GPU's mu guards it.
type lending struct {
	exchange Exchange
	names    map[int]Name // of descriptors that were published
}

// publish gives the place's file a name, once for each file.
func (l *lending) publish(p sharedPlace) (sharedPlace, error) {
	fd := int(p.FD)
	name, known := l.names[fd]
	if l.exchange == nil || known {
		p.Name = name
		return p, nil
	}
	name, err := l.exchange.Publish(fd)
	if err == nil {
		l.names[fd], p.Name = name, name
	}
	return p, err
}

// withdraw ends what publish began, before the file is closed.
func (l *lending) withdraw(fd int) {
	if name, known := l.names[fd]; known {
		l.exchange.Withdraw(name)
		delete(l.names, fd)
	}
}

// file opens the place's file.
func (l *lending) file(p sharedPlace) (int, error) {
	if l.exchange != nil {
		return l.exchange.Fetch(p.Name)
	}
	return unix.Open(fmt.Sprintf("/proc/%d/fd/%d", p.PID, p.FD), unix.O_RDWR|unix.O_CLOEXEC, 0)
}

// open maps the whole pages around the place and gives their address and length.
func (l *lending) open(p sharedPlace) (base, size uint64, err error) {
	fd, err := l.file(p)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, 0, err
	}
	if uint64(st.Size) < p.Offset+p.Size {
		return 0, 0, errForeign
	}
	first := p.Offset &^ (page - 1)
	size = roundUp(p.Offset+p.Size, page) - first
	m, err := unix.MmapPtr(fd, int64(first), nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return addressOf(m), size, err
}

// pages are those that a foreign region was mapped with.
func (r *region) pages() (base, size uint64) {
	base = r.base &^ (page - 1)
	return base, roundUp(r.base+r.size, page) - base
}

// place names a region of a device's own memory.
func (r *region) place() sharedPlace {
	a := &r.dev.arena
	return sharedPlace{FD: uint32(a.fd), Offset: uint64(a.offset) + r.base - a.base, Size: r.size,
		Device: uint32(r.dev.number), Kind: sharedMemory}
}

// openPlace makes memory of another process a region. g.mu is held.
func (g *GPU) openPlace(c *cudaContext, p sharedPlace, from *pool) (*region, cuda.CUresult) {
	d, r := numbered(g.devices, p.Device)
	if r != ok {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	base, size, err := g.lent.open(p)
	if err != nil {
		g.log.Debug("sim: memory of another process", "error", err)
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	reg := &region{base: base + p.Offset%page, size: p.Size, asked: p.Size, kind: regionForeign, dev: d, ctx: c,
		id: g.nextID(), pool: from}
	if err := g.mem.insert(reg); err != nil {
		g.log.Error("sim: device memory table", "error", errors.Join(err, unmap(base, size)))
		return nil, cuda.CUDA_ERROR_UNKNOWN
	}
	return reg, ok
}

// CuIpcGetMemHandle names the allocation around an address.
func (g *GPU) CuIpcGetMemHandle(h *cuda.CUipcMemHandle, dptr cuda.CUdeviceptr) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg := g.mem.find(uint64(dptr))
	if h == nil || reg == nil || reg.kind != regionDevice {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	p, err := g.lent.publish(reg.place())
	if err != nil {
		g.log.Error("sim: memory cannot be shared", "error", err)
		return cuda.CUDA_ERROR_OPERATING_SYSTEM
	}
	h.Reserved = p.encode()
	return ok
}

func (g *GPU) CuIpcOpenMemHandle(dptr *cuda.CUdeviceptr, h cuda.CUipcMemHandle, flags uint32) cuda.CUresult {
	return g.CuIpcOpenMemHandle_v2(dptr, h, flags)
}

func (g *GPU) CuIpcOpenMemHandle_v2(dptr *cuda.CUdeviceptr, h cuda.CUipcMemHandle, flags uint32) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, err := decodePlace(h.Reserved[:], sharedMemory)
	switch {
	case dptr == nil || err != nil || flags&^uint32(cuda.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case int(p.PID) == unix.Getpid():
		return cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	reg, r := g.openPlace(c, p, nil)
	if r == ok {
		*dptr = cuda.CUdeviceptr(reg.base)
	}
	return r
}

func (g *GPU) CuIpcCloseMemHandle(dptr cuda.CUdeviceptr) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg := g.mem.find(uint64(dptr))
	if reg == nil || reg.base != uint64(dptr) || reg.kind != regionForeign || reg.pool != nil || reg.freeing {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	reg.freeing = true
	g.waitAll()
	if err := g.freeRegion(reg); err != nil {
		g.log.Error("sim: closing memory of another process", "error", err)
		return cuda.CUDA_ERROR_UNKNOWN
	}
	return ok
}

// exportFD gives the program a descriptor of its own.
func exportFD(out pointer, fd int) cuda.CUresult {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return cuda.CUDA_ERROR_OPERATING_SYSTEM
	}
	*view[int32](out) = int32(own)
	return ok
}

// trailer stands behind the memory of an allocation that may be exported.
func writeTrailer(fd int, at int64, p sharedPlace) error {
	b := p.encode()
	_, err := unix.Pwrite(fd, b[:], at)
	return err
}

func readTrailer(fd int, kind uint32) (sharedPlace, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return sharedPlace{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size < page {
		return sharedPlace{}, errForeign
	}
	var b [64]byte
	if _, err := unix.Pread(fd, b[:], st.Size-page); err != nil {
		return sharedPlace{}, err
	}
	p, err := decodePlace(b[:], kind)
	if err == nil && p.Offset != uint64(st.Size-page) {
		err = errForeign
	}
	return p, err
}

func (g *GPU) CuMemExportToShareableHandle(out pointer, h cuda.CUmemGenericAllocationHandle,
	kind cuda.CUmemAllocationHandleType, flags uint64) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, found := lookup[*physical](g, h)
	if !found || out == nil || flags != 0 || kind != cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
		p.prop.RequestedHandleTypes&kind == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return exportFD(out, p.fd)
}

// CuMemImportFromShareableHandle: the descriptor comes as the value of the pointer.
// importable says whether handles of that kind can be imported: as an H200's driver does on Linux.
func importable(kind cuda.CUmemAllocationHandleType) cuda.CUresult {
	switch kind {
	case cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
		return ok
	case cuda.CU_MEM_HANDLE_TYPE_WIN32, cuda.CU_MEM_HANDLE_TYPE_WIN32_KMT:
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return cuda.CUDA_ERROR_INVALID_VALUE
}

func (g *GPU) CuMemImportFromShareableHandle(ph *cuda.CUmemGenericAllocationHandle, os pointer,
	kind cuda.CUmemAllocationHandleType) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r := importable(kind); r != ok {
		return r
	}
	t, err := readTrailer(int(int32(uintptr(os))), sharedMemory)
	if err != nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	d, r := numbered(g.devices, t.Device)
	if r != ok || t.Size%vmmGranularity != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	fd, err := unix.FcntlInt(uintptr(os), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return cuda.CUDA_ERROR_OPERATING_SYSTEM
	}
	p := &physical{dev: d, size: t.Size, fd: fd, handles: 1, imported: true}
	p.prop.Type, p.prop.RequestedHandleTypes = cuda.CU_MEM_ALLOCATION_TYPE_PINNED, kind
	p.prop.Location = cuda.CUmemLocation{Type: cuda.CU_MEM_LOCATION_TYPE_DEVICE, Id: int32(d.ordinal)}
	p.handle = cuda.CUmemGenericAllocationHandle(g.objects.add(p))
	*ph = p.handle
	return ok
}

func (g *GPU) CuMemPoolExportToShareableHandle(out pointer, h cuda.CUmemoryPool, kind cuda.CUmemAllocationHandleType,
	flags uint64) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, r := g.pool(h)
	if r != ok || out == nil || flags != 0 || kind != cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
		p.exports&kind == 0 || p.imported {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	fd, err := memfd.New("scuda-sim-pool", page)
	if err != nil {
		return cuda.CUDA_ERROR_OPERATING_SYSTEM
	}
	defer unix.Close(fd)
	if err := writeTrailer(fd, 0, sharedPlace{Size: page, Device: uint32(p.dev.number), Kind: sharedPool}); err != nil {
		return cuda.CUDA_ERROR_OPERATING_SYSTEM
	}
	return exportFD(out, fd)
}

func (g *GPU) CuMemPoolImportFromShareableHandle(ph *cuda.CUmemoryPool, os pointer, kind cuda.CUmemAllocationHandleType,
	flags uint64) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil || flags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r := importable(kind); r != ok {
		return r
	}
	t, err := readTrailer(int(int32(uintptr(os))), sharedPool)
	if err != nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	d, r := numbered(g.devices, t.Device)
	if r != ok {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	p := g.newPool(d)
	p.imported = true
	*ph = p.handle
	return ok
}

func (g *GPU) CuMemPoolExportPointer(data *cuda.CUmemPoolPtrExportData, dptr cuda.CUdeviceptr) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg := g.mem.find(uint64(dptr))
	if data == nil || reg == nil || reg.kind != regionPool || reg.pool == nil || reg.pool.exports == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	p, err := g.lent.publish(reg.place())
	if err != nil {
		g.log.Error("sim: memory cannot be shared", "error", err)
		return cuda.CUDA_ERROR_OPERATING_SYSTEM
	}
	data.Reserved = p.encode()
	return ok
}

func (g *GPU) CuMemPoolImportPointer(dptr *cuda.CUdeviceptr, h cuda.CUmemoryPool,
	data *cuda.CUmemPoolPtrExportData) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, r := g.pool(h)
	if r != ok || dptr == nil || data == nil || !p.imported {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	place, err := decodePlace(data.Reserved[:], sharedMemory)
	if err != nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	reg, r := g.openPlace(c, place, p)
	if r == ok {
		*dptr = cuda.CUdeviceptr(reg.base)
	}
	return r
}
