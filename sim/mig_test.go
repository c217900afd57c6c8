package sim

import (
	"log/slog"
	"strings"
	"testing"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

// A process sees one instance of MIG: the first that is named, else the first of all. It has a part of the GPU, whose
// UUID the older call answers.
func TestMIG(t *testing.T) {
	cfg := Config{Devices: 2, MIG: 3, MemoryBytes: 96 << 20, Log: slog.New(slog.DiscardHandler)}
	list, err := cfg.Instances()
	if err != nil || len(list) != 6 || !strings.HasPrefix(list[0], "MIG-") {
		t.Fatalf("%v, %v", list, err)
	}
	for visible, want := range map[string]int{
		"": 0, "0": 0, list[4]: 4, list[2][:14]: 2, list[5] + "," + list[0]: 5, "MIG-": -1, "9": -1, "GPU" + list[1][3:]: -1,
	} {
		cfg.Visible = visible
		g, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r := g.CuInit(0); want < 0 {
			if r != cuda.CUDA_ERROR_NO_DEVICE {
				t.Errorf("%q: cuInit gives %d", visible, r)
			}
			_ = g.Close()
			continue
		}
		var count int32
		var u, v1 cuda.CUuuid
		var memory uint64
		name := make([]byte, 80)
		g.CuDeviceGetCount(&count)
		g.CuDeviceGetUuid_v2(&u, 0)
		g.CuDeviceGetUuid(&v1, 0)
		g.CuDeviceTotalMem_v2(&memory, 0)
		g.CuDeviceGetName(unsafe.Pointer(&name[0]), 80, 0)
		d := g.devices[0]
		if count != 1 || d.number != want || g.cfg.uuidText(want) != list[want] || u.Bytes != d.uuid ||
			v1.Bytes != deviceUUID(g.cfg.Name, want/3) || memory != 32<<20 ||
			!strings.Contains(string(name), " MIG 2g.1gb\x00") || g.sms() != 44 {
			t.Errorf("%q: %d devices, number %d, %x of %x, %d bytes, %s", visible, count, d.number, u, v1, memory, name)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	cfg.MIG = 0
	if list, err := cfg.Instances(); err != nil || len(list) > 0 {
		t.Errorf("a GPU that is whole has the instances %v, %v", list, err)
	}
}
