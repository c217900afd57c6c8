package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	bpf "github.com/cilium/ebpf"
)

// Figures are the figures of a function.
type Figures struct {
	Calls     uint64        `json:"calls"` // that have ended
	InFlight  int64         `json:"in_flight"`
	Sum       time.Duration `json:"sum_ns"`
	Max       time.Duration `json:"max_ns"`
	OffCPU    time.Duration `json:"off_cpu_ns"` // part of Sum in which the caller had no CPU
	Bytes     uint64        `json:"bytes"`      // that copies were asked for
	Histogram `json:"histogram"`
}

// Quantile is that of the histogram, but never longer than the longest call.
func (f *Figures) Quantile(q float64) time.Duration { return min(f.Histogram.Quantile(q), f.Max) }

// Function is a function that was called.
type Function struct {
	Library string `json:"library"`
	Name    string `json:"name"`
	PID     int    `json:"pid,omitempty"`     // with Options.PerProcess
	Process string `json:"process,omitempty"` // the process's name
	Figures
}

// SystemCall is a system call of the measured processes.
type SystemCall struct {
	Name string `json:"name"`
	// of the descriptor: file, network, device, other; "" for calls without one
	Class string        `json:"class,omitempty"`
	Calls uint64        `json:"calls"`
	Sum   time.Duration `json:"sum_ns"`
	Max   time.Duration `json:"max_ns"`
}

// Stall is the sum of long calls of one function from one place.
type Stall struct {
	PID      int           `json:"pid"`
	Process  string        `json:"process"`
	Function string        `json:"function"`
	Stack    []string      `json:"stack"` // the callers, outermost first, as far as frame pointers lead
	Calls    uint64        `json:"calls"`
	Sum      time.Duration `json:"sum_ns"`
	OffCPU   time.Duration `json:"off_cpu_ns"`
}

// Lost counts what could not be measured.
type Lost struct {
	Threads uint64 `json:"threads"` // calls of threads or processes beyond those that there is room for
	Nested  uint64 `json:"nested"`  // calls within more than 8 others
	Returns uint64 `json:"returns"` // returns from calls whose beginning was not seen
	Stalls  uint64 `json:"stalls"`  // long calls beyond the stacks that there is room for
}

// Snapshot is everything that was measured since the probes were attached.
type Snapshot struct {
	Time        time.Time     `json:"time"`
	Elapsed     time.Duration `json:"elapsed_ns"`
	Functions   []Function    `json:"functions"`           // that were called; the longest sum first
	Processes   []Function    `json:"processes,omitempty"` // the same for each process
	SystemCalls []SystemCall  `json:"system_calls,omitempty"`
	Stalls      []Stall       `json:"stalls,omitempty"`
	Lost        Lost          `json:"lost"`
	Floor       Floor         `json:"floor"`
}

// classes are the names of the classes of descriptors in bpf/probes.c.
var classes = [...]string{"", "file", "network", "device", "other"}

// Read takes a snapshot.
func (p *Probes) Read() (*Snapshot, error) {
	now := time.Now()
	s := &Snapshot{Time: now, Elapsed: now.Sub(p.began), Floor: p.Floor()}
	for i := range p.probes {
		f, err := p.readCalls(uint32(i))
		if err != nil {
			return nil, err
		}
		if f.Calls > 0 || f.InFlight > 0 {
			s.Functions = append(s.Functions, p.function(uint32(i), f))
		}
	}
	sortFunctions(s.Functions)
	var err error
	if p.options.PerProcess {
		if s.Processes, err = p.readProcesses(); err != nil {
			return nil, err
		}
	}
	if p.options.SystemCalls {
		if s.SystemCalls, err = p.readSystemCalls(); err != nil {
			return nil, err
		}
	}
	if p.options.Stall > 0 {
		if s.Stalls, err = p.readStalls(); err != nil {
			return nil, err
		}
	}
	s.Lost, err = p.readLost()
	return s, err
}

func sortFunctions(f []Function) {
	slices.SortFunc(f, func(a, b Function) int {
		return cmp.Or(cmp.Compare(b.Sum, a.Sum), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Library, b.Library),
			cmp.Compare(a.PID, b.PID))
	})
}

func (p *Probes) function(cookie uint32, f Figures) Function {
	probe := p.probes[cookie]
	return Function{Library: filepath.Base(probe.library.path), Name: probe.entry.name, Figures: f}
}

func (p *Probes) readCalls(cookie uint32) (f Figures, err error) {
	var perCPU []kernelCalls
	if err := p.objects.Functions.Lookup(cookie, &perCPU); err != nil {
		return f, fmt.Errorf("histograms: %w", err)
	}
	return figures(perCPU), nil
}

// figures adds up what the CPUs counted.
func figures(perCPU []kernelCalls) (f Figures) {
	for i := range perCPU {
		c := &perCPU[i]
		f.Calls += c.Ended
		f.InFlight += int64(c.Entered - c.Ended - c.Abandoned)
		f.Sum += time.Duration(c.Ns)
		f.Max = max(f.Max, time.Duration(c.Longest))
		f.OffCPU += time.Duration(c.OffCpu)
		f.Bytes += c.Bytes
		for b, n := range c.Histogram {
			f.Histogram[b] += n
		}
	}
	f.InFlight = max(f.InFlight, 0) // the CPUs are not read at one moment
	return f
}

func (p *Probes) readProcesses() (out []Function, err error) {
	var key kernelKey
	var perCPU []kernelCalls
	each := p.objects.ByProcess.Iterate()
	for each.Next(&key, &perCPU) {
		if int(key.Function) >= len(p.probes) {
			continue
		}
		f := p.function(key.Function, figures(perCPU))
		f.PID, f.Process = int(key.Process), p.processName(key.Process)
		out = append(out, f)
	}
	if err := each.Err(); err != nil {
		return nil, fmt.Errorf("histograms of processes: %w", err)
	}
	sortFunctions(out)
	return out, nil
}

func (p *Probes) processName(pid uint32) string {
	var process kernelProcess
	if p.objects.Processes.Lookup(pid, &process) != nil {
		return ""
	}
	var name []byte
	for _, c := range process.Name {
		if c == 0 {
			break
		}
		name = append(name, byte(c))
	}
	return string(name)
}

func (p *Probes) readSystemCalls() (out []SystemCall, err error) {
	var index uint32
	var perCPU []kernelSystem
	each := p.objects.SystemCalls.Iterate()
	for each.Next(&index, &perCPU) {
		number, class := index/uint32(len(classes)), index%uint32(len(classes))
		s := SystemCall{Name: systemName(number), Class: classes[class]}
		for _, c := range perCPU {
			s.Calls += c.Calls
			s.Sum += time.Duration(c.Ns)
			s.Max = max(s.Max, time.Duration(c.Longest))
		}
		if s.Calls > 0 {
			out = append(out, s)
		}
	}
	if err := each.Err(); err != nil {
		return nil, fmt.Errorf("system calls: %w", err)
	}
	slices.SortFunc(out, func(a, b SystemCall) int {
		return cmp.Or(cmp.Compare(b.Sum, a.Sum), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Class, b.Class))
	})
	return out, nil
}

func systemName(number uint32) string {
	if name := systemNames[number]; name != "" {
		return name
	}
	return fmt.Sprintf("syscall_%d", number)
}

func (p *Probes) readLost() (Lost, error) {
	var counts [4]uint64
	for kind := range counts {
		var perCPU []uint64
		if err := p.objects.Lost.Lookup(uint32(kind), &perCPU); err != nil {
			return Lost{}, fmt.Errorf("what was lost: %w", err)
		}
		for _, n := range perCPU {
			counts[kind] += n
		}
	}
	return Lost{counts[0], counts[1], counts[2], counts[3]}, nil
}

func (p *Probes) readStalls() (out []Stall, err error) {
	var key kernelStallKey
	var stall kernelStall
	each := p.objects.Stalls.Iterate()
	for each.Next(&key, &stall) {
		if int(key.Function) >= len(p.probes) {
			continue
		}
		s := Stall{
			PID: int(key.Process), Process: p.processName(key.Process), Function: p.probes[key.Function].entry.name,
			Calls: stall.Calls, Sum: time.Duration(stall.Ns), OffCPU: time.Duration(stall.OffCpu),
		}
		if key.Stack >= 0 {
			var frames [64]uint64
			if err := p.objects.Stacks.Lookup(uint32(key.Stack), &frames); err != nil && !errors.Is(err, bpf.ErrKeyNotExist) {
				return nil, fmt.Errorf("stacks: %w", err)
			}
			s.Stack = p.symbols.names(s.PID, frames[:])
		}
		out = append(out, s)
	}
	if err := each.Err(); err != nil {
		return nil, fmt.Errorf("stalls: %w", err)
	}
	slices.SortFunc(out, func(a, b Stall) int {
		return cmp.Or(cmp.Compare(b.Sum, a.Sum), cmp.Compare(a.Function, b.Function))
	})
	return out, nil
}
