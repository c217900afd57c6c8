package cupti

import (
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	facts "scuda.dev/scuda/api/cupti"
)

// record is a record of CUPTI's where it lies. Of each family the newest layout is used: a record of an older CUPTI is
// shorter, and has all fields that are read here.
type record struct{ at unsafe.Pointer }

// offset is where a field of a structure lies.
func offset(name, field string) uintptr {
	r, _ := facts.Of(name)
	f, ok := r.Field(field)
	if !ok {
		panic("cupti: " + name + " has no " + field)
	}
	return uintptr(f.Offset)
}

var (
	callbackSite = offset("CUpti_CallbackData", "callbackSite")
	callbackID   = offset("CUpti_CallbackData", "correlationId")
)

func read[T any](r record, offset uintptr) T { return *(*T)(unsafe.Add(r.at, offset)) }

// fields are where the fields lie that all kinds of work have, and that kinds of their own have.
type fields struct {
	start, end, device, context, stream, correlation, graph, node uintptr

	bytes, value, memory, source, target uintptr
}

func fieldsOf(name, node string) fields {
	at := func(field string) uintptr { return offset(name, field) }
	return fields{start: at("start"), end: at("end"), device: at("deviceId"), context: at("contextId"),
		stream: at("streamId"), correlation: at("correlationId"), graph: at("graphId"), node: at(node)}
}

var (
	kernelFields, copyFields, peerFields, memsetFields = func() (k, c, p, m fields) {
		const node = "graphNodeId"
		k = fieldsOf("CUpti_ActivityKernel11", node)
		c, p = fieldsOf("CUpti_ActivityMemcpy6", node), fieldsOf("CUpti_ActivityMemcpyPtoP4", node)
		for name, f := range map[string]*fields{"CUpti_ActivityMemcpy6": &c, "CUpti_ActivityMemcpyPtoP4": &p} {
			f.bytes, f.source, f.target = offset(name, "bytes"), offset(name, "srcKind"), offset(name, "dstKind")
		}
		m = fieldsOf("CUpti_ActivityMemset4", node)
		m.bytes, m.value = offset("CUpti_ActivityMemset4", "bytes"), offset("CUpti_ActivityMemset4", "value")
		m.memory = offset("CUpti_ActivityMemset4", "memoryKind")
		return k, c, p, m
	}()
	kernelGrid      = offset("CUpti_ActivityKernel11", "gridX")
	kernelBlock     = offset("CUpti_ActivityKernel11", "blockX")
	kernelName      = offset("CUpti_ActivityKernel11", "name")
	kernelRegisters = offset("CUpti_ActivityKernel11", "registersPerThread")
	kernelStatic    = offset("CUpti_ActivityKernel11", "staticSharedMemory")
	kernelDynamic   = offset("CUpti_ActivityKernel11", "dynamicSharedMemory")
)

// common reads what all kinds of work have.
func (r record) common(kind cuda.WorkKind, f *fields) cuda.Work {
	return cuda.Work{
		Kind: kind, Correlation: read[uint32](r, f.correlation), Start: int64(read[uint64](r, f.start)),
		End: int64(read[uint64](r, f.end)), Device: cuda.CUdevice(read[uint32](r, f.device)),
		Context: uint64(read[uint32](r, f.context)), Stream: uint64(read[uint32](r, f.stream)),
		Graph: read[uint32](r, f.graph), Node: read[uint64](r, f.node),
	}
}

func (r record) copied(f *fields) cuda.Work {
	w := r.common(cuda.WorkCopy, f)
	w.Bytes = read[uint64](r, f.bytes)
	w.Source, w.Target = cuda.MemoryKind(read[uint8](r, f.source)), cuda.MemoryKind(read[uint8](r, f.target))
	return w
}

// work makes of a record what the executor is told. Correlation is CUPTI's. false: it is no work.
func (s *Source) work(r record) (cuda.Work, bool) {
	switch read[uint32](r, 0) {
	case facts.CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, facts.CUPTI_ACTIVITY_KIND_KERNEL:
		w := r.common(cuda.WorkKernel, &kernelFields)
		w.Grid, w.Block = read[[3]uint32](r, kernelGrid), read[[3]uint32](r, kernelBlock)
		w.Registers = uint32(read[uint16](r, kernelRegisters))
		w.Static, w.Dynamic = read[uint32](r, kernelStatic), read[uint32](r, kernelDynamic)
		w.Name = s.name(read[uintptr](r, kernelName))
		return w, true
	case facts.CUPTI_ACTIVITY_KIND_MEMCPY:
		return r.copied(&copyFields), true
	case facts.CUPTI_ACTIVITY_KIND_MEMCPY2:
		return r.copied(&peerFields), true
	case facts.CUPTI_ACTIVITY_KIND_MEMSET:
		w := r.common(cuda.WorkMemset, &memsetFields)
		w.Bytes, w.Value = read[uint64](r, memsetFields.bytes), read[uint32](r, memsetFields.value)
		w.Target = cuda.MemoryKind(read[uint16](r, memsetFields.memory))
		return w, true
	}
	return cuda.Work{}, false
}
