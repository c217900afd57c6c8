// Package chart makes a Helm chart of the objects that package manifests has for kustomize. The templates are those
// files with what a user may choose in the place of what stands there, so there is one source of both. Its test writes
// them (-update) and says whether they are as they should be.
package chart

import (
	"errors"
	"fmt"
	"strings"

	"scuda.dev/scuda/deploy/kubernetes/manifests"
)

// ErrSource is wrapped by what manifests do not have that has to be replaced there.
var ErrSource = errors.New("the chart's source has changed; change the list of edits with it")

// edit replaces a text of a file, which has it so many times, by a template.
type edit struct {
	old, new string
	times    int
}

const (
	namespace = "scuda-system"
	released  = "{{ .Release.Namespace }}"
)

// options gives what a list of values adds to a list of arguments.
func options(of string) string {
	return "{{ range .Values." + of + ".args }}, {{ . | quote }}{{ end }}"
}

// pod is what pods have of the values beside what the manifests say.
const pod = `
      {{- with .Values.image.pullSecrets }}
      imagePullSecrets: {{ toJson . }}
      {{- end }}`

const pull = `
        {{- with .Values.image.pullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}`

// where is a part of a pod that is only there where a value is.
func where(value, field string) string {
	return fmt.Sprintf(`
      {{- with .Values.%s }}
      %s: {{ toJson . }}
      {{- end }}`, value, field)
}

// edits are those of each file that is part of the chart, which are all but the namespace: Helm makes that.
var edits = map[string][]edit{
	"rbac.yaml": nil,
	"classes.yaml": {
		{"\n  extendedResourceName: scuda.dev/gpu", "\n  {{- with .Values.deviceClass.extendedResource }}\n" +
			"  extendedResourceName: {{ . }}\n  {{- end }}", 1},
	},
	"controller.yaml": {
		{"replicas: 1", "replicas: {{ .Values.controller.replicas }}", 1},
		{"image: scuda-dra:latest", "image: {{ .Values.image.driver | quote }}" + pull, 1},
		{`"--metrics=:9837"`, `"--metrics=:{{ .Values.controller.metricsPort }}"` + options("controller"), 1},
		{"containerPort: 9837", "containerPort: {{ .Values.controller.metricsPort }}", 1},
		{"resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 1Gi}}",
			"resources: {{ toJson .Values.controller.resources }}", 1},
		{"\n      priorityClassName: system-cluster-critical", "\n      priorityClassName: system-cluster-critical" +
			where("controller.nodeSelector", "nodeSelector") + where("controller.tolerations", "tolerations") + pod, 1},
		{"secretName: scuda-admin", "secretName: {{ .Values.adminSecret }}", 1},
	},
	"plugin.yaml": {
		{"image: scuda-dra:latest", "image: {{ .Values.image.driver | quote }}" + pull, 1},
		{"args: [kubelet-plugin]", `args: [kubelet-plugin{{ if ne .Values.plugin.kubeletDir "/var/lib/kubelet" }}, ` +
			`"--kubelet-dir={{ .Values.plugin.kubeletDir }}"{{ end }}` + options("plugin") + "]", 1},
		{"/var/lib/kubelet/plugins", "{{ .Values.plugin.kubeletDir }}/plugins", 4},
		{"resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 256Mi}}",
			"resources: {{ toJson .Values.plugin.resources }}", 1},
		{"\n      priorityClassName: system-node-critical", "\n      priorityClassName: system-node-critical" +
			where("plugin.nodeSelector", "nodeSelector") + pod, 1},
	},
	"server.yaml": {
		{"image: scuda-server:latest", "image: {{ .Values.image.server | quote }}" + pull, 1},
		{`"0.0.0.0:14833"`, `"0.0.0.0:{{ .Values.server.port }}"`, 1},
		{`"--metrics=127.0.0.1:9836"`, `"--metrics=127.0.0.1:9836"` + options("server"), 1},
		{"\n      runtimeClassName: nvidia", where("server.runtimeClassName", "runtimeClassName") + pod, 1},
		{`nodeSelector: {scuda.dev/server: "true"}`, "nodeSelector: {{ toJson .Values.server.nodeSelector }}", 1},
		{"secretName: scuda-server", "secretName: {{ .Values.server.secret }}", 1},
	},
	"servers.yaml": nil, // its list is the values'
}

// Templates are the chart's, by the names of their files.
func Templates() (map[string]string, error) {
	all := map[string]string{}
	for name, list := range edits {
		text, err := manifests.Read(name)
		if err != nil {
			return nil, err
		}
		t := string(text)
		if name == "servers.yaml" {
			head, _, found := strings.Cut(t, "  servers.yaml: |\n")
			if !found {
				return nil, fmt.Errorf("%w: %s has no list of servers", ErrSource, name)
			}
			t = head + "  servers.yaml: |\n    servers: {{ toYaml .Values.servers | nindent 4 }}\n"
		}
		for _, e := range list {
			if n := strings.Count(t, e.old); n != e.times {
				return nil, fmt.Errorf("%w: %s has %q %d times, not %d", ErrSource, name, e.old, n, e.times)
			}
			t = strings.ReplaceAll(t, e.old, e.new)
		}
		t = strings.ReplaceAll(t, "namespace: "+namespace, "namespace: "+released)
		if strings.Contains(t, namespace) {
			return nil, fmt.Errorf("%w: %s names the namespace elsewhere, too", ErrSource, name)
		}
		if name == "server.yaml" {
			t = "{{- if .Values.server.enabled }}\n" + t + "{{- end }}\n"
		}
		all[name] = "# Made of deploy/kubernetes/manifests by go test ./chart -update. DO NOT EDIT.\n" + t
	}
	return all, nil
}
