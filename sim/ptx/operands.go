package ptx

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
