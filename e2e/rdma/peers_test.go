//go:build rdma

package rdma_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
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

// What copies between two servers reach, for comparison with ib_write_bw. The first ones have a path made; what has a
// figure goes by RDMA. A copy of which chunks went over TCP has none, and another try.
func TestPeerSpeed(t *testing.T) {
	first, log, _ := serve(t, "--peers", os.Getenv("RXE_IP1"))
	second, secondLog, _ := serveAt(t, 1)
	cmd, _ := client(t, first+","+second, "peers")
	cmd.Env = append(cmd.Env, "SCUDA_TRANSPORT=auto", "SCUDA_RDMA_DEVICE=nothing0") // its own copies use TCP
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(stdout)
	const rounds = 6
	const all = 3 * 64 << 20 / 4096 // packets in what a line of input has the program copy each way
	most := [2]int{}
	for try := range rounds {
		if try == 1 {
			for _, log := range []string{log, secondLog} {
				eventually(t, "a path", func() bool { return count(t, log+workers, pathUp) > 0 })
				b, _ := os.ReadFile(log + workers)
				_, path, _ := strings.Cut(string(b), pathUp)
				path, _, _ = strings.Cut(path, "\n")
				t.Log(path) // with the size of its chunks
			}
		}
		before := [2]int{sent(t, 0), sent(t, 1)}
		if _, err := io.WriteString(stdin, "go\n"); err != nil {
			t.Fatal(err)
		}
		figures := [2]string{}
		for i := range figures {
			if !said.Scan() {
				t.Fatalf("the program ended: %v", cmd.Wait())
			}
			figures[i] = said.Text()
		}
		whole := 0
		for i := range figures { // either server sends one way's copies, and acknowledges the other's
			n := sent(t, i) - before[i]
			most[i] = max(most[i], n)
			if n >= all && try > 0 {
				whole++
				t.Logf("FIGURE between servers %s", figures[i])
			}
		}
		if whole == len(figures) {
			break
		}
	}
	stdin.Close()
	if said.Scan() {
		t.Errorf("the program says %q", said.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for i, n := range most {
		if n < all/2 {
			t.Errorf("rxe%d has sent %d packets at most, of %d: copies went another way", i, n, all)
		}
	}
}
