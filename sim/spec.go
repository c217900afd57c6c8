package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/board"
)

// Environment is the variable with a specification that [FromEnvironment] reads.
const Environment = "SCUDA_SIM"

// Faults are what a simulated machine does wrong on purpose; numbers count from 1, and 0 is never.
type Faults struct {
	Alloc     uint64 // the allocation of device memory, from the machine's start, that fails for want of memory
	AllocOn   bool   // and so do all after it
	Hang      uint64 // the kernel that never ends by itself
	Lost      uint64 // the kernel at which its GPU falls off the bus
	CopyBytes uint64 // bytes a second that a copy makes at most
}

// preset is a kind of GPU.
type preset struct {
	name   string
	memory uint64 // 0: as much as the machine has to give
	sms    int32

	idlePower, leastLimit, powerLimit uint32 // mW
	// attributes that differ from an H200's
	attributes map[cuda.CUdevice_attribute]int32
}

var presets = map[string]preset{
	"": {name: "scuda simulated GPU", memory: 8 << 30, sms: multiprocessors, idlePower: 75_000, leastLimit: 200_000,
		powerLimit: 700_000},
	"h200": {name: "scuda simulated H200", memory: 150121545728, sms: multiprocessors, idlePower: 75_000,
		leastLimit: 200_000, powerLimit: 700_000},
	"small": {name: "scuda simulated small GPU", memory: 256 << 20, sms: 4, idlePower: 10_000, leastLimit: 75_000,
		powerLimit: 75_000, attributes: map[cuda.CUdevice_attribute]int32{
			cuda.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:                1 << 20,
			cuda.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:            1000000,
			cuda.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:      128,
			cuda.CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:           1,
			cuda.CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: 0,
		}},
}

// attribute is what a GPU of this kind answers, 0 where there is no such attribute.
func (p preset) attribute(a cuda.CUdevice_attribute) int32 {
	if v, special := p.attributes[a]; special {
		return v
	}
	return attributes[a]
}

// ParseSpec reads the text behind "sim:" in scuda's --gpu option into cfg: an optional number of GPUs and settings,
// with commas between them, such as "4,memory=2GiB,preset=small". docs/sim.md lists the settings.
func ParseSpec(cfg Config, spec string) (Config, error) {
	for i, part := range strings.Split(spec, ",") {
		key, value, given := strings.Cut(strings.TrimSpace(part), "=")
		var err error
		switch {
		case part == "" && spec == "":
		case i == 0 && !given:
			cfg.Devices, err = strconv.Atoi(key)
			if err != nil || cfg.Devices < 1 {
				return cfg, fmt.Errorf("%w: %q is no number of GPUs", ErrConfig, key)
			}
		case !given || value == "":
			return cfg, fmt.Errorf("%w: %q in %q is no setting; write KEY=VALUE", ErrConfig, part, spec)
		default:
			if err = cfg.set(key, value); err != nil {
				return cfg, fmt.Errorf("%w: %s=%s: %w", ErrConfig, key, value, err)
			}
		}
	}
	_, err := cfg.withDefaults()
	return cfg, err
}

// VisibleDevices is the variable that chooses the GPUs of a process.
const VisibleDevices = "CUDA_VISIBLE_DEVICES"

// FromEnvironment is ParseSpec with the value that getenv has for [Environment]. As a driver does, it lets the process
// see what [VisibleDevices] says.
func FromEnvironment(cfg Config, getenv func(string) string) (Config, error) {
	cfg.Visible = getenv(VisibleDevices)
	spec := getenv(Environment)
	if spec == "" {
		return cfg, nil
	}
	cfg, err := ParseSpec(cfg, spec)
	if err != nil {
		err = fmt.Errorf("%s: %w", Environment, err)
	}
	return cfg, err
}

// OfProgram is FromEnvironment for a program without a server, with the board on which such programs see each other.
func OfProgram(cfg Config, getenv func(string) string) (Config, error) {
	cfg.alone = true
	cfg, err := FromEnvironment(cfg, getenv)
	if err != nil {
		return cfg, err
	}
	if cfg.Board, err = board.At(cfg.file); err != nil {
		cfg.Log.Warn("NVML and the programs do not see each other", "error", err)
	}
	return cfg, nil
}

func (c *Config) set(key, value string) (err error) {
	switch key {
	case "mig":
		c.MIG, err = strconv.Atoi(value)
	case "memory":
		c.MemoryBytes, err = parseBytes(value)
	case "name":
		c.Name = value
	case "driver":
		c.Driver, err = strconv.Atoi(value)
	case "cc":
		c.Capability, err = parseCapability(value)
	case "preset":
		if _, known := presets[value]; !known || value == "" {
			return fmt.Errorf("no such preset; choose h200 or small")
		}
		c.Preset = value
	case "board":
		if c.file = value; !c.alone {
			return fmt.Errorf("this is for programs without a server; those of a server see each other anyway")
		}
	case "kernel-time":
		c.KernelTime, err = time.ParseDuration(value)
		if err == nil && c.KernelTime <= 0 {
			err = fmt.Errorf("choose a time above zero, such as 10s")
		}
	case "kernel-instructions":
		c.KernelInstructions, err = parseCount(value)
	case "turns":
		c.Turns, err = time.ParseDuration(value)
		if err == nil && c.Turns <= 0 {
			err = fmt.Errorf("choose a time above zero, such as 100us")
		}
	case "fault-alloc":
		value, c.Faults.AllocOn = strings.CutSuffix(value, "+")
		c.Faults.Alloc, err = parseCount(value)
	case "fault-hang":
		c.Faults.Hang, err = parseCount(value)
	case "fault-lost":
		c.Faults.Lost, err = parseCount(value)
	case "copy-rate":
		c.Faults.CopyBytes, err = parseBytes(value)
	case "contents":
		var known bool
		if c.Contents, known = contentsByName[value]; !known {
			return fmt.Errorf("choose clear, process or machine")
		}
	case "hold":
		c.Hold = value
		_, err = parseHold(value)
	default:
		return fmt.Errorf("no such setting; there are memory, name, driver, cc, preset, board, kernel-time, " +
			"kernel-instructions, turns, fault-alloc, fault-hang, fault-lost, copy-rate, contents and hold")
	}
	return err
}

var contentsByName = map[string]Contents{
	"clear": ContentsClear, "process": ContentsProcess, "machine": ContentsMachine,
}

func parseCount(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err == nil && n == 0 {
		err = fmt.Errorf("counting begins with 1")
	}
	return n, err
}

// parseBytes reads 512MiB, 2GiB, 1.5GiB, 4096.
func parseBytes(s string) (uint64, error) {
	unit := uint64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if rest, found := strings.CutSuffix(s, suffix); found {
			s, unit = rest, 1<<(10*(i+1))
		}
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0) || v*float64(unit) > 1<<50 {
		return 0, fmt.Errorf("write a size like 512MiB or 2GiB")
	}
	return uint64(v * float64(unit)), nil
}
