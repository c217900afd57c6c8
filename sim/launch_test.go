package sim

import (
	"bytes"
	"strings"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/fatbin"
)

func TestKernels(t *testing.T) {
	m := open(t, Config{})
	const n = 1000
	mod := m.module()
	x, y, z := m.alloc(4*n), m.alloc(4*n), m.alloc(4*n)
	m.upload(x, floats(func(i int) float32 { return float32(i) }, n))
	m.upload(y, floats(func(i int) float32 { return float32(2 * i) }, n))
	m.must(m.launchOn(0, m.kernel(mod, "vector_add"), (n+127)/128, 128, 0, x, y, z, int32(n)))
	m.must(m.launchOn(0, m.kernel(mod, "saxpy"), 4, 64, 0, float32(3), x, y, int32(n)))
	for i, v := range as[float32](m.download(z, 4*n)) {
		if v != float32(3*i) {
			t.Fatalf("vector_add: element %d is %g", i, v)
		}
	}
	for i, v := range as[float32](m.download(y, 4*n)) {
		if v != float32(5*i) {
			t.Fatalf("saxpy: element %d is %g", i, v)
		}
	}
	sum := m.alloc(4)
	m.must(m.CuMemsetD32_v2(sum, 0, 1))
	m.must(m.launchOn(0, m.kernel(mod, "reduce_sum"), 2, 128, 128*4, x, sum, int32(n)))
	if v := as[float32](m.download(sum, 4))[0]; v != n*(n-1)/2 {
		t.Errorf("reduce_sum: %g", v)
	}
}

// TestExtraArguments passes the packed buffer of arguments instead of pointers.
func TestExtraArguments(t *testing.T) {
	m := open(t, Config{})
	mod := m.module()
	f := m.kernel(mod, "vector_add")
	x := m.alloc(16)
	m.upload(x, floats(func(i int) float32 { return float32(i + 1) }, 4))
	buf := m.pageable(28)
	words := as[uint64](buf[:24])
	words[0], words[1], words[2] = uint64(x), uint64(x), uint64(x)
	as[int32](buf[24:])[0] = 4
	size := as[uint64](m.pageable(8))
	size[0] = 28
	extra := as[uint64](m.pageable(40))
	copy(extra, []uint64{extraBuffer, addressOfBytes(buf), extraSize, addressOf(pointerOf(size)), extraEnd})
	m.must(m.CuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, 0, nil, pointerOf(extra)))
	if got := as[float32](m.download(x, 16)); got[0] != 2 || got[3] != 8 {
		t.Errorf("got %v", got)
	}
	size[0] = 24 // no count: nothing is done
	m.must(m.CuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, 0, nil, pointerOf(extra)))
	if got := as[float32](m.download(x, 16)); got[0] != 2 || got[3] != 8 {
		t.Errorf("got %v", got)
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, 0, nil, nil))
}

func TestLaunchChecks(t *testing.T) {
	m := open(t, Config{})
	mod := m.module()
	f := m.kernel(mod, "reduce_sum")
	p := m.alloc(4)
	args := m.arguments(p, p, int32(0))
	for _, c := range []struct {
		name        string
		grid, block [3]uint32
		shared      uint32
		stream      cuda.CUstream
		f           cuda.CUfunction
		want        cuda.CUresult
	}{
		{"good", [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 4, 0, f, ok},
		{"no blocks", [3]uint32{0, 1, 1}, [3]uint32{1, 1, 1}, 0, 0, f, cuda.CUDA_ERROR_INVALID_VALUE},
		{"grid too high", [3]uint32{1, 65536, 1}, [3]uint32{1, 1, 1}, 0, 0, f, cuda.CUDA_ERROR_INVALID_VALUE},
		{"no threads", [3]uint32{1, 1, 1}, [3]uint32{1, 0, 1}, 0, 0, f, cuda.CUDA_ERROR_INVALID_VALUE},
		{"block too deep", [3]uint32{1, 1, 1}, [3]uint32{1, 1, 65}, 0, 0, f, cuda.CUDA_ERROR_INVALID_VALUE},
		{"block too big", [3]uint32{1, 1, 1}, [3]uint32{64, 32, 1}, 0, 0, f, cuda.CUDA_ERROR_INVALID_VALUE},
		{"too much shared memory", [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 49153, 0, f, cuda.CUDA_ERROR_INVALID_VALUE},
		{"no such stream", [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, 99, f, cuda.CUDA_ERROR_INVALID_HANDLE},
		{"no such function", [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, 0, 99, cuda.CUDA_ERROR_INVALID_HANDLE},
		{"module for function", [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, 0, cuda.CUfunction(mod),
			cuda.CUDA_ERROR_INVALID_HANDLE},
	} {
		r := m.CuLaunchKernel(c.f, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2], c.shared, c.stream,
			args, nil)
		if r != c.want {
			t.Errorf("%s: %v, want %v", c.name, r, c.want)
		}
	}
	// More shared memory is to be had by asking.
	m.must(m.CuFuncSetAttribute(f, cuda.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000))
	m.must(m.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 100000, 0, args, nil))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuFuncSetAttribute(f, cuda.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
		m.capability.sharedPerBlock+1))
	m.want(cuda.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
		m.CuLaunchCooperativeKernel(f, 1<<20, 1, 1, 128, 1, 1, 0, 0, args))
	m.must(m.CuCtxSynchronize())
}

func TestLaunchBounds(t *testing.T) {
	m := open(t, Config{})
	const text = `.version 8.0
.target sm_80
.address_size 64
.visible .entry small() .maxntid 64, 1, 1 { ret; }
.visible .entry exact() .reqntid 32, 2, 1 { ret; }
`
	var mod cuda.CUmodule
	m.must(m.CuModuleLoadData(&mod, m.image([]byte(text))))
	small, exact := m.kernel(mod, "small"), m.kernel(mod, "exact")
	m.must(m.launchOn(0, small, 1, 64, 0))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.launchOn(0, small, 1, 65, 0))
	m.must(m.CuLaunchKernel(exact, 1, 1, 1, 32, 2, 1, 0, 0, nil, nil))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.launchOn(0, exact, 1, 64, 0))
	var v int32
	m.must(m.CuFuncGetAttribute(&v, cuda.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, small))
	if v != 64 {
		t.Errorf("at most %d threads", v)
	}
	m.must(m.CuFuncGetAttribute(&v, cuda.CU_FUNC_ATTRIBUTE_PTX_VERSION, small))
	if v != 80 {
		t.Errorf("PTX version %d", v)
	}
}

// TestConstantStores: the address of a constant variable is one that kernels may write to, as hashcat's do.
func TestConstantStores(t *testing.T) {
	m := open(t, Config{})
	const text = `.version 8.0
.target sm_80
.address_size 64
.const .align 4 .u32 c[2] = {1, 2};
.visible .entry put(.param .u64 p) {
	.reg .u64 %p; .reg .u32 %r;
	ld.param.u64 %p, [p]; st.global.u32 [%p+4], 7; st.u32 [%p], 6; atom.global.add.u32 %r, [%p], 10; ret;
}
.visible .entry get(.param .u64 p) {
	.reg .u64 %p; .reg .u32 %r, %s;
	ld.param.u64 %p, [p]; ld.const.u32 %r, [c]; ld.const.u32 %s, [c+4]; mad.lo.u32 %r, %r, 100, %s;
	st.global.u32 [%p], %r; ret;
}
`
	var mod cuda.CUmodule
	m.must(m.CuModuleLoadData(&mod, m.image([]byte(text))))
	var c cuda.CUdeviceptr
	m.must(m.CuModuleGetGlobal_v2(&c, nil, mod, m.name("c")))
	m.must(m.launchOn(0, m.kernel(mod, "put"), 1, 1, 0, c))
	out := m.alloc(4)
	m.must(m.launchOn(0, m.kernel(mod, "get"), 1, 1, 0, out))
	if got := as[uint32](m.download(out, 4)); got[0] != 1607 {
		t.Errorf("the constants make %d", got[0])
	}
}

// TestFault: a kernel that faults fails its context for good, and no other.
func TestFault(t *testing.T) {
	for _, c := range []struct {
		name string
		addr cuda.CUdeviceptr
		want cuda.CUresult
	}{
		{"wild", 0x1000, cuda.CUDA_ERROR_ILLEGAL_ADDRESS},
		{"misaligned", 1, cuda.CUDA_ERROR_MISALIGNED_ADDRESS},
	} {
		m := open(t, Config{Devices: 2})
		p, e := m.alloc(64), m.event(0)
		addr := c.addr
		if c.addr == 1 {
			addr += p
		}
		f := m.kernel(m.module(), "fault")
		m.must(m.launchOn(0, f, 1, 1, 0, addr))
		m.want(c.want, m.CuCtxSynchronize())
		var q cuda.CUdeviceptr
		for _, r := range []cuda.CUresult{
			m.CuMemAlloc_v2(&q, 1), m.CuMemFree_v2(p), m.launchOn(0, f, 1, 1, 0, p), m.CuStreamQuery(0), m.CuEventRecord(e, 0),
			m.CuMemsetD8_v2(p, 0, 1), m.CuCtxSynchronize(),
		} {
			m.want(c.want, r)
		}
		// Another GPU of the same process works on.
		var other cuda.CUcontext
		m.must(m.CuDevicePrimaryCtxRetain(&other, 1))
		m.must(m.CuCtxSetCurrent(other))
		q = m.alloc(64)
		m.must(m.launchOn(0, m.kernel(m.module(), "fault"), 1, 1, 0, q))
		m.must(m.CuCtxSynchronize())
		if got := as[int32](m.download(q, 4))[0]; got != 1 {
			t.Errorf("%s: the other context's kernel wrote %d", c.name, got)
		}
		// The failed GPU stays so, whatever is done to its contexts.
		m.must(m.CuDevicePrimaryCtxReset_v2(0))
		m.want(c.want, m.CuDevicePrimaryCtxRetain(&other, 0))
		m.want(c.want, m.CuCtxCreate_v2(&other, 0, 0))
	}
}

// TestFaultStopsOthers: what runs when a context fails is stopped, and what waits is not started.
func TestFaultStopsOthers(t *testing.T) {
	m := open(t, Config{})
	mod := m.module()
	a, b := m.stream(cuda.CU_STREAM_NON_BLOCKING), m.stream(cuda.CU_STREAM_NON_BLOCKING)
	ran := false
	m.must(m.launchOn(a, m.kernel(mod, "spin"), 1, 1, 0, int64(1)<<62))
	m.must(m.HostFunc(a, func() { ran = true }))
	m.must(m.launchOn(b, m.kernel(mod, "fault"), 1, 1, 0, cuda.CUdeviceptr(8)))
	m.want(cuda.CUDA_ERROR_ILLEGAL_ADDRESS, m.CuStreamSynchronize(b))
	m.want(cuda.CUDA_ERROR_ILLEGAL_ADDRESS, m.CuStreamSynchronize(a))
	m.must(m.CuDevicePrimaryCtxReset_v2(0))
	if ran {
		t.Error("a host function ran in a failed context")
	}
}

// TestCloseStopsKernels: Close, which open calls at the end of the test, does not wait for a kernel that never ends.
func TestCloseStopsKernels(t *testing.T) {
	m := open(t, Config{})
	m.must(m.launchOn(0, m.kernel(m.module(), "spin"), 1, 1, 0, int64(1)<<62))
}

func TestModules(t *testing.T) {
	m := open(t, Config{})
	for _, file := range []string{"kernels.ptx", "kernels.fatbin", "kernels-uncompressed.fatbin"} {
		var mod cuda.CUmodule
		m.must(m.CuModuleLoadData(&mod, m.image(kernelFile(t, file))))
		var n uint32
		m.must(m.CuModuleGetFunctionCount(&n, mod))
		if n != 12 {
			t.Errorf("%s: %d functions", file, n)
		}
		var p cuda.CUdeviceptr
		var size uint64
		m.must(m.CuModuleGetGlobal_v2(&p, &size, mod, m.name("coeff")))
		if size != 32 {
			t.Errorf("%s: coeff has %d bytes", file, size)
		}
		if got := as[float32](m.download(p, 32)); got[0] != 1 || got[7] != 8 {
			t.Errorf("%s: coeff is %v", file, got)
		}
		out := m.alloc(16)
		m.must(m.launchOn(0, m.kernel(mod, "globals"), 1, 1, 0, out))
		if got := as[int32](m.download(out, 12)); got[0] != 7 || got[1] != 1 || got[2] != 5 {
			t.Errorf("%s: globals gave %v", file, got)
		}
		var f cuda.CUfunction
		m.want(cuda.CUDA_ERROR_NOT_FOUND, m.CuModuleGetFunction(&f, mod, m.name("nothing")))
		m.want(cuda.CUDA_ERROR_NOT_FOUND, m.CuModuleGetGlobal_v2(&p, nil, mod, m.name("nothing")))
		f = m.kernel(mod, "globals")
		m.must(m.CuModuleUnload(mod))
		m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.launchOn(0, f, 1, 1, 0, out))
		m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuModuleUnload(mod))
	}
	var mod cuda.CUmodule
	m.want(cuda.CUDA_ERROR_INVALID_PTX, m.CuModuleLoadData(&mod,
		m.image([]byte(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { nonsense; }"))))
	m.want(cuda.CUDA_ERROR_INVALID_IMAGE, m.CuModuleLoadData(&mod, m.image(bytes.Repeat([]byte{1}, 64))))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuModuleLoadData(&mod, nil))
	m.want(cuda.CUDA_ERROR_FILE_NOT_FOUND, m.CuModuleLoad(&mod, m.name("/no/such/file")))
}

// TestRefusedImages: why an image is not loaded stands in the log that the load asked for.
func TestRefusedImages(t *testing.T) {
	m := open(t, Config{})
	img, err := fatbin.Parse(kernelFile(t, "kernels.fatbin"))
	if err != nil {
		t.Fatal(err)
	}
	var code []byte
	for i := range img.Members {
		if img.Members[i].Kind == fatbin.ELF {
			if code, err = img.Members[i].Data(); err != nil {
				t.Fatal(err)
			}
		}
	}
	const machineCode = "the simulated GPU runs PTX; this image has machine code for sm_90 only: build it with PTX for " +
		"sm_90 or older"
	head := ".version 8.0\n.target sm_80\n.address_size 64\n"
	for _, c := range []struct {
		name  string
		image []byte
		room  uint64
		want  cuda.CUresult
		text  string
	}{
		{"machine code", code, 200, cuda.CUDA_ERROR_NO_BINARY_FOR_GPU, machineCode},
		{"as long as the text", code, uint64(len(machineCode)), cuda.CUDA_ERROR_NO_BINARY_FOR_GPU,
			machineCode[:len(machineCode)-1] + "\x00"},
		{"cut", code, 10, cuda.CUDA_ERROR_NO_BINARY_FOR_GPU, "the simul\x00"},
		{"no room", code, 0, cuda.CUDA_ERROR_NO_BINARY_FOR_GPU, ""},
		{"newer PTX", []byte(strings.Replace(head, "80", "100", 1)), 200, cuda.CUDA_ERROR_INVALID_PTX,
			"the simulated GPU runs PTX for sm_90 and older; this image has PTX for sm_100 only"},
		{"an instruction", []byte(head + ".entry k() { nonsense; }"), 200, cuda.CUDA_ERROR_INVALID_PTX,
			"ptx: 4:14: instruction nonsense is not supported"},
		{"no image", []byte("something else"), 200, cuda.CUDA_ERROR_INVALID_IMAGE, "broken CUDA image at byte 0"},
		{"right", []byte(head), 200, cuda.CUDA_SUCCESS, ""},
	} {
		log := m.pageable(256)
		clear(log)
		options := []cuda.CUjit_option{cuda.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, cuda.CU_JIT_ERROR_LOG_BUFFER,
			cuda.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES}
		for _, library := range []bool{false, true} {
			table := m.pageable(24)
			values := as[uint64](table)
			values[0], values[1], values[2] = c.room, addressOfBytes(log), 77
			var r cuda.CUresult
			if library {
				var l cuda.CUlibrary
				r = m.CuLibraryLoadData(&l, m.image(c.image), &options[0], pointerTo(table), 3, nil, nil, 0)
			} else {
				var mod cuda.CUmodule
				r = m.CuModuleLoadDataEx(&mod, m.image(c.image), 3, &options[0], pointerTo(table))
			}
			text := string(log[:values[0]])
			if r != c.want || !strings.HasPrefix(text, c.text) || c.text == "" && text != "" || values[2] != 0 ||
				values[0] > c.room || log[min(values[0], 255)] != 0 {
				t.Errorf("%s, library %v: %v, %q, info %d", c.name, library, r, text, values[2])
			}
		}
	}
}

// TestLateRefusal: what is wrong with a kernel of a long text is told by its launch, and by nothing else.
func TestLateRefusal(t *testing.T) {
	m := open(t, Config{})
	var mod cuda.CUmodule
	m.must(m.CuModuleLoadData(&mod, m.image([]byte(".version 8.0\n.target sm_80\n.address_size 64\n"+
		".entry wrong() { nonsense; }\n.entry right() { .shared .b8 s[40]; .reg .b32 %r; mov.b32 %r, s; ret; }\n"+
		strings.Repeat("// a library\n", 11000)))))
	right, wrong := m.kernel(mod, "right"), m.kernel(mod, "wrong")
	var v int32
	for range 2 {
		m.must(m.launchOn(0, right, 1, 32, 48<<10-40))
		m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.launchOn(0, right, 1, 32, 48<<10-39))
		m.want(cuda.CUDA_ERROR_INVALID_PTX, m.launchOn(0, wrong, 1, 32, 0))
		m.want(cuda.CUDA_ERROR_INVALID_PTX, m.CuFuncGetAttribute(&v, cuda.CU_FUNC_ATTRIBUTE_NUM_REGS, wrong))
		m.must(m.CuFuncGetAttribute(&v, cuda.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, right))
		if v != 40 {
			t.Errorf("%d bytes of shared memory", v)
		}
	}
	m.must(m.CuCtxSynchronize())
}

func TestLibraries(t *testing.T) {
	m := open(t, Config{})
	var lib cuda.CUlibrary
	m.must(m.CuLibraryLoadData(&lib, m.image(kernelFile(t, "kernels.fatbin")), nil, nil, 0, nil, nil, 0))
	var k cuda.CUkernel
	m.must(m.CuLibraryGetKernel(&k, lib, m.name("vector_add")))
	m.want(cuda.CUDA_ERROR_NOT_FOUND, m.CuLibraryGetKernel(&k, lib, m.name("nothing")))
	var f, again cuda.CUfunction
	m.must(m.CuKernelGetFunction(&f, k))
	m.must(m.CuKernelGetFunction(&again, k))
	if f != again || uint64(f) == uint64(k) {
		t.Errorf("functions %#x and %#x of kernel %#x", f, again, k)
	}
	x := m.alloc(16)
	m.upload(x, floats(func(int) float32 { return 1 }, 4))
	m.must(m.launchOn(0, f, 1, 32, 0, x, x, x, int32(4)))
	m.must(m.launchOn(0, cuda.CUfunction(k), 1, 32, 0, x, x, x, int32(4))) // a kernel where a function is asked for
	if got := as[float32](m.download(x, 16)); got[0] != 4 {
		t.Errorf("got %v", got)
	}
	// Attributes of the kernel are those of its functions.
	m.must(m.CuKernelSetAttribute(cuda.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000, k, 0))
	var v int32
	m.must(m.CuFuncGetAttribute(&v, cuda.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f))
	if v != 60000 {
		t.Errorf("the function's attribute is %d", v)
	}
	var offset, size uint64
	m.must(m.CuKernelGetParamInfo(k, 3, &offset, &size))
	if offset != 24 || size != 4 {
		t.Errorf("parameter 3 at %d, %d bytes", offset, size)
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuKernelGetParamInfo(k, 4, &offset, &size))
	m.must(m.CuLibraryUnload(lib))
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.launchOn(0, f, 1, 32, 0, x, x, x, int32(4)))
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.launchOn(0, cuda.CUfunction(k), 1, 32, 0, x, x, x, int32(4)))
}

func TestOccupancy(t *testing.T) {
	m := open(t, Config{})
	f := m.kernel(m.module(), "vector_add")
	for _, c := range []struct {
		threads int32
		shared  uint64
		want    int32
	}{
		{1024, 0, 2}, {32, 0, 32}, {256, 0, 8}, {64, 40 << 10, 5}, {64, 226 << 10, 1}, {1025, 0, 0},
	} {
		var n int32
		m.must(m.CuOccupancyMaxActiveBlocksPerMultiprocessor(&n, f, c.threads, c.shared))
		if n != c.want {
			t.Errorf("%d threads, %d bytes: %d blocks, want %d", c.threads, c.shared, n, c.want)
		}
	}
	var size uint64
	m.must(m.CuOccupancyAvailableDynamicSMemPerBlock(&size, f, 2, 256))
	if l := m.capability; size != uint64(l.sharedPerSM/2-l.sharedReserved) {
		t.Errorf("%d bytes for each of two blocks", size)
	}
}

// TestDeterminism: the same program gives the same bits, whatever the blocks' order.
func TestDeterminism(t *testing.T) {
	m := open(t, Config{})
	const n = 48
	f := m.kernel(m.module(), "matmul_tiled")
	a, b, c := m.alloc(4*n*n), m.alloc(4*n*n), m.alloc(4*n*n)
	m.upload(a, floats(func(i int) float32 { return 1 / float32(i+1) }, n*n))
	m.upload(b, floats(func(i int) float32 { return float32(i%17) * 0.3 }, n*n))
	var first []byte
	for range 3 {
		m.must(m.CuMemsetD8_v2(c, 0, 4*n*n))
		m.must(m.CuLaunchKernel(f, n/16, n/16, 1, 16, 16, 1, 0, 0, m.arguments(a, b, c, int32(n)), nil))
		got := m.download(c, 4*n*n)
		if first == nil {
			first = got
		}
		if !bytes.Equal(got, first) {
			t.Fatal("two runs gave different bits")
		}
	}
}

func TestPrintf(t *testing.T) {
	const text = `.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 fmt[7] = {104, 101, 108, 108, 111, 10, 0};
.visible .entry hello()
{
	.reg .b64 %rd<3>;
	.reg .b32 %r<2>;
	mov.u64 %rd1, fmt;
	cvta.global.u64 %rd1, %rd1;
	mov.u64 %rd2, 0;
	{
	.param .b64 p0;
	st.param.b64 [p0], %rd1;
	.param .b64 p1;
	st.param.b64 [p1], %rd2;
	.param .b32 ret0;
	call.uni (ret0), vprintf, (p0, p1);
	ld.param.b32 %r1, [ret0];
	}
	ret;
}
`
	var out strings.Builder
	m := open(t, Config{Stdout: &out})
	var mod cuda.CUmodule
	m.must(m.CuModuleLoadData(&mod, m.image([]byte(text))))
	m.must(m.launchOn(0, m.kernel(mod, "hello"), 1, 2, 0))
	m.must(m.CuCtxSynchronize())
	if out.String() != "hello\nhello\n" {
		t.Errorf("printed %q", out.String())
	}
}
