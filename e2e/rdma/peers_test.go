//go:build rdma

package rdma_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Copies between two servers of a program go by RDMA, to and fro, and over TCP while that is lost.
func TestPeers(t *testing.T) {
	first, log, _ := serve(t, "--peers", os.Getenv("RXE_IP1"), "--metrics", metricsAt)
	second, _, _ := serveAt(t, 1)
	cmd, _ := client(t, first+","+second)
	cmd.Path, cmd.Args = filepath.Join(root, "build/rdma/several_peers"), []string{"several_peers",
		filepath.Join(root, "testdata/kernels"), "0"}
	cmd.Env = append(cmd.Env, "SCUDA_TRANSPORT=auto", "SCUDA_RDMA_DEVICE=")
	goOn, out := begin(t, cmd)
	bytes := func(direction, transport string) float64 {
		return metric(t, fmt.Sprintf(`scuda_peer_bytes_total{direction=%q,transport=%q}`, direction, transport))
	}
	for _, direction := range []string{"sent", "received"} {
		eventually(t, "copies by RDMA", func() bool { return bytes(direction, "rdma") > 4<<20 })
	}
	lost := count(t, log+workers, pathLost)
	ip(t, "link", "set", "rxenet0", "down")
	eventually(t, "the loss of a path", func() bool { return count(t, log+workers, pathLost) > lost })
	up(t, "rxenet0")
	goOn.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if bytes("sent", "tcp")+bytes("received", "tcp") == 0 {
		t.Error("nothing went over TCP")
	}
}
