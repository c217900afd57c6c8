package lab

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// number is how much a test does; .ci/full asks for more.
func number(t *testing.T, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q", variable, text)
	}
	return n
}

// Many processes take GPUs of one and of several servers and give them back, while servers, agents, etcd and some of
// the programs are killed and started again: no GPU is given twice, and none is lost for longer than a lease's time.
func TestKilledAllTheTime(t *testing.T) {
	t.Parallel()
	leases, processes := number(t, "SCUDA_POOL_LEASES", 24), number(t, "SCUDA_POOL_PROCESSES", 6)
	const lasts = 5 * time.Second
	l := open(t)
	machines := []*machine{l.serve("sim:2,memory=1GiB,name=A"), l.serve("sim:2,memory=1GiB,name=B"),
		l.serve("sim:1,memory=1GiB,name=C")}
	l.time = "50ms"

	wants := [][2]string{{"1", "1"}, {"3", "2"}, {"2", "1"}, {"2", "2"}, {"4", "3"}} // GPUs, and servers at most
	var done, refused, killed atomic.Int64
	step := make(chan struct{}, leases) // one for each lease that was taken
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() {
			for {
				n := done.Add(1)
				if n > int64(leases) {
					return
				}
				for {
					want := wants[n%int64(len(wants))]
					p := l.run([]string{"vision", "text"}[i%2], []string{"--gpus", want[0], "--servers", want[1], "--lease",
						lasts.String()})
					if n%12 == 0 && killed.CompareAndSwap(n/12-1, n/12) {
						p.says("its GPUs", func(text string) bool { return strings.Contains(text, "it has ") })
						p.kill(syscall.SIGKILL)
					}
					p.gone()
					if strings.Contains(p.out.String(), "it has ") {
						break
					}
					// etcd was away, or all servers were: that is said, and one tries again.
					refused.Add(1)
				}
				step <- struct{}{}
			}
		})
	}
	finished := make(chan struct{})
	go func() { all.Wait(); close(finished) }()
	kills := 0
	for taken, running := 0, true; running; {
		select {
		case <-step:
			if taken++; taken%4 != 0 {
				continue
			}
		case <-finished:
			running = false
			continue
		}
		m := machines[kills%len(machines)]
		kills++
		switch kills % 3 {
		case 0:
			l.etcd.kill(syscall.SIGKILL)
			l.etcd.gone()
			l.start()
		case 1:
			m.server.kill(syscall.SIGKILL)
			m.server.gone()
			m.start()
		case 2:
			m.agent.kill(syscall.SIGKILL)
			m.agent.gone()
			m.announce()
		}
	}
	for _, m := range machines {
		for _, x := range m.leases() {
			if left := time.Duration(x.Left * float64(time.Second)); left > lasts {
				t.Errorf("lease %s is lost for %v", x.Name(), left)
			}
		}
	}
	l.until("all is free", free(5))
	n, err := check(l.log())
	if n < leases || err != nil {
		t.Errorf("%d leases of %d: %v", n, leases, err)
	}
	t.Logf("%d leases by %d processes, %d programs killed, %d kills of servers, agents and etcd, %d refused meanwhile", n,
		processes, killed.Load(), kills, refused.Load())
}

// The checker sees what it is there for.
func TestCheck(t *testing.T) {
	path := t.TempDir() + "/log"
	for _, c := range []struct {
		log string
		ok  bool
	}{
		{`{"Began":1,"Ended":5,"GPUs":["a"],"Lease":"1"}` + "\n" + `{"Began":5,"Ended":9,"GPUs":["a"],"Lease":"2"}`, true},
		{`{"Began":1,"Ended":5,"GPUs":["a"],"Lease":"1"}` + "\n" + `{"Began":4,"Ended":9,"GPUs":["b"],"Lease":"2"}`, true},
		{`{"Began":1,"Ended":5,"GPUs":["b","a"],"Lease":"1"}` + "\n" +
			`{"Began":4,"Ended":9,"GPUs":["a"],"Lease":"2"}`, false},
		{`{"Began":1,"Ended":5,"GPUs":["a"],"Lease":"1"}` + "\n" + `{"Began":2,"GPUs":["a"],"Lease":"2"}`, false},
	} {
		if err := os.WriteFile(path, []byte(c.log+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := check(path); n != 2 || (err == nil) != c.ok {
			t.Errorf("%s: %d, %v", c.log, n, err)
		}
	}
}
