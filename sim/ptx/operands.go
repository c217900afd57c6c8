package ptx

// operands resolves a destination and sources of these types, which are all that an instruction has.
func (i *ins) operands(types ...typ) (d int, s []int, err error) {
	if err = i.args(1 + len(types)); err != nil {
		return
	}
	if d, err = i.dst(&i.s.args[0]); err != nil {
		return
	}
	s = make([]int, len(types))
	for k, t := range types {
		if s[k], err = i.src(&i.s.args[1+k], t); err != nil {
			return
		}
	}
	return
}

// dstAnd resolves the destination and n sources of type t.
func (i *ins) dstAnd(t typ, n int) (d int, s []int, err error) {
	if err = i.args(n + 1); err != nil {
		return
	}
	if d, err = i.dst(&i.s.args[0]); err == nil {
		s, err = i.srcs(t, 1, n)
	}
	return
}

// dstPair resolves a destination with which a predicate may come; -1 is none.
func (i *ins) dstPair(o *operand) (d, p int, err error) {
	if d, err = i.dst(withoutPair(o)); err != nil || o.pair == nil {
		return d, -1, err
	}
	p, err = i.predDst(o.pair)
	return d, p, err
}

// transfer resolves the n registers that an instruction loads, or stores as values of type t, and tells which operand
// says where: the first of a store, the second of a load.
func (i *ins) transfer(load bool, t typ, n int) (registers []int, at *operand, err error) {
	if err = i.args(2); err != nil {
		return
	}
	at, list, get := &i.s.args[1], &i.s.args[0], i.dst
	if !load {
		at, list = list, at
		get = func(o *operand) (int, error) { return i.src(o, t) }
	}
	registers, err = i.elements(list, get)
	if err == nil && len(registers) != n {
		err = i.errorf("%d registers are needed, not %d", n, len(registers))
	}
	return
}

// predicates resolves a predicate that is computed from n others.
func (i *ins) predicates(n int) (d int, s []predRef, err error) {
	if err = i.args(1 + n); err != nil {
		return
	}
	if d, err = i.predDst(&i.s.args[0]); err != nil {
		return
	}
	s = make([]predRef, n)
	for k := range s {
		if s[k], err = i.pred(&i.s.args[1+k]); err != nil {
			return
		}
	}
	return
}
