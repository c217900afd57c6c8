package nvmldispatch

import (
	"bytes"
	"encoding/binary"

	"scuda.dev/scuda/api/nvml"
)

// pidField is where a list of processes says the pid: in the elements of a parameter, or of the array that it points
// at.
type pidField struct {
	param  int
	offset int
	within bool
}

var pidFields = map[uint16]pidField{
	nvml.OpNvmlDeviceGetComputeRunningProcesses:       {2, 0, false},
	nvml.OpNvmlDeviceGetComputeRunningProcesses_v2:    {2, 0, false},
	nvml.OpNvmlDeviceGetComputeRunningProcesses_v3:    {2, 0, false},
	nvml.OpNvmlDeviceGetGraphicsRunningProcesses:      {2, 0, false},
	nvml.OpNvmlDeviceGetGraphicsRunningProcesses_v2:   {2, 0, false},
	nvml.OpNvmlDeviceGetGraphicsRunningProcesses_v3:   {2, 0, false},
	nvml.OpNvmlDeviceGetMPSComputeRunningProcesses:    {2, 0, false},
	nvml.OpNvmlDeviceGetMPSComputeRunningProcesses_v2: {2, 0, false},
	nvml.OpNvmlDeviceGetMPSComputeRunningProcesses_v3: {2, 0, false},
	nvml.OpNvmlDeviceGetProcessUtilization:            {1, 0, false},
	nvml.OpNvmlDeviceGetAccountingPids:                {2, 0, false},
	nvml.OpNvmlDeviceGetRunningProcessDetailList:      {1, 0, true},
	nvml.OpNvmlDeviceGetProcessesUtilizationInfo:      {1, 8, true},
}

// pidParams are the parameters that are a pid.
var pidParams = map[uint16]int{nvml.OpNvmlDeviceGetAccountingStats: 1}

// processes are the client machine's own.
func (d *Dispatcher) processes() []Process {
	if d.Processes == nil {
		return nil
	}
	return d.Processes()
}

// showClient replaces pids of workers by those of their clients, in elements of size bytes.
func showClient(processes []Process, elements []byte, size, offset int) {
	for ; len(elements) >= size; elements = elements[size:] {
		pid := elements[offset : offset+4]
		for _, p := range processes {
			if binary.LittleEndian.Uint32(pid) == p.Server {
				binary.LittleEndian.PutUint32(pid, p.Client)
				break
			}
		}
	}
}

// pidsToClient translates the pids of a result.
func (c *call) pidsToClient(op uint16, status nvml.NvmlReturn) {
	f, ok := pidFields[op]
	if !ok || status != nvml.NVML_SUCCESS {
		return
	}
	p := &c.f.params[f.param]
	elements, size := c.buf[f.param], int(p.size)
	if f.within {
		elements, size = c.array[f.param], int(p.array.size)
	}
	if len(elements) != 0 {
		showClient(c.d.processes(), elements, size, f.offset)
	}
}

// pidsToServer translates a pid that the client asks about.
func (c *call) pidsToServer(op uint16) {
	i, ok := pidParams[op]
	if !ok {
		return
	}
	for _, p := range c.d.processes() {
		if uint32(c.args.word[i]) == p.Client {
			c.args.word[i] = uint64(p.Server)
			return
		}
	}
}

// processName answers nvmlSystemGetProcessName for a process of the client's machine, of which the server's driver
// knows only the worker.
func (c *call) processName() (nvml.NvmlReturn, bool) {
	for _, p := range c.d.processes() {
		if uint32(c.args.word[0]) != p.Client {
			continue
		}
		switch {
		case c.args.at[1] == nil || len(c.buf[1]) == 0:
			return nvml.NVML_ERROR_INVALID_ARGUMENT, true
		case len(c.buf[1]) <= len(p.Program):
			return nvml.NVML_ERROR_INSUFFICIENT_SIZE, true
		}
		clear(c.buf[1][copy(c.buf[1], p.Program):])
		return nvml.NVML_SUCCESS, true
	}
	return 0, false
}

// textOf reads a string up to its NUL.
func textOf(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
