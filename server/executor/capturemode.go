package executor

import (
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport"
)

// All commands run on one thread, but stream capture knows threads: a thread may be prohibited from calls that could
// disturb a capture. The executor's own mode is RELAXED, so nothing is prohibited, and becomes GLOBAL for the
// commands of a thread for which something would be prohibited natively: the driver itself then says what.

// prohibited says whether a thread is natively kept from potentially unsafe calls now.
func (b *base) prohibited(ordinal uint32) bool {
	mode := cuda.CU_STREAM_CAPTURE_MODE_GLOBAL
	if t := b.threads[ordinal]; t != nil {
		mode = t.mode
	}
	if b.cmd.Flags&transport.FlagOwn != 0 {
		mode = cuda.CU_STREAM_CAPTURE_MODE_RELAXED
	}
	if mode == cuda.CU_STREAM_CAPTURE_MODE_RELAXED {
		return false
	}
	for _, c := range b.captures {
		if c.thread == ordinal && c.mode != cuda.CU_STREAM_CAPTURE_MODE_RELAXED {
			return true
		}
		if c.thread != ordinal && c.mode == cuda.CU_STREAM_CAPTURE_MODE_GLOBAL && mode == cuda.CU_STREAM_CAPTURE_MODE_GLOBAL {
			return true
		}
	}
	return false
}

// inThreadMode makes a call of the driver in the capture mode of the command's thread: what natively is prohibited to
// it is refused.
func (b *base) inThreadMode(call func() cuda.CUresult) cuda.CUresult {
	if len(b.captures) == 0 || !b.prohibited(b.cmd.Thread) {
		return call()
	}
	b.threadMode = true
	b.setCaptureMode(cuda.CU_STREAM_CAPTURE_MODE_GLOBAL)
	r := call()
	b.setCaptureMode(cuda.CU_STREAM_CAPTURE_MODE_RELAXED)
	b.threadMode = false
	return r
}

// inRelaxedMode makes calls of the driver that the program did not make, possibly amid one that it made.
func (b *base) inRelaxedMode(calls func()) {
	if !b.threadMode {
		calls()
		return
	}
	b.setCaptureMode(cuda.CU_STREAM_CAPTURE_MODE_RELAXED)
	calls()
	b.setCaptureMode(cuda.CU_STREAM_CAPTURE_MODE_GLOBAL)
}

func (b *base) setCaptureMode(mode cuda.CUstreamCaptureMode) {
	p := alloc[cuda.CUstreamCaptureMode](&b.arena)
	*p = mode
	if r := b.gpu.CuThreadExchangeStreamCaptureMode(p); r != cuda.CUDA_SUCCESS && r != cuda.CUDA_ERROR_NOT_SUPPORTED {
		b.log.Warn("cannot set the capture mode", "error", cuda.ResultName(r))
	}
}

// isCapturing says whether work on st is captured instead of run.
func (b *base) isCapturing(st *stream) bool {
	if len(b.captures) == 0 || st.legacy {
		return false
	}
	status := alloc[cuda.CUstreamCaptureStatus](&b.arena)
	return b.gpu.CuStreamIsCapturing(st.real, status) == cuda.CUDA_SUCCESS && *status != cuda.CU_STREAM_CAPTURE_STATUS_NONE
}
