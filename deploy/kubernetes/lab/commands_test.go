//go:build kubernetes

package lab

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bare is a cluster's interface, its scheduler and its controllers, without nodes that run anything.
func bare(t *testing.T) *lab {
	t.Helper()
	parts := os.Getenv("SCUDA_CLUSTER_PARTS")
	for _, name := range []string{"kubectl", "helm", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(parts, name)); err != nil {
			t.Fatalf("%v; make test-kubernetes builds it", err)
		}
	}
	l := &lab{T: t, folder: t.TempDir(), parts: parts, ports: map[string]string{}, daemons: map[string]*daemon{}}
	t.Cleanup(l.down)
	l.free("etcd", "peer", "api", "scheduler", "manager")
	l.plane()
	return l
}

// shell runs a command of the tutorial as its reader would, in a folder that has what the page speaks of.
func (l *lab) shell(command, input string) (string, error) {
	cmd := exec.CommandContext(l.Context(), "bash", "-euo", "pipefail", "-c", command)
	cmd.Dir, cmd.Stdin = l.in("work"), strings.NewReader(input)
	cmd.Env = append(os.Environ(), "PATH="+l.parts+":"+os.Getenv("PATH"), "KUBECONFIG="+l.in("admin.kubeconfig"),
		"HOME="+l.in("work"), "HELM_CACHE_HOME="+l.in("helm"), "HELM_CONFIG_HOME="+l.in("helm"),
		"HELM_DATA_HOME="+l.in("helm"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// done is shell with a command that has to work.
func (l *lab) done(command, input string) string {
	l.Helper()
	out, err := l.shell(command, input)
	if err != nil {
		l.Fatalf("%s: %v\n%s\n%s", command, err, input, out)
	}
	return out
}

// gone waits until the driver's namespace is.
func (l *lab) gone() {
	l.Helper()
	l.until("the namespace is gone", func() bool {
		_, err := l.client.CoreV1().Namespaces().Get(l.Context(), own, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

var (
	consoles = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	yamls    = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	inlines  = regexp.MustCompile("`((?:kubectl|helm) [^`\n]+)`")
)

// The commands of the tutorial, kubectl's and Helm's, are done by these in a real cluster, and what it shows as YAML is
// applied. What the page does by kustomize and by Helm is one or the other: the first is removed in between.
func TestClusterTutorial(t *testing.T) {
	l := bare(t)
	root, err := filepath.Abs("../../..")
	l.must(err)
	text, err := os.ReadFile(filepath.Join(root, "docs/tutorials/kubernetes.md"))
	l.must(err)
	l.kubeconfig("admin", "admintoken")
	l.put("work/controller.token", "token-of-the-controller\n")
	l.put("work/my-values.yaml", "servers:\n- {name: gpu1, address: \"gpu1.example.org:14833\", tenant: kubernetes, "+
		"fingerprint: \"sha256:"+strings.Repeat("ab", 32)+"\"}\n")
	l.must(os.Symlink(filepath.Join(root, "deploy"), l.in("work/deploy")))
	l.done("kubectl apply -f -", "{apiVersion: v1, kind: Node, metadata: {name: gpu1}}")
	var said []string
	for _, block := range consoles.FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if !ok || !strings.HasPrefix(command, "kubectl ") && !strings.HasPrefix(command, "helm ") {
				continue
			}
			if strings.Contains(command, "label namespace") { // the other way begins here
				l.done("kubectl delete -k deploy/kubernetes/manifests", "")
				l.gone()
				l.done("kubectl create namespace "+own, "")
			}
			out := l.done(command, "")
			t.Logf("$ %s\n%s", command, out)
			said = append(said, command)
			if strings.Contains(command, "apply -k") {
				l.installed()
			}
		}
	}
	l.installed()
	for _, block := range yamls.FindAllStringSubmatch(string(text), -1) {
		out := l.done("kubectl apply --validate=strict -f -", block[1])
		if n := strings.Count(out, " created\n"); n != 1+strings.Count(block[1], "\n---\n") {
			t.Errorf("%s\n%s", block[1], out)
		}
	}
	for _, m := range inlines.FindAllStringSubmatch(string(text), -1) {
		l.done(m[1], "")
		said = append(said, m[1])
	}
	for _, begins := range []string{"kubectl label node ", "kubectl apply -k ", "helm install ", "kubectl describe "} {
		if !slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, begins) }) {
			t.Errorf("no %q among %q", begins, said)
		}
	}
	l.done("helm uninstall scuda --namespace "+own, "")
}

// installed says whether the driver's parts are there.
func (l *lab) installed() {
	l.Helper()
	out := l.done("kubectl -n "+own+" get deployments,daemonsets -o name; kubectl get deviceclasses -o name", "")
	for _, name := range []string{"deployment.apps/scuda-dra-controller", "daemonset.apps/scuda-dra-plugin",
		"deviceclass.resource.k8s.io/gpu.scuda.dev"} {
		if !strings.Contains(out, name+"\n") {
			l.Errorf("there is no %s among\n%s", name, out)
		}
	}
}
