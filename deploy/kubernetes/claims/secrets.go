package claims

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"scuda.dev/scuda/deploy/kubernetes/names"
)

// secrets is what is known of the driver's secrets. Nobody else writes them, so the cluster has to be asked only at the
// start, now and then, and where it turns out to be otherwise. Its lock is a leaf.
type secrets struct {
	mu sync.Mutex // guards of
	of map[types.UID]secret
}

// secret is one claim's.
type secret struct {
	lease, version string
	unsure         bool // the cluster has to be asked
}

func (s *secrets) get(claim types.UID) (secret, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, there := s.of[claim]
	return known, there
}

func (s *secrets) put(o *corev1.Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[types.UID(o.Labels[names.LabelClaim])] = secret{lease: o.Annotations[names.AnnotationLease],
		version: o.ResourceVersion}
}

func (s *secrets) doubt(claim types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[claim] = secret{unsure: true}
}

func (s *secrets) drop(claim types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, claim)
}

// learn replaces what is known by a list, and gives the claims of it.
func (s *secrets) learn(list []corev1.Secret) (all []types.UID) {
	s.mu.Lock()
	s.of = make(map[types.UID]secret, len(list))
	s.mu.Unlock()
	for i := range list {
		s.put(&list[i])
		all = append(all, types.UID(list[i].Labels[names.LabelClaim]))
	}
	return all
}

// look is get, but asks the cluster where the last write failed: nobody knows then what became of it.
func (c *Controller) look(ctx context.Context, claim types.UID) (secret, bool, error) {
	if known, there := c.secrets.get(claim); !known.unsure {
		return known, there, nil
	}
	return c.ask(ctx, claim)
}

// ask is look, but asks the cluster in any case.
func (c *Controller) ask(ctx context.Context, claim types.UID) (secret, bool, error) {
	o, err := c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, names.Secret(claim), metav1.GetOptions{})
	switch {
	case err == nil:
		c.secrets.put(o)
	case apierrors.IsNotFound(err):
		c.secrets.drop(claim)
	default:
		return secret{}, false, err
	}
	known, there := c.secrets.get(claim)
	return known, there, nil
}

// write puts a claim's secret into the cluster; lost: in the place of another one.
func (c *Controller) write(ctx context.Context, claim types.UID, o *corev1.Secret) (lost bool, err error) {
	api := c.Client.CoreV1().Secrets(c.Namespace)
	known, there := c.secrets.get(claim)
	var now *corev1.Secret
	if there {
		o.ResourceVersion = known.version
		now, err = api.Update(ctx, o, metav1.UpdateOptions{})
	} else {
		now, err = api.Create(ctx, o, metav1.CreateOptions{})
	}
	if err != nil {
		c.secrets.doubt(claim)
		return there, err
	}
	c.secrets.put(now)
	return there, nil
}
