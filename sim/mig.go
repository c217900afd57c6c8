package sim

import "fmt"

// Multi-Instance GPU, as CUDA shows it: a GPU that is split up is not there itself, and a process sees one instance,
// the first that CUDA_VISIBLE_DEVICES names, else the first of all. The machine numbers its instances through, those of
// the first GPU first.

// maxInstances is how many instances a GPU has room for.
const maxInstances = 7

// numbers is how many devices the machine has: GPUs, or the instances of all.
func (c *Config) numbers() int { return c.Devices * max(c.MIG, 1) }

// gpuOf is the GPU that a device is, or of which it is an instance.
func (c *Config) gpuOf(number int) int { return number / max(c.MIG, 1) }

// instanceMemory is the memory of a device.
func (c *Config) instanceMemory() uint64 {
	return c.MemoryBytes / uint64(max(c.MIG, 1)) &^ (vmmGranularity - 1)
}

// uuid is that of a device.
func (c *Config) uuid(number int) [16]byte {
	if c.MIG == 0 {
		return deviceUUID(c.Name, number)
	}
	return deviceUUID(c.Name+" MIG", number)
}

// uuidText is that of a device as CUDA_VISIBLE_DEVICES has it.
func (c *Config) uuidText(number int) string {
	u, kind := c.uuid(number), "GPU"
	if c.MIG > 0 {
		kind = "MIG"
	}
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// deviceName is what CUDA calls a device.
func (c *Config) deviceName() string {
	if c.MIG == 0 {
		return c.Name
	}
	return fmt.Sprintf("%s MIG %dg.%dgb", c.Name, maxInstances/c.MIG, max(c.instanceMemory()>>30, 1))
}

// Instances are the UUIDs of all instances of the machine; none where its GPUs are not split up.
func (c *Config) Instances() (list []string, err error) {
	with, err := c.withDefaults()
	if err != nil || with.MIG == 0 {
		return nil, err
	}
	for i := range with.numbers() {
		list = append(list, with.uuidText(i))
	}
	return list, nil
}
