package server

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/transport"
)

// TestProcesses: an NVML session knows the CUDA sessions of its own machine and tenant by their clients' pids, those of
// others, ended ones and the server's own processes not.
func TestProcesses(t *testing.T) {
	const none = 1 << 30 // no process of the server's machine has such a number
	s := serve(t, func(c *Config) {
		c.Warm, c.Tenants = 2, registry(t, "alice token=alice-token\nbob token=bob-token\n")
	})
	s.token = []byte("alice-token")
	client := func(kind, host string, pid int, command string) *link {
		h := hello(kind)
		h.Host, h.PID, h.Command = host, pid, command
		l, err := s.dial(h)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := client(transport.KindCUDA, "here", none+77, "/usr/bin/train")
	client(transport.KindCUDA, "here", none+78, "")
	client(transport.KindCUDA, "elsewhere", none+79, "other")
	s.token = []byte("bob-token")
	client(transport.KindCUDA, "here", none+81, "another tenant's")
	s.token = []byte("alice-token")
	l := client(transport.KindNVML, "here", none+80, "nvidia-smi")
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
	}{{none + 77, "/usr/bin/train"}, {none + 78, "test"}, {none + 79, "NVML_ERROR_NOT_FOUND"},
		{none + 80, "NVML_ERROR_NOT_FOUND"}, {none + 81, "NVML_ERROR_NOT_FOUND"},
		{uint64(os.Getpid()), "NVML_ERROR_NOT_FOUND"}} { // the last is the server's
		if got := name(tt.pid); got != tt.want {
			t.Errorf("process %d is %q, want %q", tt.pid, got, tt.want)
		}
	}
	first.conn.Close()
	s.until("the ended session is forgotten", func() bool { return name(none+77) == "NVML_ERROR_NOT_FOUND" })
}

func TestNVMLSettings(t *testing.T) {
	for _, tt := range []struct {
		allowed bool
		want    nvml.NvmlReturn
	}{{false, nvml.NVML_ERROR_NO_PERMISSION}, {true, nvml.NVML_ERROR_NOT_SUPPORTED}} {
		// the simulated GPU has no such setting
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
