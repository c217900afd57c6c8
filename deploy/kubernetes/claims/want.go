package claims

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/deploy/kubernetes/fleet"
	"scuda.dev/scuda/deploy/kubernetes/names"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
)

// ErrRefused is wrapped by reasons for which a claim gets no lease, however long it waits.
var ErrRefused = errors.New("the claim can have no lease")

// want is what a claim needs of a server.
type want struct {
	server  string
	results []resourceapi.DeviceRequestAllocationResult // this driver's
	request admin.LeaseRequest
}

// ours are the devices of this driver that a claim has been given.
func ours(claim *resourceapi.ResourceClaim) (list []resourceapi.DeviceRequestAllocationResult) {
	if claim == nil || claim.Status.Allocation == nil {
		return nil
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == names.Driver {
			list = append(list, r)
		}
	}
	return list
}

// wanted says what a claim needs; nil: nothing. memory is that of a server's whole GPU.
func wanted(claim *resourceapi.ResourceClaim, memory func(server, device string) int64) (*want, error) {
	results := ours(claim)
	if len(results) == 0 {
		return nil, nil
	}
	w := &want{server: results[0].Pool, results: results}
	var uuids []string
	var bytes, sessions, share int64
	whole := true
	for _, r := range results {
		uuid, ok := names.UUID(r.Device)
		switch {
		case !ok:
			return w, fmt.Errorf("%w: %q is no GPU of this driver", ErrRefused, r.Device)
		case r.AdminAccess != nil && *r.AdminAccess:
			return w, fmt.Errorf("%w: adminAccess is not supported; leave it out", ErrRefused)
		case r.Pool != w.server:
			return w, fmt.Errorf("%w: its GPUs are of the servers %s and %s, and a program uses one; add to the claim "+
				"constraints: [{matchAttribute: %s/server}]", ErrRefused, w.server, r.Pool, names.Driver)
		case slices.Contains(uuids, uuid):
			return w, fmt.Errorf("%w: it has two parts of GPU %s; ask for one that is as big as both", ErrRefused, uuid)
		}
		uuids = append(uuids, uuid)
		consumed := func(name resourceapi.QualifiedName) int64 {
			q := r.ConsumedCapacity[name]
			return q.Value()
		}
		// A cluster that has no consumable capacity says nothing: then it is the whole GPU.
		if m, all := consumed("memory"), memory(r.Pool, r.Device); m > 0 && (all == 0 || m < all) {
			whole = false
		}
		bytes += consumed("memory")
		sessions, share = sessions+consumed("sessions"), max(share, consumed("share"))
	}
	w.request = admin.LeaseRequest{GPUs: strings.Join(uuids, ","), Sessions: uint32(min(sessions, 1<<20)),
		Share: uint32(min(share, lease.MostShare))}
	if !whole {
		w.request.Memory = config.Size(bytes)
	}
	if len(uuids) > lease.MostGPUs {
		return w, fmt.Errorf("%w: %d GPUs; a lease has %d at most", ErrRefused, len(uuids), lease.MostGPUs)
	}
	return w, nil
}

// name completes a request by what the claim and the server's line in the configuration say.
func (w *want) name(claim *resourceapi.ResourceClaim, s *fleet.Server, cluster string, seconds float64) {
	w.request.Tenant, w.request.Seconds = s.Tenant, seconds
	w.request.Label = fleet.Label(cluster, claim.UID, claim.Namespace, claim.Name)
}
