//go:build kubernetes

package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"scuda.dev/scuda/deploy/kubernetes/manifests"
)

// patience is how long something may take on a machine with other work.
const patience = 3 * time.Minute

const (
	own   = "scuda-system"
	user  = "default"
	node1 = "node1"
	node2 = "node2" // of one part of the test
)

// daemon is a program that runs until it is ended.
type daemon struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// lab is a cluster.
type lab struct {
	*testing.T
	folder, parts, build string // of everything; of the cluster's programs; of scuda's
	ports                map[string]string
	daemons              map[string]*daemon
	client               *kubernetes.Clientset
}

func (l *lab) in(name string) string { return filepath.Join(l.folder, name) }

// at is in a node's folder.
func (l *lab) at(node, name string) string { return filepath.Join(l.folder, node, name) }

func (l *lab) put(name, text string) string {
	l.Helper()
	path := l.in(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		l.Fatal(err)
	}
	return path
}

// must ends the test where something failed.
func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// run runs a program to its end.
func (l *lab) run(name string, args ...string) string {
	l.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		l.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// start starts a program that goes on.
func (l *lab) start(name, program string, args ...string) *daemon {
	l.Helper()
	d := &daemon{cmd: exec.Command(program, args...), log: l.in(name + ".log"), done: make(chan struct{})}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	l.must(err)
	defer log.Close()
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = append(os.Environ(), "PATH="+l.parts+":"+os.Getenv("PATH"), "NAMESPACE="+own)
	l.must(d.cmd.Start())
	go func() { _ = d.cmd.Wait(); close(d.done) }()
	l.daemons[name] = d
	return d
}

// end ends a program and waits for it.
func (l *lab) end(name string, with syscall.Signal) {
	l.Helper()
	d := l.daemons[name]
	if d == nil {
		return
	}
	delete(l.daemons, name)
	_ = d.cmd.Process.Signal(with) // it may have ended
	select {
	case <-d.done:
	case <-time.After(patience):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// until waits until something is so, and says how long that took.
func (l *lab) until(what string, is func() bool) time.Duration {
	l.Helper()
	began := time.Now()
	for !is() {
		if time.Since(began) > patience {
			l.Fatalf("%s: not within %v", what, patience)
		}
		l.keep()
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(began)
}

// keep starts the controller again where it has ended, as its deployment does: it ends where the cluster has not
// answered for so long that another one may lead.
func (l *lab) keep() {
	l.Helper()
	if d := l.daemons["controller"]; d != nil {
		select {
		case <-d.done:
			l.Log("the controller has ended; it is started again")
			l.control()
		default:
		}
	}
}

// said waits for a line of a program that begins so, and gives the rest.
func (l *lab) said(d *daemon, begins string) (rest string) {
	l.Helper()
	l.until(begins, func() bool {
		text, _ := os.ReadFile(d.log)
		for line := range strings.Lines(string(text)) {
			if word, ok := strings.CutPrefix(line, begins); ok && strings.HasSuffix(word, "\n") {
				rest = strings.TrimSpace(word)
				return true
			}
		}
		return false
	})
	return rest
}

// free chooses a port for each name.
func (l *lab) free(names ...string) {
	l.Helper()
	for _, name := range names {
		s, err := net.Listen("tcp", "127.0.0.1:0")
		l.must(err)
		defer s.Close()
		_, l.ports[name], _ = net.SplitHostPort(s.Addr().String())
	}
}

// kubeconfig writes one for whoever has a token, and gives its path.
func (l *lab) kubeconfig(who, token string) string {
	return l.put(who+".kubeconfig", fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a,
clusters: [{name: a, cluster: {server: "https://127.0.0.1:%s", insecure-skip-tls-verify: true}}],
contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: %s}}]}
`, l.ports["api"], token))
}

// up starts everything. It is gone when the test has ended.
func up(t *testing.T) *lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("the kubelet wants to be root")
	}
	if there := groups(); len(there) > 0 {
		t.Fatalf("this test runs on this machine, or has left its control groups: %q", there)
	}
	parts := os.Getenv("SCUDA_CLUSTER_PARTS")
	if _, err := os.Stat(filepath.Join(parts, "kubelet")); err != nil {
		t.Fatalf("%v; make test-kubernetes builds it", err)
	}
	build, err := filepath.Abs("../../../build")
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("/tmp", "scuda-kube-") //nolint:usetesting // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{T: t, folder: folder, parts: parts, build: build, ports: map[string]string{}, daemons: map[string]*daemon{}}
	t.Cleanup(l.down)
	l.run("go", "build", "-o", l.in("scuda-dra"), "../cmd/scuda-dra")
	l.free("etcd", "peer", "api", "scheduler", "manager")
	l.plane()
	l.install()
	l.serve("a")
	l.serve("b")
	l.put("servers.yaml", "servers:\n"+l.line("a")+l.line("b"))
	l.control()
	l.image()
	l.containers(node1)
	l.kubelet(node1)
	l.plugin(node1)
	return l
}

// down ends everything, the containers first, and says what happened where the test failed.
func (l *lab) down() {
	if l.client != nil && l.Failed() {
		l.waiting()
	}
	if l.client != nil {
		_ = l.client.CoreV1().Pods(user).DeleteCollection(context.Background(), metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{})
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(100 * time.Millisecond) {
			list, err := l.client.CoreV1().Pods(user).List(context.Background(), metav1.ListOptions{})
			if err != nil || len(list.Items) == 0 {
				break
			}
		}
	}
	for _, name := range []string{"plugin-" + node1, "plugin-" + node2, "controller", "kubelet-" + node1,
		"kubelet-" + node2, "manager", "scheduler", "api", "etcd", "containerd-" + node1, "containerd-" + node2, "a", "b"} {
		how := syscall.SIGKILL // the apiserver does not end without etcd
		if name == "a" || name == "b" {
			how = syscall.SIGTERM
		}
		l.end(name, how)
	}
	l.sweep()
	if l.Failed() {
		logs, _ := filepath.Glob(l.in("*.log"))
		for _, path := range logs {
			text, _ := os.ReadFile(path)
			l.Logf("%s ends with\n%s", filepath.Base(path), text[max(0, len(text)-800):])
		}
	}
	if os.Getenv("SCUDA_CLUSTER_KEEP") == "" {
		_ = os.RemoveAll(l.folder)
	}
}

// waiting says what pods have no node, and why.
func (l *lab) waiting() {
	list, err := l.client.CoreV1().Pods(user).List(context.Background(), metav1.ListOptions{
		FieldSelector: "spec.nodeName="})
	if err != nil {
		l.Log(err)
		return
	}
	for _, p := range list.Items {
		for _, c := range p.Status.Conditions {
			l.Logf("%s has no node: %s is %s since %s: %s", p.Name, c.Type, c.Status,
				c.LastTransitionTime.Format(time.TimeOnly), c.Message)
		}
		for _, s := range p.Status.ResourceClaimStatuses {
			if s.ResourceClaimName == nil {
				continue
			}
			claim, err := l.client.ResourceV1().ResourceClaims(user).Get(context.Background(), *s.ResourceClaimName,
				metav1.GetOptions{})
			l.Logf("its claim %s: %+v, %v", *s.ResourceClaimName, claim.Status, err)
		}
	}
}

// group begins the name of a node's control group.
const group = "scuda-lab-"

// hierarchies are those of control groups: one of version 2, or several of version 1.
func hierarchies() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return []string{root}
	}
	var all []string
	there, _ := filepath.Glob(root + "/*")
	for _, path := range there {
		// What is no hierarchy is a link to one, such as cpu,cpuacct.
		if st, err := os.Lstat(path); err == nil && st.IsDir() {
			all = append(all, path)
		}
	}
	return all
}

// groups are the nodes' control groups that are there.
func groups() (all []string) {
	for _, h := range hierarchies() {
		there, _ := filepath.Glob(filepath.Join(h, group+"*"))
		all = append(all, there...)
	}
	return all
}

// sweep ends what containerd has started for this cluster, and unmounts what is left of it.
func (l *lab) sweep() {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		text, _ := os.ReadFile(path)
		if bytes.Contains(text, []byte(l.folder)) {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil && pid != os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	lines := strings.Split(string(mounts), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], l.folder) {
			_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
		}
	}
	for _, group := range groups() {
		var all []string
		_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, path := range slices.Backward(all) { // the inner ones first
			_ = os.Remove(path)
		}
	}
}

// plane starts what makes a cluster without nodes.
func (l *lab) plane() {
	l.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	l.must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	l.must(err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	l.must(err)
	l.put("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	l.put("sa.pub", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
	account := func(name string) string {
		return fmt.Sprintf("token-of-%s,system:serviceaccount:%s:%s,%[1]s,\"system:serviceaccounts,"+
			"system:serviceaccounts:%[2]s\"\n", name, own, name)
	}
	l.put("tokens.csv", "admintoken,admin,admin,system:masters\nschedtoken,system:kube-scheduler,s\n"+
		"kcmtoken,system:kube-controller-manager,k,system:masters\n"+
		account("scuda-dra-controller")+account("scuda-dra-plugin"))
	l.start("etcd", filepath.Join(l.parts, "etcd"), "--data-dir", l.in("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", "http://127.0.0.1:"+l.ports["etcd"], "--advertise-client-urls",
		"http://127.0.0.1:"+l.ports["etcd"], "--listen-peer-urls", "http://127.0.0.1:"+l.ports["peer"],
		"--initial-advertise-peer-urls", "http://127.0.0.1:"+l.ports["peer"], "--initial-cluster",
		"default=http://127.0.0.1:"+l.ports["peer"])
	l.api()
	l.client, err = kubernetes.NewForConfig(&rest.Config{Host: "https://127.0.0.1:" + l.ports["api"],
		BearerToken: "admintoken", TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 200, Burst: 400})
	l.must(err)
	l.until("the apiserver", l.answers)
	for _, c := range []struct {
		name, program, token string
		args                 []string
	}{
		{"scheduler", "kube-scheduler", "schedtoken", nil},
		{"manager", "kube-controller-manager", "kcmtoken", []string{
			"--service-account-private-key-file", l.in("sa.key"), "--controllers",
			"resourceclaim-controller,device-taint-eviction-controller,namespace-controller,serviceaccount-controller," +
				"garbage-collector-controller,replicaset-controller"}},
	} {
		k := l.kubeconfig(c.name, c.token)
		l.start(c.name, filepath.Join(l.parts, c.program), append([]string{"--kubeconfig", k, "--authentication-kubeconfig",
			k, "--authorization-kubeconfig", k, "--secure-port", l.ports[c.name], "--bind-address", "127.0.0.1", "--cert-dir",
			l.in("certs-" + c.name), "--leader-elect=false"}, c.args...)...)
	}
}

// api starts the apiserver.
func (l *lab) api() {
	l.start("api", filepath.Join(l.parts, "kube-apiserver"), "--etcd-servers", "http://127.0.0.1:"+l.ports["etcd"],
		"--secure-port", l.ports["api"], "--bind-address", "127.0.0.1", "--cert-dir", l.in("certs"),
		"--service-account-issuer", "https://lab", "--service-account-key-file", l.in("sa.pub"),
		"--service-account-signing-key-file", l.in("sa.key"), "--token-auth-file", l.in("tokens.csv"),
		"--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.200.0.0/16", "--disable-admission-plugins",
		"ServiceAccount", "--runtime-config", "api/all=false,api/ga=true,resource.k8s.io/v1beta2=true")
}

// answers says whether the apiserver does.
func (l *lab) answers() bool {
	ctx, cancel := context.WithTimeout(l.Context(), 5*time.Second)
	defer cancel()
	_, err := l.client.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
	return err == nil
}

// install makes the objects of the manifests that the parts need which run here as processes. The cluster is asked
// whether it would take the others, too, and knows all of their fields.
func (l *lab) install() {
	l.Helper()
	for _, name := range []string{"namespace.yaml", "rbac.yaml", "classes.yaml", "servers.yaml", "controller.yaml",
		"plugin.yaml", "server.yaml"} {
		list, err := manifests.Objects(name)
		l.must(err)
		for _, o := range list {
			l.create(o)
		}
	}
}

// create makes an object of the manifests.
func (l *lab) create(o runtime.Object) {
	l.Helper()
	options := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	m, err := meta.Accessor(o)
	l.must(err)
	group, plural := l.client.CoreV1().RESTClient(), strings.ToLower(o.GetObjectKind().GroupVersionKind().Kind)+"s"
	switch o.(type) {
	case *rbacv1.ClusterRole:
		group, plural = l.client.RbacV1().RESTClient(), "clusterroles"
	case *rbacv1.ClusterRoleBinding:
		group, plural = l.client.RbacV1().RESTClient(), "clusterrolebindings"
	case *rbacv1.Role:
		group, plural = l.client.RbacV1().RESTClient(), "roles"
	case *rbacv1.RoleBinding:
		group, plural = l.client.RbacV1().RESTClient(), "rolebindings"
	case *resourceapi.DeviceClass:
		group, plural = l.client.ResourceV1().RESTClient(), "deviceclasses"
	case *appsv1.Deployment, *appsv1.DaemonSet:
		group, options.DryRun = l.client.AppsV1().RESTClient(), []string{metav1.DryRunAll}
	}
	err = group.Post().Resource(plural).NamespaceIfScoped(m.GetNamespace(), m.GetNamespace() != "").
		VersionedParams(&options, scheme.ParameterCodec).Body(o).Do(l.Context()).Error()
	if err != nil {
		l.Fatalf("%T %s: %v", o, m.GetName(), err)
	}
}
