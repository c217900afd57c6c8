package lab

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/deploy/pool/store"
	"scuda.dev/scuda/transport/certificate"
)

// site is an etcd that is not the pool's: a process of its own, which is reached by TLS alone, and lets in by
// certificates, whose names are its users.
type site struct {
	program, file, ca string
	url               string
}

// Users of the site's etcd, as docs/pool.md wants them. etcd has a user root where it asks for users.
const (
	root      = "root"
	announcer = "announcer"
	person    = "person"
)

// newSite makes the program, the certificates and the settings.
func newSite(t *testing.T) *site {
	t.Helper()
	folder := t.TempDir()
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), rand.N(256), 1+rand.N(250))
	s := &site{program: filepath.Join(folder, "site"), file: filepath.Join(folder, "etcd.yaml"),
		ca: filepath.Join(folder, "ca"), url: "https://" + host + ":2379"}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", s.program,
		"./site")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as scuda-pool is built, so that there is only to link
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, args := range [][]string{{"init"}, {"issue", "--server", host}, {"issue", root}, {"issue", announcer},
		{"issue", person}} {
		args = append([]string{"ca", "--folder", s.ca}, args...)
		if out, err := exec.Command(scuda, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	own := s.shows(host)
	text := fmt.Sprintf(`name: site
data-dir: %s
listen-client-urls: %s
advertise-client-urls: %[2]s
listen-peer-urls: http://%s:2380
initial-advertise-peer-urls: http://%[3]s:2380
initial-cluster: site=http://%[3]s:2380
client-transport-security: {cert-file: %s, key-file: %s, trusted-ca-file: %s, client-cert-auth: true}
enable-grpc-gateway: false
log-level: warn
log-outputs: [stderr]
`, filepath.Join(folder, "data"), s.url, host, own.Cert, own.Key, own.CA)
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// shows is how somebody reaches it, with a certificate.
func (s *site) shows(who string) store.Options {
	cert := filepath.Join(s.ca, who)
	return store.Options{Endpoints: []string{s.url}, Cert: cert + ".crt", Key: cert + ".key",
		CA: filepath.Join(s.ca, "ca.crt")}
}

// env is the same for a process.
func (s *site) env(who string) []string {
	o := s.shows(who)
	return []string{"SCUDA_POOL=" + s.url, "SCUDA_POOL_CERT=" + o.Cert, "SCUDA_POOL_KEY=" + o.Key,
		"SCUDA_POOL_CA=" + o.CA}
}

// admit makes the users with their roles, and has etcd ask for them from then on.
func (s *site) admit(t *testing.T) {
	t.Helper()
	o := s.shows(root)
	cert, err := certificate.Load(o.Cert, o.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := certificate.Pool(o.CA)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: o.Endpoints, Logger: zap.NewNop(),
		TLS: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, MinVersion: tls.VersionTLS13}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	do(c.UserAddWithOptions(ctx, root, "", &clientv3.UserAddOptions{NoPassword: true}))
	do(c.UserGrantRole(ctx, root, root))
	const all = "/scuda-pool/"
	for who, keys := range map[string][]string{announcer: {"servers/"}, person: {"queue/", "held/", "turns/"}} {
		do(c.UserAddWithOptions(ctx, who, "", &clientv3.UserAddOptions{NoPassword: true}))
		do(c.RoleAdd(ctx, who))
		do(c.UserGrantRole(ctx, who, who))
		grant := func(key string, may clientv3.PermissionType) {
			t.Helper()
			do(c.RoleGrantPermission(ctx, who, key, clientv3.GetPrefixRangeEnd(key), may))
		}
		grant(all, clientv3.PermissionType(clientv3.PermRead))
		for _, k := range keys {
			grant(all+k, clientv3.PermissionType(clientv3.PermWrite))
		}
	}
	do(c.AuthEnable(ctx))
}

// An etcd of the site's own, with TLS, certificates and roles, is killed while programs have GPUs and wait: no GPU
// is given twice, leases go on, who waits is served, and the pool comes back.
func TestSiteEtcd(t *testing.T) {
	t.Parallel()
	l := openAt(t, newSite(t))
	m := l.serve("sim:2,memory=1GiB")
	// Who may wait may not announce.
	s, err := l.store.Session(t.Context(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Announce(t.Context(), &plan.Server{Address: "gpu1:1"})
	s.Close(t.Context())
	if err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a person announces a server: %v", err)
	}

	const lasts = 3 * time.Second
	short := []string{"--lease", lasts.String()}
	one, two := l.run("vision", short), l.run("text", short)
	one.await("it has ")
	two.await("it has ")
	three := l.run("vision", short)
	three.await("it is the first in the queue") // etcd has told it so: before, it would be refused
	l.etcd.kill(syscall.SIGKILL)
	l.etcd.gone()
	one.in.Close() // what it had is free at the server, and etcd does not hear of it
	l.start()
	three.await("it has ")
	if code := one.end(); code != 0 {
		t.Errorf("status %d: %s", code, one.out)
	}

	before := m.leases()
	l.etcd.kill(syscall.SIGKILL)
	l.etcd.gone()
	m.agent.comes("readable 0")
	m.goOn(before, 2, lasts)
	l.start()
	l.connect()
	m.agent.comes("readable 1", fmt.Sprintf(`server_announced{server="%s"} 1`, m.address))
	next := l.run("text", append([]string{"--gpus", "2"}, short...))
	l.until("somebody waits", waiting(1))
	for _, p := range []*process{two, three, next} {
		p.await("it has ")
		p.in.Close()
		if code := p.end(); code != 0 {
			t.Errorf("status %d: %s", code, p.out)
		}
	}
	l.until("all is free", free(2))
	if n, err := check(l.log()); n != 4 || err != nil {
		t.Errorf("%d leases: %v", n, err)
	}
}
