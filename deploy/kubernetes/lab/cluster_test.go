//go:build kubernetes

package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"scuda.dev/scuda/deploy/kubernetes/names"
)

func (l *lab) ctr(node string, args ...string) (string, error) {
	out, err := exec.Command(filepath.Join(l.parts, "ctr"), append([]string{"-a", l.at(node, "containerd.sock"), "-n",
		"k8s.io"}, args...)...).CombinedOutput()
	return string(out), err
}

// spec is a pod's, with a container that runs the CUDA program and holds so many MiB; 0: it says what it has, and ends.
func spec(hold int) corev1.PodSpec {
	args := []string{}
	if hold > 0 {
		args = append(args, fmt.Sprint(hold))
	}
	return corev1.PodSpec{HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever,
		AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{Name: "main", Image: "localhost/gpu:1", ImagePullPolicy: corev1.PullNever,
			Command: append([]string{"/bin/gpu"}, args...)}}}
}

// template makes one for claims of so many MiB.
func (l *lab) template(name string, mib int) {
	l.Helper()
	_, err := l.client.ResourceV1().ResourceClaimTemplates(user).Create(l.Context(), &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: names.Driver, Capacity: &resourceapi.CapacityRequirements{
					Requests: map[resourceapi.QualifiedName]resource.Quantity{
						"memory": *resource.NewQuantity(int64(mib)<<20, resource.BinarySI)}}}}}}}},
	}, metav1.CreateOptions{})
	l.must(err)
}

// of gives a pod a claim of a template.
func of(template string, s corev1.PodSpec) corev1.PodSpec {
	s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	s.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	return s
}

func (l *lab) pod(name string, s corev1.PodSpec) {
	l.Helper()
	_, err := l.client.CoreV1().Pods(user).Create(l.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: s}, metav1.CreateOptions{})
	l.must(err)
}

// remove deletes a pod.
func (l *lab) remove(name string) {
	l.Helper()
	l.must(l.client.CoreV1().Pods(user).Delete(l.Context(), name, metav1.DeleteOptions{}))
}

func (l *lab) phase(name string) corev1.PodPhase {
	p, err := l.client.CoreV1().Pods(user).Get(l.Context(), name, metav1.GetOptions{})
	if err != nil {
		return corev1.PodUnknown
	}
	return p.Status.Phase
}

// reaches waits for a pod's phase.
func (l *lab) reaches(name string, phase corev1.PodPhase) {
	l.Helper()
	began := time.Now()
	for l.phase(name) != phase {
		if time.Since(began) > patience {
			p, _ := l.client.CoreV1().Pods(user).Get(l.Context(), name, metav1.GetOptions{})
			l.Fatalf("%s does not get to %s: %+v", name, phase, p.Status)
		}
		l.keep()
		time.Sleep(50 * time.Millisecond)
	}
	l.Logf("%s is %s after %.1f s", name, phase, time.Since(began).Seconds())
}

// output is what a pod has said.
func (l *lab) output(name string) string {
	paths, _ := filepath.Glob(filepath.Join(l.at("*", "logs"), user+"_"+name+"_*", "main", "*.log"))
	all := ""
	for _, p := range paths {
		text, _ := os.ReadFile(p)
		for line := range strings.Lines(string(text)) { // time, stream, F, text
			if f := strings.SplitN(line, " ", 4); len(f) == 4 {
				all += f[3]
			}
		}
	}
	return all
}

// scuda asks a server.
func (l *lab) scuda(server string, args ...string) string {
	l.Helper()
	return l.run(filepath.Join(l.build, "scuda"), append(args, "--admin", l.in(server+".admin"))...)
}

// sessions are those of all servers.
func (l *lab) sessions() (n int) {
	l.Helper()
	for _, server := range []string{"a", "b"} {
		var list []struct{}
		l.must(json.Unmarshal([]byte(l.scuda(server, "ps", "--json")), &list))
		n += len(list)
	}
	return n
}

// leases are how many a server has.
func (l *lab) leases(server string) int {
	l.Helper()
	return strings.Count(l.scuda(server, "lease", "list", "--json"), "\"k8s/")
}

// held are the leases of a pod's claim.
func (l *lab) held(pod string) (n int) {
	l.Helper()
	for _, server := range []string{"a", "b"} {
		n += strings.Count(l.scuda(server, "lease", "list", "--json"), "/"+user+"/"+pod+"-")
	}
	return n
}

// nothing waits until no lease, secret or claim is left.
func (l *lab) nothing(servers ...string) time.Duration {
	l.Helper()
	return l.until("nothing is left", func() bool {
		n := 0
		for _, s := range servers {
			n += l.leases(s)
		}
		secrets, err := l.client.CoreV1().Secrets(own).List(l.Context(), metav1.ListOptions{})
		l.must(err)
		claims, err := l.client.ResourceV1().ResourceClaims(user).List(l.Context(), metav1.ListOptions{})
		l.must(err)
		files, _ := filepath.Glob(l.at("*", "cdi/*.json"))
		return n+len(secrets.Items)+len(claims.Items)+len(files) == 0
	})
}

// TestCluster is about the real components, one story after the other.
func TestCluster(t *testing.T) {
	began := time.Now()
	l := up(t)
	l.until("the GPUs are published", func() bool {
		list, err := l.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		n := 0
		if err == nil {
			for _, s := range list.Items {
				n += len(s.Spec.Devices)
			}
		}
		return n == 2
	})
	t.Logf("the cluster is up after %.0f s", time.Since(began).Seconds())
	for _, part := range []struct {
		name string
		test func(*lab)
	}{
		{"whole", whole}, {"shared", shared}, {"restarts", restarts}, {"server killed", serverKilled},
		{"two nodes", twoNodes}, {"five hundred", fiveHundred},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			of := *l
			of.T = t
			part.test(&of)
		}) {
			t.FailNow() // what is left of it would fail the others
		}
	}
}

var says = regexp.MustCompile(`(?m)^gpus=1 memory=(\d+) same=1 name=(.+)$`)

// A pod that asks for scuda.dev/gpu runs a CUDA program on a GPU of a server.
func whole(l *lab) {
	s := spec(0)
	s.Containers[0].Resources.Limits = corev1.ResourceList{"scuda.dev/gpu": resource.MustParse("1")}
	l.pod("whole", s)
	l.reaches("whole", corev1.PodSucceeded)
	var m []string
	l.until("its output", func() bool { m = says.FindStringSubmatch(l.output("whole")); return m != nil })
	l.Logf("the program says %q", m[0])
	l.remove("whole")
	l.nothing("a", "b")
}

// Two pods share a GPU by memory, a third waits until one of them is gone.
func shared(l *lab) {
	l.must(os.WriteFile(l.in("servers.yaml"), []byte("servers:\n"+l.line("a")), 0o600)) // one GPU is all there is
	l.until("one server is published", func() bool {
		list, err := l.client.ResourceV1().ResourceSlices().List(l.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 1
	})
	l.template("part", 400)
	for _, name := range []string{"one", "two"} {
		l.pod(name, of("part", spec(100)))
		l.reaches(name, corev1.PodRunning)
	}
	l.pod("three", of("part", spec(100)))
	for _, name := range []string{"one", "two"} {
		l.until(name+" works", func() bool {
			m := says.FindStringSubmatch(l.output(name))
			if m != nil && m[1] != "400" {
				l.Fatalf("%s has %s MiB", name, m[1])
			}
			return m != nil
		})
	}
	if p := l.phase("three"); p != corev1.PodPending || l.leases("a") != 2 {
		l.Errorf("the third is %s, and there are %d leases", p, l.leases("a"))
	}
	began := time.Now()
	l.must(l.client.CoreV1().Pods(user).Delete(l.Context(), "one", metav1.DeleteOptions{}))
	l.until("lease and session have ended", func() bool {
		return l.sessions() == 1 && l.held("one") == 0 && l.phase("one") == corev1.PodUnknown
	})
	took := time.Since(began)
	l.Logf("a pod was deleted: its session and memory were gone after %.1f s", took.Seconds())
	if took > 5*time.Second {
		l.Error("that is more than 5 s")
	}
	if l.leases("a") != 2 { // the third has it
		l.until("the third's lease", func() bool { return l.leases("a") == 2 })
	}
	l.reaches("three", corev1.PodRunning)
	l.remove("two")
	l.remove("three")
	l.nothing("a")
	l.must(os.WriteFile(l.in("servers.yaml"), []byte("servers:\n"+l.line("a")+l.line("b")), 0o600))
	l.until("two servers are published", func() bool {
		list, err := l.client.ResourceV1().ResourceSlices().List(l.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 2
	})
}

// Plugin, controller, kubelet and apiserver restart in the middle of work: what runs goes on, and what comes works.
func restarts(l *lab) {
	l.pod("stays", of("part", spec(100)))
	l.reaches("stays", corev1.PodRunning)
	for _, part := range []struct {
		name  string
		start func()
	}{{"plugin-" + node1, func() { l.plugin(node1) }}, {"controller", l.control}, {"api", l.api},
		{"kubelet-" + node1, func() { l.kubelet(node1) }}} {
		l.restart(part.name, part.start)
		l.until("the apiserver", l.answers)
		said := strings.Count(l.output("stays"), "round ")
		l.until("the pod goes on", func() bool { return strings.Count(l.output("stays"), "round ") > said+1 })
		name := "after-" + part.name
		l.pod(name, of("part", spec(0)))
		l.reaches(name, corev1.PodSucceeded)
		l.remove(name)
	}
	// The pod goes while no plugin runs: the kubelet waits for the next.
	l.end("plugin-"+node1, syscall.SIGKILL)
	l.remove("stays")
	l.until("the session has ended", func() bool { return l.sessions() == 0 })
	l.plugin(node1)
	l.nothing("a", "b")
}

// A server that is killed loses its pods, and they are placed elsewhere.
func serverKilled(l *lab) {
	labels := map[string]string{"app": "moves"}
	s := of("part", spec(100))
	s.RestartPolicy = corev1.RestartPolicyAlways
	_, err := l.client.AppsV1().ReplicaSets(user).Create(l.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "moves"},
		Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: s}},
	}, metav1.CreateOptions{})
	l.must(err)
	running := func() string {
		list, err := l.client.CoreV1().Pods(user).List(l.Context(), metav1.ListOptions{LabelSelector: "app=moves"})
		if err == nil {
			for _, p := range list.Items {
				if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && says.MatchString(l.output(p.Name)) {
					return p.Name
				}
			}
		}
		return ""
	}
	l.until("it runs", func() bool { return running() != "" })
	first := running()
	from, to := "a", "b"
	if l.leases("a") == 0 {
		from, to = "b", "a"
	}
	began := time.Now()
	l.end(from, syscall.SIGKILL)
	l.until("it runs elsewhere", func() bool { n := running(); return n != "" && n != first })
	l.Logf("a server was killed: another pod ran on the other one after %.1f s", time.Since(began).Seconds())
	if l.leases(to) != 1 {
		l.Errorf("%d leases on the other server", l.leases(to))
	}
	l.must(l.client.AppsV1().ReplicaSets(user).Delete(l.Context(), "moves", metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground)}))
	l.nothing(to)
	l.serve(from)
	l.until("the server is back", func() bool {
		list, err := l.client.ResourceV1().ResourceSlices().List(l.Context(), metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, s := range list.Items {
			if len(s.Spec.Devices) != 1 || len(s.Spec.Devices[0].Taints) != 0 {
				return false
			}
		}
		return len(list.Items) == 2
	})
}

// A second kubelet, containerd and plugin on this machine are another node. Each prepares what its own pods have. When
// one is lost its pods' leases end, the other goes on, and what was left on the lost one is cleared when it is back.
func twoNodes(l *lab) {
	l.containers(node2)
	l.kubelet(node2)
	l.plugin(node2)
	name := map[string]string{node1: "on-node1", node2: "on-node2"}
	files := func(node string) int {
		there, _ := filepath.Glob(l.at(node, "cdi/*.json"))
		return len(there)
	}
	for _, node := range []string{node1, node2} {
		s := of("part", spec(100))
		s.NodeSelector = map[string]string{corev1.LabelHostname: node}
		l.pod(name[node], s)
		l.reaches(name[node], corev1.PodRunning)
		l.until(name[node]+" works", func() bool {
			m := says.FindStringSubmatch(l.output(name[node]))
			return m != nil && m[1] == "400"
		})
		there, _ := filepath.Glob(filepath.Join(l.at(node, "logs"), user+"_"+name[node]+"_*"))
		if files(node) != 1 || len(there) != 1 || l.held(name[node]) != 1 {
			l.Errorf("%s has %d CDI files and %q, and %d leases", node, files(node), there, l.held(name[node]))
		}
	}
	l.end("kubelet-"+node2, syscall.SIGKILL)
	l.end("plugin-"+node2, syscall.SIGKILL)
	began := time.Now()
	l.must(l.client.CoreV1().Pods(user).Delete(l.Context(), name[node2],
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	l.until("the lost node's lease and session have ended", func() bool {
		return l.held(name[node2]) == 0 && l.sessions() == 1
	})
	l.Logf("a pod of a lost node was deleted: its lease and session were gone after %.1f s", time.Since(began).Seconds())
	if files(node2) != 1 || l.held(name[node1]) != 1 {
		l.Errorf("%d CDI files on the lost node, %d leases of the other's pod", files(node2), l.held(name[node1]))
	}
	rounds := strings.Count(l.output(name[node1]), "round ")
	l.until("the other node's pod goes on", func() bool {
		return strings.Count(l.output(name[node1]), "round ") > rounds+1
	})
	l.plugin(node2)
	l.kubelet(node2)
	took := l.until("what was left on the node is cleared", func() bool { return files(node2) == 0 })
	l.Logf("the node is back, and clear after %.1f s", took.Seconds())
	l.remove(name[node1])
	l.nothing("a", "b")
	for _, part := range []string{"plugin-", "kubelet-", "containerd-"} {
		l.end(part+node2, syscall.SIGKILL)
	}
	l.must(l.client.CoreV1().Nodes().Delete(l.Context(), node2, metav1.DeleteOptions{}))
}

// Five hundred claims in and out, of pods on a node that is none: nobody runs them, but they are scheduled.
func fiveHundred(l *lab) {
	n, err := l.client.CoreV1().Nodes().Create(l.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "paper",
		Labels: map[string]string{"paper": "yes"}}}, metav1.CreateOptions{})
	l.must(err)
	n.Status = corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("1000"),
		"memory": resource.MustParse("1000Gi"), "pods": resource.MustParse("1000")},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Paper"}}}
	n.Status.Allocatable = n.Status.Capacity
	_, err = l.client.CoreV1().Nodes().UpdateStatus(l.Context(), n, metav1.UpdateOptions{})
	l.must(err)
	l.until("the node takes pods", func() bool {
		n, err := l.client.CoreV1().Nodes().Get(l.Context(), "paper", metav1.GetOptions{})
		if err == nil && len(n.Spec.Taints) > 0 {
			n.Spec.Taints = nil
			_, err = l.client.CoreV1().Nodes().Update(l.Context(), n, metav1.UpdateOptions{})
		}
		return err == nil
	})
	l.template("small", 64)
	began := time.Now()
	const batch, rounds = 20, 25 // a claim that does not say it has a tenth of a GPU's share
	for round := range rounds {
		var pods []string
		for i := range batch {
			s := of("small", spec(0))
			s.NodeSelector = map[string]string{"paper": "yes"}
			pods = append(pods, fmt.Sprintf("p%d-%d", round, i))
			l.pod(pods[i], s)
		}
		l.until("all are bound", func() bool {
			list, err := l.client.CoreV1().Pods(user).List(l.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=paper"})
			return err == nil && len(list.Items) == batch
		})
		if got := l.leases("a") + l.leases("b"); got != batch {
			l.Errorf("round %d: %d pods are bound, and there are %d leases", round, batch, got)
		}
		for _, name := range pods {
			err := l.client.CoreV1().Pods(user).Delete(l.Context(), name,
				metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
			if err != nil && !apierrors.IsNotFound(err) {
				l.Fatal(err)
			}
		}
		l.nothing("a", "b")
	}
	l.Logf("%d claims in and out within %.0f s", batch*rounds, time.Since(began).Seconds())
}
