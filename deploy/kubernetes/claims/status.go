package claims

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	applyresource "k8s.io/client-go/applyconfigurations/resource/v1"

	"scuda.dev/scuda/deploy/kubernetes/names"
)

const mostMessage = 4096 // of a condition; the interface allows 32 KiB

// say sets a condition on a claim's devices. It is applied on the server's side, so that what other drivers say of
// their devices of the claim stays.
func (c *Controller) say(ctx context.Context, claim *resourceapi.ResourceClaim, w *want, kind, reason,
	message string) error {
	status := applyresource.ResourceClaimStatus()
	for _, r := range w.results {
		d := applyresource.AllocatedDeviceStatus().WithDriver(r.Driver).WithPool(r.Pool).WithDevice(r.Device).
			WithConditions(applymeta.Condition().WithType(kind).WithStatus(metav1.ConditionTrue).WithReason(reason).
				WithMessage(message[:min(len(message), mostMessage)]).
				WithLastTransitionTime(metav1.NewTime(time.Now().Truncate(time.Second))))
		if r.ShareID != nil {
			d.WithShareID(string(*r.ShareID))
		}
		status.WithDevices(d)
	}
	to := applyresource.ResourceClaim(claim.Name, claim.Namespace).WithUID(claim.UID).WithStatus(status)
	_, err := c.Client.ResourceV1().ResourceClaims(claim.Namespace).ApplyStatus(ctx, to,
		metav1.ApplyOptions{FieldManager: names.Driver, Force: true})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) && c.changed(claim) {
		return nil // the claim was released or deleted meanwhile; that brings it here again
	}
	return err
}

// changed says whether a claim is another one by now.
func (c *Controller) changed(claim *resourceapi.ResourceClaim) bool {
	now := c.claim(claim.UID)
	return now == nil || now.ResourceVersion != claim.ResourceVersion
}

// told says whether a claim's status has it already that, and why, there is no lease.
func told(claim *resourceapi.ResourceClaim, why string) bool {
	for _, d := range claim.Status.Devices {
		for _, k := range d.Conditions {
			if d.Driver == names.Driver && k.Type == names.Refused && k.Message == why[:min(len(why), mostMessage)] {
				return true
			}
		}
	}
	return false
}
