package executor

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// Token stands for a file descriptor of the server's driver in the hands of clients. It cannot be guessed.
type Token [16]byte

// ErrNoShare says that nobody shares anything under a token.
var ErrNoShare = errors.New("nothing is shared under this token; the process that shared it may have ended")

// Sharer keeps file descriptors, and what the driver says of memory and events, for the other sessions of the server.
type Sharer interface {
	// Publish keeps a copy of fd until Withdraw or the end of the session.
	Publish(fd int) (Token, error)
	// Fetch gives a copy of what is kept. Its error may wrap [ErrNoShare].
	Fetch(Token) (int, error)
	// PublishValue keeps a value until Withdraw or the end of the session.
	PublishValue(Value) (Token, error)
	// FetchValue gives what is kept. Its error may wrap [ErrNoShare].
	FetchValue(Token) (Value, error)
	Withdraw(Token)
}

const (
	shareAllocation = wire.ShareAllocation // wire.ShareExport.Kind
	sharePool       = wire.SharePool

	// firstShared is the least number of a descriptor that is given to the driver: it goes where Go expects a
	// pointer, and pointers below this value are taken for errors.
	firstShared = 4096
)

// shareExport: cuMemExportToShareableHandle and cuMemPoolExportToShareableHandle.
func (hm *hostmem) shareExport(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.ShareExport](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 || p.Kind > sharePool {
		return 0, protocolError("export of kind %d", p.Kind)
	}
	out, kind := alloc[[64]uint8](&hm.arena), cuda.CUmemAllocationHandleType(p.Type)
	var r cuda.CUresult
	if p.Kind == sharePool {
		pool, ok := hm.table.Real(cuda.KindMemoryPool, p.Object)
		if !ok {
			return cuda.CUDA_ERROR_INVALID_VALUE, nil
		}
		r = hm.gpu.CuMemPoolExportToShareableHandle(pointerOf(out), cuda.CUmemoryPool(pool), kind, p.Flags)
	} else {
		if !hm.table.Holds(cuda.KindMemGenericAllocationHandle, p.Object) {
			return cuda.CUDA_ERROR_INVALID_VALUE, nil
		}
		r = hm.gpu.CuMemExportToShareableHandle(pointerOf(out), cuda.CUmemGenericAllocationHandle(p.Object), kind, p.Flags)
	}
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	if kind == cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
		fd := int(*(*int32)(pointerOf(out)))
		if hm.sharer == nil {
			return cuda.CUDA_ERROR_NOT_SUPPORTED, unix.Close(fd)
		}
		token, err := hm.sharer.Publish(fd)
		if err = errors.Join(err, unix.Close(fd)); err != nil {
			hm.log.Error("cannot share memory with other sessions", "error", err)
			return cuda.CUDA_ERROR_OUT_OF_MEMORY, nil
		}
		*out = [64]uint8{}
		copy(out[:], token[:])
	}
	answerWith(&hm.arena, c, wire.ShareValue{Value: *out}, 0)
	return r, nil
}

// shareImport: cuMemImportFromShareableHandle and cuMemPoolImportFromShareableHandle.
func (hm *hostmem) shareImport(c *command) (cuda.CUresult, error) {
	p, rest, err := view[wire.ShareImport](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 || p.Kind > sharePool || p.Kind == sharePool && p.Object == 0 {
		return 0, protocolError("import of kind %d", p.Kind)
	}
	kind := cuda.CUmemAllocationHandleType(p.Type)
	value := alloc[[64]uint8](&hm.arena)
	*value = p.Value
	from := pointerOf(value)
	if kind == cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
		fd, r := hm.fetchShared(Token(p.Value[:16]))
		if r != cuda.CUDA_SUCCESS {
			return r, nil
		}
		defer unix.Close(fd) // the driver keeps what it needs
		number := uintptr(fd)
		from = *(*unsafe.Pointer)(unsafe.Pointer(&number))
	}
	if p.Kind == sharePool {
		pool := alloc[cuda.CUmemoryPool](&hm.arena)
		r := hm.gpu.CuMemPoolImportFromShareableHandle(pool, from, kind, 0)
		if r == cuda.CUDA_SUCCESS {
			err = hm.handles.New(cuda.KindMemoryPool, p.Object, uint64(*pool), 0)
			answerWith(&hm.arena, c, wire.ShareObject{Object: p.Object}, 0)
		}
		return r, err
	}
	mem := alloc[cuda.CUmemGenericAllocationHandle](&hm.arena)
	r := hm.gpu.CuMemImportFromShareableHandle(mem, from, kind)
	if r == cuda.CUDA_SUCCESS {
		hm.table.Give(cuda.KindMemGenericAllocationHandle, uint64(*mem), 0)
		answerWith(&hm.arena, c, wire.ShareObject{Object: uint64(*mem)}, 0)
	}
	return r, nil
}

// fetchShared gives a descriptor that may be passed to the driver.
func (hm *hostmem) fetchShared(token Token) (int, cuda.CUresult) {
	if hm.sharer == nil {
		return 0, cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	fd, err := hm.sharer.Fetch(token)
	if err == nil {
		var high int
		high, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstShared)
		if err = errors.Join(err, unix.Close(fd)); err == nil {
			return high, cuda.CUDA_SUCCESS
		}
	}
	if errors.Is(err, ErrNoShare) {
		return 0, cuda.CUDA_ERROR_INVALID_VALUE
	}
	hm.log.Error("cannot get memory that another session shares", "error", err)
	return 0, cuda.CUDA_ERROR_OPERATING_SYSTEM
}

// shareEnd: the last file descriptor of a token was closed.
func (hm *hostmem) shareEnd(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.ShareEnd](c)
	if err != nil {
		return 0, err
	}
	if hm.sharer != nil {
		hm.sharer.Withdraw(Token(p.Value[:16]))
	}
	return cuda.CUDA_SUCCESS, nil
}
