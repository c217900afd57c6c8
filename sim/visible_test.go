package sim

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api/cuda"
)

// A process sees the GPUs of CUDA_VISIBLE_DEVICES, in that order; they stay what they are on the machine.
func TestVisibleDevices(t *testing.T) {
	name := presets[""].name
	uuid := func(n int) string {
		u := deviceUUID(name, n)
		return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	}
	for value, want := range map[string][]int{
		"": {0, 1, 2}, "2": {2}, "2,0": {2, 0}, "1 , 2": {1, 2}, "1,7,2": {1}, "7": nil, "1,1": nil, "-1": nil, "x": nil,
		uuid(1): {1}, uuid(2) + ",0": {2, 0}, strings.ToUpper(uuid(2)): {2}, uuid(1)[:12]: {1}, "GPU-": nil,
	} {
		cfg, err := FromEnvironment(Config{Devices: 3, MemoryBytes: 64 << 20, Log: slog.New(slog.DiscardHandler)},
			func(variable string) string {
				if variable == VisibleDevices {
					return value
				}
				return ""
			})
		if err != nil {
			t.Fatal(err)
		}
		g, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		r := g.CuInit(0)
		var count int32
		if r == cuda.CUDA_SUCCESS {
			r = g.CuDeviceGetCount(&count)
		}
		for i := range count {
			var u cuda.CUuuid
			if r = g.CuDeviceGetUuid_v2(&u, cuda.CUdevice(i)); r != cuda.CUDA_SUCCESS {
				break
			}
			got = append(got, slices.IndexFunc([]int{0, 1, 2}, func(n int) bool {
				return deviceUUID(name, n) == u.Bytes
			}))
		}
		if !slices.Equal(got, want) || (r == cuda.CUDA_ERROR_NO_DEVICE) != (want == nil) {
			t.Errorf("%q: %v, %d", value, got, r)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}
