package sim

import (
	"bytes"
	"os"
	"regexp"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/fatbin"
	"scuda.dev/scuda/sim/ptx"
)

// linker is a CUlinkState. It links PTX by putting the texts behind one another, so a complete "cubin" is a PTX image.
type linker struct {
	handle   cuda.CUlinkState
	text     []byte
	errorLog []byte // the caller's buffer
	done     bool
}

// moduleHeader is what a PTX text has once only; declarations of what another input defines go as well.
var (
	moduleHeader = regexp.MustCompile(`(?m)^\s*\.(version|target|address_size)\b.*$`)
	externFunc   = regexp.MustCompile(`(?s)\.extern\s+\.func\s[^;]*;`)
	funcName     = regexp.MustCompile(`\.func\s+(?:\([^)]*\)\s*)?([\w$]+)`)
)

func (g *GPU) CuLinkCreate_v2(n uint32, options *cuda.CUjit_option, values pointer,
	out *cuda.CUlinkState) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if out == nil || n > 0 && (options == nil || values == nil) || n > 4*uint32(cuda.CU_JIT_NUM_OPTIONS) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	l := &linker{}
	var buffer, size uint64
	if n > 0 {
		vals := sliceOf(view[uint64](values), uint64(n))
		for i, o := range sliceOf(options, uint64(n)) {
			switch o {
			case cuda.CU_JIT_ERROR_LOG_BUFFER:
				buffer = vals[i]
			case cuda.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
				size = uint64(uint32(vals[i]))
			}
		}
	}
	if buffer != 0 {
		l.errorLog = bytesAt(buffer, size)
	}
	l.handle = cuda.CUlinkState(g.objects.add(l))
	*out = l.handle
	return ok
}

func (g *GPU) CuLinkCreate(n uint32, options *cuda.CUjit_option, values pointer, out *cuda.CUlinkState) cuda.CUresult {
	return g.CuLinkCreate_v2(n, options, values, out)
}

func (l *linker) failed(r cuda.CUresult, err error) cuda.CUresult {
	if len(l.errorLog) > 0 {
		n := copy(l.errorLog[:len(l.errorLog)-1], err.Error())
		l.errorLog[n] = 0
	}
	return r
}

func (g *GPU) CuLinkAddFile_v2(h cuda.CUlinkState, kind cuda.CUjitInputType, name pointer, n uint32,
	options *cuda.CUjit_option, values pointer) cuda.CUresult {
	path, found := cString(name, maxName)
	if !found {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	data, err := os.ReadFile(path)
	switch {
	case err != nil:
		return cuda.CUDA_ERROR_FILE_NOT_FOUND
	case len(data) == 0:
		return cuda.CUDA_ERROR_INVALID_IMAGE
	}
	return g.CuLinkAddData_v2(h, kind, firstOf(data), uint64(len(data)), name, n, options, values)
}

func (g *GPU) CuLinkAddFile(h cuda.CUlinkState, kind cuda.CUjitInputType, name pointer, n uint32,
	options *cuda.CUjit_option, values pointer) cuda.CUresult {
	return g.CuLinkAddFile_v2(h, kind, name, n, options, values)
}

func (g *GPU) CuLinkAddData_v2(h cuda.CUlinkState, kind cuda.CUjitInputType, data pointer, size uint64, _ pointer,
	_ uint32, _ *cuda.CUjit_option, _ pointer) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	l, r := find[*linker](g, h)
	if r != ok {
		return r
	}
	if data == nil || size == 0 || l.done {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	input := bytes.Clone(bytesOf(data, size))
	if kind == cuda.CU_JIT_INPUT_PTX && (len(input) == 0 || input[len(input)-1] != 0) {
		input = append(input, 0)
	}
	img, err := fatbin.Parse(input)
	if err != nil {
		return l.failed(cuda.CUDA_ERROR_INVALID_IMAGE, err)
	}
	text, err := img.PTX(g.capability.arch)
	if err != nil {
		return l.failed(cuda.CUDA_ERROR_NO_BINARY_FOR_GPU, noPTX(img, g.capability.arch))
	}
	text = bytes.TrimRight(text, "\x00")
	if !externFunc.Match(text) { // else it can only be judged with the others
		if _, err := ptx.Parse(text); err != nil {
			return l.failed(cuda.CUDA_ERROR_INVALID_PTX, err)
		}
	}
	if len(l.text) > 0 {
		text = moduleHeader.ReplaceAll(text, nil)
	}
	l.text = append(append(l.text, text...), '\n')
	return ok
}

func (g *GPU) CuLinkAddData(h cuda.CUlinkState, kind cuda.CUjitInputType, data pointer, size uint64, name pointer,
	n uint32, options *cuda.CUjit_option, values pointer) cuda.CUresult {
	return g.CuLinkAddData_v2(h, kind, data, size, name, n, options, values)
}

func (g *GPU) CuLinkComplete(h cuda.CUlinkState, cubin pointer, size *uint64) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	l, r := find[*linker](g, h)
	if r != ok {
		return r
	}
	if cubin == nil || len(l.text) == 0 || l.done {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	defined := map[string]bool{}
	for _, m := range funcName.FindAllSubmatch(externFunc.ReplaceAll(l.text, nil), -1) {
		defined[string(m[1])] = true
	}
	l.text = externFunc.ReplaceAllFunc(l.text, func(declaration []byte) []byte {
		if m := funcName.FindSubmatch(declaration); m != nil && defined[string(m[1])] {
			return nil
		}
		return declaration
	})
	if _, err := ptx.Parse(l.text); err != nil {
		return l.failed(cuda.CUDA_ERROR_INVALID_PTX, err)
	}
	l.done = true
	l.text = append(l.text, 0)
	*view[pointer](cubin) = firstOf(l.text)
	if size != nil {
		*size = uint64(len(l.text))
	}
	return ok
}

func (g *GPU) CuLinkDestroy(h cuda.CUlinkState) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if _, r := find[*linker](g, h); r != ok {
		return r
	}
	g.objects.drop(uint64(h))
	return ok
}
