// Package manifests has the objects that install the Kubernetes driver, as files for kustomize. Tests read them: each
// has to be what the cluster's types know, and the roles have to allow what the code asks for, and no more.
package manifests

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

//go:embed *.yaml
var files embed.FS

// Files are their names.
func Files() ([]string, error) { return fs.Glob(files, "*.yaml") }

// Read gives the text of a file.
func Read(name string) ([]byte, error) { return files.ReadFile(name) }

// Objects are those of a file; a word that their types do not have is an error.
func Objects(name string) (list []runtime.Object, err error) {
	text, err := Read(name)
	if err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for i, part := range bytes.Split(text, []byte("\n---\n")) {
		o, _, err := decoder.Decode(part, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s, object %d: %w", name, i+1, err)
		}
		list = append(list, o)
	}
	return list, nil
}

// Rules are those of the roles with a name, of the cluster and of the driver's namespace.
func Rules(role string) (cluster, own []rbacv1.PolicyRule, err error) {
	list, err := Objects("rbac.yaml")
	for _, o := range list {
		switch r := o.(type) {
		case *rbacv1.ClusterRole:
			if r.Name == role {
				cluster = r.Rules
			}
		case *rbacv1.Role:
			if r.Name == role {
				own = r.Rules
			}
		}
	}
	return cluster, own, err
}

// Allow says whether a rule allows something. resource may have a part behind a slash.
func Allow(rules []rbacv1.PolicyRule, verb, group, resource, name string) bool {
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Verbs, verb) && slices.Contains(r.APIGroups, group) &&
			slices.Contains(r.Resources, resource) && (len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, name))
	})
}
