package sim

import (
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/smi"
)

// OpenNVML makes the management library of the machine that cfg describes. Its devices are those of [Open] with the
// same cfg, and it sees what the processes do that have cfg.Board too.
func OpenNVML(cfg Config) (*smi.Driver, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	kind, cc := presets[cfg.Preset], capabilityOf(cfg.Capability)
	c := smi.Config{DriverVersion: "580.00", CUDAVersion: int32(cfg.Driver), Board: cfg.Board, Instances: cfg.MIG}
	for i := range cfg.Devices {
		d := &device{gpu: i}
		_, bus, slot := d.pciAddress()
		c.Devices = append(c.Devices, smi.Device{
			Name: cfg.Name, UUID: deviceUUID(cfg.Name, i), Bus: uint32(bus), Slot: uint32(slot), Memory: cfg.MemoryBytes,
			Major: int32(cc.arch / 10), Minor: int32(cc.arch % 10), SMs: uint32(kind.sms),
			Cores: cc.cores, Architecture: cc.generation,
			BusWidth:  uint32(kind.attribute(cuda.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)),
			IdlePower: kind.idlePower, LeastLimit: kind.leastLimit, PowerLimit: kind.powerLimit, Clock: clockKHz / 1000,
			MemoryClock: uint32(kind.attribute(cuda.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) / 1000),
		})
	}
	return smi.Open(c)
}
