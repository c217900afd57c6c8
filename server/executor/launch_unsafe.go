package executor

import (
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/dispatch"
	"scuda.dev/scuda/transport"
)

const (
	launchCooperative = wire.LaunchCooperative
	maxAttributes     = wire.MaxAttributes
	maxSeveral        = wire.MaxLaunches // of wire.LaunchSeveral, one a GPU
)

// launch: all forms of kernel launches.
func (s *Session) launch(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.Launch](c)
	if err != nil {
		return 0, err
	}
	attrBytes := uint64(p.AttrCount) * uint64(unsafe.Sizeof(cuda.CUlaunchAttribute{}))
	if p.AttrCount > maxAttributes || uint64(len(rest)) < attrBytes || uint64(len(rest))-attrBytes < uint64(p.ParamBytes) {
		return 0, protocolError("launch with %d attributes and %d bytes of parameters in %d bytes",
			p.AttrCount, p.ParamBytes, len(rest))
	}
	f, r := s.modules.layoutOf(p.Func)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	st, r := s.stream(p.Stream)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if s.barriers.from(st) {
		s.fixBarriers(st)
	}
	given := rest[attrBytes : attrBytes+uint64(p.ParamBytes)]
	packed := s.whole(f, given)
	if len(s.graphs.deviceGraphs) > 0 {
		s.graphs.swapGraphs(packed)
	}
	plain := p.AttrCount == 0 && p.Flags&launchCooperative == 0
	together := plain && c.Flags&transport.FlagAnswer == 0 && len(f.offsets) <= runPointers && len(packed) == len(given) &&
		!s.profile.on // each is told whom it belongs to
	if s.order != nil && !f.waited {
		f.waited, together = true, false
		defer s.ordering.beforeWaitingCall()()
	}
	if !together || !s.run.room(len(f.offsets)) {
		s.launchAll()
	}
	var params unsafe.Pointer
	if n := len(f.offsets); n > 0 {
		var pointers []unsafe.Pointer
		if together {
			pointers = s.run.place(n)
		} else {
			pointers = allocN[unsafe.Pointer](&s.arena, n)
		}
		for i, off := range f.offsets {
			pointers[i] = pointerTo(packed[off:])
		}
		params = unsafe.Pointer(unsafe.SliceData(pointers))
	}
	switch {
	case together:
		l := s.run.add() // field by field: a composite would be made elsewhere and copied
		l.Function, l.Stream, l.Params = cuda.CUfunction(f.real), st.real, uintptr(params)
		l.Grid[0], l.Grid[1], l.Grid[2] = p.Grid[0], p.Grid[1], p.Grid[2]
		l.Block[0], l.Block[1], l.Block[2] = p.Block[0], p.Block[1], p.Block[2]
		l.Shared, l.Thread = p.SharedBytes, c.Thread
		if len(s.captures) > 0 {
			l.Thread = 0 // what is captured follows the executor's thread
		}
		c.later = true // or rather never: what nobody waits for is not answered
		return cuda.CUDA_SUCCESS, nil
	case plain:
		return s.gpu.CuLaunchKernel(cuda.CUfunction(f.real),
			p.Grid[0], p.Grid[1], p.Grid[2], p.Block[0], p.Block[1], p.Block[2],
			p.SharedBytes, st.real, params, nil), nil
	}
	config, r := s.launchConfig(p.Grid, p.Block, p.SharedBytes, st, rest[:attrBytes], p.Flags&launchCooperative != 0)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	r = s.gpu.CuLaunchKernelEx(config, cuda.CUfunction(f.real), params, nil)
	if node, made := deviceNode(config); made && r == cuda.CUDA_SUCCESS {
		answerWith(&s.arena, c, wire.LaunchMade{DeviceNode: node}, 0)
	}
	return r, nil
}

// deviceNode gives what the driver stored for a captured launch that kernels may change.
func deviceNode(config *cuda.CUlaunchConfig) (node uint64, made bool) {
	if config.NumAttrs == 0 {
		return 0, false
	}
	first := (*cuda.CUlaunchAttribute)(*(*unsafe.Pointer)(unsafe.Pointer(&config.Attrs)))
	for _, a := range unsafe.Slice(first, config.NumAttrs) {
		v := (*[2]uint64)(unsafe.Pointer(&a.Value))
		if a.Id == cuda.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE && uint32(v[0]) != 0 {
			return v[1], true
		}
	}
	return 0, false
}

// kernelArguments points to the parameters in their packed buffer, as launches want them.
func (s *Session) kernelArguments(f *layout, packed []byte) unsafe.Pointer {
	packed = s.whole(f, packed)
	if len(s.graphs.deviceGraphs) > 0 {
		s.graphs.swapGraphs(packed)
	}
	if len(f.offsets) == 0 {
		return nil
	}
	pointers := allocN[unsafe.Pointer](&s.arena, len(f.offsets))
	for i, off := range f.offsets {
		pointers[i] = pointerTo(packed[off:])
	}
	return unsafe.Pointer(unsafe.SliceData(pointers))
}

// whole gives parameters of which fewer bytes came than the function has: those that are missing are 0. A driver
// takes such a packed buffer, and NCCL gives it one for each launch.
func (s *Session) whole(f *layout, packed []byte) []byte {
	if uint32(len(packed)) >= f.bytes {
		return packed
	}
	all := s.arena.bytes(int(f.bytes))
	copy(all, packed)
	return all
}

// launchSeveral: cuLaunchCooperativeKernelMultiDevice.
func (s *Session) launchSeveral(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.LaunchSeveral](c)
	if err != nil {
		return 0, err
	}
	const each = int(unsafe.Sizeof(wire.Launch{}))
	if p.Count > maxSeveral || int(p.Count) > len(rest)/each {
		return 0, protocolError("%d launches in %d bytes", p.Count, len(rest))
	}
	list := allocN[cuda.CUDA_LAUNCH_PARAMS](&s.arena, int(p.Count)+1)
	for i := range int(p.Count) {
		l, more, ok := wire.View[wire.Launch](rest)
		if !ok || uint64(len(more)) < transport.Pad(uint64(l.ParamBytes)) {
			return 0, protocolError("launch %d of %d is cut off", i+1, p.Count)
		}
		rest = more[transport.Pad(uint64(l.ParamBytes)):]
		f, r := s.modules.layoutOf(l.Func)
		if r != cuda.CUDA_SUCCESS {
			return r, nil
		}
		st, r := s.stream(l.Stream)
		if r != cuda.CUDA_SUCCESS {
			return r, nil
		}
		if l.ParamBytes < f.bytes {
			return cuda.CUDA_ERROR_INVALID_VALUE, nil // that call has no packed form
		}
		params := s.kernelArguments(f, more[:l.ParamBytes])
		list[i] = cuda.CUDA_LAUNCH_PARAMS{
			Function: cuda.CUfunction(f.real), HStream: st.real, KernelParams: uintptr(params),
			GridDimX: l.Grid[0], GridDimY: l.Grid[1], GridDimZ: l.Grid[2],
			BlockDimX: l.Block[0], BlockDimY: l.Block[1], BlockDimZ: l.Block[2], SharedMemBytes: l.SharedBytes,
		}
	}
	return s.gpu.CuLaunchCooperativeKernelMultiDevice(&list[0], p.Count, p.Flags), nil
}

// launchConfig builds the driver's form of a launch with attributes, whose handles it translates.
func (s *Session) launchConfig(
	grid, block [3]uint32, shared uint32, st *stream, attrs []byte, cooperative bool,
) (*cuda.CUlaunchConfig, cuda.CUresult) {
	size := int(unsafe.Sizeof(cuda.CUlaunchAttribute{}))
	list := allocN[cuda.CUlaunchAttribute](&s.arena, len(attrs)/size+1)
	n := len(attrs) / size
	for i := range n {
		a, _ := as[cuda.CUlaunchAttribute](attrs[i*size:])
		list[i] = *a
		if r := dispatch.LaunchAttribute(s.handles, a.Id, unsafe.Pointer(&list[i].Value)); r != cuda.CUDA_SUCCESS {
			return nil, r
		}
	}
	if cooperative {
		list[n].Id = cuda.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
		*(*int32)(unsafe.Pointer(&list[n].Value)) = 1
		n++
	}
	config := alloc[cuda.CUlaunchConfig](&s.arena)
	*config = cuda.CUlaunchConfig{
		GridDimX: grid[0], GridDimY: grid[1], GridDimZ: grid[2],
		BlockDimX: block[0], BlockDimY: block[1], BlockDimZ: block[2],
		SharedMemBytes: shared, HStream: st.real, NumAttrs: uint32(n),
	}
	if n > 0 {
		config.Attrs = uintptr(unsafe.Pointer(unsafe.SliceData(list)))
	}
	return config, cuda.CUDA_SUCCESS
}

// occupancyClusters: cuOccupancyMaxActiveClusters and cuOccupancyMaxPotentialClusterSize.
func (s *Session) occupancyClusters(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.OccupancyClusters](c)
	if err != nil {
		return 0, err
	}
	const each = int(unsafe.Sizeof(cuda.CUlaunchAttribute{}))
	if p.AttrCount > maxAttributes || len(rest) != int(p.AttrCount)*each || p.Kind > wire.OccupancyClusterSize {
		return 0, protocolError("occupancy query with %d attributes in %d bytes", p.AttrCount, len(rest))
	}
	real, ok := s.table.Real(cuda.KindFunction, p.Func)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	st, r := s.stream(p.Stream)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	config, r := s.launchConfig(p.Grid, p.Block, p.SharedBytes, st, rest, false)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	out := alloc[int32](&s.arena)
	if p.Kind == wire.OccupancyActiveClusters {
		r = s.gpu.CuOccupancyMaxActiveClusters(out, cuda.CUfunction(real), config)
	} else {
		r = s.gpu.CuOccupancyMaxPotentialClusterSize(out, cuda.CUfunction(real), config)
	}
	answerWith(&s.arena, c, wire.OccupancyValue{Value: *out}, 0)
	return r, nil
}
