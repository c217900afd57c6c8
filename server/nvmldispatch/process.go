package nvmldispatch

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

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
	nvml.OpNvmlDeviceGetEncoderSessions:               {2, 4, false},
	nvml.OpNvmlDeviceGetFBCSessions:                   {2, 4, false},
	nvml.OpNvmlDeviceGetRunningProcessDetailList:      {1, 0, true},
	nvml.OpNvmlDeviceGetProcessesUtilizationInfo:      {1, 8, true},
}

// pidParams are the parameters that are a pid. The driver is asked about the client's own processes alone.
var pidParams = map[uint16]int{nvml.OpNvmlDeviceGetAccountingStats: 1}

// nobody is the pid of no process: Linux's go to 2^22.
const nobody = math.MaxUint32

// processes are the client machine's own.
func (d *Dispatcher) processes() []Process {
	if d.Processes == nil {
		return nil
	}
	return d.Processes()
}

// ownProcesses keeps those elements of size bytes, of a list that the driver has written, that are processes of the
// client, with their pids there, and gives their number. The server's machine is not the client's: who else uses its
// GPUs, and for what, is not told.
func ownProcesses(processes []Process, elements []byte, size, offset int) int {
	kept := 0
	for rest := elements; len(rest) >= size; rest = rest[size:] {
		pid := binary.LittleEndian.Uint32(rest[offset:])
		i := slices.IndexFunc(processes, func(p Process) bool { return p.Server == pid })
		if i < 0 || pid == 0 { // 0: the driver filled less
			continue
		}
		to := elements[kept*size:][:size]
		copy(to, rest[:size])
		binary.LittleEndian.PutUint32(to[offset:], processes[i].Client)
		kept++
	}
	clear(elements[kept*size:])
	return kept
}

// pidsToClient leaves the client's own processes in a list. Where there was no room for all, the count stays that of
// all: the client makes as much room, and then gets its own.
func (c *call) pidsToClient(op uint16, status nvml.NvmlReturn) {
	f, ok := pidFields[op]
	if !ok || status != nvml.NVML_SUCCESS {
		return
	}
	p := &c.f.params[f.param]
	elements, size := c.buf[f.param], int(p.size)
	var count []byte
	if f.within {
		elements, size, count = c.array[f.param], int(p.array.size), c.buf[f.param][p.array.count:]
	} else {
		count = c.buf[p.countArg-1]
	}
	if len(elements) != 0 {
		binary.LittleEndian.PutUint32(count, uint32(ownProcesses(c.d.processes(), elements, size, f.offset)))
	}
}

// pidsToServer translates a pid that the client asks about. An array for pids begins empty: what the driver leaves of
// it is then not the client's.
func (c *call) pidsToServer(op uint16) {
	if f, ok := pidFields[op]; ok && f.within {
		clear(c.array[f.param])
	}
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
	c.args.word[i] = nobody // the driver says what it says of a pid that it does not know
}

// ofNobody corrects the status of a driver that answers about any pid.
func (c *call) ofNobody(op uint16, status nvml.NvmlReturn) nvml.NvmlReturn {
	if i, ok := pidParams[op]; ok && status == nvml.NVML_SUCCESS && c.args.word[i] == nobody {
		return nvml.NVML_ERROR_NOT_FOUND
	}
	return status
}

// processName answers nvmlSystemGetProcessName for a process of the client's machine, of which the server's driver
// knows only the worker. The driver itself would look any process of the server's machine up.
func (c *call) processName() (nvml.NvmlReturn, bool) {
	if c.d.inits == 0 {
		return 0, false // which the driver says
	}
	room := len(c.buf[1])
	if c.args.at[1] == nil || room == 0 {
		return nvml.NVML_ERROR_INVALID_ARGUMENT, true
	}
	for _, p := range c.d.processes() {
		if uint32(c.args.word[0]) != p.Client {
			continue
		}
		if room <= len(p.Program) {
			return nvml.NVML_ERROR_INSUFFICIENT_SIZE, true
		}
		clear(c.buf[1][copy(c.buf[1], p.Program):])
		return nvml.NVML_SUCCESS, true
	}
	return nvml.NVML_ERROR_NOT_FOUND, true
}

// textOf reads a string up to its NUL.
func textOf(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
