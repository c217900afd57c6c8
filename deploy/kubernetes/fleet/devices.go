package fleet

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"scuda.dev/scuda/deploy/kubernetes/names"
	"scuda.dev/scuda/server/admin"
)

const (
	perSlice = 64 // devices with taints that a slice may have

	mib        = 1 << 20
	fullShare  = 100  // of a GPU, in hundredths
	usualShare = 10   // of a claim that does not say it
	manyPlaces = 1024 // sessions of a server without a limit
	fewPlaces  = 8    // of a claim that does not say it

	longest = 64 // of an attribute's text
)

// devices are a server's GPUs as the cluster sees them, in the server's order.
func devices(s *Server, st *admin.Status) []resourceapi.Device {
	list := make([]resourceapi.Device, 0, len(st.GPUs))
	places := int64(manyPlaces)
	if st.CUDA.Limit > 0 {
		places = int64(st.CUDA.Limit)
	}
	for i := range st.GPUs {
		g := &st.GPUs[i]
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"rdma": {BoolValue: &s.RDMA},
		}
		for name, text := range map[resourceapi.QualifiedName]string{
			"productName": g.Name, "uuid": g.UUID, "server": s.Name, "fabric": s.Fabric,
		} {
			if text != "" {
				attributes[name] = resourceapi.DeviceAttribute{StringValue: new(text[:min(len(text), longest)])}
			}
		}
		for name, text := range map[resourceapi.QualifiedName]string{
			"cudaComputeCapability": g.Capability, "cudaDriverVersion": st.CUDAVersion, "driverVersion": st.Driver,
		} {
			if v := version(text); v != "" {
				attributes[name] = resourceapi.DeviceAttribute{VersionValue: new(v)}
			}
		}
		memory := int64(g.Memory / mib * mib)
		list = append(list, resourceapi.Device{
			Name: names.Device(g.UUID), Attributes: attributes, AllowMultipleAllocations: new(true),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory":   capacity(memory, memory, mib, resource.BinarySI),
				"share":    capacity(fullShare, usualShare, 1, resource.DecimalSI),
				"sessions": capacity(places, min(fewPlaces, places), 1, resource.DecimalSI),
			},
			BindingConditions: []string{names.Ready}, BindingFailureConditions: []string{names.Refused},
		})
	}
	return list
}

// alike says whether two answers make the same devices.
func alike(a, b *admin.Status) bool {
	return slices.Equal(a.GPUs, b.GPUs) && a.Driver == b.Driver && a.CUDAVersion == b.CUDAVersion &&
		a.CUDA.Limit == b.CUDA.Limit
}

// same says whether two lists are the same memory.
func same[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// capacity is one that claims take in steps; usual is what one takes that does not say it.
func capacity(all, usual, step int64, form resource.Format) resourceapi.DeviceCapacity {
	quantity := func(n int64) *resource.Quantity { return resource.NewQuantity(n, form) }
	return resourceapi.DeviceCapacity{Value: *quantity(all), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default:    quantity(usual),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(step), Step: quantity(step)},
	}}
}

// version makes a release such as 580.95.05 one of semantic versions, 580.95.5; "" where it is none.
func version(text string) string {
	parts := strings.Split(text, ".")
	if len(parts) > 3 {
		return ""
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 32)
		if err != nil {
			return ""
		}
		parts[i] = strconv.FormatUint(n, 10)
	}
	return strings.Join(parts, ".")
}

// Graces say when a server that does not answer counts as gone.
type Graces struct {
	Down  time.Duration // after which no pod gets its GPUs any more
	Evict time.Duration // after which its pods are sent away
}

// taints are those of a server's devices. gone is when it stopped answering; zero: it answers.
func taints(draining bool, gone, now time.Time, g Graces) (list []resourceapi.DeviceTaint) {
	if draining {
		list = append(list,
			resourceapi.DeviceTaint{Key: names.TaintDraining, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if gone.IsZero() || now.Sub(gone) < g.Down {
		return list
	}
	since := metav1.NewTime(gone.Truncate(time.Second))
	t := resourceapi.DeviceTaint{Key: names.TaintDown, Effect: resourceapi.DeviceTaintEffectNoSchedule, TimeAdded: &since}
	if now.Sub(gone) >= g.Evict {
		t.Effect = resourceapi.DeviceTaintEffectNoExecute
	}
	return append(list, t)
}

// pool is what is published of a server.
func pool(s *Server, list []resourceapi.Device, with []resourceapi.DeviceTaint) resourceslice.Pool {
	var p resourceslice.Pool
	switch {
	case s.Nodes != nil:
		p.NodeSelector = s.Nodes
	case s.Fabric != "":
		p.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: names.LabelFabric, Operator: corev1.NodeSelectorOpIn, Values: []string{s.Fabric},
			}},
		}}}
	default:
		p.AllNodes = true
	}
	tainted := make([]resourceapi.Device, len(list))
	for i := range list {
		list[i].DeepCopyInto(&tainted[i])
		tainted[i].Taints = with
	}
	for len(tainted) > perSlice {
		p.Slices = append(p.Slices, resourceslice.Slice{Devices: tainted[:perSlice:perSlice]})
		tainted = tainted[perSlice:]
	}
	p.Slices = append(p.Slices, resourceslice.Slice{Devices: tainted}) // one is there also where it is empty
	return p
}
