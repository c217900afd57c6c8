package node

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"scuda.dev/scuda/deploy/kubernetes/manifests"
	"scuda.dev/scuda/deploy/kubernetes/names"
)

const (
	own = "scuda-system"
	uid = types.UID("8d3f5b6e-0000-4000-8000-000000000001")
)

func secret(token string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: names.Secret(uid), Namespace: own}, Data: map[string][]byte{
		names.KeyServer: []byte("gpu1:14833"), names.KeyToken: []byte(token), names.KeyFingerprint: []byte("sha256:ab"),
		names.KeyCA: []byte("PEM")}}
}

func claim() *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "users", UID: uid}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: names.Driver, Pool: "gpu1", Device: "gpu-1", ShareID: new(types.UID("s"))},
			{Request: "nic", Driver: "nic.example.org", Pool: "node", Device: "eth1"},
		}}}
	return c
}

func plugin(t *testing.T, client *fake.Clientset) *Plugin {
	t.Helper()
	image, data := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(image, "libscuda.so"), []byte("code"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("libscuda.so", filepath.Join(image, "libscuda.so.1")); err != nil {
		t.Fatal(err)
	}
	lib, err := Install(image, data, "1.2")
	if err != nil {
		t.Fatal(err)
	}
	return &Plugin{Client: client, Namespace: own, Data: data, CDI: filepath.Join(t.TempDir(), "cdi"), Lib: lib,
		Log: slog.New(slog.DiscardHandler)}
}

// device1 reads the CDI file of the claim.
func device1(t *testing.T, p *Plugin) edits {
	t.Helper()
	var s spec
	b, err := os.ReadFile(p.file(uid))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &s); err != nil || s.Kind != names.CDIKind || len(s.Devices) != 1 ||
		s.Devices[0].Name != string(uid) {
		t.Fatalf("%s: %v", b, err)
	}
	return s.Devices[0].Edits
}

// A claim becomes a device, again and again, and is gone when it is taken away, again and again.
func TestPrepare(t *testing.T) {
	client := fake.NewClientset(secret("first"))
	p := plugin(t, client)
	for range 2 {
		got, err := p.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim()})
		r := got[uid]
		if err != nil || r.Err != nil || len(r.Devices) != 1 || r.Devices[0].PoolName != "gpu1" ||
			r.Devices[0].DeviceName != "gpu-1" || !slices.Equal(r.Devices[0].Requests, []string{"gpu"}) ||
			*r.Devices[0].ShareID != "s" || !slices.Equal(r.Devices[0].CDIDeviceIDs, []string{"scuda.dev/gpu=" + string(uid)}) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	e := device1(t, p)
	for _, want := range []string{"SCUDA_SERVER=gpu1:14833", "SCUDA_TOKEN_FILE=/run/scuda/token",
		"SCUDA_FINGERPRINT=sha256:ab", "SCUDA_CA=/run/scuda/ca.crt"} {
		if !slices.Contains(e.Env, want) {
			t.Errorf("%s is missing in %q", want, e.Env)
		}
	}
	if strings.Contains(strings.Join(e.Env, " "), "first") {
		t.Error("the environment has the credential")
	}
	if len(e.Mounts) != 2 || e.Mounts[0].Host != p.Lib || !slices.Contains(e.Mounts[1].Options, "ro") {
		t.Fatalf("%+v", e.Mounts)
	}
	token := filepath.Join(e.Mounts[1].Host, names.KeyToken)
	if b, err := os.ReadFile(token); err != nil || string(b) != "first" {
		t.Errorf("%q, %v", b, err)
	}
	for path, mode := range map[string]os.FileMode{
		filepath.Dir(e.Mounts[1].Host): 0o700, e.Mounts[1].Host: 0o755, token: 0o444,
	} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}

	// A lease that was made anew has another credential, which the running container sees.
	if _, err := client.CoreV1().Secrets(own).Update(t.Context(), secret("second"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(token); err != nil || string(b) != "second" {
		t.Errorf("%q, %v", b, err)
	}

	gone := []kubeletplugin.NamespacedObject{
		{NamespacedName: types.NamespacedName{Namespace: "users", Name: "a"}, UID: uid},
	}
	for range 2 {
		got, err := p.UnprepareResourceClaims(t.Context(), gone)
		if e, known := got[uid]; err != nil || e != nil || !known {
			t.Fatalf("%v, %v", got, err)
		}
	}
	for _, a := range client.Actions() {
		_, mine, err := manifests.Rules("scuda-dra-plugin")
		if a.GetVerb() == "update" { // the test's
			continue
		}
		if err != nil || !manifests.Allow(mine, a.GetVerb(), a.GetResource().Group, a.GetResource().Resource, "") {
			t.Errorf("the role does not allow %s of %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	for _, path := range []string{p.file(uid), p.folder(uid)} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Without a lease, or with a secret that is none, the kubelet is told so, and nothing is left on the node.
func TestNotPrepared(t *testing.T) {
	bad := secret("")
	for what, client := range map[string]*fake.Clientset{
		"no secret": fake.NewClientset(), "no token": fake.NewClientset(bad),
	} {
		p := plugin(t, client)
		got, err := p.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim()})
		if err != nil || got[uid].Err == nil || errors.Is(got[uid].Err, ErrNoLease) != (what == "no secret") {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
		if _, err := os.Stat(p.file(uid)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: there is a device", what)
		}
		if err := p.Refresh(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Libraries are copied once, and stay for as long as a container may use them.
func TestLibraries(t *testing.T) {
	p := plugin(t, fake.NewClientset(secret("first")))
	if l, err := os.Readlink(filepath.Join(p.Lib, "libscuda.so.1")); err != nil || l != "libscuda.so" {
		t.Errorf("%s, %v", l, err)
	}
	if again, err := Install("/nowhere", p.Data, "1.2"); err != nil || again != p.Lib {
		t.Errorf("%s, %v", again, err)
	}
	for _, version := range []string{"", "../x", "9"} {
		if _, err := Install("/nowhere", p.Data, version); !errors.Is(err, ErrLibraries) {
			t.Errorf("%q: %v", version, err)
		}
	}
	if _, err := p.prepare(t.Context(), claim()); err != nil {
		t.Fatal(err)
	}
	old := p.Lib
	newer, err := Install(old, p.Data, "1.3")
	if err != nil {
		t.Fatal(err)
	}
	p.Lib = newer
	if err := p.Tidy(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err != nil {
		t.Errorf("libraries that are used are gone: %v", err)
	}
	if err := os.Remove(p.file(uid)); err != nil {
		t.Fatal(err)
	}
	if err := p.Tidy(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("old libraries: %v", err)
	}
	if _, err := os.Stat(newer); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(p.Data, ".new*")); len(left) > 0 {
		t.Errorf("%q", left)
	}
}

// BenchmarkPrepare is the time of NodePrepareResources, but for the interface's own.
func BenchmarkPrepare(b *testing.B) {
	p := &Plugin{Client: fake.NewClientset(secret("first")), Namespace: own, Data: b.TempDir(), CDI: b.TempDir(),
		Lib: "/opt/lib", Log: slog.New(slog.DiscardHandler)}
	for b.Loop() {
		if _, err := p.prepare(b.Context(), claim()); err != nil {
			b.Fatal(err)
		}
	}
}
