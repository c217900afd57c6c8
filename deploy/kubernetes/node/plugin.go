package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"scuda.dev/scuda/deploy/kubernetes/names"
)

const (
	claimsFolder = "claims"
	cdiPrefix    = names.Driver + "-"
)

// ErrNoLease is an attempt to prepare a claim for which the controller has no lease yet; the kubelet tries again.
var ErrNoLease = errors.New("there is no lease yet for this claim; kubectl describe resourceclaim says why")

// Plugin makes CDI devices of claims. Its fields do not change while it runs.
type Plugin struct {
	Client    kubernetes.Interface
	Namespace string // of the secrets
	Data      string // its folder on the node; nobody else may look into it
	CDI       string // where container engines look for devices
	Lib       string // the client libraries, by [Install]
	Log       *slog.Logger
	Fatal     func(error) // told of what cannot get better
}

// access is what a program needs to use a lease.
type access struct {
	server, fingerprint string
	token, ca           []byte
}

// read finds a claim's secret.
func (p *Plugin) read(ctx context.Context, claim types.UID) (*access, error) {
	s, err := p.Client.CoreV1().Secrets(p.Namespace).Get(ctx, names.Secret(claim), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, ErrNoLease
	} else if err != nil {
		return nil, err
	}
	return parse(s)
}

func parse(s *corev1.Secret) (*access, error) {
	a := &access{server: string(s.Data[names.KeyServer]), fingerprint: string(s.Data[names.KeyFingerprint]),
		token: s.Data[names.KeyToken], ca: s.Data[names.KeyCA]}
	if a.server == "" || len(a.token) == 0 {
		return nil, fmt.Errorf("the secret %s names no server or has no token; delete it, and the controller writes it anew",
			s.Name)
	}
	return a, nil
}

func (p *Plugin) folder(claim types.UID) string {
	return filepath.Join(p.Data, claimsFolder, string(claim))
}
func (p *Plugin) file(claim types.UID) string {
	return filepath.Join(p.CDI, cdiPrefix+string(claim)+".json")
}

// PrepareResourceClaims makes a device of each claim. It is the kubelet's.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, list []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range list {
		began := time.Now()
		devices, err := p.prepare(ctx, claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
		p.Log.Info("prepared a claim", "claim", claim.Namespace+"/"+claim.Name, "uid", claim.UID,
			"took", time.Since(began), "error", err)
	}
	return results, nil
}

func (p *Plugin) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (list []kubeletplugin.Device,
	err error) {
	a, err := p.read(ctx, claim.UID)
	if err != nil {
		return nil, err
	}
	folder := p.folder(claim.UID)
	// Nobody but root gets through to it on the node; in the container it is mounted, and of every user there.
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if err := os.Chmod(folder, 0o755); err != nil { // whatever the umask
		return nil, err
	}
	if err := a.lay(folder); err != nil {
		return nil, err
	}
	lib := p.Lib
	if err := os.MkdirAll(p.CDI, 0o755); err != nil {
		return nil, err
	}
	if err := writeSpec(p.file(claim.UID), deviceOf(claim.UID, a, lib, folder)); err != nil {
		return nil, err
	}
	id := names.CDIKind + "=" + string(claim.UID)
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == names.Driver {
			list = append(list, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device,
				ShareID: r.ShareID, CDIDeviceIDs: []string{id}})
		}
	}
	return list, nil
}

// lay writes the files that containers see. They see the folder itself, so a file that is replaced is new for them too.
func (a *access) lay(folder string) error {
	err := write(filepath.Join(folder, names.KeyToken), a.token, 0o444)
	if err == nil && len(a.ca) > 0 {
		err = write(filepath.Join(folder, names.KeyCA), a.ca, 0o444)
	}
	return err
}

// UnprepareResourceClaims takes the devices of claims away. It is the kubelet's.
func (p *Plugin) UnprepareResourceClaims(_ context.Context, list []kubeletplugin.NamespacedObject) (map[types.UID]error,
	error) {
	results := map[types.UID]error{}
	for _, claim := range list {
		err := os.Remove(p.file(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		results[claim.UID] = errors.Join(err, os.RemoveAll(p.folder(claim.UID)))
		p.Log.Info("took a claim away", "claim", claim.String(), "error", results[claim.UID])
	}
	return results, nil
}

// Refresh brings new credentials to the claims that are prepared: a lease that a server lost was made anew.
func (p *Plugin) Refresh(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(p.Data, claimsFolder))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		a, bad := p.read(ctx, types.UID(e.Name()))
		if errors.Is(bad, ErrNoLease) { // it is about to be taken away
			continue
		}
		if bad == nil {
			folder := p.folder(types.UID(e.Name()))
			if have, _ := os.ReadFile(filepath.Join(folder, names.KeyToken)); !bytes.Equal(have, a.token) {
				bad = a.lay(folder)
			}
		}
		err = errors.Join(err, bad)
	}
	return err
}

// HandleError is told of what goes wrong in the background.
func (p *Plugin) HandleError(_ context.Context, err error, msg string) {
	p.Log.Error(msg, "error", err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) && p.Fatal != nil {
		p.Fatal(fmt.Errorf("%s: %w", msg, err))
	}
}

// WatchHealthStatus says that it does not watch: the controller's taints say how servers are.
func (p *Plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// Serve answers the kubelet until the context ends. state is the kubelet's folder.
func (p *Plugin) Serve(ctx context.Context, node, state string, refresh time.Duration) error {
	own := filepath.Join(state, "plugins", names.Driver)
	if err := os.MkdirAll(own, 0o750); err != nil {
		return err
	}
	if err := p.Tidy(); err != nil {
		p.Log.Warn("cannot remove old libraries", "error", err)
	}
	helper, err := kubeletplugin.Start(ctx, p, kubeletplugin.DriverName(names.Driver), kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(p.Client), kubeletplugin.PluginDataDirectoryPath(own), kubeletplugin.Serialize(false),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(state, "plugins_registry")), kubeletplugin.HealthService(false))
	if err != nil {
		return err
	}
	defer helper.Stop()
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := p.Refresh(ctx); err != nil && ctx.Err() == nil {
				p.Log.Warn("cannot look for new credentials", "error", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}
