package server

import (
	"encoding/binary"
	"strings"
	"testing"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/transport"
)

// TestProcesses: an NVML session knows the CUDA sessions of its own machine by their clients' pids, those of others and ended ones not.
func TestProcesses(t *testing.T) {
	s := serve(t, func(c *Config) { c.Warm = 2 })
	client := func(kind, host string, pid int, command string) *link {
		h := hello(kind)
		h.Host, h.PID, h.Command = host, pid, command
		l, err := s.dial(h)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := client(transport.KindCUDA, "here", 77, "/usr/bin/train")
	client(transport.KindCUDA, "here", 78, "")
	client(transport.KindCUDA, "elsewhere", 79, "other")
	l := client(transport.KindNVML, "here", 80, "nvidia-smi")
	if r, _, err := l.call(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8)); r != 0 || err != nil {
		t.Fatal(r, err)
	}
	name := func(pid uint64) string {
		var req []byte
		for _, v := range []uint64{pid, 64, 64} {
			req = binary.LittleEndian.AppendUint64(req, v)
		}
		r, b, err := l.call(nvml.OpNvmlSystemGetProcessName, 0, req)
		if err != nil {
			t.Fatal(err)
		}
		if nvml.NvmlReturn(r) != nvml.NVML_SUCCESS {
			return nvml.ResultName(nvml.NvmlReturn(r))
		}
		text, _, _ := strings.Cut(string(b[8:8+binary.LittleEndian.Uint64(b)]), "\x00")
		return text
	}
	for _, tt := range []struct {
		pid  uint64
		want string
	}{{77, "/usr/bin/train"}, {78, "test"}, {79, "NVML_ERROR_NOT_SUPPORTED"}, {80, "NVML_ERROR_NOT_SUPPORTED"}} {
		if got := name(tt.pid); got != tt.want {
			t.Errorf("process %d is %q, want %q", tt.pid, got, tt.want)
		}
	}
	first.conn.Close()
	s.until("the ended session is forgotten", func() bool { return name(77) == "NVML_ERROR_NOT_SUPPORTED" })
}

func TestNVMLSettings(t *testing.T) {
	for _, tt := range []struct {
		allowed bool
		want    nvml.NvmlReturn
	}{{false, nvml.NVML_ERROR_NO_PERMISSION}, {true, nvml.NVML_ERROR_NOT_SUPPORTED}} { // the simulated GPU has no such setting
		l := serve(t, func(c *Config) { c.NVMLSettings = tt.allowed }).open(transport.KindNVML)
		if r, _, err := l.call(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8)); r != 0 || err != nil {
			t.Fatal(r, err)
		}
		req := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), 0)
		if r, _, err := l.call(nvml.OpNvmlDeviceSetComputeMode, 0, req); nvml.NvmlReturn(r) != tt.want || err != nil {
			t.Errorf("allowed %v: %d, %v; want %d", tt.allowed, r, err, tt.want)
		}
	}
}
