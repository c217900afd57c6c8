package claims

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"scuda.dev/scuda/deploy/kubernetes/names"
)

func TestMain(m *testing.M) {
	// The libraries sleep after an error until a moment that they count from the program's start: in a test whose clock
	// begins elsewhere, for decades.
	utilruntime.ErrorHandlers = nil //nolint:reassign // it is made for that
	os.Exit(m.Run())
}

var errCut = errors.New("the cluster's interface does not answer")

// line is one controller's way to the cluster, which tests can cut: then nothing is answered, and what was watched
// ends.
type line struct {
	*fake.Clientset
	mu      sync.Mutex // guards what follows
	cut     bool
	watches []*watched
}

// watched is a watch that ends with its line.
type watched struct {
	watch.Interface
	out  chan watch.Event
	end  func()
	over chan struct{}
}

func (w *watched) ResultChan() <-chan watch.Event { return w.out }
func (w *watched) Stop()                          { w.end() }

// line gives a new one. All lines lead to the same objects.
func (c *cluster) line() *line {
	l := &line{Clientset: &fake.Clientset{}}
	down := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.cut
	}
	l.AddReactor("*", "*", func(kubetesting.Action) (bool, runtime.Object, error) { return down(), nil, errCut })
	l.AddReactor("update", "leases", c.renew)
	l.AddReactor("*", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
		o, err := c.client.Invokes(a, nil)
		return true, o, err
	})
	l.AddWatchReactor("*", func(a kubetesting.Action) (bool, watch.Interface, error) {
		if down() {
			return true, nil, errCut
		}
		in, err := c.client.InvokesWatch(a)
		if err != nil {
			return true, nil, err
		}
		return true, l.watch(in), nil
	})
	return l
}

func (l *line) watch(in watch.Interface) *watched {
	w := &watched{Interface: in, out: make(chan watch.Event), over: make(chan struct{})}
	w.end = sync.OnceFunc(func() { close(w.over); in.Stop() })
	go func() {
		defer close(w.out)
		for e := range in.ResultChan() {
			select {
			case w.out <- e:
			case <-w.over:
				return
			}
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watches = append(l.watches, w)
	return w
}

// set cuts the line or mends it.
func (l *line) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		l.end()
	}
}

// end ends what is watched; the caller has the lock.
func (l *line) end() {
	for _, w := range l.watches {
		w.end()
	}
	l.watches = nil
}

// renew is an update of the leader's lock as the real interface makes it: only of the version that was read.
func (c *cluster) renew(a kubetesting.Action) (bool, runtime.Object, error) {
	c.locks.Lock()
	defer c.locks.Unlock()
	next := a.(kubetesting.UpdateAction).GetObject().(*coordinationv1.Lease)
	o, err := c.client.Tracker().Get(a.GetResource(), next.Namespace, next.Name)
	if err != nil {
		return true, nil, err
	}
	have := o.(*coordinationv1.Lease)
	if have.ResourceVersion != next.ResourceVersion {
		return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), next.Name, errors.New("it has changed"))
	}
	n, _ := strconv.Atoi(have.ResourceVersion)
	next = next.DeepCopy()
	next.ResourceVersion = strconv.Itoa(n + 1)
	err = c.client.Tracker().Update(a.GetResource(), next, next.Namespace)
	return true, next, err
}

// candidate is one of several controllers.
type candidate struct {
	*line
	stop    context.CancelFunc
	ended   chan struct{}
	err     error // when it has ended
	leading atomic.Bool
}

// candidate starts one at the end of a line. together counts those that lead, and the test fails if two do.
func (c *cluster) candidate(who string, l *line, together *atomic.Int32) *candidate {
	it := &candidate{line: l, ended: make(chan struct{})}
	var ctx context.Context
	ctx, it.stop = context.WithCancel(context.Background())
	go func() {
		defer close(it.ended)
		it.err = Elect(ctx, it.line, own, who, func(ctx context.Context) error {
			if n := together.Add(1); n != 1 {
				c.Errorf("%d controllers lead, %s is one of them", n, who)
			}
			it.leading.Store(true)
			err := c.control(ctx, it.line)
			it.leading.Store(false)
			together.Add(-1)
			return err
		})
	}()
	return it
}

// A second controller does nothing until the first is gone, takes over what that one had left half done, and no claim
// has two leases.
func TestLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := one(t)
		var together atomic.Int32
		first := c.candidate("first", c.line(), &together)
		c.settle()
		second := c.candidate("second", c.line(), &together)
		c.settle()
		if !first.leading.Load() || second.leading.Load() {
			t.Fatalf("first leads: %v, second: %v", first.leading.Load(), second.leading.Load())
		}
		lease := func(name string) {
			t.Helper()
			if !c.schedule(c.claim(name, "20Gi", 1)) {
				t.Fatalf("%s waits", name)
			}
		}
		all := func(when string, claims, made int) {
			t.Helper()
			if len(m.has()) != claims || len(c.secrets()) != claims || m.made != made {
				t.Errorf("%s: %d leases (%d made), %d secrets, want %d (%d)", when, len(m.has()), m.made, len(c.secrets()),
					claims, made)
			}
		}
		lease("a")
		c.settle()
		all("one claim", 1, 1)

		// It is cut off in the moment in which a server makes a lease: nobody gets to know the credential.
		m.set(func() { m.onLeases = func() { first.set(true) } })
		lease("b")
		c.settle()
		if len(m.has()) != 2 || len(c.secrets()) != 1 {
			t.Errorf("cut off: %d leases, %d secrets", len(m.has()), len(c.secrets()))
		}
		m.set(func() { m.onLeases = nil })
		lease("c")
		for range 5 {
			c.settle()
		}
		if <-first.ended; !errors.Is(first.err, ErrOther) {
			t.Errorf("the first ended with %v", first.err)
		}
		if !second.leading.Load() {
			t.Fatal("nobody leads")
		}
		all("taken over", 3, 4) // the one without a secret is made anew
		for _, name := range []string{"a", "b", "c"} {
			s := c.secrets()[string(c.get(name).UID)]
			if _, ok := m.has()[s.Annotations[names.AnnotationLease]]; !ok {
				t.Errorf("%s: %v", name, s.Annotations)
			}
			if _, is := c.condition(name, names.Ready); !is {
				t.Errorf("%s is not ready", name)
			}
		}

		// One that ends in order gives its place away at once.
		third := c.candidate("third", c.line(), &together)
		c.settle()
		began := time.Now()
		second.stop()
		<-second.ended
		for !third.leading.Load() {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); second.err != nil || took > 2*lockRetry {
			t.Errorf("the second ended with %v; the third leads after %v", second.err, took)
		}
		c.remove("b")
		c.settle()
		all("at the end", 2, 4)
		third.stop()
		<-third.ended
		cut := c.line()
		cut.set(true)
		waiting := c.candidate("waits", cut, &together)
		c.settle()
		waiting.stop()
		<-waiting.ended
		if third.err != nil || waiting.err != nil {
			t.Errorf("%v, %v", third.err, waiting.err)
		}
	})
}

// The cluster's interface goes away while claims come and go, and everything is as it should be when it is back.
func TestInterfaceRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1, 4)
		c := newCluster(t, map[string]*machine{"gpu1": m})
		l := c.line()
		var expired atomic.Bool
		l.PrependWatchReactor("*", func(kubetesting.Action) (bool, watch.Interface, error) {
			return expired.Load(), nil, apierrors.NewResourceExpired("too old resource version")
		})
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if err := c.control(ctx, l); err != nil {
				t.Error(err)
			}
		})
		c.settle()
		place := func(name string, gpu int) { c.place(c.claim(name, "60Gi", 1), "gpu1", gpu) }
		place("stays", 0)
		place("goes", 1)
		c.settle()
		if len(m.has()) != 2 {
			t.Fatalf("%v", m.has())
		}
		for round := range 3 {
			l.set(true)
			c.remove("goes")
			place("comes", 2)
			m.set(func() { m.status.Draining = round%2 == 0 })
			for range 5 * (round + 1) {
				c.settle()
			}
			if _, is := c.condition("comes", names.Ready); is {
				t.Fatalf("round %d: the line is not cut", round)
			}
			l.set(false)
			for range 10 { // informers wait up to 30 s before they ask again
				c.settle()
			}
			if _, is := c.condition("comes", names.Ready); !is || len(m.has()) != 2 || len(c.secrets()) != 2 {
				t.Errorf("round %d: %v, %v, %d secrets", round, is, m.has(), len(c.secrets()))
			}
			if got := c.taints("gpu1"); (len(got) == 1) != (round%2 == 0) {
				t.Errorf("round %d: taints %q", round, got)
			}
			c.remove("comes")
			place("goes", 1)
			c.settle()
		}

		// A watch that ends is begun anew, and one whose place in history is gone reads everything anew.
		expired.Store(true)
		l.mu.Lock()
		l.end()
		l.mu.Unlock()
		c.remove("goes")
		place("late", 3)
		c.settle()
		expired.Store(false)
		for range 10 {
			c.settle()
		}
		if _, is := c.condition("late", names.Ready); !is || len(m.has()) != 2 {
			t.Errorf("after a lost watch: %v, %v", is, m.has())
		}
		if m.made != 1+1+2*3+1 {
			t.Errorf("%d leases were made", m.made)
		}
		stop()
		all.Wait()
	})
}

// A claim that is deleted and made anew under its name while nobody watches loses the old lease.
func TestSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := one(t)
		l := c.line()
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = c.control(ctx, l) })
		c.settle()
		c.place(c.claim("a", "60Gi", 1), "gpu1", 0)
		c.settle()
		old := c.get("a").UID
		l.set(true)
		c.remove("a")
		c.place(c.claim("a", "60Gi", 1), "gpu1", 0)
		c.settle()
		l.set(false)
		for range 10 {
			c.settle()
		}
		now := c.secrets()
		_, kept := now[string(old)]
		if _, ok := now[string(c.get("a").UID)]; !ok || kept || len(m.has()) != 1 {
			t.Errorf("%s, then %s: %v, %v", old, c.get("a").UID, now, m.has())
		}
		stop()
		all.Wait()
	})
}

// A list of secrets that is older than the last of them does not end a lease.
func TestOldList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := one(t)
		var old atomic.Bool
		c.client.PrependReactor("list", "secrets", func(kubetesting.Action) (bool, runtime.Object, error) {
			return old.Load(), &corev1.SecretList{}, nil
		})
		defer c.run()()
		c.place(c.claim("a", "60Gi", 1), "gpu1", 0)
		c.settle()
		old.Store(true)
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		if len(m.has()) != 1 || m.made != 1 {
			t.Errorf("%d leases (%d made)", len(m.has()), m.made)
		}
		c.remove("a")
		c.settle()
		old.Store(false)
		if len(m.has()) != 0 || len(c.secrets()) != 0 {
			t.Errorf("%v, %d secrets", m.has(), len(c.secrets()))
		}
	})
}
