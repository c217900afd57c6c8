//go:build rdma

package rdma

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"scuda.dev/scuda/transport/bulk"
)

func TestUploads(t *testing.T) {
	pins := &Pins{}
	client, server := pair(t, pins, nil)
	data := mapped(t, 20<<20)
	fill(data, 1)
	for i, n := range []int{1, 4095, 1 << 20, 3<<20 + 17, 20 << 20} {
		seq := uint64(i + 1)
		if i == 3 {
			pins.Add(address(data), uint64(len(data)))
		}
		if d := client.upload(seq, data[:n]); d != 0 {
			t.Errorf("%d bytes did not go over the path", d)
		}
		server.awaitBytes(seq, n)
		if !bytes.Equal(server.got[seq][:n], data[:n]) {
			t.Errorf("upload of %d bytes arrived changed", n)
		}
	}
	if hits := client.stats.RegistrationHits.Load(); hits != 1 {
		t.Errorf("%d uses of a kept registration", hits)
	}
	pins.Remove(address(data))
	client.upload(99, data[:1000])
	if hits := client.stats.RegistrationHits.Load(); hits != 1 {
		t.Errorf("a registration outlived its range")
	}
	if n := client.stats.SentBytes.Load(); n != server.stats.ReceivedBytes.Load() || n < 24<<20 {
		t.Errorf("%d bytes sent, %d received", n, server.stats.ReceivedBytes.Load())
	}
}

func TestDownloads(t *testing.T) {
	pins := &Pins{}
	source := mapped(t, 8<<20)
	fill(source, 2)
	client, server := pair(t, pins, source)
	for i, n := range []int{1, 4097, 8 << 20, 8 << 20, 5 << 20} {
		id, seq := uint32(70000+i), uint64(i+1)
		dst := mapped(t, 8<<20)
		if i >= 2 {
			pins.Add(address(dst), uint64(len(dst)))
		}
		client.mu.Lock()
		client.memory[id] = dst
		client.mu.Unlock()
		if d := server.download(id, seq, source[:n]); d != 0 {
			t.Errorf("%d bytes did not go over the path", d)
		}
		client.awaitBytes(seq, n)
		client.link.EndWindow(id)
		if !bytes.Equal(dst[:n], source[:n]) {
			t.Errorf("download of %d bytes arrived changed", n)
		}
		pins.Remove(address(dst)) // waits until the window has been taken back
	}
	if r := server.returned; r != 0 {
		t.Errorf("%d chunks went another way", r)
	}
	// Nobody knows this transfer: its chunks have to go another way, those that were taken before the peer said so and
	// those after.
	const unknown = 1 << 20
	d := server.download(123, 50, source[:unknown])
	if chunks := unknown / client.link.ChunkBytes(); d+server.returned*client.link.ChunkBytes() != unknown ||
		server.returned > chunks {
		t.Errorf("chunks without destination were placed: of %d, %d bytes were not taken and %d chunks given back",
			unknown, d, server.returned)
	}
}

// An idle path's slots that are all taken stop the sender until they are released.
func TestBackPressure(t *testing.T) {
	client, server := pair(t, nil, nil)
	server.mu.Lock()
	server.hold = true
	server.mu.Unlock()
	data := mapped(t, 4*testSlots<<20)
	fill(data, 3)
	done := make(chan int)
	go func() { done <- client.upload(1, data) }()
	for released := uint32(0); ; released++ {
		over := false
		server.await("full slots", func() bool {
			over = server.count[1] == len(data)
			return over || server.stats.ReceivedChunks.Load() >= uint64(released)+testSlots
		})
		if over {
			break
		}
		server.link.Release(released % testSlots)
	}
	if d := <-done; d != 0 || !bytes.Equal(server.got[1][:len(data)], data) {
		t.Error("bytes went another way or were changed")
	}
}

func command(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// limit is within what time chunks of a path that dies have to go on by other means. The machine that runs this is
// emulated, with processors that others use as well: it stands still at times for longer than that, and so what counts
// is the time in which this process's timers ran. It is a fraction of a second on a quiet machine; beside other work
// 1.9 s were seen.
const limit = 4 * time.Second

// runningTime starts a clock that counts steps of 5 ms, each as twice as much at most.
func runningTime() (read func() time.Duration) {
	const step = 5 * time.Millisecond
	var ran atomic.Int64
	stop := make(chan struct{})
	go func() {
		tick := time.NewTicker(step)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case now := <-tick.C:
				ran.Add(int64(min(now.Sub(last), 2*step)))
				last = now
			case <-stop:
				return
			}
		}
	}()
	return func() time.Duration {
		select {
		case <-stop:
		default:
			close(stop)
		}
		return time.Duration(ran.Load())
	}
}

// disturbed uploads and downloads while break happens and then until the path is there again.
func disturbed(t *testing.T, breakIt, mend func() error) {
	const n = 24 << 20
	source := mapped(t, n)
	fill(source, 5)
	client, server := pair(t, nil, source)
	data, dst := mapped(t, n), mapped(t, n)
	fill(data, 4)
	mend = sync.OnceValue(mend)
	client.mu.Lock()
	client.memory[70000] = dst
	client.mu.Unlock()
	t.Cleanup(func() { _ = mend() })
	goesOn := func(e *end) bool { // by other means
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.detours > 0
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(0); i == 0 || !goesOn(server); i++ {
			client.upload(10+i, data)
			server.awaitBytes(10+i, n)
			server.mu.Lock()
			if !bytes.Equal(server.got[10+i][:n], data) {
				t.Errorf("upload %d arrived changed", i)
			}
			delete(server.got, 10+i)
			server.mu.Unlock()
		}
	})
	wg.Go(func() {
		for i := uint64(0); i == 0 || !goesOn(client); i++ {
			clear(dst)
			server.download(70000, 1000+i, source)
			client.awaitBytes(1000+i, n)
			client.link.EndWindow(70000)
			if !bytes.Equal(dst, source) {
				t.Errorf("download %d arrived changed", i)
			}
		}
	})
	server.await("something to disturb", func() bool { return server.count[10] > n/8 })
	for _, e := range []*end{client, server} {
		e.mu.Lock()
		e.detours = 0
		e.mu.Unlock()
	}
	began, ran := time.Now(), runningTime()
	if err := breakIt(); err != nil {
		t.Fatal(err)
	}
	client.await("the loss of the path", func() bool { return len(client.changes) > 1 })
	noticed := time.Since(began)
	for _, e := range []*end{client, server} {
		e.await("chunks by other means", func() bool { return e.detours > 0 })
	}
	took, whole := ran(), time.Since(began)
	wg.Wait()
	t.Logf("noticed after %v, both directions go on after %v (of %v), over after %v; given back %d and %d chunks",
		noticed.Round(time.Millisecond), took.Round(time.Millisecond),
		whole.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), client.returned, server.returned)
	if took > limit {
		t.Errorf("chunks went on by other means after %v", took)
	}
	if err := mend(); err != nil {
		t.Fatal(err)
	}
	client.awaitState(bulk.Up)
	server.awaitState(bulk.Up)
	if d := client.upload(3, data[:3<<20]); d != 0 {
		t.Errorf("%d bytes did not go over the new path", d)
	}
	server.awaitBytes(3, 3<<20)
	if lost := client.stats.Lost.Load(); lost != 1 ||
		client.stats.Established.Load() < 2 || client.stats.Paths.Load() != 1 {
		t.Errorf("paths: %d lost, %d came up, %d are", lost, client.stats.Established.Load(), client.stats.Paths.Load())
	}
}

// The tests that follow ask the kernel themselves, since a process takes long to start here.

func down(device string) func() error {
	return func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	}
}

func up(t *testing.T, device string) func() error {
	return func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		err = netlink.LinkSetUp(l)
		routes(t)
		return err
	}
}

func TestClientLinkDown(t *testing.T) { disturbed(t, down("rxenet1"), up(t, "rxenet1")) }

func TestServerLinkDown(t *testing.T) { disturbed(t, down("rxenet0"), up(t, "rxenet0")) }

// A path that swallows everything without a word.
func TestBlackHole(t *testing.T) {
	command(t, "modprobe", "sch_netem")
	l, err := netlink.LinkByName("rxenet1")
	if err != nil {
		t.Fatal(err)
	}
	hole := netlink.NewNetem(
		netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		netlink.NetemQdiscAttrs{Loss: 100})
	disturbed(t, func() error { return netlink.QdiscAdd(hole) }, func() error { return netlink.QdiscDel(hole) })
}

func TestDeviceRemoved(t *testing.T) {
	disturbed(t, func() error { return netlink.RdmaLinkDel("rxe1") },
		func() error { return netlink.RdmaLinkAdd("rxe1", "rxe", "rxenet1") })
}

// routes brings back what the kernel drops with an interface.
func routes(t *testing.T) {
	t.Helper()
	_ = exec.Command("ip", "route", "replace", "10.77.0.2", "dev", "rxenet0", "table", "77").Run()
	_ = exec.Command("ip", "route", "replace", "10.77.0.1", "dev", "rxenet1", "table", "77").Run()
}

func TestPacketLoss(t *testing.T) {
	client, server := pair(t, nil, nil)
	command(t, "tc", "qdisc", "add", "dev", "rxenet1", "root", "netem", "loss", "1%")
	defer command(t, "tc", "qdisc", "del", "dev", "rxenet1", "root")
	data := mapped(t, 8<<20)
	fill(data, 6)
	d := client.upload(1, data)
	server.awaitBytes(1, len(data))
	if !bytes.Equal(server.got[1][:len(data)], data) {
		t.Error("bytes were changed")
	}
	// A path whose packets are lost again and again may be given up; the bytes are there all the same.
	if lost := client.stats.Lost.Load() + server.stats.Lost.Load(); lost == 0 && (d != 0 || client.returned != 0) {
		t.Errorf("%d bytes and %d chunks went another way", d, client.returned)
	} else if lost > 0 {
		t.Logf("the path was lost; %d bytes and %d chunks went another way", d, client.returned)
	}
}

// The end of the peer is noticed by the control connection; what is under way is lost with it.
func TestPeerGone(t *testing.T) {
	client, server := pair(t, nil, nil)
	server.mu.Lock()
	server.hold = true
	server.mu.Unlock()
	data := mapped(t, 4*testSlots<<20)
	go client.link.Send(bulk.Chunk{Seq: 1, Bytes: 1}, data[:1], Region{}, piece{})
	server.link.Close()
	client.await("the news", func() bool { return client.broken })
	if client.underWay {
		t.Error("nothing was under way")
	}
	if m := client.link.State(); m != bulk.Down {
		t.Errorf("mode %v", m)
	}
}

// The end of a session is no loss of its path, also where the peer hears of it by the farewell alone.
func TestFarewell(t *testing.T) {
	for _, c := range []struct {
		name   string
		leaves func(client, server *end) (leaver, other *end)
	}{
		{"the server's", func(client, server *end) (*end, *end) { return server, client }},
		{"the client's", func(client, server *end) (*end, *end) { return client, server }},
	} {
		t.Run(c.name, func(t *testing.T) {
			leaver, other := c.leaves(pair(t, nil, nil))
			leaver.link.cancel() // as Close does, which ends the control connection as well
			other.awaitState(bulk.Down)
			other.await("the end of the path", func() bool { return other.stats.Paths.Load() == 0 && len(other.changes) > 1 })
			for _, e := range []*end{leaver, other} {
				if n := e.stats.Lost.Load(); n != 0 {
					t.Errorf("%d paths count as lost", n)
				}
			}
			if strings.Contains(other.log.String(), "path is lost") {
				t.Error("the log tells of a lost path")
			}
		})
	}
}

// What the transport alone moves, for comparison with ib_write_bw.
func TestBandwidth(t *testing.T) {
	const n = 64 << 20
	source := mapped(t, n)
	pins := &Pins{}
	client, server := pairWith(t, pins, source, 64, 0) // as many as a session's usual ones
	data := mapped(t, n)
	pins.Add(address(data), n)
	client.mu.Lock()
	client.memory[70000] = data
	client.mu.Unlock()
	server.mu.Lock()
	server.drop = true
	server.mu.Unlock()
	const rounds = 2
	var up, down time.Duration // of all but the first, which finds nothing registered
	for i := uint64(0); i <= rounds; i++ {
		began := time.Now()
		detour := client.upload(10+i, data)
		server.awaitBytes(10+i, n)
		turn := time.Now()
		detour += server.download(70000, 20+i, source)
		client.awaitBytes(20+i, n)
		ended := time.Now()
		client.link.EndWindow(70000)
		if detour += client.returned + server.returned; detour != 0 {
			t.Errorf("%d bytes or chunks did not go over the path", detour)
		}
		if i == 0 {
			continue
		}
		up, down = up+turn.Sub(began), down+ended.Sub(turn)
	}
	rate := func(d time.Duration) float64 { return rounds * n / d.Seconds() / (1 << 20) }
	t.Logf("FIGURE transport upload %.1f MiB/s", rate(up))
	t.Logf("FIGURE transport download %.1f MiB/s", rate(down))
}
