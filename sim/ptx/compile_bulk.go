package ptx

import (
	"math/bits"
	"strings"
)

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
	to, from, ok := i.bulkPath()
	if !ok {
		return i.unsupported("")
	}
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
	c := &bulk{dst: dst, src: src, bar: bar, size: size, targets: targets, signals: signals}
	i.emitMem(func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			if !c.run(w, lane(m)) {
				return
			}
		}
	})
	return nil
}

// bulkPath reads the destination's and the source's space.
func (i *ins) bulkPath() (to, from memSpace, ok bool) {
	to, from = msShared, msShared
	if len(i.mods) < 2 {
		return to, from, false
	}
	switch path := strings.Join(i.mods[:2], ""); path {
	case ".shared::cluster.global", ".shared::cta.global":
		from = msGlobal
	case ".global.shared::cta":
		to = msGlobal
	case ".shared::cluster.shared::cta":
	default:
		return to, from, false
	}
	i.mods = i.mods[2:]
	return to, from, true
}

// bulk is a bulk copy: of size bytes, to the blocks of a cluster that targets names (-1: its own), and to a barrier
// that is told where signals is set.
type bulk struct {
	dst, src, bar address
	size, targets int
	signals       bool
}

// ranks are the blocks that get a copy, a bit each; it is the first where there is no choice.
func (c *bulk) ranks(w *warp, l int) uint64 {
	if c.targets < 0 {
		return 1
	}
	return w.regs[c.targets+l] & (1<<MaxCluster - 1)
}

// run makes the copies of a lane; false where it failed.
func (c *bulk) run(w *warp, l int) bool {
	place := func(a address) uint64 { return (w.regs[a.base+l] + a.off) & a.cut }
	n := uint64(uint32(w.regs[c.size+l]))
	if n%bulkUnit != 0 {
		w.setFault(l, &Fault{Kind: Misaligned, Addr: n, Message: "the size of a bulk copy is no multiple of 16"})
		return false
	}
	for ranks := c.ranks(w, l); ranks != 0; ranks &= ranks - 1 {
		rank := uint64(bits.TrailingZeros64(ranks))
		to, done := place(c.dst), uint64(0)
		if c.signals {
			done = place(c.bar)
		}
		if c.targets >= 0 {
			const inside = 1<<clusterShift - 1
			to, done = to&inside|rank<<clusterShift, done&inside|rank<<clusterShift
		}
		if !w.bulkCopy(l, c.dst.space, to, c.src.space, place(c.src), n) {
			return false
		}
		if c.signals {
			b := w.at(msShared, l, done, 8, true)
			if b == nil {
				return false
			}
			writeInt(b, 8, uint64(mbarrier(readInt(b, 8)).add(0, 0, -int64(n))))
		}
	}
	return true
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
