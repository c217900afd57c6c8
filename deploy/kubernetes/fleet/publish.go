package fleet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"scuda.dev/scuda/deploy/kubernetes/names"
)

// How long it is waited after a failure. The usual rule of such queues waits up to a quarter of an hour: for so long
// nobody would learn, after an outage of the cluster's interface, that a server is gone.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 30 * time.Second
)

// patient is a queue whose work comes a little later than was asked for. The controller of slices asks to look again
// when its cache has forgotten something, which it has a moment after that: a clock that stands still in between, as
// in tests, would have it look again and again.
type patient struct {
	workqueue.TypedRateLimitingInterface[string]
}

// AddAfter is workqueue's.
func (p patient) AddAfter(pool string, d time.Duration) {
	p.TypedRateLimitingInterface.AddAfter(pool, d+time.Millisecond)
}

// Publish keeps the cluster's ResourceSlices as the fleet is, until the context ends. One process at a time does so.
func (f *Fleet) Publish(ctx context.Context, client kubernetes.Interface, log *slog.Logger, every time.Duration) error {
	now := f.Resources()
	c, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: names.Driver, KubeClient: client, Resources: now, Queue: patient{workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryLast))},
		ErrorHandler: func(_ context.Context, err error, msg string) {
			if d, ok := errors.AsType[*resourceslice.DroppedFieldsError](err); ok {
				log.Warn("this cluster cannot do all that GPUs could be shared by; whole GPUs work (Kubernetes 1.36 has "+
					"shares, taints and waiting for the lease)", "pool", d.PoolName, "missing", d.DisabledFeatures())
				return
			}
			log.Error(msg, "error", err)
		},
	})
	if err != nil {
		return err
	}
	defer c.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if next := f.Resources(); !unchanged(now, next) {
			now = next
			c.Update(now)
		}
	}
}

// unchanged says whether there is nothing new to publish. It looks at a pool's devices only where they were made anew.
func unchanged(a, b *resourceslice.DriverResources) bool {
	return maps.EqualFunc(a.Pools, b.Pools, func(a, b resourceslice.Pool) bool {
		return same(a.Slices, b.Slices) || apiequality.Semantic.DeepEqual(a, b)
	})
}

// ReadSeed reads what a controller before this one has published.
func ReadSeed(ctx context.Context, client kubernetes.Interface) (Seeds, error) {
	list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return Seed(list.Items), nil
}
