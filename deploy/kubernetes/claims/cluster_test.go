package claims

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"scuda.dev/scuda/deploy/kubernetes/fleet"
	"scuda.dev/scuda/deploy/kubernetes/manifests"
	"scuda.dev/scuda/deploy/kubernetes/names"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
)

const (
	own  = "scuda-system" // the driver's namespace
	poll = 2 * time.Second
	gib  = 1 << 30
)

// machine is a server with GPUs, as its admin interface shows it.
type machine struct {
	mu       sync.Mutex // guards what follows
	status   admin.Status
	leases   map[string]admin.LeaseRequest
	made     int
	down     bool
	refuses  error
	onLeases func() // called before a lease is made
}

var errDown = errors.New("connection refused")

func newMachine(n, gpus int) *machine {
	m := &machine{leases: map[string]admin.LeaseRequest{}}
	m.status = admin.Status{Driver: "580.95.05", CUDAVersion: "13.0", Fingerprint: "sha256:" + strings.Repeat("a", 64)}
	for i := range gpus {
		m.status.GPUs = append(m.status.GPUs, admin.GPU{Name: "NVIDIA H200", Memory: 140 * gib, Capability: "9.0",
			UUID: fmt.Sprintf("GPU-00000000-0000-0000-%04x-%012x", n, i)})
	}
	return m
}

func (m *machine) Status(context.Context) (*admin.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, errDown
	}
	st := m.status
	return &st, nil
}

func (m *machine) Leases(context.Context) (list []admin.Lease, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, errDown
	}
	for id, r := range m.leases {
		list = append(list, admin.Lease{Lease: lease.Lease{ID: id, Label: r.Label}})
	}
	return list, nil
}

func (m *machine) Grant(_ context.Context, r *admin.LeaseRequest) (*admin.Granted, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, errDown
	}
	if m.refuses != nil {
		return nil, m.refuses
	}
	if m.onLeases != nil {
		m.onLeases()
	}
	m.made++
	id := fmt.Sprintf("%016x", m.made)
	m.leases[id] = *r
	return &admin.Granted{Lease: admin.Lease{Lease: lease.Lease{ID: id, Label: r.Label}},
		Credential: "secret of " + id}, nil
}

func (m *machine) Revoke(_ context.Context, id, _ string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return errDown
	}
	if _, ok := m.leases[id]; !ok {
		return lease.ErrNone
	}
	delete(m.leases, id)
	return nil
}

func (m *machine) set(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
}

func (m *machine) has() map[string]admin.LeaseRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.leases)
}

// cluster is one with a fake interface, servers, and a scheduler that is Kubernetes' own.
type cluster struct {
	*testing.T
	client   *fake.Clientset
	machines map[string]*machine
	events   *record.FakeRecorder
	cel      *cel.Cache
	named    int
	locks    sync.Mutex // held while the lock of leaders changes
}

func newCluster(t *testing.T, machines map[string]*machine) *cluster {
	c := &cluster{T: t, client: fake.NewClientset(&resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: names.Driver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.scuda.dev"`}}}},
	}), machines: machines, events: record.NewFakeRecorder(10000)}
	c.cel = cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
	var mu sync.Mutex
	c.client.PrependReactor("create", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
		o, err := objectMeta(a.(kubetesting.CreateAction).GetObject())
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			c.named++
			if o.GetName() == "" {
				o.SetName(fmt.Sprintf("%s%05d", o.GetGenerateName(), c.named))
			}
			if o.GetUID() == "" {
				o.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", c.named)))
			}
		}
		return false, nil, nil
	})
	return c
}

func objectMeta(o runtime.Object) (metav1.Object, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, errors.New("no object")
	}
	return m, nil
}

// run starts a controller with all that belongs to it. The function ends it.
func (c *cluster) run() (stop func()) {
	c.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		if err := c.control(ctx, c.client); err != nil {
			c.Error(err)
		}
	})
	c.settle()
	return func() {
		cancel()
		all.Wait()
	}
}

// control is a controller with all that belongs to it, which asks the cluster by such a client.
func (c *cluster) control(ctx context.Context, client kubernetes.Interface) error {
	config := &fleet.Config{}
	for _, name := range slices.Sorted(maps.Keys(c.machines)) {
		config.Servers = append(config.Servers, fleet.Server{Name: name, Address: name + ":14833", Tenant: "cluster"})
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	seed, err := fleet.ReadSeed(ctx, client)
	if err != nil {
		return err
	}
	var it *Controller
	f := fleet.New(fleet.Options{Cluster: "test", Every: poll, Log: log,
		Graces:  fleet.Graces{Down: 5 * time.Second, Evict: 30 * time.Second},
		Dial:    func(s *fleet.Server) fleet.Admin { return c.machines[s.Name] },
		Changed: func(server string) { it.Look(server) }})
	it, err = New(Options{Client: client, Fleet: f, Namespace: own, Cluster: "test", Lasts: time.Hour, Events: c.events,
		Log: log})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	f.Apply(ctx, config, seed)
	var work sync.WaitGroup
	work.Go(func() { it.Run(ctx) })
	err = f.Publish(ctx, client, log, time.Second)
	stop()
	work.Wait()
	f.Wait()
	return err
}

// allowed says whether the role of the manifests allows all that was asked of the cluster.
func (c *cluster) allowed() {
	c.Helper()
	cluster, mine, err := manifests.Rules("scuda-dra-controller")
	if err != nil {
		c.Fatal(err)
	}
	for _, a := range c.client.Actions() {
		resource, rules := a.GetResource().Resource, cluster
		if sub := a.GetSubresource(); sub != "" {
			resource += "/" + sub
		}
		if a.GetNamespace() == own {
			rules = append(slices.Clone(cluster), mine...)
		}
		if !manifests.Allow(rules, a.GetVerb(), a.GetResource().Group, resource, "") {
			c.Errorf("the role does not allow %s of %s in %q", a.GetVerb(), resource, a.GetNamespace())
		}
	}
}

// settle lets the cluster come to rest, for as long as a few questions to each server take.
func (c *cluster) settle() {
	time.Sleep(3 * poll)
	synctest.Wait()
}

// claim makes a claim of so much memory; "": of a whole GPU.
func (c *cluster) claim(name, memory string, count int64) *resourceapi.ResourceClaim {
	c.Helper()
	request := resourceapi.ExactDeviceRequest{DeviceClassName: names.Driver, Count: count,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	if memory != "" {
		request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory)}}
	}
	claim, err := c.client.ResourceV1().ResourceClaims("users").Create(c.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "users"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "gpu", Exactly: &request}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return claim
}

// schedule lets the scheduler's allocator find devices for a claim; false: it has to wait.
func (c *cluster) schedule(claim *resourceapi.ResourceClaim) bool {
	c.Helper()
	ctx := c.Context()
	slicesNow, err := c.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	var list []*resourceapi.ResourceSlice
	for i := range slicesNow.Items {
		list = append(list, &slicesNow.Items[i])
	}
	claims, err := c.client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	state := structured.AllocatedState{AggregatedCapacity: structured.NewConsumedCapacityCollection()}
	for _, other := range claims.Items {
		for _, r := range ours(&other) {
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(
				structured.MakeDeviceID(r.Driver, r.Pool, r.Device), r.ConsumedCapacity))
		}
	}
	a, err := structured.NewAllocator(ctx, structured.Features{ConsumableCapacity: true, DeviceTaints: true,
		DeviceBindingAndStatus: true, PrioritizedList: true}, state, classes{c}, list, c.cel)
	if err != nil {
		c.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	results, err := a.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		c.Fatal(err)
	}
	if len(results) == 0 {
		return false
	}
	claim = c.get(claim.Name)
	claim.Status.Allocation = &results[0]
	c.update(claim)
	return true
}

// place gives a claim a server's GPU, as a cluster without consumable capacity does.
func (c *cluster) place(claim *resourceapi.ResourceClaim, server string, gpu int) {
	c.Helper()
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: names.Driver, Pool: server,
			Device: names.Device(c.machines[server].status.GPUs[gpu].UUID)}}}}
	c.update(claim)
}

type classes struct{ *cluster }

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return nil, errors.ErrUnsupported }
func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	return c.client.ResourceV1().DeviceClasses().Get(c.Context(), name, metav1.GetOptions{})
}

func (c *cluster) get(name string) *resourceapi.ResourceClaim {
	c.Helper()
	claim, err := c.client.ResourceV1().ResourceClaims("users").Get(c.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return claim
}

func (c *cluster) update(claim *resourceapi.ResourceClaim) {
	c.Helper()
	_, err := c.client.ResourceV1().ResourceClaims("users").UpdateStatus(c.Context(), claim, metav1.UpdateOptions{})
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) remove(name string) {
	c.Helper()
	if err := c.client.ResourceV1().ResourceClaims("users").Delete(c.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
}

// condition is what the driver says of a claim.
func (c *cluster) condition(name, kind string) (message string, is bool) {
	c.Helper()
	for _, d := range c.get(name).Status.Devices {
		for _, k := range d.Conditions {
			if k.Type == kind && k.Status == metav1.ConditionTrue {
				return k.Message, true
			}
		}
	}
	return "", false
}

// secrets are those of the driver, by the claim's UID.
func (c *cluster) secrets() map[string]corev1.Secret {
	c.Helper()
	list, err := c.client.CoreV1().Secrets(own).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	all := map[string]corev1.Secret{}
	for _, s := range list.Items {
		all[s.Labels[names.LabelClaim]] = s
	}
	return all
}

// taints are those of a server's first GPU.
func (c *cluster) taints(server string) (list []string) {
	c.Helper()
	all, err := c.client.ResourceV1().ResourceSlices().List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	for _, s := range all.Items {
		if s.Spec.Pool.Name == server && len(s.Spec.Devices) > 0 {
			for _, t := range s.Spec.Devices[0].Taints {
				list = append(list, t.Key+":"+string(t.Effect))
			}
		}
	}
	return list
}

// said gives the events since the last time.
func (c *cluster) said() (list []string) {
	for {
		select {
		case e := <-c.events.Events:
			list = append(list, e)
		default:
			return list
		}
	}
}
