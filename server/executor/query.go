package executor

import (
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

const maxPointerQueries = 256

// pointerSizes are the bytes that a pointer attribute has; one that is missing here is not supported.
var pointerSizes = map[cuda.CUpointer_attribute]uint32{
	cuda.CU_POINTER_ATTRIBUTE_CONTEXT:                    8,
	cuda.CU_POINTER_ATTRIBUTE_MEMORY_TYPE:                4,
	cuda.CU_POINTER_ATTRIBUTE_DEVICE_POINTER:             8,
	cuda.CU_POINTER_ATTRIBUTE_HOST_POINTER:               8,
	cuda.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:                4,
	cuda.CU_POINTER_ATTRIBUTE_BUFFER_ID:                  8,
	cuda.CU_POINTER_ATTRIBUTE_IS_MANAGED:                 4,
	cuda.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:             4,
	cuda.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: 4,
	cuda.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:           8,
	cuda.CU_POINTER_ATTRIBUTE_RANGE_SIZE:                 8,
	cuda.CU_POINTER_ATTRIBUTE_MAPPED:                     4,
	cuda.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:       8,
	cuda.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: 4,
	cuda.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:               4,
	cuda.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:             8,
	cuda.CU_POINTER_ATTRIBUTE_MAPPING_SIZE:               8,
	cuda.CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:          8,
	cuda.CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:            8,
	cuda.CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:   4,
}

// pointerKinds are the attributes that are handles.
var pointerKinds = map[cuda.CUpointer_attribute]cuda.Kind{
	cuda.CU_POINTER_ATTRIBUTE_CONTEXT:        cuda.KindContext,
	cuda.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: cuda.KindMemoryPool,
}

type pointerValue struct {
	Result int32
	Bytes  uint32
	Value  [64]uint8
}

// pointerAttributes answers several attributes of an address, each with its own result.
func (s *Session) pointerAttributes(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.PointerAttributes](c)
	if err != nil {
		return 0, err
	}
	if p.Count > maxPointerQueries || len(rest) != int(p.Count+1)/2*8 {
		return 0, protocolError("%d pointer attributes in %d bytes", p.Count, len(rest))
	}
	const size = 72
	out := answerWith(&s.arena, c, wire.PointerValues{Count: p.Count}, int(p.Count)*size)
	for i := range int(p.Count) {
		attr, _ := as[cuda.CUpointer_attribute](rest[i*4:])
		v, _ := as[pointerValue](out[i*size:])
		n, ok := pointerSizes[*attr]
		if !ok {
			v.Result = int32(s.refuse(cuda.PartPeerTokens))
			continue
		}
		word := alloc[uint64](&s.arena)
		r := s.gpu.CuPointerGetAttribute(pointerOf(word), *attr, cuda.CUdeviceptr(p.Pointer))
		if kind, ok := pointerKinds[*attr]; ok && r == cuda.CUDA_SUCCESS && *word != 0 {
			*word = s.table.Client(kind, *word, 0)
		}
		v.Result, v.Bytes = int32(r), n
		if r == cuda.CUDA_SUCCESS {
			copy(v.Value[:n], wire.Bytes(word))
		}
	}
	return cuda.CUDA_SUCCESS, nil
}

// errorText: cuGetErrorString.
func (s *Session) errorText(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.ErrorText](c)
	if err != nil {
		return 0, err
	}
	text := alloc[uintptr](&s.arena)
	r := s.gpu.CuGetErrorString(cuda.CUresult(p.Code), pointerOf(text))
	if r == cuda.CUDA_SUCCESS && *text != 0 {
		c.reply = append([]byte(nil), cString(*text)...)
	}
	return r, nil
}
