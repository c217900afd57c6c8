package ptx

// MaxCluster is the largest number of blocks in a cluster.
const MaxCluster = 16

// clusterShift is where an address of shared memory holds the rank of the block it is in.
const clusterShift = 24

// cluster is the blocks that run together, on one goroutine: they reach one another's shared memory and wait for one
// another. Without clusters in the launch it is one block.
type cluster struct {
	blocks  []*block
	waiters []waiter
}

// begin takes an idle cluster or makes one, for a number in the grid.
func (wk *worker) begin(number uint64) *cluster {
	r := wk.run
	dim := r.cluster
	var c *cluster
	if n := len(wk.idle); n > 0 {
		c = wk.idle[n-1]
		wk.idle = wk.idle[:n-1]
	} else {
		c = &cluster{}
		for rank := range dim[0] * dim[1] * dim[2] {
			c.blocks = append(c.blocks, &block{run: r, wk: wk, group: c, rank: rank, base: uint64(rank) << clusterShift,
				warps: make([]warp, (r.threads+lanes-1)/lanes), shared: make([]byte, r.sharedLen)})
		}
	}
	c.waiters = c.waiters[:0]
	x, y := uint64(r.grid.GridDim[0]/dim[0]), uint64(r.grid.GridDim[1]/dim[1])
	first := [3]uint32{uint32(number%x) * dim[0], uint32(number/x%y) * dim[1], uint32(number/x/y) * dim[2]}
	for _, b := range c.blocks {
		b.start([3]uint32{first[0] + b.rank%dim[0], first[1] + b.rank/dim[0]%dim[1], first[2] + b.rank/dim[0]/dim[1]})
	}
	return c
}

// live is the number of threads that have not exited.
func (c *cluster) live() int {
	n := 0
	for _, b := range c.blocks {
		n += b.live
	}
	return n
}

// clusterSlice is how many instructions a block executes before the next one of its cluster gets a turn.
const clusterSlice = 1 << 13

// step executes up to n instructions and returns how many it did.
func (c *cluster) step(n int) (used int, fault *Fault) {
	if len(c.blocks) == 1 {
		return c.blocks[0].step(n)
	}
	for used < n && c.live() > 0 {
		did := 0
		for _, b := range c.blocks {
			if b.live == 0 {
				continue
			}
			k, fault := b.step(clusterSlice)
			if fault != nil {
				return used, fault
			}
			did += k
		}
		if did == 0 {
			return used, c.stuck(Deadlock)
		}
		used += did
	}
	return used, nil
}

// stuck describes a cluster that does not go on by a thread of it.
func (c *cluster) stuck(kind FaultKind) *Fault {
	for _, b := range c.blocks {
		if b.live > 0 {
			return b.stuck(kind)
		}
	}
	return c.blocks[0].stuck(kind)
}

// clusterArrive is a lane's coming to the cluster's barrier, which it does not wait at.
func (w *warp) clusterArrive(m uint32) {
	w.arrived |= m
	w.blk.group.complete()
}

// clusterWait lets the lanes go on whose barrier has opened since they arrived.
func (w *warp) clusterWait(s *split, m uint32) bool {
	waiting := m & w.arrived
	if waiting == 0 {
		s.pc++
		return true
	}
	if rest := s.mask &^ waiting; rest != 0 {
		w.addSplit(rest, s.pc+1, s.frame, ready)
		s.mask = waiting
	}
	s.state = atBarrier
	c := w.blk.group
	c.waiters = append(c.waiters, waiter{w, s})
	return false
}

// complete opens the barrier if all threads have arrived or exited.
func (c *cluster) complete() {
	some := false
	for _, b := range c.blocks {
		for i := range b.warps {
			w := &b.warps[i]
			if w.live&^w.arrived != 0 {
				return
			}
			some = some || w.arrived != 0
		}
	}
	if !some {
		return
	}
	for _, b := range c.blocks {
		for i := range b.warps {
			b.warps[i].arrived = 0
		}
	}
	for _, wt := range c.waiters {
		wt.s.state = ready
		wt.s.pc++
	}
	c.waiters = c.waiters[:0]
}
