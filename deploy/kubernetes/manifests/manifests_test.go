package manifests

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"scuda.dev/scuda/deploy/kubernetes/fleet"
)

// Each file is one of objects that the types know, and kustomize takes it.
func TestObjects(t *testing.T) {
	names, err := Files()
	if err != nil || len(names) < 5 {
		t.Fatal(names, err)
	}
	var k struct {
		Resources []string `json:"resources"`
	}
	text, err := Read("kustomization.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &k)
	}
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(k.Resources)
	names = slices.DeleteFunc(names, func(n string) bool { return n == "kustomization.yaml" })
	if !slices.Equal(names, k.Resources) {
		t.Errorf("there are %q, kustomize takes %q", names, k.Resources)
	}
	for _, name := range names {
		list, err := Objects(name)
		if err != nil {
			t.Error(err)
		}
		for _, o := range list {
			pods, cluster := (*corev1.PodTemplateSpec)(nil), false
			switch o := o.(type) {
			case *appsv1.Deployment:
				pods = &o.Spec.Template
			case *appsv1.DaemonSet:
				pods = &o.Spec.Template
			case *corev1.ConfigMap:
				if _, err := fleet.ParseConfig([]byte(o.Data["servers.yaml"])); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			case *corev1.Namespace, *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding:
				cluster = true
			}
			m := o.(metav1.Object)
			if ns := m.GetNamespace(); !cluster && name != "classes.yaml" && ns != "scuda-system" {
				t.Errorf("%s: %s is of namespace %q", name, m.GetName(), ns)
			}
			if pods != nil {
				c := pods.Spec.Containers[0].SecurityContext
				if c == nil || c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation ||
					!slices.Contains(c.Capabilities.Drop, "ALL") || c.Privileged != nil {
					t.Errorf("%s: %+v", name, c)
				}
			}
		}
	}
}

// No rule is wider than it has to be.
func TestRules(t *testing.T) {
	for _, role := range []string{"scuda-dra-controller", "scuda-dra-plugin"} {
		cluster, own, err := Rules(role)
		if err != nil || len(cluster) == 0 || len(own) == 0 {
			t.Fatal(role, err)
		}
		for _, r := range append(slices.Clone(cluster), own...) {
			if strings.Contains(strings.Join(append(slices.Concat(r.Verbs, r.Resources), r.APIGroups...), " "), "*") {
				t.Errorf("%s: %+v", role, r)
			}
		}
		for _, r := range cluster {
			if slices.Contains(r.Resources, "secrets") {
				t.Errorf("%s reads secrets of all namespaces", role)
			}
		}
		if Allow(own, "list", "", "secrets", "") != (role == "scuda-dra-controller") {
			t.Errorf("%s lists secrets", role)
		}
	}
	// What no fake interface asks for: the choice of a leader, events, the cluster's name, the status of devices.
	cluster, own, _ := Rules("scuda-dra-controller")
	for _, verb := range []string{"get", "update", "create"} {
		if !Allow(own, verb, "coordination.k8s.io", "leases", "scuda-dra-controller") {
			t.Error(verb, "of the leader's lease")
		}
	}
	for _, c := range [][4]string{{"create", "", "events", ""}, {"patch", "", "events", ""},
		{"get", "", "namespaces", "kube-system"},
		{"arbitrary-node:patch", "resource.k8s.io", "resourceclaims/driver", "gpu.scuda.dev"}} {
		if !Allow(cluster, c[0], c[1], c[2], c[3]) {
			t.Error(c)
		}
	}
}
