package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
)

// Each tenant has its own limits, which its sessions' workers and its clients see.
func TestLimitsOfTenants(t *testing.T) {
	tenants := registry(t, "small token=token-of-small max-vram=8MiB max-sessions-per-tenant=1\n"+
		"large token=token-of-large\n")
	s := serve(t, func(c *Config) {
		c.Tenants, c.Metrics, c.Limits = tenants, "127.0.0.1:0", &config.Limits{VRAM: 32 * config.MiB}
	})
	s.token = []byte("token-of-small")
	small := s.open(transport.KindCUDA)
	if _, err := s.dial(hello(transport.KindCUDA)); !errors.Is(err, transport.ErrBusy) ||
		!strings.Contains(err.Error(), "tenant small has 1 CUDA sessions") {
		t.Errorf("a second session: %v", err)
	}
	s.token = []byte("token-of-large")
	large := []*link{s.open(transport.KindCUDA), s.open(transport.KindCUDA)}
	for _, c := range []struct {
		l       *link
		has     uint64
		refused int
	}{{small, 8 << 20, 1}, {large[0], 32 << 20, 2}, {large[1], 32 << 20, 3}} {
		if got := c.l.welcome.Devices[0].TotalMem; got != c.has {
			t.Errorf("the client is told of %d bytes", got)
		}
		c.l.use(c.has * 3 / 4)
		ask := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), c.has/2)
		r, _, err := c.l.call(cuda.OpCuMemAlloc_v2, 1<<36, ask)
		if r != int32(cuda.CUDA_ERROR_OUT_OF_MEMORY) || err != nil {
			t.Errorf("half of it more: %d, %v", r, err)
		}
		s.shows(`scuda_memory_refused_total{limit="max-vram"} ` + string(rune('0'+c.refused)))
	}
}

// The sessions of a tenant have one limit together. What one gives back, or leaves when it ends, another gets.
func TestMemoryOfATenant(t *testing.T) {
	s := serve(t, func(c *Config) {
		c.Tenants = registry(t, "alice token=alice-token max-vram-per-tenant=8MiB\nbob token=bob-token max-vram=32MiB\n")
		c.Metrics = "127.0.0.1:0"
	})
	alloc := func(l *link, mib uint64) int32 {
		t.Helper()
		ask := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), mib<<20)
		r, _, err := l.call(cuda.OpCuMemAlloc_v2, 1<<36, ask)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	info := func(l *link, free uint64) {
		t.Helper()
		ask := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), 1)
		r, b, err := l.call(cuda.OpCuMemGetInfo_v2, 1<<36, ask)
		if r != 0 || err != nil || len(b) < 32 {
			t.Fatalf("%d, %d bytes, %v", r, len(b), err)
		}
		got, total := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[24:])
		if got != free<<20 || total != 8<<20 || l.welcome.Devices[0].TotalMem != 8<<20 {
			t.Errorf("%d of %d are free; the client is told of %d", got, total, l.welcome.Devices[0].TotalMem)
		}
	}
	one, two := s.as("alice"), s.as("alice") // 1 MiB each
	bob := s.as("bob")
	if r := alloc(one, 5); r != 0 {
		t.Fatalf("5 MiB of 6: %d", r)
	}
	info(two, 1)
	seen := func(name string, limit, used uint64) {
		t.Helper()
		s.token = []byte(name + "-token")
		l := s.open(transport.KindNVML)
		defer l.conn.Close()
		if r, _, err := l.call(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8)); r != 0 || err != nil {
			t.Fatal(r, err)
		}
		ask := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), 1)
		r, b, err := l.call(nvml.OpNvmlDeviceGetMemoryInfo, 0, ask)
		if r != 0 || err != nil || len(b) < 32 {
			t.Fatalf("%d, %d bytes, %v", r, len(b), err)
		}
		figure := func(at int) uint64 { return binary.LittleEndian.Uint64(b[8+at:]) }
		total, free, has := figure(0), figure(8), figure(16)
		if total != limit<<20 || has != used<<20 || free != (limit-used)<<20 {
			t.Errorf("NVML tells %s of %d, %d free, %d used; %d MiB is the limit, %d are used", name, total, free, has,
				limit, used)
		}
	}
	s.token = []byte("alice-token")
	if m := s.open(transport.KindInfo).welcome.Devices[0].TotalMem; m != 8<<20 {
		t.Errorf("scuda info is told of %d bytes", m)
	}
	seen("alice", 8, 7)
	seen("bob", 32, 1)
	s.token = []byte("alice-token")
	if r := alloc(two, 2); r != int32(cuda.CUDA_ERROR_OUT_OF_MEMORY) {
		t.Errorf("2 MiB of 1: %d", r)
	}
	s.shows(`scuda_memory_refused_total{limit="max-vram-per-tenant"} 1`)
	s.shows(fmt.Sprintf(`scuda_tenant_gpu_memory_bytes{tenant="alice"} %g`, float64(7<<20)))
	if r := alloc(bob, 20); r != 0 {
		t.Errorf("another tenant is refused: %d", r)
	}
	one.leave()
	s.shows(fmt.Sprintf(`scuda_tenant_gpu_memory_bytes{tenant="alice"} %g`, float64(1<<20)))
	info(two, 7)
	if r := alloc(two, 7); r != 0 {
		t.Errorf("what an ended session had is not given: %d", r)
	}
	if err := syscall.Kill(s.workerOf(two), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.logged("worker crashed")
	info(s.as("alice"), 7)
}

// A session that makes no call ends, its client is told why, and it counts as such.
func TestIdleSession(t *testing.T) {
	s := serve(t, func(c *Config) {
		c.Metrics, c.Limits = "127.0.0.1:0", &config.Limits{Idle: 200 * time.Millisecond}
	})
	l := s.open(transport.KindCUDA)
	h, text, err := l.message()
	if err != nil || h.Type != transport.MsgNotice || !strings.Contains(string(text), "idle-timeout") {
		t.Errorf("%v %q, %v", h.Type, text, err)
	}
	s.shows(`scuda_sessions_ended_total{how="limited",kind="cuda"} 1`)
	s.logged("made no call for 200ms")
}
