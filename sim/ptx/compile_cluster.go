package ptx

// sharedAddress reads the optional space and the type of mapa and getctarank: an address in shared memory, or a generic
// one.
func (i *ins) sharedAddress() (typ, bool) {
	i.take(".shared::cluster")
	t := i.typ()
	return t, t == tU32 || t == tU64
}

// hMapa gives the address, in the shared memory of another block of the cluster, of what is there at the same place.
func hMapa(i *ins) error {
	t, ok := i.sharedAddress()
	if !ok {
		return i.unsupported("")
	}
	d, s, err := i.operands(t, tU32)
	if err != nil {
		return err
	}
	i.emit(bin(d, s[0], s[1], func(a, rank uint64) uint64 {
		const field = 0xff << clusterShift
		return a&^field | rank<<clusterShift&field
	}))
	return nil
}

// hRank gives the rank of the block whose shared memory an address is in.
func hRank(i *ins) error {
	t, ok := i.sharedAddress()
	if !ok {
		return i.unsupported("")
	}
	d, s, err := i.operands(t)
	if err != nil {
		return err
	}
	i.emit(un(d, s[0], func(a uint64) uint64 { return a >> clusterShift & 0xff }))
	return nil
}
