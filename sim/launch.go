package sim

import (
	"context"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/board"
	"scuda.dev/scuda/sim/ptx"
)

// launch is a kernel launch with its arguments, which were copied when it was made.
type launch struct {
	fn          *function
	grid, block [3]uint32
	shared      uint32
	cooperative bool
	cluster     [3]uint32 // zero: as the kernel wants
	params      []byte
	attrs       map[cuda.CUkernelNodeAttrID]cuda.CUkernelNodeAttrValue // of a graph node
	array       []pointer                                              // to the arguments, made when somebody asks
}

// markers in the "extra" array of a launch.
const (
	extraEnd    = 0
	extraBuffer = 1
	extraSize   = 2
)

// arguments packs a kernel's arguments as its parameters are laid out.
func arguments(e *ptx.Entry, kernelParams, extra pointer) ([]byte, cuda.CUresult) {
	buf := make([]byte, e.ParamSize)
	if kernelParams != nil && extra != nil {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	if len(e.Params) == 0 {
		return buf, ok
	}
	if kernelParams != nil {
		for i, p := range sliceOf(view[pointer](kernelParams), uint64(len(e.Params))) {
			if p == nil {
				return nil, cuda.CUDA_ERROR_INVALID_VALUE
			}
			copy(buf[e.Params[i].Offset:], bytesOf(p, uint64(e.Params[i].Size)))
		}
		return buf, ok
	}
	if extra == nil {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	var data pointer
	size := uint64(e.ParamSize)
	const most = 8 // entries: more than the markers that exist
	for i := uint64(0); i < most; i += 2 {
		value := *view[pointer](offset(extra, (i+1)*8))
		switch *view[uint64](offset(extra, i*8)) {
		case extraEnd:
			if data == nil || size == 0 {
				return nil, cuda.CUDA_ERROR_INVALID_VALUE
			}
			copy(buf, bytesOf(data, min(size, uint64(e.ParamSize)))) // what is missing the driver does not mind
			return buf, ok
		case extraBuffer:
			data = value
		case extraSize:
			size = *view[uint64](value)
		default:
			return nil, cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	return nil, cuda.CUDA_ERROR_INVALID_VALUE
}

// check says what the driver says of a launch before anything runs.
func (l *launch) check() cuda.CUresult {
	e, a, gpu := l.fn.entry, l.fn.attrs, l.fn.mod.ctx.gpu
	dims := [...]struct{ n, most uint32 }{
		{l.grid[0], 1<<31 - 1}, {l.grid[1], 65535}, {l.grid[2], 65535},
		{l.block[0], 1024}, {l.block[1], 1024}, {l.block[2], 64},
	}
	for _, d := range dims {
		if d.n == 0 || d.n > d.most {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	if err := e.Load(); err != nil {
		gpu.log.Warn("sim: kernel cannot be loaded", "kernel", e.Name, "error", err)
		return cuda.CUDA_ERROR_INVALID_PTX
	}
	threads := l.block[0] * l.block[1] * l.block[2]
	if threads > maxThreadsPerBlock || uint64(l.shared) > uint64(a.dynamic(e)) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if req := e.ReqThreads; req[0] != 0 && l.block != [3]uint32{req[0], max(req[1], 1), max(req[2], 1)} {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if int(threads) > maxThreads(e) || e.SharedSize()+int(l.shared) > int(gpu.capability.sharedPerBlock) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r := l.checkCluster(); r != ok {
		return r
	}
	if l.cooperative {
		blocks := uint64(l.grid[0]) * uint64(l.grid[1]) * uint64(l.grid[2])
		if blocks > uint64(gpu.capability.occupancy(e, int(threads), uint64(l.shared)))*uint64(gpu.sms()) {
			return cuda.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
		}
	}
	return ok
}

// checkCluster finds out whether the blocks can be parted into clusters of the wanted size.
func (l *launch) checkCluster() cuda.CUresult {
	required := l.fn.required()
	dim := l.clusters()
	if dim == [3]uint32{} {
		return ok
	}
	if !l.fn.mod.ctx.gpu.capability.clusters {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	if required != [3]uint32{} && dim != required {
		return cuda.CUDA_ERROR_INVALID_CLUSTER_SIZE
	}
	size := uint64(1)
	for i, d := range dim {
		size *= uint64(d)
		if d == 0 || l.grid[i]%d != 0 || size > l.fn.attrs.largestCluster() {
			return cuda.CUDA_ERROR_INVALID_CLUSTER_SIZE
		}
	}
	return ok
}

// clusters is the size of the clusters the launch has, zero where nobody asked for any.
func (l *launch) clusters() [3]uint32 {
	if l.cluster != [3]uint32{} {
		return l.cluster
	}
	return l.fn.required()
}

func (g *GPU) launchOp(l *launch) op {
	dev := l.fn.mod.ctx.dev
	grid := &ptx.Grid{
		Kernel: l.fn.entry, GridDim: l.grid, BlockDim: l.block, ClusterDim: l.clusters(), SharedBytes: l.shared,
		Params: l.params,
		Mem:    &g.mem, Textures: textureTable{g}, Globals: l.fn.mod.globals, Cooperative: l.cooperative,
		Stdout: g.cfg.Stdout, ClockKHz: clockKHz, SMs: uint32(g.sms()), MaxInstructions: g.cfg.KernelInstructions,
	}
	return op{kind: cuda.CU_GRAPH_NODE_TYPE_KERNEL, params: l, run: func(ctx context.Context) error {
		leave, err := takeTurn(ctx, g.seat, dev, g.cfg.Turns)
		if err != nil {
			return err
		}
		defer leave()
		g.seat.Begin(dev.number, board.Kernels)
		defer g.seat.End(dev.number, board.Kernels)
		defer telling(ctx, l.describe)()
		return g.execute(ctx, dev, grid.Run)
	}}
}

func (g *GPU) CuLaunchKernel(f cuda.CUfunction, gx, gy, gz, bx, by, bz, shared uint32, hs cuda.CUstream, params,
	extra pointer) cuda.CUresult {
	s, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	return g.launch(s, f, &launch{grid: [3]uint32{gx, gy, gz}, block: [3]uint32{bx, by, bz}, shared: shared}, params,
		extra)
}

func (g *GPU) CuLaunchCooperativeKernel(f cuda.CUfunction, gx, gy, gz, bx, by, bz, shared uint32, hs cuda.CUstream,
	params pointer) cuda.CUresult {
	s, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	l := &launch{grid: [3]uint32{gx, gy, gz}, block: [3]uint32{bx, by, bz}, shared: shared, cooperative: true}
	return g.launch(s, f, l, params, nil)
}

// CuLaunchCooperativeKernelMultiDevice launches the kernels one by one. The streams are not ordered against each other,
// and a grid that waits for another GPU's is refused by the interpreter.
func (g *GPU) CuLaunchCooperativeKernelMultiDevice(list *cuda.CUDA_LAUNCH_PARAMS, n, flags uint32) cuda.CUresult {
	const known = 3 // CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_…_SYNC, macros in C
	if list == nil || n == 0 || flags&^known != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	devices := map[*device]bool{}
	for _, p := range sliceOf(list, uint64(n)) {
		if p.HStream == 0 || p.HStream == cuda.StreamLegacy || p.HStream == cuda.StreamPerThread {
			return cuda.CUDA_ERROR_INVALID_HANDLE
		}
		s, r := g.enterStream(p.HStream)
		if r != ok {
			return r
		}
		g.mu.Unlock()
		if devices[s.ctx.dev] {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		devices[s.ctx.dev] = true
	}
	for _, p := range sliceOf(list, uint64(n)) {
		r := g.CuLaunchCooperativeKernel(p.Function, p.GridDimX, p.GridDimY, p.GridDimZ, p.BlockDimX, p.BlockDimY,
			p.BlockDimZ, p.SharedMemBytes,
			p.HStream, at(uint64(p.KernelParams)))
		if r != ok {
			return r
		}
	}
	return ok
}

func (g *GPU) CuLaunchKernelEx(config *cuda.CUlaunchConfig, f cuda.CUfunction, params, extra pointer) cuda.CUresult {
	if config == nil || config.NumAttrs > 0 && config.Attrs == 0 || config.NumAttrs > 64 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	s, r := g.enterStream(config.HStream)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	l := &launch{
		grid:   [3]uint32{config.GridDimX, config.GridDimY, config.GridDimZ},
		block:  [3]uint32{config.BlockDimX, config.BlockDimY, config.BlockDimZ},
		shared: config.SharedMemBytes,
	}
	var done []*event
	for i := range uint64(config.NumAttrs) {
		a := (*cuda.CUlaunchAttribute)(at(uint64(config.Attrs) + i*sizeOf[cuda.CUlaunchAttribute]()))
		value := rawOf(&a.Value)
		switch a.Id {
		case cuda.CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
			l.cooperative = *view[int32](value) != 0
		case cuda.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			l.cluster = *(*[3]uint32)(value)
		case cuda.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, cuda.CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
			// Both may fire when the kernel has ended, at the latest.
			e, r := find[*event](g, *view[cuda.CUevent](value))
			if r != ok {
				return r
			}
			done = append(done, e)
		case cuda.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
			if *view[int32](value) != 0 {
				g.log.Warn("sim: launch: device-updatable nodes are not simulated")
				return cuda.CUDA_ERROR_NOT_SUPPORTED
			}
		default:
			if a.Id < 0 || a.Id >= cuda.CU_LAUNCH_ATTRIBUTE_MAX {
				return cuda.CUDA_ERROR_INVALID_VALUE
			}
			// The others are hints about scheduling and caches.
		}
	}
	if r := g.launch(s, f, l, params, extra); r != ok {
		return r
	}
	for _, e := range done {
		if s.capture != nil {
			e.capture, e.capDeps, e.stale = s.capture, append([]*node(nil), s.capDeps...), false
		} else {
			e.record(g.work.push(s, nil))
		}
	}
	return ok
}

// launch checks and submits l. g.mu is held.
func (g *GPU) launch(s *stream, h cuda.CUfunction, l *launch, params, extra pointer) cuda.CUresult {
	g.passFirst(s, h)
	r := g.prepare(s.ctx, h, l, params, extra)
	if r != ok {
		if s.capture != nil {
			s.capture.invalidate()
		}
		return r
	}
	_, r = g.submit(s, g.launchOp(l))
	return r
}

func (g *GPU) prepare(c *cudaContext, h cuda.CUfunction, l *launch, params, extra pointer) cuda.CUresult {
	var r cuda.CUresult
	if l.fn, r = g.function(c, h); r != ok {
		return r
	}
	if l.fn.mod.ctx != c {
		return cuda.CUDA_ERROR_INVALID_HANDLE
	}
	if r := l.check(); r != ok {
		return r
	}
	l.params, r = arguments(l.fn.entry, params, extra)
	return r
}

// clusterOf finds the cluster dimensions in a launch configuration, zero where it has none.
func clusterOf(config *cuda.CUlaunchConfig) ([3]uint32, bool) {
	if config.NumAttrs > 0 && config.Attrs == 0 || config.NumAttrs > 64 {
		return [3]uint32{}, false
	}
	for _, a := range sliceOf(view[cuda.CUlaunchAttribute](at(uint64(config.Attrs))), uint64(config.NumAttrs)) {
		if a.Id == cuda.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION {
			return *reading[[3]uint32](&a.Value), true
		}
	}
	return [3]uint32{}, true
}
