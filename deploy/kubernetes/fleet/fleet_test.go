package fleet

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"scuda.dev/scuda/deploy/kubernetes/names"
	"scuda.dev/scuda/server/admin"
)

func TestParseConfig(t *testing.T) {
	const good = "servers:\n- name: gpu1.example.org\n  address: gpu1.example.org:14833\n" +
		"  admin: unix:/run/scuda/admin.sock\n"
	c, err := ParseConfig([]byte(good + "  fabric: rack1\n  rdma: true\n  tenant: cluster\n"))
	if err != nil || len(c.Servers) != 1 || c.Servers[0].Fabric != "rack1" || !c.Servers[0].RDMA {
		t.Fatalf("%+v, %v", c, err)
	}
	const overTLS, print = "servers:\n- name: gpu2\n  address: gpu2:14833\n", "  fingerprint: sha256:" +
		"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"
	if _, err := ParseConfig([]byte(overTLS + "  adminToken: /t\n  admin: gpu2:14834\n" + print)); err != nil {
		t.Error(err)
	}
	for what, text := range map[string]string{
		"an unknown word": good + "  tenants: x\n", "a name twice": good + good[len("servers:\n"):],
		"any address":      strings.Replace(good, "address: gpu1.example.org:", "address: 0.0.0.0:", 1),
		"no port":          strings.Replace(good, ":14833", "", 1),
		"no admin":         strings.Replace(good, "unix:/run", "http://run", 1),
		"a folder":         strings.Replace(good, "unix:/run", "unix:run", 1),
		"a socket's token": good + "  adminToken: /t\n",
		"no token":         overTLS + print,
		"no trust":         overTLS + "  adminToken: /t\n",
		"no authority":     overTLS + "  adminToken: /t\n  ca: nonsense\n",
		"no port of it":    overTLS + "  adminToken: /t\n  admin: gpu2\n" + print,
		"a bad name":       strings.Replace(good, "name: gpu1", "name: GPU_1", 1),
		"a print":          good + "  fingerprint: sha256:xyz\n",
		"two of nodes":     good + "  fabric: a\n  nodes: {nodeSelectorTerms: []}\n",
	} {
		if _, err := ParseConfig([]byte(text)); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte("servers:\n- name: a\n  address: a:1\n  admin: unix:/x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := ParseConfig(text); err == nil {
			for _, s := range c.Servers {
				if s.Name == "" || s.Address == "" {
					t.Errorf("%+v", s)
				}
			}
		}
	})
}

func TestLabels(t *testing.T) {
	uid := types.UID("8d3f5b6e-1111-4000-8000-000000000001")
	label := Label("9c1f5b6e-2222-4000-8000-000000000001", uid, "users", strings.Repeat("x", 60))
	if got, ours := claimOf("9c1f5b6e-2222-4000-8000-000000000001", label); !ours || got != uid || len(label) > mostLabel {
		t.Errorf("%q: %q, %v", label, got, ours)
	}
	for _, other := range []string{"", "job 4711", "k8s/other/" + string(uid) + "/a/b", "k8s/x", "k8s/9c1f5b6e//a"} {
		if got, ours := claimOf("9c1f5b6e", other); ours {
			t.Errorf("%q is of %q", other, got)
		}
	}
}

func TestVersions(t *testing.T) {
	for text, want := range map[string]string{"580.95.05": "580.95.5", "13.0": "13.0.0", "9.0": "9.0.0", "simulated": "",
		"": "", "1.2.3.4": "", "unknown": ""} {
		if got := version(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestTaintsOfTime(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	g := Graces{Down: 15 * time.Second, Evict: time.Minute}
	for _, c := range []struct {
		draining bool
		gone     time.Duration // 0: it answers
		want     string
	}{
		{false, 0, ""}, {true, 0, "scuda.dev/draining:NoSchedule"}, {false, 14 * time.Second, ""},
		{false, 15 * time.Second, "scuda.dev/server-down:NoSchedule"},
		{false, time.Minute, "scuda.dev/server-down:NoExecute"},
		{true, time.Hour, "scuda.dev/draining:NoSchedule scuda.dev/server-down:NoExecute"},
	} {
		var at time.Time
		if c.gone > 0 {
			at = now.Add(-c.gone)
		}
		var got []string
		for _, taint := range taints(c.draining, at, now, g) {
			got = append(got, taint.Key+":"+string(taint.Effect))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// What is published keeps to the cluster's bounds: 64 devices with taints a slice, 32 attributes and capacities.
func TestPools(t *testing.T) {
	s := &Server{Name: "gpu1", Fabric: "rack1", RDMA: true}
	st := &admin.Status{Driver: "580.95.05", CUDAVersion: "13.0", CUDA: admin.Places{Limit: 4}}
	for i := range 70 {
		st.GPUs = append(st.GPUs, admin.GPU{Name: strings.Repeat("long ", 20), UUID: "GPU-" + strings.Repeat("a", i+1),
			Memory: 3<<20 + 5, Capability: "9.0"})
	}
	list := devices(s, st)
	d := list[0]
	if len(d.Attributes)+len(d.Capacity) > 32 || len(*d.Attributes["productName"].StringValue) > 64 ||
		*d.Attributes["driverVersion"].VersionValue != "580.95.5" || !*d.Attributes["rdma"].BoolValue {
		t.Errorf("%+v", d.Attributes)
	}
	memory, sessions := d.Capacity["memory"], d.Capacity["sessions"]
	if memory.Value.Value() != 3<<20 || memory.RequestPolicy.Default.Value() != 3<<20 || sessions.Value.Value() != 4 ||
		sessions.RequestPolicy.Default.Value() != 4 {
		t.Errorf("%+v, %+v", memory, sessions)
	}
	with := []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	p := pool(s, list, with)
	if len(p.Slices) != 2 || len(p.Slices[0].Devices) != 64 || len(p.Slices[1].Devices) != 6 || p.AllNodes ||
		p.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "rack1" || len(list[0].Taints) != 0 {
		t.Errorf("%d slices", len(p.Slices))
	}
	if p := pool(&Server{}, nil, nil); !p.AllNodes || len(p.Slices) != 1 {
		t.Errorf("%+v", p)
	}
	for _, of := range []string{"GPU-0a1b", "MIG-0a1b"} {
		if uuid, ok := names.UUID(names.Device(of)); !ok || uuid != of {
			t.Error(uuid)
		}
	}
}

func TestSeed(t *testing.T) {
	slice := func(driver, pool string, generation int64, device string) (s resourceapi.ResourceSlice) {
		s.Spec = resourceapi.ResourceSliceSpec{Driver: driver,
			Pool:    resourceapi.ResourcePool{Name: pool, Generation: generation},
			Devices: []resourceapi.Device{{Name: device}}}
		return s
	}
	seed := Seed([]resourceapi.ResourceSlice{slice(names.Driver, "a", 2, "new"), slice(names.Driver, "a", 1, "old"),
		slice(names.Driver, "a", 2, "new2"), slice("other", "a", 3, "x"), slice(names.Driver, "b", 1, "b")})
	var got []string
	for _, d := range seed["a"] {
		got = append(got, d.Name)
	}
	if len(seed) != 2 || !slices.Equal(got, []string{"new", "new2"}) {
		t.Errorf("%v", seed)
	}
}
