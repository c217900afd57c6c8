package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/fatbin"
)

// jitLog is where a load's options want what the compiler says. The zero value wants nothing.
type jitLog struct {
	buffer []byte
	size   *uint64 // the option's value: the room before the load, the length of the text after it
}

// jitLogOf finds the place for errors among a load's options, and says that nothing was written so far.
func jitLogOf(n uint32, options *cuda.CUjit_option, values pointer) (jitLog, cuda.CUresult) {
	var l jitLog
	if n == 0 {
		return l, ok
	}
	if options == nil || values == nil || n > uint32(cuda.CU_JIT_NUM_OPTIONS) {
		return l, cuda.CUDA_ERROR_INVALID_VALUE
	}
	vals := sliceOf(view[uint64](values), uint64(n))
	var buffer, room uint64
	for i, o := range sliceOf(options, uint64(n)) {
		switch o {
		case cuda.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
			vals[i] = 0
		case cuda.CU_JIT_ERROR_LOG_BUFFER:
			buffer = vals[i]
		case cuda.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
			room, vals[i] = uint64(uint32(vals[i])), 0
			l.size = &vals[i]
		}
	}
	if buffer != 0 {
		l.buffer = bytesAt(buffer, room)
	}
	return l, ok
}

// refuse tells why an image is not loaded, in the server's log and to whoever loads it. A text that is cut counts with
// its NUL, as the driver's does.
func (l jitLog) refuse(log *slog.Logger, r cuda.CUresult, why error) cuda.CUresult {
	log.Warn("sim: module image", "error", why)
	if len(l.buffer) == 0 {
		return r
	}
	n := copy(l.buffer, why.Error())
	if n == len(l.buffer) {
		l.buffer[n-1] = 0
	} else {
		l.buffer[n] = 0
	}
	if l.size != nil {
		*l.size = uint64(n)
	}
	return r
}

// noPTX explains why none of an image's members can run on a GPU of this architecture.
func noPTX(img *fatbin.Image, arch uint32) error {
	arches := map[fatbin.Kind][]uint32{}
	for i := range img.Members {
		m := &img.Members[i]
		if m.Kind == fatbin.PTX && m.Arch <= arch {
			return fmt.Errorf("the simulated GPU is sm_%d; this image has PTX for sm_%d alone, as the letter behind its target "+
				"says", arch, m.Arch)
		}
		arches[m.Kind] = append(arches[m.Kind], m.Arch)
	}
	list := func(kind fatbin.Kind) string {
		first, last := slices.Min(arches[kind]), slices.Max(arches[kind])
		if first == last {
			return fmt.Sprintf("sm_%d", first)
		}
		return fmt.Sprintf("sm_%d … sm_%d", first, last)
	}
	switch {
	case len(arches[fatbin.PTX]) > 0:
		return fmt.Errorf("the simulated GPU runs PTX for sm_%d and older; this image has PTX for %s only", arch,
			list(fatbin.PTX))
	case len(arches[fatbin.ELF]) > 0:
		return fmt.Errorf("the simulated GPU runs PTX; this image has machine code for %s only: build it with PTX for sm_%d "+
			"or older", list(fatbin.ELF), arch)
	}
	return errors.New("the simulated GPU runs PTX; this image has none")
}
