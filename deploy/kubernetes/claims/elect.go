package claims

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// ErrOther ends a controller that has led and leads no more.
var ErrOther = errors.New("this controller could not stay the leader: the cluster did not answer it in time, or " +
	"another one leads")

const (
	lockName = "scuda-dra-controller"

	// One that leads ends its work lockRenew after the cluster's last answer. Another one begins lockLasts after it.
	// What lies between is what two clocks may differ by while both run.
	lockLasts = 15 * time.Second
	lockRenew = 10 * time.Second
	lockRetry = 2 * time.Second
)

// Elect waits until this is the one controller that leads, and works from then on. It returns when the work has ended:
// nil where the context has, [ErrOther] where it leads no more. who is the name of this controller among the others.
// One that is told to end gives its place away, and does so only when its work has ended.
func Elect(ctx context.Context, client kubernetes.Interface, namespace, who string,
	work func(context.Context) error) error {
	hold, give := context.WithCancel(context.WithoutCancel(ctx))
	defer give()
	var leads atomic.Bool
	defer context.AfterFunc(ctx, func() {
		if !leads.Load() {
			give()
		}
	})()
	done := make(chan error, 1)
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Name: lockName, Namespace: namespace}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: who},
		},
		LeaseDuration: lockLasts, RenewDeadline: lockRenew, RetryPeriod: lockRetry, Name: lockName, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				leads.Store(true)
				leading, stop := context.WithCancel(leading) // ends when either does
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				done <- work(leading)
				give()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	e.Run(hold)
	if !leads.Load() && ctx.Err() != nil { // it has never led
		return nil
	}
	if err := <-done; err != nil || ctx.Err() != nil {
		return err
	}
	return ErrOther
}
