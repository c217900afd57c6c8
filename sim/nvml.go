package sim

import "scuda.dev/scuda/sim/smi"

// OpenNVML makes the management library of the machine that cfg describes. Its devices are those of [Open] with the same cfg.
func OpenNVML(cfg Config) (*smi.Driver, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := smi.Config{DriverVersion: "580.00", CUDAVersion: driverVersion}
	for i := range cfg.Devices {
		d := &device{ordinal: i}
		_, bus, slot := d.pciAddress()
		c.Devices = append(c.Devices, smi.Device{Name: cfg.Name, UUID: deviceUUID(cfg.Name, i), Bus: uint32(bus), Slot: uint32(slot),
			Memory: cfg.MemoryBytes, Major: computeCapability / 10, Minor: computeCapability % 10})
	}
	return smi.Open(c)
}
