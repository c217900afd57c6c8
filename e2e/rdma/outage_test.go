//go:build rdma

package rdma_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/transport/chaos"
)

// cuts is how often RDMA's control connection is cut at least; with many, links are down for long as well.
var cuts = func() int {
	if n, err := strconv.Atoi(os.Getenv("RDMA_TEST_CUTS")); err == nil {
		return n
	}
	return 4
}()

const (
	manyCuts  = 100
	stepBytes = 21 << 19 // that a step copies, up and down
)

// lostControl is what a worker's log says when RDMA's control connection (transport.LineRDMA) has lost its socket.
var lostControl = regexp.MustCompile(`msg="a connection is lost" .*\bline=3 `)

// stepper is the program that copies step by step, as it is asked to.
type stepper struct {
	t     *testing.T
	cmd   *exec.Cmd
	log   string
	in    io.WriteCloser
	asked int
	took  atomic.Int32 // steps
	out   bytes.Buffer // to be read when the program has ended
	said  bytes.Buffer // on its standard error
	ended chan struct{}
}

func startSteps(t *testing.T, addr string, env ...string) *stepper {
	t.Helper()
	s := &stepper{t: t, ended: make(chan struct{})}
	s.cmd, s.log = client(t, addr, "steps")
	s.cmd.Env = append(s.cmd.Env, env...)
	s.cmd.Stderr = &s.said
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		s.in, err = s.cmd.StdinPipe()
	}
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); s.took.Add(1) {
			fmt.Fprintln(&s.out, lines.Text())
		}
	}()
	return s
}

// ask asks for steps.
func (s *stepper) ask(n int) {
	s.t.Helper()
	s.asked += n
	if _, err := io.WriteString(s.in, strings.Repeat("\n", n)); err != nil {
		s.t.Fatal(err)
	}
}

// await waits until so many steps have been taken, from the first on.
func (s *stepper) await(n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("step %d", n), func() bool { return s.isOver() || int(s.took.Load()) >= n })
	if int(s.took.Load()) < n {
		s.t.Fatalf("the program ended behind step %d: %s", s.took.Load(), s.end())
	}
}

// step takes steps.
func (s *stepper) step(n int) {
	s.t.Helper()
	s.ask(n)
	s.await(s.asked)
}

func (s *stepper) isOver() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// end has the program end, and says what it printed.
func (s *stepper) end() string {
	s.t.Helper()
	s.in.Close()
	<-s.ended
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("%v\n%s", err, &s.said)
	}
	return s.out.String()
}

func bytesBy(t *testing.T, transport string) float64 {
	t.Helper()
	return metric(t, fmt.Sprintf(`scuda_transport_bytes_total{direction="received",transport=%q}`, transport)) +
		metric(t, fmt.Sprintf(`scuda_transport_bytes_total{direction="sent",transport=%q}`, transport))
}

// goesByRDMA takes steps until one goes by RDMA again. (On a busy machine soft-RoCE loses paths by itself.)
func (s *stepper) goesByRDMA() {
	s.t.Helper()
	eventually(s.t, "a step by RDMA", func() bool {
		if count(s.t, s.log, pathUp) <= count(s.t, s.log, pathLost) {
			return false
		}
		before := bytesBy(s.t, "rdma")
		s.step(1)
		return bytesBy(s.t, "rdma")-before > stepBytes/2
	})
}

// copiesByRDMA begins some steps, and returns in the midst of one that goes by RDMA.
func (s *stepper) copiesByRDMA() {
	s.t.Helper()
	s.goesByRDMA()
	before := bytesBy(s.t, "rdma")
	s.ask(2)
	eventually(s.t, "copies by RDMA", func() bool {
		if s.asked-int(s.took.Load()) < 2 {
			s.ask(1)
		}
		return bytesBy(s.t, "rdma")-before > 1<<20
	})
}

// passes lets the time of an outage pass.
func passes(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// disturbed is a program whose copies go by RDMA, behind a proxy, while much happens to it.
type disturbed struct {
	*stepper
	proxy  *chaos.Proxy
	server string // its log
}

// Whatever happens to a session, its program notices nothing, prints what it would have printed, and its copies go over
// RDMA again.
func TestDisturbedCopies(t *testing.T) {
	addr, log, _ := serve(t, "--metrics", metricsAt)
	p := through(t, addr, func() int { return 4000 + rand.IntN(60_000) }) // a step's control messages: 5 KB
	d := &disturbed{startSteps(t, p.Address()), p, log}
	d.step(1)
	long := cuts >= manyCuts
	away := 2 * time.Second
	if long {
		away = 20 * time.Second
	}
	for _, c := range []struct {
		name string
		only bool // where there is time
		does func()
	}{
		{"connections are cut", false, d.cutConnections},
		{"the clock is set", false, d.setClocks},
		{"the device is removed", false, d.removeDevice},
		// lo carries TCP here, as both ends are one machine's
		{"the only link is down", false, func() { d.takeDown(away, false, "lo", "rxenet0", "rxenet1") }},
		{"RDMA's link is down", true, func() { d.takeDown(away, true, "rxenet1") }},
	} {
		if c.only && !long {
			continue // the device alone is much the same
		}
		began := time.Now()
		if d.copiesByRDMA(); !t.Failed() {
			c.does()
		}
		t.Logf("%s: %.1f s", c.name, time.Since(began).Seconds())
	}
	d.goesByRDMA()
	got := d.end()
	quiet := startSteps(t, addr, "SCUDA_TRANSPORT=tcp")
	quiet.step(d.asked)
	if want := quiet.end(); got != want {
		t.Errorf("it printed\n%sand without disturbance\n%s", got, want)
	}
	if n := count(t, log, "session ended"); n > 0 {
		t.Errorf("%d sessions ended", n)
	}
	if long && !strings.Contains(read(t, d.log), "back at the scuda server") {
		t.Error("nobody was told that the connection was lost")
	}
}

// through is a proxy before a server, which cuts each connection behind so many bytes.
func through(t *testing.T, addr string, bytes func() int) *chaos.Proxy {
	t.Helper()
	p, err := chaos.Listen(os.Getenv("RXE_IP0")+":0", addr, chaos.Config{Harm: chaos.Sometimes(chaos.Cut, bytes)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := p.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	return p
}

// cutConnections cuts the session's connections, RDMA's control connection among them, all together; each is cut at
// random as well. Paths go on.
func (d *disturbed) cutConnections() {
	control := func() int { return len(lostControl.FindAllString(read(d.t, d.server+workers), -1)) }
	rdma, tcp, before, ups, lost := bytesBy(d.t, "rdma"), bytesBy(d.t, "tcp"), control(), d.ups(), d.losses()
	for control()-before < cuts {
		d.ask(1)
		passes(d.t, time.Duration(rand.IntN(300))*time.Millisecond)
		d.proxy.Cut()
		d.await(d.asked - 1)
	}
	d.await(d.asked)
	rdma, tcp = bytesBy(d.t, "rdma")-rdma, bytesBy(d.t, "tcp")-tcp
	d.t.Logf("%d cuts so far, %d of them of the control connection; %d paths came up, %d were lost; %.0f MiB by RDMA and "+
		"%.0f by TCP", d.proxy.Cuts(), control()-before, d.ups()-ups, d.losses()-lost, rdma/(1<<20), tcp/(1<<20))
	if d.losses() == lost && rdma < tcp {
		d.t.Error("most went by TCP, though the path was there")
	}
}

func (d *disturbed) ups() int    { return count(d.t, d.log, pathUp) }
func (d *disturbed) losses() int { return count(d.t, d.log, pathLost) }

// takeDown takes links down in the midst of copies. TCP goes on meanwhile, or has no way either.
func (d *disturbed) takeDown(away time.Duration, goes bool, links ...string) {
	lost := d.losses()
	for _, dev := range links {
		ip(d.t, "link", "set", dev, "down")
	}
	began := time.Now()
	if goes {
		eventually(d.t, "the loss of the path", func() bool { return d.losses() > lost })
		d.goesByTCP()
	} else {
		d.ask(1) // which cannot be taken
	}
	passes(d.t, away-time.Since(began))
	took := int(d.took.Load())
	if !goes && took == d.asked {
		d.t.Error("steps were taken without a network")
	}
	for _, dev := range links {
		ip(d.t, "link", "set", dev, "up")
	}
	up(d.t, links[len(links)-1]) // with the routes
	d.await(d.asked)
	d.t.Logf("%v down for %.1f s; %d of %d steps were taken by then, and all %.1f s after its beginning", links,
		away.Seconds(), took, d.asked, time.Since(began).Seconds())
}

func (d *disturbed) goesByTCP() {
	before := bytesBy(d.t, "tcp")
	d.await(d.asked)
	d.step(1)
	if n := bytesBy(d.t, "tcp") - before; n < stepBytes {
		d.t.Errorf("%.0f bytes went by TCP without a path", n)
	}
}

// removeDevice takes the device away in the midst of copies, which go over TCP then, and gives it back.
func (d *disturbed) removeDevice() {
	lost, device := d.losses(), os.Getenv("RXE_DEV1")
	if text, err := exec.Command("rdma", "link", "del", device).CombinedOutput(); err != nil {
		d.t.Fatalf("%v\n%s", err, text)
	}
	eventually(d.t, "the loss of the path", func() bool { return d.losses() > lost })
	d.goesByTCP()
	if text, err := exec.Command("rdma", "link", "add", device, "type", "rxe", "netdev",
		"rxenet1").CombinedOutput(); err != nil {
		d.t.Fatalf("%v\n%s", err, text)
	}
}

// setClock sets the guest's clock by so much.
func setClock(t *testing.T, by time.Duration) {
	t.Helper()
	tv := syscall.NsecToTimeval(time.Now().Round(0).UnixNano() + int64(by))
	if err := syscall.Settimeofday(&tv); err != nil {
		t.Fatal(err)
	}
}

// setClocks sets the clock by hours, to and fro, as when a machine wakes up: while copies run, while the client is
// away, and when it comes back.
func (d *disturbed) setClocks() {
	began, wall := time.Now(), time.Now().Round(0)
	defer func() { setClock(d.t, wall.Add(time.Since(began)).Sub(time.Now().Round(0))) }()
	for _, by := range []time.Duration{3 * time.Hour, -7 * time.Hour} {
		d.ask(1)
		setClock(d.t, by)
		d.proxy.Reach(false)
		d.proxy.Cut()
		eventually(d.t, "the session is away", func() bool { return metric(d.t, "scuda_sessions_away") == 1 })
		setClock(d.t, -by)
		setClock(d.t, by)
		d.proxy.Reach(true)
		d.await(d.asked)
	}
	if n := metric(d.t, "scuda_outage_seconds_sum"); n <= 0 || n > 600 {
		d.t.Errorf("outages of %.1f s were counted", n)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
