package ptx

import "encoding/binary"

// memSpace is where an instruction looks for its address.
type memSpace uint8

const (
	msGeneric memSpace = iota
	msGlobal
	msShared
	msLocal
	msKernelParam
	msCallParam
)

// at returns the n bytes at an address as a lane sees it, or nil after a fault.
func (w *warp) at(sp memSpace, i int, addr uint64, n int, write bool) []byte {
	if addr&uint64(n-1) != 0 {
		w.setFault(i, &Fault{Kind: Misaligned, Addr: addr, Size: n, Write: write})
		return nil
	}
	if sp == msGeneric {
		switch {
		case addr < SharedWindow:
			sp = msGlobal
		case addr < LocalWindow:
			sp, addr = msShared, addr-SharedWindow
		case addr < ParamWindow:
			sp, addr = msLocal, addr-LocalWindow
		case addr < funcWindow:
			sp, addr = msKernelParam, addr-ParamWindow
		}
	}
	var mem []byte
	switch sp {
	case msGlobal:
		return w.global(i, addr, n, write)
	case msShared:
		rank := addr >> clusterShift
		if rank >= uint64(len(w.blk.group.blocks)) {
			w.setFault(i, &Fault{Kind: IllegalInstruction, Addr: addr, Size: n, Write: write,
				Message: "shared memory of a block that is not there"})
			return nil
		}
		mem, addr = w.blk.group.blocks[rank].shared, addr&(1<<clusterShift-1)
	case msLocal:
		mem = w.local[uint64(i)*w.stride : uint64(i+1)*w.stride]
	case msKernelParam:
		if !write {
			mem = w.blk.run.grid.Params[:w.blk.run.grid.Kernel.ParamSize]
		}
	case msCallParam:
		size := w.frame.fn.params
		mem = w.frame.params[uint64(i)*size : uint64(i+1)*size]
	}
	if addr >= uint64(len(mem)) || uint64(len(mem))-addr < uint64(n) {
		w.setFault(i, &Fault{Kind: IllegalAddress, Addr: addr, Size: n, Write: write, Message: sp.String() + " memory"})
		return nil
	}
	return mem[addr : addr+uint64(n) : addr+uint64(n)]
}

func (s memSpace) String() string {
	return [...]string{"generic", "global", "shared", "local", "parameter", "call parameter"}[s]
}

func (w *warp) global(i int, addr uint64, n int, write bool) []byte {
	wk := w.blk.wk
	off := addr - wk.start
	if off >= uint64(len(wk.bytes)) || uint64(len(wk.bytes))-off < uint64(n) || write && wk.ro {
		if !wk.find(addr, n, write) {
			w.setFault(i, &Fault{Kind: IllegalAddress, Addr: addr, Size: n, Write: write})
			return nil
		}
		off = addr - wk.start
	}
	return wk.bytes[off : off+uint64(n) : off+uint64(n)]
}

// find makes the region of an address the current one.
func (wk *worker) find(addr uint64, n int, write bool) bool {
	hit := func(r *Region) bool {
		off := addr - r.Start
		return addr >= r.Start && off < uint64(len(r.Bytes)) && uint64(len(r.Bytes))-off >= uint64(n) &&
			!(write && r.ReadOnly)
	}
	for k := range wk.regions {
		if r := &wk.regions[k]; hit(r) {
			wk.start, wk.bytes, wk.ro = r.Start, r.Bytes, r.ReadOnly
			return true
		}
	}
	r, ok := wk.run.grid.Mem.Region(addr)
	if !ok || !hit(&r) {
		return false
	}
	wk.regions[wk.victim] = r
	wk.victim = (wk.victim + 1) % len(wk.regions)
	wk.start, wk.bytes, wk.ro = r.Start, r.Bytes, r.ReadOnly
	return true
}

func readInt(b []byte, n int) uint64 {
	switch n {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

func writeInt(b []byte, n int, v uint64) {
	switch n {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	default:
		binary.LittleEndian.PutUint64(b, v)
	}
}
