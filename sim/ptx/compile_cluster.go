package ptx

// sharedAddress reads the optional space and the type of mapa and getctarank: an address in shared memory, or a generic one.
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
	if err := i.args(3); err != nil {
		return err
	}
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	a, err := i.src(&i.s.args[1], t)
	if err != nil {
		return err
	}
	rank, err := i.src(&i.s.args[2], tU32)
	if err != nil {
		return err
	}
	i.emit(bin(d, a, rank, func(a, rank uint64) uint64 {
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
	if err := i.args(2); err != nil {
		return err
	}
	d, err := i.dst(&i.s.args[0])
	if err != nil {
		return err
	}
	a, err := i.src(&i.s.args[1], t)
	if err != nil {
		return err
	}
	i.emit(un(d, a, func(a uint64) uint64 { return a >> clusterShift & 0xff }))
	return nil
}
