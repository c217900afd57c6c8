package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"scuda.dev/scuda/deploy/kubernetes/names"
)

// served runs a plugin as its program does, and gives what the kubelet asks it by.
func served(t *testing.T, p *Plugin, state string) (kubelet dra.DRAPluginClient, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, "node", state, 20*time.Millisecond) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(state, "plugins", names.Driver, "dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	return dra.NewDRAPluginClient(conn), func() {
		conn.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A plugin that restarts in the middle of everything: what was prepared stays usable, gets a new credential, may be
// prepared again, and goes when the kubelet says so. What a plugin has left that was killed while it wrote goes at the
// start of the next.
func TestRestart(t *testing.T) {
	c := claim()
	client := fake.NewClientset(secret("first"), c)
	p := plugin(t, client)
	state := filepath.Dir(p.Data) // the kubelet's folder
	if err := os.MkdirAll(filepath.Join(state, "plugins_registry"), 0o700); err != nil {
		t.Fatal(err)
	}
	asked := []*dra.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}}
	prepare := func(kubelet dra.DRAPluginClient) string {
		t.Helper()
		got, err := kubelet.NodePrepareResources(t.Context(), &dra.NodePrepareResourcesRequest{Claims: asked})
		if err != nil {
			t.Fatal(err)
		}
		r := got.Claims[string(uid)]
		if r.GetError() != "" || len(r.GetDevices()) != 1 {
			t.Fatalf("%+v", got)
		}
		return strings.Join(r.Devices[0].CdiDeviceIds, " ")
	}
	token := filepath.Join(p.folder(uid), names.KeyToken)
	reads := func(want string) bool { b, err := os.ReadFile(token); return err == nil && string(b) == want }

	kubelet, stop := served(t, p, state)
	id := prepare(kubelet)
	stop()
	if !reads("first") || device1(t, p).Mounts[1].Host != p.folder(uid) {
		t.Fatal("what was prepared is gone with the plugin")
	}
	if _, err := client.CoreV1().Secrets(own).Update(t.Context(), secret("second"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	left := []string{filepath.Join(p.CDI, ".new-1"), filepath.Join(p.Data, ".new-lib-1")} // as a kill leaves it
	for _, path := range left {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}

	kubelet, stop = served(t, p, state)
	for !reads("second") {
		if t.Context().Err() != nil {
			t.Fatal("no new credential")
		}
		time.Sleep(time.Millisecond)
	}
	for _, path := range left {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if again := prepare(kubelet); again != id {
		t.Errorf("prepared again: %q, before %q", again, id)
	}
	stop()

	// The claim is released while no plugin runs; the kubelet takes it away when one does, also if the claim is gone.
	claims := client.ResourceV1().ResourceClaims(c.Namespace)
	if err := claims.Delete(t.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Secrets(own).Delete(t.Context(), names.Secret(uid), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kubelet, stop = served(t, p, state)
	defer stop()
	got, err := kubelet.NodeUnprepareResources(t.Context(), &dra.NodeUnprepareResourcesRequest{Claims: asked})
	if err != nil || got.Claims[string(uid)].GetError() != "" {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, path := range []string{p.file(uid), p.folder(uid)} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
