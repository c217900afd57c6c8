//go:build kubernetes

package lab

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const memory = 1024 // MiB of a GPU

// serve starts a server with one GPU.
func (l *lab) serve(name string) {
	l.Helper()
	l.put(name+".tenants", "kubernetes token=token-of-a-test\n")
	args := []string{"serve", "127.0.0.1:" + l.port(name), "--gpu", "sim", "--sim-memory", fmt.Sprintf("%dMiB", memory),
		"--tenants", l.in(name + ".tenants"), "--tls", "always", "--admin", l.in(name + ".admin"), "--state-dir",
		l.in(name + ".state"), "--cache-dir", l.in(name + ".cache"), "--worker-folder", "none"}
	d := l.start(name, filepath.Join(l.build, "scuda"), args...)
	l.said(d, "listening on ")
}

// port is that of a name, always the same.
func (l *lab) port(name string) string {
	if l.ports[name] == "" {
		l.free(name)
	}
	return l.ports[name]
}

// line is a server's in the list of servers.
func (l *lab) line(name string) string {
	return fmt.Sprintf("- {name: %s.example.org, address: \"127.0.0.1:%s\", admin: \"unix:%s\", tenant: kubernetes}\n",
		name, l.ports[name], l.in(name+".admin"))
}

// control starts the controller, with the rights of its service account.
func (l *lab) control() {
	l.start("controller", l.in("scuda-dra"), "controller", "--kubeconfig",
		l.kubeconfig("controller", "token-of-scuda-dra-controller"), "--servers", l.in("servers.yaml"), "--poll", "500ms",
		"--down-after", "2s", "--evict-after", "4s")
}

// plugin starts the plugin of a node's kubelet, with the rights of its service account.
func (l *lab) plugin(node string) {
	l.start("plugin-"+node, l.in("scuda-dra"), "kubelet-plugin", "--kubeconfig",
		l.kubeconfig("plugin", "token-of-scuda-dra-plugin"), "--node-name", node, "--kubelet-dir", l.at(node, "kubelet"),
		"--cdi-dir", l.at(node, "cdi"), "--libraries", filepath.Join(l.build, "lib"), "--refresh", "1s")
}

// image writes an image with a CUDA program, the C library that it needs, and a shell; and the one of sandboxes.
func (l *lab) image() {
	l.Helper()
	l.run("cc", "-O1", "-Wall", "-Wno-strict-prototypes", "-o", l.in("gpu"), "testdata/gpu.c", "-ldl")
	var layer bytes.Buffer
	to := tar.NewWriter(&layer)
	for _, f := range []struct{ to, from string }{
		{"bin/sh", "/bin/busybox"}, {"bin/sleep", "/bin/busybox"}, {"bin/gpu", l.in("gpu")},
		{"lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"},
		{"lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"},
		{"lib/x86_64-linux-gnu/libdl.so.2", "/lib/x86_64-linux-gnu/libdl.so.2"},
		{"lib/x86_64-linux-gnu/libpthread.so.0", "/lib/x86_64-linux-gnu/libpthread.so.0"},
	} {
		text, err := os.ReadFile(f.from)
		l.must(err)
		l.must(to.WriteHeader(&tar.Header{Name: f.to, Mode: 0o755, Size: int64(len(text))}))
		_, err = to.Write(text)
		l.must(err)
	}
	for _, name := range []string{"tmp/", "proc/", "sys/", "dev/", "etc/", "run/", "opt/"} {
		l.must(to.WriteHeader(&tar.Header{Name: name, Mode: 0o777, Typeflag: tar.TypeDir}))
	}
	l.must(to.Close())
	for name, command := range map[string][]string{"localhost/gpu:1": {"gpu"}, "localhost/pause:1": {"sleep", "1000000"}} {
		l.layout(name, command, layer.Bytes())
	}
}

// layout writes an image as an archive of OCI's layout.
func (l *lab) layout(name string, command []string, layer []byte) {
	l.Helper()
	var out bytes.Buffer
	to := tar.NewWriter(&out)
	file := func(name string, text []byte) {
		l.must(to.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
		_, err := to.Write(text)
		l.must(err)
	}
	type blob struct {
		Type        string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	add := func(kind string, text []byte) blob {
		sum := sha256.Sum256(text)
		file("blobs/sha256/"+hex.EncodeToString(sum[:]), text)
		return blob{kind, "sha256:" + hex.EncodeToString(sum[:]), len(text), nil}
	}
	encode := func(v any) []byte {
		text, err := json.Marshal(v)
		l.must(err)
		return text
	}
	const kinds = "application/vnd.oci.image."
	body := add(kinds+"layer.v1.tar", layer)
	config := add(kinds+"config.v1+json", encode(map[string]any{"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Cmd": command, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{body.Digest}}}))
	m := add(kinds+"manifest.v1+json", encode(map[string]any{"schemaVersion": 2, "mediaType": kinds + "manifest.v1+json",
		"config": config, "layers": []blob{body}}))
	m.Annotations = map[string]string{"io.containerd.image.name": name}
	file("index.json", encode(map[string]any{"schemaVersion": 2, "mediaType": kinds + "index.v1+json",
		"manifests": []blob{m}}))
	file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	l.must(to.Close())
	l.put("image-"+filepath.Base(name)+".tar", out.String())
}

// containers starts a node's containerd, and gives it the images.
func (l *lab) containers(node string) {
	l.Helper()
	l.put(node+"/cni/10-lab.conflist", `{"cniVersion":"1.0.0","name":"lab","plugins":[{"type":"ptp",
"ipam":{"type":"host-local","ranges":[[{"subnet":"10.201.0.0/24"}]]}}]}`)
	config := l.put(node+"/containerd.toml", fmt.Sprintf(`version = 3
root = '%[1]s/containerd'
state = '%[1]s/run'
[grpc]
address = '%[1]s/containerd.sock'
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ['%[1]s/cdi']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/usr/lib/cni']
conf_dir = '%[1]s/cni'
[plugins.'io.containerd.cri.v1.images']
snapshotter = 'native'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = 'localhost/pause:1'
`, l.in(node)))
	l.must(os.MkdirAll(l.at(node, "cdi"), 0o755))
	l.start("containerd-"+node, filepath.Join(l.parts, "containerd"), "--config", config)
	for _, name := range []string{"gpu:1", "pause:1"} {
		l.until("containerd takes images", func() bool {
			out, err := l.ctr(node, "images", "import", "--local", "--snapshotter", "native", l.in("image-"+name+".tar"))
			if err != nil {
				l.Logf("%s: %v, %s", name, err, out)
			}
			return err == nil
		})
	}
}

// kubelet starts that of a node, and makes the node one that takes pods. Each has a control group of its own, below
// which it puts those of its pods, so there may be several on one machine.
func (l *lab) kubelet(node string) {
	l.Helper()
	l.must(os.MkdirAll(l.at(node, "kubelet/plugins_registry"), 0o755))
	for _, h := range hierarchies() {
		l.must(os.MkdirAll(filepath.Join(h, group+node), 0o755))
	}
	config := l.put(node+"/kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: true
cgroupRoot: /%[3]s
containerRuntimeEndpoint: unix://%[1]s/containerd.sock
failSwapOn: false
enforceNodeAllocatable: []
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
podLogsDir: %[1]s/logs
port: %[2]s
address: 127.0.0.1
healthzPort: 0
evictionHard: {memory.available: "1Mi", nodefs.available: "1%%", imagefs.available: "1%%", nodefs.inodesFree: "1%%"}
imageGCHighThresholdPercent: 100
`, l.in(node), l.port("kubelet-"+node), group+node))
	l.start("kubelet-"+node, filepath.Join(l.parts, "kubelet"), "--config", config, "--kubeconfig",
		l.kubeconfig("kubelet", "admintoken"), "--root-dir", l.at(node, "kubelet"), "--cert-dir",
		l.at(node, "certs-kubelet"), "--hostname-override", node)
	l.until("the node is ready", func() bool {
		n, err := l.client.CoreV1().Nodes().Get(l.Context(), node, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				n.Spec.Taints = nil
				_, err := l.client.CoreV1().Nodes().Update(l.Context(), n, metav1.UpdateOptions{})
				return err == nil
			}
		}
		return false
	})
}

// restart ends a program as if it had crashed, and starts it again.
func (l *lab) restart(name string, start func()) {
	l.Helper()
	l.end(name, syscall.SIGKILL)
	start()
}
