package claims

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"scuda.dev/scuda/deploy/kubernetes/names"
	"scuda.dev/scuda/server/lease"
)

// one is a cluster with one server of one GPU.
func one(t *testing.T) (*cluster, *machine) {
	m := newMachine(1, 1)
	return newCluster(t, map[string]*machine{"gpu1": m}), m
}

// Two claims share a GPU by memory, a third waits until one of them is gone.
func TestClaimsShareAGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := one(t)
		defer c.run()()
		for _, name := range []string{"a", "b", "third"} {
			if got, want := c.schedule(c.claim(name, "60Gi", 1)), name != "third"; got != want {
				t.Fatalf("%s is scheduled: %v", name, got)
			}
		}
		c.settle()
		for _, name := range []string{"a", "b"} {
			message, is := c.condition(name, names.Ready)
			secret, ok := c.secrets()[string(c.get(name).UID)]
			if !is || !ok {
				t.Fatalf("%s: ready %v (%s), secret %v; %q", name, is, message, ok, c.said())
			}
			id := secret.Annotations[names.AnnotationLease]
			r := m.has()[id]
			if r.Memory != 60*gib || r.GPUs != m.status.GPUs[0].UUID || r.Tenant != "cluster" || r.Sessions != 8 ||
				r.Share != 10 || !strings.Contains(r.Label, "/users/"+name) {
				t.Errorf("%s: %+v", name, r)
			}
			if string(secret.Data[names.KeyToken]) != "secret of "+id || string(secret.Data[names.KeyServer]) != "gpu1:14833" ||
				!strings.HasPrefix(string(secret.Data[names.KeyFingerprint]), "sha256:") || !strings.Contains(message, id) {
				t.Errorf("%s: %q, %s", name, secret.Data, message)
			}
		}
		if said := c.said(); len(said) != 2 || !strings.Contains(said[0], "Normal Leased lease ") {
			t.Errorf("%q", said)
		}
		c.remove("a")
		c.settle()
		if len(m.has()) != 1 || len(c.secrets()) != 1 {
			t.Errorf("after one was deleted: %v, %d secrets", m.has(), len(c.secrets()))
		}
		if !c.schedule(c.get("third")) {
			t.Error("the third still waits")
		}
		// A claim that outlives its pods is deallocated; its lease goes with the allocation.
		b := c.get("b")
		b.Status = resourceapi.ResourceClaimStatus{}
		c.update(b)
		c.settle()
		if len(m.has()) != 1 || m.made != 3 {
			t.Errorf("after a release: %v", m.has())
		}
	})
}

// A whole GPU has no quota, also in a cluster that knows no shares.
func TestWholeGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := one(t)
		defer c.run()()
		if !c.schedule(c.claim("a", "", 1)) || c.schedule(c.claim("b", "1Gi", 1)) {
			t.Fatal("a has it not, or not alone")
		}
		c.settle()
		for _, r := range m.has() {
			if r.Memory != 0 || r.Share != 10 {
				t.Errorf("%+v", r)
			}
		}
		c.remove("a")
		c.settle()
		c.place(c.get("b"), "gpu1", 0)
		c.settle()
		if len(m.has()) != 1 {
			t.Fatal("an allocation without capacities has no lease")
		}
		for _, r := range m.has() {
			if r.Memory != 0 || r.Sessions != 0 || r.Share != 0 {
				t.Errorf("%+v", r)
			}
		}
	})
}

// What cannot be had is said once, on the claim, and nothing is left of it.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, other := newMachine(1, 1), newMachine(2, 1)
		c := newCluster(t, map[string]*machine{"gpu1": m, "gpu2": other})
		defer c.run()()
		if !c.schedule(c.claim("two", "", 2)) {
			t.Fatal("two GPUs of two servers are not found")
		}
		m.refuses = fmt.Errorf("%w: there is no tenant %q", lease.ErrTerms, "cluster")
		other.refuses = m.refuses
		c.settle()
		message, is := c.condition("two", names.Refused)
		if !is || !strings.Contains(message, "matchAttribute: gpu.scuda.dev/server") {
			t.Errorf("two servers: %v, %s", is, message)
		}
		c.remove("two")
		c.settle()
		c.said()
		if !c.schedule(c.claim("one", "", 1)) {
			t.Fatal("no GPU")
		}
		c.settle()
		c.settle()
		if message, is := c.condition("one", names.Refused); !is || !strings.Contains(message, "no tenant") {
			t.Errorf("refused by the server: %v, %s", is, message)
		}
		if said := c.said(); len(said) > 2 || len(said) == 0 {
			t.Errorf("said %d times: %q", len(said), said)
		}
		if len(c.secrets())+len(m.has())+len(other.has()) != 0 {
			t.Error("something is left")
		}
	})
}

// A server that drains gets no new claims; one that is gone loses those that it has, and has them not when it is back.
func TestTaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := one(t)
		defer c.run()()
		if !c.schedule(c.claim("a", "60Gi", 1)) || c.taints("gpu1") != nil {
			t.Fatalf("a; %q", c.taints("gpu1"))
		}
		c.settle()
		want := func(what string, keys ...string) {
			t.Helper()
			if got := c.taints("gpu1"); !slices.Equal(got, keys) {
				t.Errorf("%s: %q", what, got)
			}
		}
		m.set(func() { m.status.Draining = true })
		c.settle()
		want("drained", names.TaintDraining+":NoSchedule")
		if c.schedule(c.claim("b", "60Gi", 1)) {
			t.Error("a drained server got a claim")
		}
		m.set(func() { m.status.Draining = false; m.down = true })
		c.settle()
		c.settle()
		want("down", names.TaintDraining+":NoSchedule", names.TaintDown+":NoSchedule")
		for range 5 {
			c.settle()
		}
		want("gone", names.TaintDraining+":NoSchedule", names.TaintDown+":NoExecute")
		c.remove("a") // as the eviction does
		c.client.ClearActions()
		c.settle()
		c.allowed()
		if len(c.secrets()) != 0 || len(m.has()) != 1 {
			t.Errorf("%d secrets, %v", len(c.secrets()), m.has())
		}
		m.set(func() { m.down = false })
		for range 6 {
			c.settle()
		}
		want("back")
		if len(m.has()) != 0 {
			t.Errorf("the lease of a claim that is gone: %v", m.has())
		}
		if !c.schedule(c.get("b")) {
			t.Error("b waits for nothing")
		}
		c.settle()
	})
}

// A controller that ends between making a lease and writing it down leaves one that nobody knows.
func TestRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := one(t)
		stop := c.run()
		crashed := true
		c.client.PrependReactor("create", "secrets", func(kubetesting.Action) (bool, runtime.Object, error) {
			if crashed {
				return true, nil, errors.New("the controller is no more")
			}
			return false, nil, nil
		})
		if !c.schedule(c.claim("a", "60Gi", 1)) {
			t.Fatal("a waits")
		}
		c.settle()
		stop()
		if len(m.has()) != 1 || len(c.secrets()) != 0 {
			t.Fatalf("before: %v", m.has())
		}
		crashed = false
		c.client.ClearActions()
		stop = c.run()
		c.allowed() // what it asks at its start, and to make a lease
		secret := c.secrets()[string(c.get("a").UID)]
		if _, ok := m.has()[secret.Annotations[names.AnnotationLease]]; !ok || len(m.has()) != 1 {
			t.Errorf("after: %v, %v", m.has(), secret.Annotations)
		}
		made := m.made
		stop()

		// Claims that went while no controller ran lose their lease when one does; the others keep theirs.
		c.remove("a")
		if !c.schedule(c.claim("b", "60Gi", 1)) {
			t.Fatal("b waits")
		}
		stop = c.run()
		c.settle()
		if len(m.has()) != 1 || len(c.secrets()) != 1 || m.made != made+1 {
			t.Errorf("later: %v, %d secrets", m.has(), len(c.secrets()))
		}
		stop()
		stop = c.run()
		c.settle()
		if m.made != made+1 {
			t.Error("a restart made a lease anew")
		}
		stop()

		// A server that is down while the controller starts keeps its devices.
		m.set(func() { m.down = true })
		stop = c.run()
		for range 6 {
			c.settle()
		}
		if got := c.taints("gpu1"); !slices.Equal(got, []string{names.TaintDown + ":NoExecute"}) {
			t.Errorf("a server that is down: %q", got)
		}
		stop()

		// The next controller does not take back what is known of it before the server has answered.
		stop = c.run()
		if got := c.taints("gpu1"); !slices.Equal(got, []string{names.TaintDown + ":NoExecute"}) {
			t.Errorf("a server that is down, after a restart: %q", got)
		}
		stop()
	})
}

// A server that lost its leases gets them anew, and the secret has the new credential.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := one(t)
		defer c.run()()
		if !c.schedule(c.claim("a", "60Gi", 1)) {
			t.Fatal("a waits")
		}
		c.settle()
		m.set(func() { clear(m.leases) })
		c.client.ClearActions()
		c.settle()
		c.allowed()
		secret := c.secrets()[string(c.get("a").UID)]
		if _, ok := m.has()[secret.Annotations[names.AnnotationLease]]; !ok || len(m.has()) != 1 {
			t.Errorf("%v, %v", m.has(), secret.Annotations)
		}
		if said := strings.Join(c.said(), "\n"); !strings.Contains(said, "Warning "+LeaseLost) {
			t.Error(said)
		}
		// Leases of others are none of the controller's business.
		m.set(func() {
			r := m.leases[secret.Annotations[names.AnnotationLease]]
			r.Label = strings.Replace(r.Label, "/test/", "/other/", 1)
			m.leases["of another cluster"] = r
			r.Label = "exercise 1"
			m.leases["of a person"] = r
		})
		c.remove("a")
		c.settle()
		if len(m.has()) != 2 {
			t.Errorf("%v", m.has())
		}
	})
}

// Five hundred claims come and go, and nothing is left.
func TestManyClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := map[string]*machine{}
		for i := range 5 {
			all[fmt.Sprintf("gpu%d", i)] = newMachine(i, 4)
		}
		c := newCluster(t, all)
		stop := c.run()
		const batch = 20
		for round := range 25 {
			for i := range batch {
				c.place(c.claim(fmt.Sprintf("c%d-%d", round, i), "60Gi", 1), fmt.Sprintf("gpu%d", i%5), i/5)
			}
			c.settle()
			if n := len(c.secrets()); n != batch {
				t.Fatalf("round %d: %d secrets", round, n)
			}
			if round == 12 { // in the middle of it all
				stop()
				stop = c.run()
			}
			for i := range batch {
				c.remove(fmt.Sprintf("c%d-%d", round, i))
			}
			c.settle()
		}
		made, left := 0, 0
		for _, m := range all {
			made, left = made+m.made, left+len(m.has())
		}
		if made != 500 || left != 0 || len(c.secrets()) != 0 {
			t.Errorf("%d leases were made, %d are left, and %d secrets", made, left, len(c.secrets()))
		}
		stop()
	})
}
