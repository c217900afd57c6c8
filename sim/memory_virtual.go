package sim

import (
	"cmp"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/internal/memfd"
)

// vmmGranularity is the unit of memory that is mapped by hand.
const vmmGranularity = 2 << 20

// physical is memory made by cuMemCreate: a memory file, so that it can be mapped at several addresses.
type physical struct {
	handle   cuda.CUmemGenericAllocationHandle
	dev      *device
	size     uint64
	fd       int
	prop     cuda.CUmemAllocationProp
	handles  int // references by handle
	mappings int
	imported bool // from another process, whose device memory it is
}

// mapping is a part of a physical allocation at an address; with access it is also a region.
type mapping struct {
	span
	phys   *physical
	region *region
	access cuda.CUmemAccess_flags
}

// virtualMemory knows which addresses are reserved and what is mapped there. Its methods are called with the GPU's lock
// held.
type virtualMemory struct {
	reserved []span
	mappings []*mapping // sorted by address
}

// has says whether a reserved range holds all these addresses.
func (v *virtualMemory) has(base, size uint64) bool {
	return slices.ContainsFunc(v.reserved, func(s span) bool { return contains(s, base, size) })
}

// at finds the mapping around an address.
func (v *virtualMemory) at(addr uint64) *mapping {
	for _, m := range v.mappings {
		if contains(m.span, addr, 1) {
			return m
		}
	}
	return nil
}

// free says whether nothing is mapped at any of these addresses.
func (v *virtualMemory) free(base, size uint64) bool {
	return !slices.ContainsFunc(v.mappings, func(m *mapping) bool { return m.base < base+size && base < m.base+m.size })
}

func (v *virtualMemory) insert(m *mapping) {
	m.phys.mappings++
	v.mappings = append(v.mappings, m)
	slices.SortFunc(v.mappings, func(a, b *mapping) int { return cmp.Compare(a.base, b.base) })
}

func (v *virtualMemory) remove(m *mapping) {
	v.mappings = slices.DeleteFunc(v.mappings, func(x *mapping) bool { return x == m })
	m.phys.mappings--
}

// release takes a range out of those that are reserved, if it is one and nothing is mapped there.
func (v *virtualMemory) release(s span) bool {
	i := slices.Index(v.reserved, s)
	if i < 0 {
		return false
	}
	if in, _ := v.inside(s.base, s.size, false); len(in) > 0 {
		return false
	}
	v.reserved = slices.Delete(v.reserved, i, i+1)
	return true
}

func contains(s span, base, size uint64) bool {
	return base >= s.base && size <= s.size && base-s.base <= s.size-size
}

// inside gives the mappings that make up [base, base+size) exactly, all of it where whole is set.
func (v *virtualMemory) inside(base, size uint64, whole bool) ([]*mapping, bool) {
	var in []*mapping
	next := base
	for _, m := range v.mappings {
		switch {
		case m.base+m.size <= base || m.base >= base+size:
			continue
		case !contains(span{base, size}, m.base, m.size), whole && m.base != next:
			return nil, false
		}
		in = append(in, m)
		next = m.base + m.size
	}
	return in, !whole || next == base+size
}

func (g *GPU) vmmClose() error {
	var errs []error
	for _, o := range g.objects.live {
		if p, isPhys := o.(*physical); isPhys {
			p.mappings, p.handles = 0, 0
		}
	}
	for _, m := range g.vmm.mappings {
		m.phys.mappings++
	}
	for _, m := range slices.Clone(g.vmm.mappings) {
		errs = append(errs, g.unmap(m))
	}
	for h, o := range g.objects.live {
		if p, isPhys := o.(*physical); isPhys {
			g.objects.drop(h)
			errs = append(errs, g.releasePhysical(p))
		}
	}
	for _, s := range g.vmm.reserved {
		errs = append(errs, unmap(s.base, s.size))
	}
	g.vmm = virtualMemory{}
	return errors.Join(errs...)
}

func (g *GPU) CuMemAddressReserve(ptr *cuda.CUdeviceptr, size, align uint64, hint cuda.CUdeviceptr,
	flags uint64) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ptr == nil || size == 0 || size%vmmGranularity != 0 || flags != 0 || align&(align-1) != 0 || align > 1<<40 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if size > 1<<46 {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	base, err := reserveAligned(uint64(hint), size, max(align, vmmGranularity))
	if err != nil {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	g.vmm.reserved = append(g.vmm.reserved, span{base, size})
	*ptr = cuda.CUdeviceptr(base)
	return ok
}

// reserveAligned reserves addresses without access, at hint where that is possible.
func reserveAligned(hint, size, align uint64) (uint64, error) {
	if hint%align != 0 {
		hint = 0
	}
	base, err := reserve(hint, size, unix.PROT_NONE)
	if err != nil || base%align == 0 {
		return base, err
	}
	if err := unmap(base, size); err != nil {
		return 0, err
	}
	base, err = reserve(0, size+align, unix.PROT_NONE)
	if err != nil {
		return 0, err
	}
	aligned := roundUp(base, align)
	if aligned > base {
		err = unmap(base, aligned-base)
	}
	if rest := base + align - aligned; err == nil && rest > 0 {
		err = unmap(aligned+size, rest)
	}
	return aligned, err
}

func (g *GPU) CuMemAddressFree(ptr cuda.CUdeviceptr, size uint64) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if !g.vmm.release(span{uint64(ptr), size}) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if err := unmap(uint64(ptr), size); err != nil {
		g.log.Error("sim: address range", "error", err)
		return cuda.CUDA_ERROR_UNKNOWN
	}
	return ok
}

// checkProp says whether physical memory of that kind can be had.
func (g *GPU) checkProp(prop *cuda.CUmemAllocationProp) (*device, cuda.CUresult) {
	switch {
	case prop == nil || prop.Type != cuda.CU_MEM_ALLOCATION_TYPE_PINNED:
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	case prop.Location.Type != cuda.CU_MEM_LOCATION_TYPE_DEVICE ||
		prop.RequestedHandleTypes&^cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 || prop.AllocFlags.CompressionType != 0:
		return nil, cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.device(cuda.CUdevice(prop.Location.Id))
}

func (g *GPU) CuMemGetAllocationGranularity(granularity *uint64, prop *cuda.CUmemAllocationProp,
	option cuda.CUmemAllocationGranularity_flags) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if granularity == nil || option != cuda.CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
		option != cuda.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if _, r := g.checkProp(prop); r != ok {
		return r
	}
	*granularity = vmmGranularity
	return ok
}

func (g *GPU) CuMemCreate(ph *cuda.CUmemGenericAllocationHandle, size uint64, prop *cuda.CUmemAllocationProp,
	flags uint64) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	d, r := g.checkProp(prop)
	if r != ok {
		return r
	}
	if ph == nil || size == 0 || size%vmmGranularity != 0 || flags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if size > d.total-d.used {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	fd, err := memfd.New("scuda-sim", int64(size+page))
	if err == nil {
		err = writeTrailer(fd, int64(size), sharedPlace{Offset: size, Size: size, Device: uint32(d.number),
			Kind: sharedMemory})
		if err != nil {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	if err != nil {
		g.log.Error("sim: physical memory", "error", err)
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	p := &physical{dev: d, size: size, fd: fd, prop: *prop, handles: 1}
	p.handle = cuda.CUmemGenericAllocationHandle(g.objects.add(p))
	g.take(d, size)
	*ph = p.handle
	return ok
}

// releasePhysical frees p once nothing refers to it.
func (g *GPU) releasePhysical(p *physical) error {
	if p.handles > 0 || p.mappings > 0 || p.fd < 0 {
		return nil
	}
	if !p.imported {
		g.give(p.dev, p.size)
	}
	fd := p.fd
	p.fd = -1
	return unix.Close(fd)
}

func (g *GPU) CuMemRelease(h cuda.CUmemGenericAllocationHandle) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, found := lookup[*physical](g, h)
	if !found {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if p.handles--; p.handles == 0 {
		g.objects.drop(uint64(h))
	}
	if err := g.releasePhysical(p); err != nil {
		g.log.Error("sim: physical memory", "error", err)
		return cuda.CUDA_ERROR_UNKNOWN
	}
	return ok
}

func (g *GPU) CuMemGetAllocationPropertiesFromHandle(prop *cuda.CUmemAllocationProp,
	h cuda.CUmemGenericAllocationHandle) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, found := lookup[*physical](g, h)
	if !found || prop == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*prop = p.prop
	return ok
}

func (g *GPU) CuMemMap(ptr cuda.CUdeviceptr, size, offset uint64, h cuda.CUmemGenericAllocationHandle,
	flags uint64) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	base := uint64(ptr)
	p, found := lookup[*physical](g, h)
	if !found || flags != 0 || size == 0 || base%vmmGranularity != 0 || size%vmmGranularity != 0 ||
		offset%vmmGranularity != 0 ||
		!contains(span{0, p.size}, offset, size) || !g.vmm.has(base, size) || !g.vmm.free(base, size) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if err := mapFile(p.fd, int64(offset), base, size); err != nil {
		g.log.Error("sim: mapping memory", "error", err)
		return cuda.CUDA_ERROR_MAP_FAILED
	}
	g.vmm.insert(&mapping{span: span{base, size}, phys: p})
	return ok
}

func (g *GPU) unmap(m *mapping) error {
	if m.region != nil {
		g.mem.remove(m.region)
		m.region = nil
	}
	g.vmm.remove(m)
	err := unmapFile(m.base, m.size)
	return errors.Join(err, g.releasePhysical(m.phys))
}

func (g *GPU) CuMemUnmap(ptr cuda.CUdeviceptr, size uint64) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if in, whole := g.vmm.inside(uint64(ptr), size, true); !whole || len(in) == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	g.waitAll() // kernels may still use the memory
	in, whole := g.vmm.inside(uint64(ptr), size, true)
	if !whole {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	for _, m := range in {
		if m.region != nil {
			if err := g.retire(m.region); err != nil {
				return cuda.CUDA_ERROR_UNMAP_FAILED
			}
			m.region = nil
		}
		if err := g.unmap(m); err != nil {
			g.log.Error("sim: unmapping memory", "error", err)
			return cuda.CUDA_ERROR_UNMAP_FAILED
		}
	}
	return ok
}

func (g *GPU) CuMemSetAccess(ptr cuda.CUdeviceptr, size uint64, descs *cuda.CUmemAccessDesc,
	count uint64) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if descs == nil || count == 0 || count > maxDevices {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	var access cuda.CUmemAccess_flags
	for _, d := range sliceOf(descs, count) {
		if d.Location.Type != cuda.CU_MEM_LOCATION_TYPE_DEVICE {
			return cuda.CUDA_ERROR_NOT_SUPPORTED
		}
		if _, r := g.device(cuda.CUdevice(d.Location.Id)); r != ok {
			return r
		}
		switch d.Flags {
		case cuda.CU_MEM_ACCESS_FLAGS_PROT_NONE, cuda.CU_MEM_ACCESS_FLAGS_PROT_READ, cuda.CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
			access = max(access, d.Flags) // devices are not told apart here
		default:
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	in, whole := g.vmm.inside(uint64(ptr), size, true)
	if !whole || len(in) == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	for _, m := range in {
		if m.region != nil {
			g.mem.remove(m.region)
			m.region = nil
		}
		m.access = access
		if access == cuda.CU_MEM_ACCESS_FLAGS_PROT_NONE {
			continue
		}
		m.region = &region{
			base: m.base, size: m.size, asked: m.size, kind: regionMapped, dev: m.phys.dev, ctx: c, id: g.nextID(), mapping: m,
			readOnly: access == cuda.CU_MEM_ACCESS_FLAGS_PROT_READ,
		}
		if err := g.mem.insert(m.region); err != nil {
			g.log.Error("sim: device memory table", "error", err)
			return cuda.CUDA_ERROR_UNKNOWN
		}
	}
	return ok
}

func (g *GPU) CuMemGetAccess(flags *uint64, location *cuda.CUmemLocation, ptr cuda.CUdeviceptr) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if flags == nil || location == nil || location.Type != cuda.CU_MEM_LOCATION_TYPE_DEVICE {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	m := g.vmm.at(uint64(ptr))
	if m == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*flags = uint64(m.access)
	return ok
}
