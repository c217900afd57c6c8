package probe

import (
	"errors"
	"runtime"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim"
)

func TestSimulatedMachine(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	gpu, err := sim.Open(sim.Config{Devices: 2, MemoryBytes: 64 << 20, Name: "two of these"})
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	m, err := Run(gpu)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Devices) != 2 || m.DriverVersion < 12000 {
		t.Fatalf("%d devices, driver %d", len(m.Devices), m.DriverVersion)
	}
	for i, d := range m.Devices {
		if d.Name != "two of these" || d.TotalMem != 64<<20 || d.UUID == [16]byte{} || d.PCIBusID == "" ||
			d.CtxAPIVersion == 0 {
			t.Errorf("device %d: %q, %d bytes, uuid %x, pci %q, api %d", i, d.Name, d.TotalMem, d.UUID, d.PCIBusID,
				d.CtxAPIVersion)
		}
		if warp := cuda.CU_DEVICE_ATTRIBUTE_WARP_SIZE; d.Attributes[warp] != 32 || d.AttributeResult[warp] != 0 {
			t.Errorf("device %d: warp size %d, result %d", i, d.Attributes[warp], d.AttributeResult[warp])
		}
		if d.AttributeResult[255] == 0 {
			t.Errorf("device %d has attribute 255", i)
		}
		if d.LimitResult[cuda.CU_LIMIT_STACK_SIZE] != 0 || d.Limits[cuda.CU_LIMIT_STACK_SIZE] == 0 {
			t.Errorf("device %d: no stack limit", i)
		}
	}
	if m.Devices[0].UUID == m.Devices[1].UUID {
		t.Error("both devices have one UUID")
	}
}

type broken struct {
	cuda.Unimplemented
	init, count cuda.CUresult
}

func (b *broken) CuInit(uint32) cuda.CUresult               { return b.init }
func (b *broken) CuDriverGetVersion(v *int32) cuda.CUresult { *v = 13000; return 0 }
func (b *broken) CuDeviceGetCount(n *int32) cuda.CUresult   { *n = 0; return b.count }
func (b *broken) LaunchNode(cuda.CUstream, cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return cuda.CUDA_ERROR_NOT_SUPPORTED
}
func (b *broken) HostNode(func()) cuda.CUDA_HOST_NODE_PARAMS { return cuda.CUDA_HOST_NODE_PARAMS{} }

func (b *broken) DropNode(cuda.CUDA_HOST_NODE_PARAMS) {}
func (b *broken) HostFunc(cuda.CUstream, func()) cuda.CUresult {
	return cuda.CUDA_ERROR_NOT_SUPPORTED
}
func (b *broken) PrimaryContext(cuda.CUdevice) (cuda.CUcontext, cuda.CUresult) {
	return 0, cuda.CUDA_ERROR_NOT_SUPPORTED
}
func (b *broken) ThreadInit()  {}
func (b *broken) Close() error { return nil }

func TestFailuresNameTheCall(t *testing.T) {
	for _, c := range []struct {
		gpu  broken
		call string
		want cuda.CUresult
	}{
		{broken{init: cuda.CUDA_ERROR_NO_DEVICE}, "cuInit", cuda.CUDA_ERROR_NO_DEVICE},
		{broken{count: cuda.CUDA_ERROR_UNKNOWN}, "cuDeviceGetCount", cuda.CUDA_ERROR_UNKNOWN},
		{broken{}, "cuDeviceGetCount", cuda.CUDA_ERROR_NO_DEVICE},
	} {
		_, err := Run(&c.gpu)
		var e *Error
		if !errors.As(err, &e) || e.Call != c.call || e.Result != c.want {
			t.Errorf("got %v, want %s: %d", err, c.call, c.want)
		}
	}
}
