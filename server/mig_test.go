package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/sim"
	"scuda.dev/scuda/transport"
)

// Instances of MIG are devices: a server lists all of them, each session has one, a lease that names one gives that,
// and sessions without spread over them. NVML shows the GPU.
func TestInstances(t *testing.T) {
	s, c := administered(t, func(c *Config) { c.Sim = "2,mig=3,memory=96MiB" })
	all := uuids(s.open(transport.KindInfo))
	if len(all) != 6 || slices.ContainsFunc(all, func(u string) bool { return !strings.HasPrefix(u, "MIG-") }) {
		t.Fatalf("the server has %v", all)
	}
	st, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range st.GPUs {
		if g.UUID != all[i] || g.Memory != 32<<20 || !strings.Contains(g.Name, " MIG 2g.") {
			t.Errorf("instance %d is %+v", i, g)
		}
	}
	named := granted(t, c, admin.LeaseRequest{GPUs: all[4][:12], Seconds: 3600})
	if !slices.Equal(named.GPUs, all[4:5]) {
		t.Fatalf("the lease has %v, not %s", named.GPUs, all[4])
	}
	s.token = []byte(named.Credential)
	mine := s.open(transport.KindCUDA)
	mine.use(1 << 20)
	if got := uuids(mine); !slices.Equal(got, all[4:5]) {
		t.Errorf("a session of the lease sees %v", got)
	}
	worker := list(t, c, 1)[0]
	if env := environOf(t, worker.Worker); len(worker.GPUs) != 1 || worker.GPUs[0].UUID != all[4] ||
		worker.GPUs[0].Index != 4 || worker.GPUs[0].Memory == 0 {
		t.Errorf("scuda ps shows %+v; its worker was started with %v", worker.GPUs, env)
	}
	l := s.open(transport.KindNVML)
	if r, _, err := l.call(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8)); r != 0 || err != nil {
		t.Fatal(r, err)
	}
	r, b, err := l.call(nvml.OpNvmlDeviceGetCount_v2, 0, binary.LittleEndian.AppendUint64(nil, 1))
	if r != 0 || err != nil || len(b) < 12 || binary.LittleEndian.Uint32(b[8:]) != 1 {
		t.Errorf("NVML of a session: %d, %v, %v", r, b, err)
	}
	two := granted(t, c, admin.LeaseRequest{GPUs: all[0] + "," + all[5], Seconds: 3600})
	s.token = []byte(two.Credential)
	var got []string
	for range 2 {
		x := s.open(transport.KindCUDA)
		x.use(1 << 20)
		got = append(got, uuids(x)...)
	}
	if slices.Sort(got); len(got) != 2 || !slices.Contains(got, all[0]) || !slices.Contains(got, all[5]) {
		t.Errorf("two sessions of a lease of two instances see %v", got)
	}
	s.token = nil
	seen := map[string]bool{}
	for range 3 { // the other instances
		seen[uuids(s.open(transport.KindCUDA))[0]] = true
	}
	if len(seen) != 3 || seen[all[0]] || seen[all[4]] || seen[all[5]] {
		t.Errorf("sessions without a lease are on %v, of %v", seen, all)
	}
}

// The server's environment says which instances it has, as it does to programs.
func TestInstancesOfEnvironment(t *testing.T) {
	uuid := func(n byte) string { return "MIG-" + strings.TrimPrefix(lease.UUID([16]byte{n}), "GPU-") }
	for visible, want := range map[string]string{
		"":                                     "0 <nil>",
		"0,1":                                  "0 <nil>",
		uuid(1):                                "1 <nil>",
		uuid(1) + ", " + uuid(2):               "2 <nil>",
		uuid(1) + "," + lease.UUID([16]byte{}): "names GPUs and instances",
		"MIG-12":                               "is no GPU's UUID",
		uuid(1) + "," + uuid(1):                "stands there twice",
	} {
		t.Setenv(sim.VisibleDevices, visible)
		i, err := openInstances(&Config{GPU: "real"})
		n := 0
		if i != nil {
			n = len(i.list)
		}
		if got := fmt.Sprint(n, " ", err); !strings.Contains(got, want) || err != nil && !errors.Is(err, ErrMIG) {
			t.Errorf("%q: %s, not %s", visible, got, want)
		}
	}
}
