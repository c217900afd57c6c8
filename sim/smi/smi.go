// Package smi is the NVML of the simulated GPU: what nvidia-smi, PyTorch and the bindings of other languages ask about
// a device. How busy it is and how much of its memory is in use, it reads from the board on which the processes of the
// simulated machine say it (package board); temperature and power follow from that (load.go). What a simulation has no
// truth for answers NVML_ERROR_NOT_SUPPORTED, as many real GPUs do.
package smi

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/sim/board"
)

// Device is one simulated GPU as NVML shows it.
type Device struct {
	Name         string
	UUID         [16]byte
	Bus, Slot    uint32 // PCI bus and device; domain and function are 0
	Memory       uint64 // bytes
	Major, Minor int32  // compute capability
	SMs          uint32 // multiprocessors
	Cores        uint32 // of a multiprocessor
	BusWidth     uint32 // bits of the memory's bus
	Architecture uint32 // 9 for Hopper; the numbers are macros in nvml.h

	IdlePower, LeastLimit, PowerLimit uint32 // mW
	Clock, MemoryClock                uint32 // MHz

	index int
}

// Config says what the driver shows.
type Config struct {
	Devices       []Device
	DriverVersion string       // text, such as "580.00"
	CUDAVersion   int32        // 13000 for 13.0
	Board         *board.Board // nil: nothing ever happens
	Instances     int          // of MIG, into which each device is split on the board; 0: none
}

// ErrConfig is wrapped by errors about a Config that no machine can have.
var ErrConfig = errors.New("smi: bad configuration")

const (
	maxDevices = board.Devices
	firstSet   = 0x1000 // event sets' handles; devices are index+1
)

// Driver implements nvml.Driver.
type Driver struct {
	cfg Config

	mu         sync.Mutex
	users      int
	sets       map[nvml.NvmlEventSet]bool
	systemSets map[nvml.NvmlSystemEventSet]bool
	next       nvml.NvmlEventSet
}

// Open makes a driver; the client's nvmlInit initialises it.
func Open(cfg Config) (*Driver, error) {
	if len(cfg.Devices) > maxDevices {
		return nil, fmt.Errorf("%w: %d devices; choose up to %d", ErrConfig, len(cfg.Devices), maxDevices)
	}
	cfg.Devices = slices.Clone(cfg.Devices)
	for i, d := range cfg.Devices {
		if d.Name == "" || len(d.Name) > 95 {
			return nil, fmt.Errorf("%w: device %d has a name of %d characters; choose 1 to 95", ErrConfig, i, len(d.Name))
		}
		cfg.Devices[i].index = i
	}
	return &Driver{cfg: cfg, sets: map[nvml.NvmlEventSet]bool{}, systemSets: map[nvml.NvmlSystemEventSet]bool{},
		next: firstSet}, nil
}

// UUIDText is a device's UUID as NVML writes it.
func UUIDText(u [16]byte) string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

func (d *Driver) begin() nvml.NvmlReturn {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users++
	return nvml.NVML_SUCCESS
}

// ready is the status of every call but the initialisation's.
func (d *Driver) ready() nvml.NvmlReturn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == 0 {
		return nvml.NVML_ERROR_UNINITIALIZED
	}
	return nvml.NVML_SUCCESS
}

func (d *Driver) NvmlInit() nvml.NvmlReturn                { return d.begin() }
func (d *Driver) NvmlInit_v2() nvml.NvmlReturn             { return d.begin() }
func (d *Driver) NvmlInitWithFlags(uint32) nvml.NvmlReturn { return d.begin() }

func (d *Driver) NvmlShutdown() nvml.NvmlReturn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == 0 {
		return nvml.NVML_ERROR_UNINITIALIZED
	}
	d.users--
	return nvml.NVML_SUCCESS
}

// find looks the device up and checks that the result has somewhere to go.
func (d *Driver) find(dev nvml.NvmlDevice, to bool) (*Device, nvml.NvmlReturn) {
	if r := d.ready(); r != nvml.NVML_SUCCESS {
		return nil, r
	}
	if dev == 0 || uint64(dev) > uint64(len(d.cfg.Devices)) || !to {
		return nil, nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	return &d.cfg.Devices[dev-1], nvml.NVML_SUCCESS
}

// store answers a query of one value.
func store[T any](d *Driver, dev nvml.NvmlDevice, to *T, value func(*Device) T) nvml.NvmlReturn {
	g, r := d.find(dev, to != nil)
	if r == nvml.NVML_SUCCESS {
		*to = value(g)
	}
	return r
}

// store2 answers a query of two values.
func store2[A, B any](d *Driver, dev nvml.NvmlDevice, a *A, b *B, values func(*Device) (A, B)) nvml.NvmlReturn {
	g, r := d.find(dev, a != nil && b != nil)
	if r == nvml.NVML_SUCCESS {
		*a, *b = values(g)
	}
	return r
}

// storeSystem answers a query about the machine.
func storeSystem[T any](d *Driver, to *T, value T) nvml.NvmlReturn {
	if r := d.ready(); r != nvml.NVML_SUCCESS {
		return r
	}
	if to == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	*to = value
	return nvml.NVML_SUCCESS
}

func (d *Driver) NvmlDeviceGetCount(to *uint32) nvml.NvmlReturn { return d.NvmlDeviceGetCount_v2(to) }

func (d *Driver) NvmlDeviceGetCount_v2(to *uint32) nvml.NvmlReturn {
	if r := d.ready(); r != nvml.NVML_SUCCESS {
		return r
	}
	if to == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	*to = uint32(len(d.cfg.Devices))
	return nvml.NVML_SUCCESS
}

func (d *Driver) NvmlDeviceGetHandleByIndex(i uint32, to *nvml.NvmlDevice) nvml.NvmlReturn {
	return d.NvmlDeviceGetHandleByIndex_v2(i, to)
}

func (d *Driver) NvmlDeviceGetHandleByIndex_v2(i uint32, to *nvml.NvmlDevice) nvml.NvmlReturn {
	if r := d.ready(); r != nvml.NVML_SUCCESS {
		return r
	}
	if to == nil || int(i) >= len(d.cfg.Devices) {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	*to = nvml.NvmlDevice(i + 1)
	return nvml.NVML_SUCCESS
}

// by finds the device whose text is s.
func (d *Driver) by(s string, to *nvml.NvmlDevice, text func(*Device) string) nvml.NvmlReturn {
	if r := d.ready(); r != nvml.NVML_SUCCESS {
		return r
	}
	if to == nil || s == "" {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	for i := range d.cfg.Devices {
		if strings.EqualFold(text(&d.cfg.Devices[i]), s) {
			*to = nvml.NvmlDevice(i + 1)
			return nvml.NVML_SUCCESS
		}
	}
	return nvml.NVML_ERROR_NOT_FOUND
}

func (d *Driver) NvmlDeviceGetIndex(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return uint32(dev - 1) })
}

func (d *Driver) NvmlDeviceGetMinorNumber(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return d.NvmlDeviceGetIndex(dev, to)
}

func (d *Driver) NvmlDeviceGetComputeMode(dev nvml.NvmlDevice, to *nvml.NvmlComputeMode) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlComputeMode { return nvml.NVML_COMPUTEMODE_DEFAULT })
}

func (d *Driver) NvmlDeviceGetPersistenceMode(dev nvml.NvmlDevice, to *nvml.NvmlEnableState) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlEnableState { return nvml.NVML_FEATURE_ENABLED })
}

func (d *Driver) NvmlDeviceGetDisplayActive(dev nvml.NvmlDevice, to *nvml.NvmlEnableState) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) nvml.NvmlEnableState { return nvml.NVML_FEATURE_DISABLED })
}

func (d *Driver) NvmlDeviceGetDisplayMode(dev nvml.NvmlDevice, to *nvml.NvmlEnableState) nvml.NvmlReturn {
	return d.NvmlDeviceGetDisplayActive(dev, to)
}

func (d *Driver) NvmlDeviceGetMaxMigDeviceCount(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return 0 })
}

func (d *Driver) NvmlDeviceIsMigDeviceHandle(dev nvml.NvmlDevice, to *uint32) nvml.NvmlReturn {
	return store(d, dev, to, func(*Device) uint32 { return 0 })
}

func (d *Driver) NvmlDeviceGetCudaComputeCapability(dev nvml.NvmlDevice, major, minor *int32) nvml.NvmlReturn {
	return store2(d, dev, major, minor, func(g *Device) (int32, int32) { return g.Major, g.Minor })
}

// Of other kinds of devices there are none.

func (d *Driver) NvmlGetExcludedDeviceCount(to *uint32) nvml.NvmlReturn { return storeSystem(d, to, 0) }

func (d *Driver) NvmlUnitGetCount(to *uint32) nvml.NvmlReturn { return storeSystem(d, to, 0) }

func (d *Driver) NvmlSystemGetHicVersion(count *uint32, _ *nvml.NvmlHwbcEntry) nvml.NvmlReturn {
	return storeSystem(d, count, 0)
}

func (d *Driver) NvmlSystemGetCudaDriverVersion(to *int32) nvml.NvmlReturn {
	return d.NvmlSystemGetCudaDriverVersion_v2(to)
}

func (d *Driver) NvmlSystemGetCudaDriverVersion_v2(to *int32) nvml.NvmlReturn {
	if to == nil {
		return nvml.NVML_ERROR_INVALID_ARGUMENT
	}
	*to = d.cfg.CUDAVersion
	return nvml.NVML_SUCCESS
}

// NvmlGpmMetricsGet has no samples: none are taken.
func (d *Driver) NvmlGpmMetricsGet(*nvml.NvmlGpmMetricsGet) nvml.NvmlReturn {
	return nvml.NVML_ERROR_NOT_SUPPORTED
}

var _ nvml.Driver = (*Driver)(nil)
