package claims

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"

	"scuda.dev/scuda/deploy/kubernetes/names"
)

// shown is a template that the tutorial shows.
func shown(t *testing.T, name string) *resourceapi.ResourceClaimTemplate {
	t.Helper()
	text, err := os.ReadFile("../../../docs/tutorials/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for part := range strings.SplitSeq(block, "\n---\n") {
			o, _, err := decoder.Decode([]byte(part), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if x, ok := o.(*resourceapi.ResourceClaimTemplate); ok && x.Name == name {
				return x
			}
		}
	}
	t.Fatalf("the tutorial has no template %s", name)
	return nil
}

// by makes a claim of a template, with the defaults that the cluster's interface fills in.
func (c *cluster) by(template *resourceapi.ResourceClaimTemplate, name string) *resourceapi.ResourceClaim {
	c.Helper()
	spec := *template.Spec.Spec.DeepCopy()
	for i := range spec.Devices.Requests {
		for j := range spec.Devices.Requests[i].FirstAvailable {
			if r := &spec.Devices.Requests[i].FirstAvailable[j]; r.AllocationMode == "" {
				r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeExactCount, max(r.Count, 1)
			}
		}
	}
	claim, err := c.client.ResourceV1().ResourceClaims("users").Create(c.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "users"}, Spec: spec,
	}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return claim
}

// on are the requests and servers of what a claim has.
func (c *cluster) on(name string) (list []string) {
	c.Helper()
	for _, r := range ours(c.get(name)) {
		list = append(list, r.Request+" "+r.Pool)
	}
	slices.Sort(list)
	return list
}

// choice is a cluster with an H200, two servers with one small GPU each, and one with two.
func choice(t *testing.T) *cluster {
	machines := map[string]*machine{
		"big": newMachine(1, 1), "one": newMachine(2, 1), "other": newMachine(3, 1), "pair": newMachine(4, 2),
	}
	for name, m := range machines {
		for i := range m.status.GPUs {
			if name != "big" {
				m.status.GPUs[i].Name = "NVIDIA L40S"
			}
		}
	}
	return newCluster(t, machines)
}

// The tutorial's "an H200, else any two of one server": the H200 first, then the two of the server that has two, never
// one each of two servers.
func TestFirstAvailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, template := choice(t), shown(t, "two-of-one-server")
		defer c.run()()
		if !c.schedule(c.by(template, "a")) || !slices.Equal(c.on("a"), []string{"gpu/h200 big"}) {
			t.Errorf("a has %q", c.on("a"))
		}
		if !c.schedule(c.by(template, "b")) || !slices.Equal(c.on("b"), []string{"gpu/any pair", "gpu/any pair"}) {
			t.Errorf("b has %q", c.on("b"))
		}
		if c.schedule(c.by(template, "c")) {
			t.Errorf("c has %q, of two servers", c.on("c"))
		}
		c.settle()
		for _, name := range []string{"a", "b"} {
			if message, is := c.condition(name, names.Ready); !is {
				t.Errorf("%s: %q, %q", name, message, c.said())
			}
		}
		for _, r := range c.machines["pair"].has() {
			if strings.Count(r.GPUs, "GPU-") != 2 || r.Memory != 0 {
				t.Errorf("b's lease is %+v", r)
			}
		}
		if len(c.machines["pair"].has()) != 1 || len(c.machines["big"].has()) != 1 {
			t.Error("not a lease each")
		}
		c.remove("a")
		c.settle()
		if !c.schedule(c.get("c")) || !slices.Equal(c.on("c"), []string{"gpu/h200 big"}) {
			t.Errorf("c has %q", c.on("c"))
		}
	})
}

// A server that drains is none of those from which a claim may choose, and what a claim has there stays.
func TestFirstAvailableWhileDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, template := choice(t), shown(t, "two-of-one-server")
		defer c.run()()
		if !c.schedule(c.by(template, "a")) {
			t.Fatal("a waits")
		}
		c.settle()
		c.machines["pair"].set(func() { c.machines["pair"].status.Draining = true })
		c.settle()
		if got := c.taints("pair"); len(got) != 1 || !strings.HasSuffix(got[0], ":NoSchedule") {
			t.Errorf("taints: %q", got)
		}
		if c.schedule(c.by(template, "b")) {
			t.Errorf("b has %q, though that drains and the H200 is taken", c.on("b"))
		}
		c.machines["pair"].set(func() { c.machines["pair"].status.Draining = false })
		c.machines["big"].set(func() { c.machines["big"].status.Draining = true })
		c.settle()
		c.remove("a")
		c.settle()
		if !c.schedule(c.get("b")) || !slices.Equal(c.on("b"), []string{"gpu/any pair", "gpu/any pair"}) {
			t.Errorf("b has %q, where the H200's server drains", c.on("b"))
		}
	})
}

// matchAttribute alone: two GPUs of one server, or none.
func TestMatchAttribute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := choice(t)
		defer c.run()()
		server := resourceapi.FullyQualifiedName(names.Driver + "/server")
		two := &resourceapi.ResourceClaimTemplate{}
		two.Spec.Spec.Devices = resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: names.Driver, Count: 2, AllocationMode: resourceapi.DeviceAllocationModeExactCount}}},
			Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: &server}}}
		if !c.schedule(c.by(two, "a")) || !slices.Equal(c.on("a"), []string{"gpu pair", "gpu pair"}) {
			t.Errorf("a has %q", c.on("a"))
		}
		if c.schedule(c.by(two, "b")) {
			t.Errorf("b has %q", c.on("b"))
		}
		two.Spec.Spec.Devices.Constraints = nil
		if !c.schedule(c.by(two, "without")) || c.on("without")[0] == c.on("without")[1] {
			t.Errorf("without the constraint: %q", c.on("without"))
		}
	})
}
