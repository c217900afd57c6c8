package chart

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"text/template"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"scuda.dev/scuda/deploy/kubernetes/fleet"
	"scuda.dev/scuda/deploy/kubernetes/manifests"
)

var update = flag.Bool("update", false, "write the templates, and the version into Chart.yaml")

const folder = "scuda"

// The templates are those that the manifests make.
func TestTemplates(t *testing.T) {
	all, err := Templates()
	if err != nil {
		t.Fatal(err)
	}
	there, err := filepath.Glob(filepath.Join(folder, "templates", "*.yaml"))
	if err != nil || len(there) != len(all) && !*update {
		t.Errorf("%q, %v", there, err)
	}
	for name, text := range all {
		path := filepath.Join(folder, "templates", name)
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(path); err != nil || string(have) != text {
			t.Errorf("%s is not what the manifests make (%v); run go test ./chart -update in deploy/kubernetes", path, err)
		}
	}
	// Each file for kustomize is one of the chart, but for those that Helm has no use for.
	files, err := manifests.Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if _, ok := all[name]; !ok && name != "namespace.yaml" && name != "kustomization.yaml" {
			t.Errorf("%s is not in the chart", name)
		}
	}
	version, err := os.ReadFile("../../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "Chart.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		if name, _, _ := strings.Cut(line, ":"); name == "version" || name == "appVersion" {
			lines[i] = name + ": " + strings.TrimSpace(string(version))
		}
	}
	if now := strings.Join(lines, "\n"); now != string(text) {
		if !*update {
			t.Errorf("%s has another version than the file VERSION; run go test ./chart -update", path)
		} else if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// words are Helm's functions that the templates use; a template with another one fails here.
var words = template.FuncMap{
	"quote":  func(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) },
	"toJson": func(v any) (string, error) { b, err := json.Marshal(v); return string(b), err },
	"toYaml": func(v any) (string, error) {
		b, err := yaml.Marshal(v)
		return strings.TrimSuffix(string(b), "\n"), err
	},
	"nindent": func(n int, s string) string { return strings.ReplaceAll("\n"+s, "\n", "\n"+strings.Repeat(" ", n)) },
}

// defaults are the chart's values.
func defaults(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "values.yaml"))
	values := map[string]any{}
	if err == nil {
		err = yaml.Unmarshal(text, &values)
	}
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// render makes a chart's objects of values as Helm does, for a release in such a namespace.
func render(t *testing.T, values map[string]any, namespace string) (list []runtime.Object) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(folder, "templates"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(folder, "templates", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		made, err := template.New(f.Name()).Funcs(words).Option("missingkey=error").Parse(string(text))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := made.Execute(&out, map[string]any{"Values": values,
			"Release": map[string]any{"Namespace": namespace, "Name": "scuda"}}); err != nil {
			t.Fatal(err)
		}
		if f.Name() != "NOTES.txt" {
			list = append(list, decode(t, f.Name(), out.Bytes())...)
		}
	}
	return list
}

func decode(t *testing.T, name string, text []byte) (list []runtime.Object) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var any map[string]any
		if err := yaml.Unmarshal(part, &any); err == nil && len(any) == 0 {
			continue // nothing but comments
		}
		o, _, err := decoder.Decode(part, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, part)
		}
		list = append(list, o)
	}
	return list
}

// named gives objects by kind and name.
func named(list []runtime.Object) map[string]runtime.Object {
	all := map[string]runtime.Object{}
	for _, o := range list {
		all[o.GetObjectKind().GroupVersionKind().Kind+" "+o.(metav1.Object).GetName()] = o
	}
	return all
}

// kustomized are the objects of the manifests, and the servers that they name.
func kustomized(t *testing.T) (all map[string]runtime.Object, servers []any) {
	t.Helper()
	files, err := manifests.Files()
	if err != nil {
		t.Fatal(err)
	}
	var list []runtime.Object
	for _, name := range files {
		if name == "namespace.yaml" || name == "kustomization.yaml" {
			continue
		}
		some, err := manifests.Objects(name)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, some...)
	}
	all = named(list)
	var c struct {
		Servers []any `json:"servers"`
	}
	text := all["ConfigMap scuda-servers"].(*corev1.ConfigMap).Data["servers.yaml"]
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return all, c.Servers
}

// same compares what a chart gives with the manifests.
func same(t *testing.T, got []runtime.Object) {
	t.Helper()
	want, _ := kustomized(t)
	have := named(got)
	if a, b := slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
		t.Errorf("the chart has %q, kustomize %q", a, b)
	}
	for name, o := range want {
		if c, ok := o.(*corev1.ConfigMap); ok {
			a, err := fleet.ParseConfig([]byte(c.Data["servers.yaml"]))
			if err != nil {
				t.Fatal(err)
			}
			b, err := fleet.ParseConfig([]byte(have[name].(*corev1.ConfigMap).Data["servers.yaml"]))
			if err != nil || !reflect.DeepEqual(a, b) {
				t.Errorf("%+v, %+v, %v", a, b, err)
			}
			continue
		}
		if !apiequality.Semantic.DeepEqual(o, have[name]) {
			a, _ := yaml.Marshal(o)
			b, _ := yaml.Marshal(have[name])
			t.Errorf("%s: kustomize has\n%s\nthe chart\n%s", name, a, b)
		}
	}
}

// With the values that it comes with, the chart installs what kustomize does.
func TestSame(t *testing.T) {
	values := defaults(t)
	_, values["servers"] = kustomized(t)
	same(t, render(t, values, namespace))
}

// other are values of which none is the default.
func other() map[string]any {
	return map[string]any{
		"servers":     []any{},
		"adminSecret": "tokens",
		"image": map[string]any{"driver": "registry.example.org/scuda-dra:1", "server": "registry.example.org/scuda:1",
			"pullPolicy": "IfNotPresent", "pullSecrets": []any{map[string]any{"name": "registry"}}},
		"controller": map[string]any{"replicas": 2, "metricsPort": 9000, "args": []any{"--poll=5s", "--kube-api-qps=100"},
			"resources":    map[string]any{"limits": map[string]any{"memory": "2Gi"}},
			"nodeSelector": map[string]any{"a": "b"},
			"tolerations":  []any{map[string]any{"operator": "Exists"}}},
		"plugin": map[string]any{"kubeletDir": "/srv/kubelet", "args": []any{"--refresh=5m"},
			"resources": map[string]any{}, "nodeSelector": map[string]any{"c": "d"}},
		"server": map[string]any{"enabled": true, "port": 15000, "secret": "certificate", "args": []any{"--usage-log=none"},
			"runtimeClassName": "", "nodeSelector": map[string]any{"e": "f"}},
		"deviceClass": map[string]any{"extendedResource": ""},
	}
}

// Every value arrives where it belongs.
func TestValues(t *testing.T) {
	values := other()
	list := render(t, values, "gpus")
	all := named(list)
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, old := range []string{namespace, "/var/lib/kubelet", "9837", "14833", "nvidia\"", "\"scuda-admin", ":latest",
		"scuda.dev/gpu\"", "scuda.dev/server"} {
		if bytes.Contains(text, []byte(old)) {
			t.Errorf("%q is still there", old)
		}
	}
	c := all["Deployment scuda-dra-controller"].(*appsv1.Deployment).Spec
	p := all["DaemonSet scuda-dra-plugin"].(*appsv1.DaemonSet).Spec.Template.Spec
	s := all["DaemonSet scuda-server"].(*appsv1.DaemonSet).Spec.Template.Spec
	pod := c.Template.Spec
	if *c.Replicas != 2 || pod.NodeSelector["a"] != "b" || len(pod.Tolerations) != 1 ||
		!slices.Equal(pod.Containers[0].Args, []string{"controller", "--metrics=:9000", "--poll=5s", "--kube-api-qps=100"}) ||
		pod.Containers[0].Ports[0].ContainerPort != 9000 || pod.Containers[0].Resources.Limits.Memory().String() != "2Gi" {
		t.Errorf("controller: %+v", c)
	}
	if !slices.Equal(p.Containers[0].Args, []string{"kubelet-plugin", "--kubelet-dir=/srv/kubelet", "--refresh=5m"}) ||
		p.Volumes[0].HostPath.Path != "/srv/kubelet/plugins_registry" ||
		p.Containers[0].VolumeMounts[1].MountPath != "/srv/kubelet/plugins" || p.NodeSelector["c"] != "d" {
		t.Errorf("plugin: %+v", p)
	}
	if s.RuntimeClassName != nil || s.NodeSelector["e"] != "f" || s.Containers[0].Args[1] != "0.0.0.0:15000" ||
		!slices.Contains(s.Containers[0].Args, "--usage-log=none") || s.Volumes[0].Secret.SecretName != "certificate" {
		t.Errorf("server: %+v", s)
	}
	for _, spec := range []corev1.PodSpec{pod, p, s} {
		if len(spec.ImagePullSecrets) != 1 || spec.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent ||
			!strings.HasPrefix(spec.Containers[0].Image, "registry.example.org/") {
			t.Errorf("%+v", spec)
		}
	}
	values["server"].(map[string]any)["enabled"] = false
	if without := render(t, values, "gpus"); len(without) != len(list)-1 {
		t.Errorf("%d objects with a server, %d without", len(list), len(without))
	}
}

// schema is a part of one, as far as the test reads it.
type schema struct {
	Type        string            `json:"type"`
	Ref         string            `json:"$ref"`
	Description string            `json:"description"`
	Additional  *bool             `json:"additionalProperties"`
	Properties  map[string]schema `json:"properties"`
	Items       *schema           `json:"items"`
}

// The schema knows the values that there are, and no others. (Helm itself checks more: make test-helm.)
func TestSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	delete(s.Properties, "global")
	compare(t, "", s, defaults(t))
	compare(t, "", s, other())
	line := s.Properties["servers"].Items.Properties
	fields := reflect.TypeFor[fleet.Server]()
	if len(line) != fields.NumField() {
		t.Errorf("a server has %d fields, the schema %d", fields.NumField(), len(line))
	}
	for field := range fields.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if line[name].Description == "" {
			t.Errorf("servers: the schema has no %s, or says nothing of it", name)
		}
	}
}

func compare(t *testing.T, at string, s schema, values map[string]any) {
	t.Helper()
	if s.Additional == nil || *s.Additional {
		t.Errorf("%q takes values that nobody knows", at)
	}
	if a, b := slices.Sorted(maps.Keys(s.Properties)), slices.Sorted(maps.Keys(values)); !slices.Equal(a, b) {
		t.Errorf("%q: the schema has %q, the values %q", at, a, b)
	}
	for name, p := range s.Properties {
		if p.Description == "" {
			t.Errorf("%s.%s has no description", at, name)
		}
		if p.Properties != nil {
			inner, ok := values[name].(map[string]any)
			if !ok {
				t.Errorf("%s.%s is %v", at, name, values[name])
			}
			compare(t, at+"."+name, p, inner)
		}
	}
}
