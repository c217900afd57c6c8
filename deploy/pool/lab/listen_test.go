package lab

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A pool that programs elsewhere reach has its own way to its etcd, whatever name its certificate has.
func TestListen(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	ca := filepath.Join(folder, "ca")
	for _, args := range [][]string{{"init"}, {"issue", "--server", "gpu1.example.org"}} {
		if out, err := exec.Command(scuda, append([]string{"ca", "--folder", ca}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	address := fmt.Sprintf("127.%d.%d.%d:2379", 1+rand.N(250), rand.N(256), 1+rand.N(250))
	cert := filepath.Join(ca, "gpu1.example.org")
	p := begin(t, nil, pool, "serve", "--data", folder, "--listen", address, "--cert", cert+".crt", "--key", cert+".key",
		"--ca", filepath.Join(ca, "ca.crt"), "--metrics", "127.0.0.1:0")
	p.shows("TLS", "readable 1")
	status := begin(t, []string{"SCUDA_POOL=unix://" + filepath.Join(folder, "etcd.sock")}, pool, "status")
	if code := status.end(); code != 0 || !strings.Contains(status.out.String(), "no server is in the pool") {
		t.Errorf("status %d: %s", code, status.out)
	}
	// Without a certificate nobody gets in.
	c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err == nil { // the handshake ends with the first byte
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("a client without a certificate: %v", err)
	}
}
