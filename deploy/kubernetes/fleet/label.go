package fleet

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

const (
	labelWord  = "k8s"
	mostLabel  = 100 // bytes
	claimParts = 4
)

// Label is that of a claim's lease: k8s/CLUSTER/UID/NAMESPACE/NAME, as far as there is room. People read it in
// `scuda lease list`; the controller knows its own leases by the first three parts.
func Label(cluster string, claim types.UID, namespace, name string) string {
	label := strings.Join([]string{labelWord, cluster, string(claim), namespace + "/" + name}, "/")
	return label[:min(len(label), mostLabel)]
}

// claimOf is whose lease one with this label is; false: it is none of this cluster's.
func claimOf(cluster, label string) (types.UID, bool) {
	parts := strings.SplitN(label, "/", claimParts)
	if len(parts) < claimParts || parts[0] != labelWord || parts[1] != cluster || parts[2] == "" {
		return "", false
	}
	return types.UID(parts[2]), true
}
