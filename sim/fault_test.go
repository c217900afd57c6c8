package sim

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/board"
)

func TestSpec(t *testing.T) {
	for _, c := range []struct {
		spec string
		want Config
	}{
		{"", Config{Devices: 1}},
		{"4,memory=2GiB,preset=small", Config{Devices: 4, MemoryBytes: 2 << 30, Preset: "small",
			Name: "scuda simulated small GPU"}},
		{"driver=12020", Config{Devices: 1, Driver: 12020}},
		{"2,mig=7", Config{Devices: 2, MIG: 7}},
		{"cc=12.0", Config{Devices: 1, Capability: 120}},
		{"preset=small", Config{Devices: 1, MemoryBytes: 256 << 20, Preset: "small", Name: "scuda simulated small GPU"}},
		{"turns=100us", Config{Devices: 1, Turns: 100 * time.Microsecond}},
		{"2, name=mine, kernel-time=1500ms,kernel-instructions=1000",
			Config{Devices: 2, Name: "mine", KernelTime: 1500 * time.Millisecond, KernelInstructions: 1000}},
		{"memory=1.5MiB,memory=4194304,fault-alloc=3+,fault-hang=2,fault-lost=9,copy-rate=10MiB,hold=cuMemFree_v2+first",
			Config{Devices: 1, Hold: "cuMemFree_v2+first", MemoryBytes: 4 << 20,
				Faults: Faults{Alloc: 3, AllocOn: true, Hang: 2, Lost: 9, CopyBytes: 10 << 20}}},
	} {
		got, err := ParseSpec(Config{}, c.spec)
		if err == nil {
			got, err = got.withDefaults()
		}
		if err != nil {
			t.Errorf("%q: %v", c.spec, err)
			continue
		}
		if c.want.MemoryBytes == 0 {
			c.want.MemoryBytes = got.MemoryBytes
		}
		if c.want.Name == "" {
			c.want.Name = "scuda simulated GPU"
		}
		if c.want.Driver == 0 {
			c.want.Driver = 13000
		}
		if c.want.Capability == 0 {
			c.want.Capability = 90
		}
		got.Log, got.Stdout, got.Stderr = nil, nil, nil
		if got != c.want {
			t.Errorf("%q: %+v, not %+v", c.spec, got, c.want)
		}
	}
	for spec, want := range map[string]string{
		"0": "number of GPUs", "many": "number of GPUs", "99": "devices", "2,4": "KEY=VALUE", "memory=": "KEY=VALUE",
		"memory=big":   "a size like",
		"memory=-1GiB": "a size like", "memory=2000TiB": "a size like", "preset=h100": "h200 or small",
		"mig=8": "0 to 7 instances", "3,mig=6": "of all GPUs", "mig=7,memory=8MiB": "2 MiB of each",
		"colour=red": "no such setting", "driver=9000": "choose 11040", "driver=12.2": "invalid syntax",
		"turns=0s":        "above zero",
		"board=/a/file":   "programs without a server",
		"kernel-time=-1s": "above zero", "cc=9": "choose one of 7.5, 8.0", "cc=9.9": "choose one of",
		"cc=x.y": "choose one of", "cc=1.20": "choose one of", "cc=8.10": "choose one of",
		"kernel-time=5": "missing unit", "fault-alloc=0": "begins with 1", "hold=cuMemFrei": "no function",
		"fault-lost=x": "invalid syntax", "kernel-instructions=-3": "invalid syntax",
	} {
		if _, err := ParseSpec(Config{}, spec); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", spec, err)
		}
	}
	get := func(v string) func(string) string { return func(string) string { return v } }
	if c, err := FromEnvironment(Config{}, get("3")); err != nil || c.Devices != 3 {
		t.Errorf("%+v %v", c, err)
	}
	if _, err := FromEnvironment(Config{}, get("x=1")); err == nil || !strings.Contains(err.Error(), Environment) {
		t.Error(err)
	}
	files := []string{filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")}
	var boards []*board.Board
	for _, file := range append(files, files[0]) {
		c, err := OfProgram(Config{}, get("board="+file))
		if err != nil || c.Board == nil {
			t.Fatalf("%+v %v", c, err)
		}
		boards = append(boards, c.Board)
	}
	seat, err := boards[0].Join()
	if err != nil {
		t.Fatal(err)
	}
	seat.Use(0, 7)
	for i, want := range []uint64{7, 0, 7} {
		if got := boards[i].Read(0).Used; got != want {
			t.Errorf("board %d has %d bytes in use, not %d", i, got, want)
		}
	}
	seat.Leave()
	if c, err := FromEnvironment(Config{Devices: 2}, get("")); err != nil || c.Devices != 2 {
		t.Errorf("%+v %v", c, err)
	}
}

func TestPresets(t *testing.T) {
	m := open(t, Config{Preset: "small"})
	var sms, total = int32(0), uint64(0)
	m.must(m.CuDeviceGetAttribute(&sms, cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
	m.must(m.CuDeviceTotalMem_v2(&total, 0))
	if sms != 4 || total != 64<<20 {
		t.Errorf("%d multiprocessors and %d bytes", sms, total)
	}
	var p cuda.CUdeviceptr
	m.want(cuda.CUDA_ERROR_OUT_OF_MEMORY, m.CuMemAlloc_v2(&p, 65<<20))
}

func TestFailingAllocations(t *testing.T) {
	for _, c := range []struct {
		faults Faults
		want   []cuda.CUresult
	}{
		{Faults{Alloc: 2}, []cuda.CUresult{ok, cuda.CUDA_ERROR_OUT_OF_MEMORY, ok, ok}},
		{Faults{Alloc: 3, AllocOn: true}, []cuda.CUresult{ok, ok, cuda.CUDA_ERROR_OUT_OF_MEMORY,
			cuda.CUDA_ERROR_OUT_OF_MEMORY}},
	} {
		m := open(t, Config{Faults: c.faults})
		m.module() // its variables do not count
		for _, want := range c.want {
			var p cuda.CUdeviceptr
			m.want(want, m.CuMemAlloc_v2(&p, 1000))
		}
	}
}

// TestKernelTurns: kernels that take turns run one after the other, and each takes as long as it should.
func TestKernelTurns(t *testing.T) {
	const kernels, each = 6, 2 * time.Millisecond
	m := open(t, Config{Turns: each})
	f := m.kernel(m.module(), "spin")
	began := time.Now()
	for i := range kernels {
		m.must(m.launchOn(m.stream(cuda.CUstream_flags(i%2)), f, 1, 32, 0, int64(1)))
	}
	m.must(m.CuCtxSynchronize())
	if got := time.Since(began); got < kernels*each {
		t.Errorf("%d kernels took %v", kernels, got)
	}
}

// TestEndlessKernels: a kernel that does not end is ended by either limit, and the error is the one of a time-out.
func TestEndlessKernels(t *testing.T) {
	for name, cfg := range map[string]Config{
		"time": {KernelTime: 20 * time.Millisecond}, "instructions": {KernelInstructions: 10000},
		"hang": {KernelTime: 20 * time.Millisecond, Faults: Faults{Hang: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			m := open(t, cfg)
			mod := m.module()
			if cfg.Faults.Hang > 0 {
				m.must(m.launchOn(0, m.kernel(mod, "vector_add"), 1, 32, 0, cuda.CUdeviceptr(0), cuda.CUdeviceptr(0),
					cuda.CUdeviceptr(0), int32(0)))
			} else {
				m.must(m.launchOn(0, m.kernel(mod, "spin"), 1, 32, 0, int64(1)<<62))
			}
			m.want(cuda.CUDA_ERROR_LAUNCH_TIMEOUT, m.CuCtxSynchronize())
			m.want(cuda.CUDA_ERROR_LAUNCH_TIMEOUT, m.CuCtxSynchronize())
		})
	}
}

// TestLostGPU: what a GPU that fell off the bus answers, while another one goes on.
func TestLostGPU(t *testing.T) {
	m := open(t, Config{Devices: 2, Faults: Faults{Lost: 2}})
	f := m.kernel(m.module(), "vector_add")
	nothing := cuda.CUdeviceptr(0)
	launch := func() cuda.CUresult { return m.launchOn(0, f, 1, 32, 0, nothing, nothing, nothing, int32(0)) }
	m.must(launch())
	m.must(m.CuCtxSynchronize())
	m.must(launch())
	m.want(deviceLost, m.CuCtxSynchronize())
	var p cuda.CUdeviceptr
	m.want(deviceLost, m.CuMemAlloc_v2(&p, 16))
	m.must(m.CuDevicePrimaryCtxReset_v2(0))
	var c cuda.CUcontext
	m.want(deviceLost, m.CuDevicePrimaryCtxRetain(&c, 0))
	m.must(m.CuDevicePrimaryCtxRetain(&c, 1))
	m.must(m.CuCtxSetCurrent(c))
	m.must(m.CuMemAlloc_v2(&p, 16))
	m.must(m.CuMemFree_v2(p))
}

func TestSlowCopies(t *testing.T) {
	b := board.Private()
	m := open(t, Config{Faults: Faults{CopyBytes: 1 << 20}, Board: b})
	p := m.alloc(32 << 10)
	if r := b.Read(0); r.Used != 32<<10 || len(r.Users) != 1 || r.Copies != 0 {
		t.Errorf("before the copy the board says %+v", r)
	}
	begin := time.Now()
	m.must(m.CuMemcpyDtoD_v2(p, p+16<<10, 16<<10))
	m.must(m.CuCtxSynchronize())
	if took := time.Since(begin); took < 15*time.Millisecond {
		t.Errorf("16 KiB at 1 MiB/s took %v", took)
	}
	if r := b.Read(0); r.Copies == 0 || r.Kernels != 0 {
		t.Errorf("after the copy the board says %+v", r)
	}
	m.must(m.CuDevicePrimaryCtxRelease_v2(0))
	if r := b.Read(0); r.Used != 0 || r.Users != nil {
		t.Errorf("without a context the board says %+v", r)
	}
}

// TestPeers copies between GPUs, and lets a kernel of one read what is the other's.
func TestPeers(t *testing.T) {
	m := open(t, Config{Devices: 3})
	var ctx [3]cuda.CUcontext
	var mem [3]cuda.CUdeviceptr
	for i := range ctx {
		m.must(m.CuDevicePrimaryCtxRetain(&ctx[i], cuda.CUdevice(i)))
		m.must(m.CuCtxSetCurrent(ctx[i]))
		m.must(m.CuMemAlloc_v2(&mem[i], 4096))
	}
	data := floats(func(i int) float32 { return float32(i) }, 1024)
	m.must(m.CuCtxSetCurrent(ctx[0]))
	m.upload(mem[0], data)
	m.must(m.CuMemcpyPeer(mem[2], ctx[2], mem[0], ctx[0], 4096))
	m.must(m.CuCtxSetCurrent(ctx[1]))
	m.must(m.CuCtxEnablePeerAccess(ctx[2], 0))
	f := m.kernel(m.module(), "vector_add")
	m.must(m.launchOn(0, f, 8, 128, 0, mem[2], mem[2], mem[1], int32(1024)))
	for i, v := range as[float32](m.download(mem[1], 4096)) {
		if v != float32(2*i) {
			t.Fatalf("element %d is %g", i, v)
		}
	}
	for i := range ctx {
		m.must(m.CuCtxSetCurrent(ctx[i]))
		m.must(m.CuMemFree_v2(mem[i]))
	}
}
