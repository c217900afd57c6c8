package claims

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"scuda.dev/scuda/deploy/kubernetes/fleet"
	"scuda.dev/scuda/deploy/kubernetes/names"
	"scuda.dev/scuda/server/lease"
)

// The reasons of events on claims, and of conditions.
const (
	Leased      = "Leased"
	LeaseLost   = "LeaseLost"
	NotLeased   = "NotLeased"
	ServerIsOut = "ServerDoesNotAnswer"
)

const (
	byUID, byPool = "uid", "pool"

	workers    = 8
	sweepEvery = 5 * time.Minute
	learnEvery = 2 * time.Second
	released   = "the claim of the cluster was released"
)

// Options are what a controller needs.
type Options struct {
	Client    kubernetes.Interface
	Fleet     *fleet.Fleet
	Namespace string // of the secrets
	Cluster   string
	Lasts     time.Duration // a lease
	Events    record.EventRecorder
	Metrics   *Metrics
	Log       *slog.Logger
}

// Controller gives claims their leases.
type Controller struct {
	Options
	claims  cache.SharedIndexInformer
	secrets secrets
	queue   workqueue.TypedRateLimitingInterface[types.UID]
}

// New makes a controller, which does nothing before [Controller.Run].
func New(o Options) (*Controller, error) {
	all := o.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll)
	c := &Controller{Options: o, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](100*time.Millisecond, 30*time.Second))}
	c.claims = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return all.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return all.Watch(ctx, o)
		},
	}, o.Client), &resourceapi.ResourceClaim{}, 0, cache.Indexers{
		byUID: func(obj any) ([]string, error) { return []string{string(obj.(*resourceapi.ResourceClaim).UID)}, nil },
		byPool: func(obj any) (pools []string, _ error) {
			for _, r := range ours(obj.(*resourceapi.ResourceClaim)) {
				pools = append(pools, r.Pool)
			}
			return pools, nil
		},
	})
	touch := func(obj any) {
		if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = d.Obj
		}
		if claim, ok := obj.(*resourceapi.ResourceClaim); ok {
			c.queue.Add(claim.UID)
		}
	}
	_, err := c.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if len(ours(obj.(*resourceapi.ResourceClaim))) > 0 {
				touch(obj)
			}
		},
		UpdateFunc: func(before, after any) {
			b, a := before.(*resourceapi.ResourceClaim), after.(*resourceapi.ResourceClaim)
			if len(ours(b))+len(ours(a)) > 0 {
				touch(after)
			}
			if b.UID != a.UID { // one was deleted and made anew between two looks
				touch(before)
			}
		},
		DeleteFunc: touch,
	})
	return c, err
}

// Run works until the context ends. It returns when all that it has started has ended.
func (c *Controller) Run(ctx context.Context) {
	done := make(chan struct{}, workers+2)
	go func() { c.claims.RunWithContext(ctx); done <- struct{}{} }()
	if cache.WaitForCacheSync(ctx.Done(), c.claims.HasSynced) && c.learn(ctx) {
		go func() { c.sweeping(ctx); done <- struct{}{} }()
		for range workers {
			go func() { c.work(ctx); done <- struct{}{} }()
		}
		<-ctx.Done()
		c.queue.ShutDown()
		for range workers + 1 {
			<-done
		}
	}
	c.queue.ShutDown()
	<-done
}

// Look has those claims looked at whose leases on a server are not as they should be. The fleet calls it when it has
// asked the server.
func (c *Controller) Look(server string) {
	if !c.claims.HasSynced() {
		return
	}
	for _, uid := range c.Fleet.Claims(server) {
		if claim := c.claim(uid); len(ours(claim)) == 0 {
			c.queue.Add(uid)
		}
	}
	list, err := c.claims.GetIndexer().ByIndex(byPool, server)
	if err != nil {
		return
	}
	for _, obj := range list {
		claim := obj.(*resourceapi.ResourceClaim)
		if len(c.Fleet.Held(claim.UID)) != 1 || !ready(claim) {
			c.queue.Add(claim.UID)
		}
	}
}

// ready says whether a claim's status says that there is a lease, for all of its devices.
func ready(claim *resourceapi.ResourceClaim) bool {
	n := 0
	for _, d := range claim.Status.Devices {
		if d.Driver != names.Driver {
			continue
		}
		for _, k := range d.Conditions {
			if k.Type == names.Ready && k.Status == metav1.ConditionTrue {
				n++
			}
		}
	}
	return n > 0 && n >= len(ours(claim))
}

// claim is the one with this UID; nil: there is none.
func (c *Controller) claim(uid types.UID) *resourceapi.ResourceClaim {
	list, err := c.claims.GetIndexer().ByIndex(byUID, string(uid))
	if err != nil || len(list) == 0 {
		return nil
	}
	return list[0].(*resourceapi.ResourceClaim)
}

func (c *Controller) work(ctx context.Context) {
	for {
		uid, over := c.queue.Get()
		if over {
			return
		}
		err := c.reconcile(ctx, uid)
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("a claim has to wait", "claim", uid, "error", err)
			c.queue.AddRateLimited(uid)
		} else {
			c.queue.Forget(uid)
		}
		c.queue.Done(uid)
	}
}

// learn reads the secrets that there are, before anything is done that depends on them; false: the context has ended.
func (c *Controller) learn(ctx context.Context) bool {
	for ctx.Err() == nil {
		err := c.sweep(ctx)
		if err == nil {
			return true
		}
		c.Log.Warn("cannot list the secrets of claims", "error", err)
		select {
		case <-time.After(learnEvery):
		case <-ctx.Done():
		}
	}
	return false
}

// sweeping looks, now and then, for secrets of claims that are gone, and for claims whose secret is.
func (c *Controller) sweeping(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := c.sweep(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("cannot list the secrets of claims", "error", err)
		}
	}
}

func (c *Controller) sweep(ctx context.Context) error {
	list, err := c.Client.CoreV1().Secrets(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: names.LabelClaim})
	if err != nil {
		return err
	}
	for _, uid := range c.secrets.learn(list.Items) {
		if len(ours(c.claim(uid))) == 0 {
			c.queue.Add(uid)
		}
	}
	for _, obj := range c.claims.GetIndexer().List() {
		if claim := obj.(*resourceapi.ResourceClaim); len(ours(claim)) > 0 && !c.settled(claim) {
			c.queue.Add(claim.UID)
		}
	}
	return nil
}

// settled says whether there is nothing to do for a claim, as far as is known.
func (c *Controller) settled(claim *resourceapi.ResourceClaim) bool {
	held := c.Fleet.Held(claim.UID)
	known, there := c.secrets.get(claim.UID)
	return there && len(held) == 1 && held[0].ID == known.lease && ready(claim)
}

// reconcile makes of a claim's leases, secret and status what they should be.
func (c *Controller) reconcile(ctx context.Context, uid types.UID) error {
	claim := c.claim(uid)
	w, err := wanted(claim, c.Fleet.Memory)
	switch {
	case err != nil:
		return c.refuse(ctx, claim, w, err)
	case w == nil:
		return c.release(ctx, uid, "")
	}
	secret, there, err := c.look(ctx, uid)
	if err != nil {
		return err
	}
	server, fingerprint, err := c.Fleet.Server(w.server)
	if errors.Is(err, fleet.ErrUnknown) {
		return c.refuse(ctx, claim, w, fmt.Errorf("%w: %w", ErrRefused, err))
	} else if err != nil {
		if !ready(claim) {
			c.Events.Event(claim, corev1.EventTypeWarning, ServerIsOut, err.Error())
		}
		return nil // the fleet says when it answers again
	}
	held := c.Fleet.Held(uid)
	has := func() bool { return there && slices.Contains(held, fleet.Held{Server: w.server, ID: secret.lease}) }
	if len(held) > 0 && !has() { // a list of secrets may be older than one that was written meanwhile
		if secret, there, err = c.ask(ctx, uid); err != nil {
			return err
		}
	}
	good := "" // the lease whose credential is where the plugin finds it
	if has() {
		good = secret.lease
	}
	for _, h := range held {
		if h.Server == w.server && h.ID == good {
			continue
		}
		if err := c.Fleet.Revoke(ctx, h, uid, "nobody has its credential"); err != nil {
			return err
		}
	}
	if good == "" {
		if good, err = c.grant(ctx, claim, w, &server, fingerprint); err != nil {
			return err
		}
	}
	if good == "" || ready(claim) {
		return nil
	}
	return c.say(ctx, claim, w, names.Ready, Leased, fmt.Sprintf("lease %s on %s", good, w.server))
}

// grant has a lease made, and puts its credential into the claim's secret. The id is "" where the claim was refused.
func (c *Controller) grant(ctx context.Context, claim *resourceapi.ResourceClaim, w *want, s *fleet.Server,
	fingerprint string) (id string, err error) {
	w.name(claim, s, c.Cluster, c.Lasts.Seconds())
	began := time.Now()
	g, err := c.Fleet.Grant(ctx, w.server, claim.UID, &w.request)
	c.Metrics.granted(err, time.Since(began))
	if errors.Is(err, lease.ErrTerms) {
		return "", c.refuse(ctx, claim, w, fmt.Errorf("%w: %w", ErrRefused, err))
	} else if err != nil {
		c.Events.Event(claim, corev1.EventTypeWarning, NotLeased, err.Error())
		return "", err
	}
	if s.Fingerprint != "" {
		fingerprint = s.Fingerprint
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: names.Secret(claim.UID), Namespace: c.Namespace,
			Labels: map[string]string{names.LabelClaim: string(claim.UID)},
			Annotations: map[string]string{
				names.AnnotationLease: g.ID, names.AnnotationServer: w.server,
				names.AnnotationClaim: claim.Namespace + "/" + claim.Name,
			},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{names.KeyServer: []byte(s.Address), names.KeyToken: []byte(g.Credential)},
	}
	if s.CA != "" {
		secret.Data[names.KeyCA] = []byte(s.CA)
	} else if fingerprint != "" {
		secret.Data[names.KeyFingerprint] = []byte(fingerprint)
	}
	lost, err := c.write(ctx, claim.UID, secret)
	if err != nil {
		return "", err // the next look revokes the lease, as nobody has its credential
	}
	if lost {
		c.Events.Eventf(claim, corev1.EventTypeWarning, LeaseLost,
			"the lease was gone from %s; what runs has ended there, new programs use lease %s", w.server, g.ID)
	}
	c.Events.Eventf(claim, corev1.EventTypeNormal, Leased, "lease %s on %s (%s)", g.ID, w.server, s.Address)
	return g.ID, nil
}

// release gives back all that a claim has had.
func (c *Controller) release(ctx context.Context, uid types.UID, why string) error {
	if why == "" {
		why = released
	}
	var failed error
	held := c.Fleet.Held(uid)
	for _, h := range held {
		if err := c.Fleet.Revoke(ctx, h, uid, why); err != nil {
			failed = errors.Join(failed, err)
		} else {
			c.Metrics.revoked()
		}
	}
	if _, there := c.secrets.get(uid); !there && len(held) == 0 {
		return failed // as most claims that go: they are of other drivers
	}
	err := c.Client.CoreV1().Secrets(c.Namespace).Delete(ctx, names.Secret(uid), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return errors.Join(failed, err)
	}
	c.secrets.drop(uid)
	return failed
}

// refuse says on the claim why there is no lease; the scheduler then looks for other devices.
func (c *Controller) refuse(ctx context.Context, claim *resourceapi.ResourceClaim, w *want, why error) error {
	if err := c.release(ctx, claim.UID, "the claim was refused"); err != nil || told(claim, why.Error()) {
		return err
	}
	c.Metrics.refused()
	c.Events.Event(claim, corev1.EventTypeWarning, NotLeased, why.Error())
	return c.say(ctx, claim, w, names.Refused, NotLeased, why.Error())
}
