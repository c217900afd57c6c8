package sim

import (
	"errors"
	"runtime"
	"testing"

	"scuda.dev/scuda/api/cuda"
)

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{{Devices: -1}, {Devices: maxDevices + 1}, {MemoryBytes: 1}, {MemoryBytes: 2 << 40}} {
		if g, err := Open(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
			if g != nil {
				_ = g.Close()
			}
		}
	}
}

func TestBeforeInit(t *testing.T) {
	g := openBare(t, Config{})
	var n int32
	var c cuda.CUcontext
	if r := g.CuDeviceGetCount(&n); r != cuda.CUDA_ERROR_NOT_INITIALIZED {
		t.Errorf("count: %v", r)
	}
	if r := g.CuInit(1); r != cuda.CUDA_ERROR_INVALID_VALUE {
		t.Errorf("init with flags: %v", r)
	}
	if r := g.CuInit(0); r != ok {
		t.Fatal(r)
	}
	var p cuda.CUdeviceptr
	if r := g.CuMemAlloc_v2(&p, 1); r != cuda.CUDA_ERROR_INVALID_CONTEXT {
		t.Errorf("alloc without a context: %v", r)
	}
	if r := g.CuCtxGetCurrent(&c); r != ok || c != 0 {
		t.Errorf("current: %v %v", c, r)
	}
	if r := g.CuDevicePrimaryCtxRetain(&c, 1); r != cuda.CUDA_ERROR_INVALID_DEVICE {
		t.Errorf("no such device: %v", r)
	}
}

func TestDevices(t *testing.T) {
	m := open(t, Config{Devices: 2, Name: "a simulated GPU"})
	var n, major int32
	m.must(m.CuDeviceGetCount(&n))
	m.must(m.CuDeviceGetAttribute(&major, cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0))
	if n != 2 || major != 9 {
		t.Errorf("%d devices of capability %d", n, major)
	}
	buf := m.pageable(32)
	m.must(m.CuDeviceGetName(pointerTo(buf), 6, 0))
	if string(buf[:6]) != "a sim\x00" {
		t.Errorf("name %q", buf[:6])
	}
	var u0, u1 cuda.CUuuid
	m.must(m.CuDeviceGetUuid_v2(&u0, 0))
	m.must(m.CuDeviceGetUuid_v2(&u1, 1))
	if u0 == u1 || u0 == (cuda.CUuuid{}) {
		t.Error("devices without an UUID of their own")
	}
	m.must(m.CuDeviceGetPCIBusId(pointerTo(buf), 32, 1))
	var dev cuda.CUdevice
	m.must(m.CuDeviceGetByPCIBusId(&dev, pointerTo(buf)))
	if dev != 1 {
		t.Errorf("device %d by its bus id", dev)
	}
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuDeviceGetAttribute(&n, 100000, 0))
	m.want(cuda.CUDA_ERROR_INVALID_DEVICE, m.CuDeviceGetName(pointerTo(buf), 6, 2))
}

func TestContextStack(t *testing.T) {
	m := open(t, Config{Devices: 2})
	current := func(want cuda.CUcontext) {
		t.Helper()
		var c cuda.CUcontext
		m.must(m.CuCtxGetCurrent(&c))
		if c != want {
			t.Errorf("current is %#x, want %#x", c, want)
		}
	}
	var own, other, popped cuda.CUcontext
	m.must(m.CuCtxCreate_v2(&own, 0, 1))
	current(own)
	var dev cuda.CUdevice
	m.must(m.CuCtxGetDevice(&dev))
	if dev != 1 {
		t.Errorf("device %d", dev)
	}
	m.must(m.CuCtxGetDevice_v2(&dev, m.ctx))
	if dev != 0 {
		t.Errorf("device %d of the primary context", dev)
	}
	m.must(m.CuCtxPushCurrent_v2(m.ctx))
	current(m.ctx)
	m.must(m.CuCtxPopCurrent_v2(&popped))
	if popped != m.ctx {
		t.Errorf("popped %#x", popped)
	}
	current(own)

	// Another thread has nothing current; what it makes current concerns nobody else.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		m.ThreadInit()
		if r := m.CuCtxGetCurrent(&other); r != ok || other != 0 {
			t.Errorf("current of a new thread: %#x, %v", other, r)
		}
		if r := m.CuCtxPopCurrent_v2(&other); r != cuda.CUDA_ERROR_INVALID_CONTEXT {
			t.Errorf("pop of nothing: %v", r)
		}
		if r := m.CuCtxSetCurrent(m.ctx); r != ok {
			t.Error(r)
		}
	}()
	<-done
	current(own)
	m.must(m.CuCtxDestroy_v2(own))
	current(m.ctx)
	m.want(cuda.CUDA_ERROR_INVALID_CONTEXT, m.CuCtxPushCurrent_v2(own))
	m.want(cuda.CUDA_ERROR_INVALID_CONTEXT, m.CuCtxDestroy_v2(m.ctx))
	m.must(m.CuCtxSetCurrent(0))
	current(0)
}

func TestPrimaryContext(t *testing.T) {
	m := open(t, Config{})
	state := func(want int32) {
		t.Helper()
		var flags uint32
		var active int32
		m.must(m.CuDevicePrimaryCtxGetState(0, &flags, &active))
		if active != want {
			t.Errorf("active %d, want %d", active, want)
		}
	}
	h, r := m.PrimaryContext(0)
	if r != ok || h != m.ctx {
		t.Errorf("PrimaryContext: %#x %v", h, r)
	}
	var again cuda.CUcontext
	m.must(m.CuDevicePrimaryCtxRetain(&again, 0))
	if again != m.ctx {
		t.Error("the primary context changed its handle")
	}
	p := m.alloc(4096)
	m.must(m.CuDevicePrimaryCtxRelease_v2(0))
	state(1)
	m.must(m.CuDevicePrimaryCtxRelease_v2(0))
	state(0)
	m.want(cuda.CUDA_ERROR_INVALID_CONTEXT, m.CuDevicePrimaryCtxRelease_v2(0))
	m.want(cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED, m.CuMemFree_v2(p))
	m.must(m.CuDevicePrimaryCtxRetain(&again, 0))
	state(1)
	if again != m.ctx {
		t.Error("the primary context came back with another handle")
	}
	var free uint64
	m.must(m.CuMemGetInfo_v2(&free, nil))
	if free != testMemory {
		t.Errorf("%d bytes free: the released context kept memory", free)
	}
	m.must(m.CuDevicePrimaryCtxReset_v2(0))
	state(0)
}

func TestLimits(t *testing.T) {
	m := open(t, Config{})
	var v uint64
	m.must(m.CuCtxGetLimit(&v, cuda.CU_LIMIT_STACK_SIZE))
	if v != 1024 {
		t.Errorf("stack size %d", v)
	}
	m.must(m.CuCtxSetLimit(cuda.CU_LIMIT_STACK_SIZE, 2048))
	m.must(m.CuCtxGetLimit(&v, cuda.CU_LIMIT_STACK_SIZE))
	if v != 2048 {
		t.Errorf("stack size %d after it was set", v)
	}
	m.want(cuda.CUDA_ERROR_UNSUPPORTED_LIMIT, m.CuCtxGetLimit(&v, cuda.CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuCtxGetLimit(&v, 99))
}
