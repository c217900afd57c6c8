package ebpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Floor is what a probe itself costs on this machine, measured with an empty function: no probed call shows up as
// shorter than Seen.
type Floor struct {
	Entry Entry         `json:"-"`
	Kind  string        `json:"entry"`
	Cost  time.Duration `json:"cost_ns"` // what each probed call takes longer
	Seen  time.Duration `json:"seen_ns"` // what the probes take an empty function's length to be (median)
}

// floorEntries are the kinds in the order of their cookies, which follow those of the probed functions.
var floorEntries = []Entry{Stepped, Emulated}

const (
	floorCalls  = 2000
	floorRounds = 5 // the shortest counts
)

// measureFloors measures what the kinds of entry cost.
func (p *Probes) measureFloors() error {
	var err error
	var thread string
	done := make(chan struct{})
	var measure func()
	measure = func() { // on a thread that ends then, and with it what the kernel keeps of it
		runtime.LockOSThread()
		thread = fmt.Sprintf("/proc/self/task/%d", unix.Gettid())
		if unix.Gettid() == os.Getpid() { // the first one never ends
			defer runtime.UnlockOSThread()
			go measure()
			<-done
			return
		}
		defer close(done)
		err = p.measureFloorsHere()
	}
	go measure()
	<-done
	for range 1000 { // its last system calls are nobody's business
		if _, gone := os.Stat(thread); gone != nil {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	return err
}

func (p *Probes) measureFloorsHere() error {
	maps, err := readMaps(os.Getpid())
	if err != nil {
		return err
	}
	var offsets, cookies []uint64
	bare := map[Entry]float64{}
	for i, kind := range floorEntries {
		at := floorAddress(kind)
		for _, m := range maps {
			if m.from <= at && at < m.to {
				offsets = append(offsets, at-m.from+m.offset)
			}
		}
		cookies = append(cookies, uint64(len(p.probes)+i))
		bare[kind] = shortest(kind)
	}
	if len(offsets) != len(floorEntries) {
		return errors.New("the empty functions that measure the probes' own cost are not where they should be")
	}
	self := os.Getpid()
	if err := p.Follow(self); err != nil {
		return err
	}
	links, err := p.attachFile("/proc/self/exe", self, offsets, cookies)
	for _, l := range links {
		defer l.Close()
	}
	if err != nil {
		return fmt.Errorf("probes on an empty function: %w", err)
	}
	for i, kind := range floorEntries {
		with := shortest(kind)
		h, err := p.readCalls(uint32(cookies[i]))
		if err != nil {
			return err
		}
		if h.Calls == 0 {
			return fmt.Errorf("a probe on an empty function (%v) saw no call", kind)
		}
		p.floors = append(p.floors, Floor{kind, kind.String(), time.Duration(with - bare[kind]), h.Quantile(0.5)})
	}
	return p.forgetSelf()
}

// shortest is the time of one call in nanoseconds, in the fastest round.
func shortest(kind Entry) float64 {
	best := floorTime(kind, floorCalls)
	for range floorRounds - 1 {
		best = min(best, floorTime(kind, floorCalls))
	}
	return float64(best) / floorCalls
}

// forgetSelf removes what measuring the floors left in the maps.
func (p *Probes) forgetSelf() error {
	self := uint32(os.Getpid())
	if err := p.objects.Processes.Delete(self); err != nil {
		return err
	}
	var key kernelStallKey
	var stall kernelStall
	var keys []kernelStallKey
	for each := p.objects.Stalls.Iterate(); each.Next(&key, &stall); {
		keys = append(keys, key)
	}
	for i := range keys {
		if err := p.objects.Stalls.Delete(&keys[i]); err != nil {
			return err
		}
	}
	var own kernelKey
	var perCPU []kernelCalls
	var owns []kernelKey
	for each := p.objects.ByProcess.Iterate(); each.Next(&own, &perCPU); {
		owns = append(owns, own)
	}
	for i := range owns {
		if err := p.objects.ByProcess.Delete(&owns[i]); err != nil {
			return err
		}
	}
	return nil
}

// Floor gives what a probe costs on the libraries' functions (the dearest kind of entry among them).
func (p *Probes) Floor() Floor {
	if p.worst != nil {
		return *p.worst
	}
	worst := p.floors[len(p.floors)-1]
	for _, lib := range p.libraries {
		if f := p.floors[lib.entry]; f.Entry < worst.Entry {
			worst = f
		}
	}
	return worst
}

// Floors gives what it costs for each kind of entry.
func (p *Probes) Floors() []Floor { return p.floors }
