// Package names has the words by which the parts of the Kubernetes driver know each other's objects: the driver, the
// conditions and taints, and what stands in the secret of a claim.
package names

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// What the cluster sees.
const (
	Driver  = "gpu.scuda.dev"           // of ResourceSlices, claims and the kubelet's plugin
	Ready   = "scuda.dev/lease-ready"   // the condition for which a pod waits
	Refused = "scuda.dev/lease-refused" // the condition that sends it elsewhere

	TaintDown     = "scuda.dev/server-down"
	TaintDraining = "scuda.dev/draining"

	LabelFabric = "scuda.dev/fabric" // of nodes: the network in which servers of this fabric are reached
	LabelClaim  = "scuda.dev/claim"  // of secrets: the UID of the claim

	CDIKind = "scuda.dev/gpu"
)

// The keys and annotations of a claim's secret.
const (
	KeyServer      = "server"      // HOST:PORT
	KeyToken       = "token"       // the lease's credential
	KeyFingerprint = "fingerprint" // of the server's certificate; may be missing
	KeyCA          = "ca.crt"      // likewise

	AnnotationLease  = "scuda.dev/lease"  // the lease's id
	AnnotationServer = "scuda.dev/server" // the pool
	AnnotationClaim  = "scuda.dev/claim-name"
)

// Secret is the name of a claim's secret.
func Secret(claim types.UID) string { return "claim-" + string(claim) }

// What names of GPUs and of instances of MIG begin with.
const (
	devicePrefix   = "gpu-"
	instancePrefix = "mig-"
)

// Device is a GPU's name in a pool. It is made of the UUID, so a GPU that goes does not lend its name to another.
func Device(uuid string) string { return strings.ToLower(uuid) }

// UUID is that of the GPU with such a name.
func UUID(device string) (uuid string, ok bool) {
	if digits, ok := strings.CutPrefix(device, instancePrefix); ok {
		return "MIG-" + digits, true
	}
	digits, ok := strings.CutPrefix(device, devicePrefix)
	return "GPU-" + digits, ok
}
