package ptx

import "strings"

// bulkUnit is what addresses and sizes of bulk copies are multiples of.
const bulkUnit = 16

// hBulk is cp.async.bulk between global and shared memory; the copy is complete at once.
func hBulk(i *ins) error {
	if i.oneOf(".commit_group", ".wait_group") != "" {
		i.drop(".read")
		return hNothing(i)
	}
	if i.take(".prefetch") {
		return hNothing(i)
	}
	// The modifiers are the destination, the source, and how it ends.
	to, from := msShared, msShared
	if len(i.mods) < 2 {
		return i.unsupported("")
	}
	switch path := strings.Join(i.mods[:2], ""); path {
	case ".shared::cluster.global", ".shared::cta.global":
		from = msGlobal
	case ".global.shared::cta":
		to = msGlobal
	case ".shared::cluster.shared::cta":
	default:
		return i.unsupported("")
	}
	i.mods = i.mods[2:]
	signals := to == msShared
	if signals != i.take(".mbarrier::complete_tx::bytes") || signals == i.take(".bulk_group") {
		return i.unsupported("")
	}
	multicast := i.take(".multicast::cluster")
	i.dropHints()
	args := i.s.args
	n := 3
	if signals {
		n++
	}
	if multicast {
		n++
	}
	if err := i.args(n); err != nil {
		return err
	}
	dst, err := i.address(&args[0], to)
	if err != nil {
		return err
	}
	src, err := i.address(&args[1], from)
	if err != nil {
		return err
	}
	size, err := i.src(&args[2], tU32)
	if err != nil {
		return err
	}
	var bar address
	if signals {
		if bar, err = i.address(&args[3], msShared); err != nil {
			return err
		}
	}
	targets := -1
	if multicast {
		if targets, err = i.src(&args[4], tU16); err != nil {
			return err
		}
	}
	i.emitMem(func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			l := lane(m)
			place := func(a address) uint64 { return (w.regs[a.base+l] + a.off) & a.cut }
			n := uint64(uint32(w.regs[size+l]))
			if n%bulkUnit != 0 {
				w.setFault(l, &Fault{Kind: Misaligned, Addr: n, Message: "the size of a bulk copy is no multiple of 16"})
				return
			}
			copies := []uint64{0}
			if multicast {
				copies = copies[:0]
				for rank := range uint64(MaxCluster) {
					if w.regs[targets+l]>>rank&1 != 0 {
						copies = append(copies, rank)
					}
				}
			}
			for _, rank := range copies {
				to, done := place(dst), uint64(0)
				if signals {
					done = place(bar)
				}
				if multicast {
					to, done = to&(1<<clusterShift-1)|rank<<clusterShift, done&(1<<clusterShift-1)|rank<<clusterShift
				}
				if !w.bulkCopy(l, dst.space, to, src.space, place(src), n) {
					return
				}
				if signals {
					b := w.at(msShared, l, done, 8, true)
					if b == nil {
						return
					}
					writeInt(b, 8, uint64(mbarrier(readInt(b, 8)).add(0, 0, -int64(n))))
				}
			}
		}
	})
	return nil
}

func (w *warp) bulkCopy(l int, dst memSpace, to uint64, src memSpace, from, n uint64) bool {
	for k := uint64(0); k < n; k += bulkUnit {
		s := w.at(src, l, from+k, bulkUnit, false)
		if s == nil {
			return false
		}
		d := w.at(dst, l, to+k, bulkUnit, true)
		if d == nil {
			return false
		}
		copy(d, s)
	}
	return true
}
