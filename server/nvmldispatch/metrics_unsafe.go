package nvmldispatch

import (
	"encoding/binary"
	"unsafe"

	"scuda.dev/scuda/api/nvml"
)

const maxErrorText = 512 // the front's room for one, with its length

const maxMetrics = len(nvml.NvmlGpmMetricsGet{}.Metrics)

// metrics carries out nvmlGpmMetricsGet, whose structure points at strings. The request is (version, count, sample,
// sample, metric ids as u32); the reply has for each metric its status (u64), value, and the three strings with their
// lengths.
func (d *Dispatcher) metrics(req, reply []byte) (int32, int, error) {
	const name = "nvmlGpmMetricsGet"
	var head [4]uint64
	for i := range head {
		v, rest, ok := word(req)
		if !ok {
			return 0, 0, malformed(name, "it ends before word %d", i)
		}
		head[i], req = v, rest
	}
	n := int(min(head[1], uint64(maxMetrics)+1))
	if n > maxMetrics || len(req) != (4*n+7)&^7 {
		return 0, 0, malformed(name, "%d bytes for %d metrics", len(req), head[1])
	}
	get := &nvml.NvmlGpmMetricsGet{Version: uint32(head[0]), NumMetrics: uint32(n)}
	for i, to := range []*nvml.NvmlGpmSample{&get.Sample1, &get.Sample2} {
		real, ok := d.toReal(nvml.KindGpmSample, head[2+i])
		if !ok {
			return int32(nvml.NVML_ERROR_INVALID_ARGUMENT), 0, nil
		}
		*to = nvml.NvmlGpmSample(real)
	}
	for i := range n {
		get.Metrics[i].MetricId = binary.LittleEndian.Uint32(req[4*i:])
	}
	if r := d.drv.NvmlGpmMetricsGet(get); r != nvml.NVML_SUCCESS {
		return int32(r), 0, nil
	}
	out := reply[:0]
	for i := range n {
		m := &get.Metrics[i]
		out = binary.LittleEndian.AppendUint64(out, uint64(uint32(m.NvmlReturn)))
		out = append(out, unsafe.Slice((*byte)(unsafe.Pointer(&m.Value)), 8)...)
		for _, s := range []uintptr{m.MetricInfo.ShortName, m.MetricInfo.LongName, m.MetricInfo.Unit} {
			out = appendText(out, s)
		}
	}
	if len(out) > len(reply) {
		return 0, 0, malformed(name, "the results need more than the %d bytes of a reply", len(reply))
	}
	return 0, len(out), nil
}

// errorText gives the driver's text of a status.
func (d *Dispatcher) errorText(req, reply []byte) (int32, int, error) {
	code, rest, ok := word(req)
	if !ok || len(rest) != 0 {
		return 0, 0, malformed("nvmlErrorString", "a request of %d bytes", len(req))
	}
	out := appendText(reply[:0], uintptr(d.drv.NvmlErrorString(nvml.NvmlReturn(uint32(code)))))
	if len(out) > min(len(reply), maxErrorText) {
		out = appendText(reply[:0], 0)
	}
	return 0, len(out), nil
}

// appendText appends the driver's string at address s: its length with the NUL (0: none), and that, padded.
func appendText(out []byte, s uintptr) []byte {
	n := 0
	if s != 0 {
		for *(*byte)(driverMemory(s, n)) != 0 && n < maxSlotText {
			n++
		}
		n++
	}
	out = binary.LittleEndian.AppendUint64(out, uint64(n))
	for i := range (n + 7) &^ 7 {
		if i < n-1 {
			out = append(out, *(*byte)(driverMemory(s, i)))
		} else {
			out = append(out, 0)
		}
	}
	return out
}

// driverMemory is a place in the driver's own memory, of which Go knows nothing.
func driverMemory(base uintptr, offset int) unsafe.Pointer {
	return unsafe.Add(*(*unsafe.Pointer)(unsafe.Pointer(&base)), offset)
}
