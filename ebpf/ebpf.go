// Package ebpf measures the calls that programs make into the driver libraries, without their help: entry and return
// probes on every function of libcuda.so.1 and libnvidia-ml.so.1 (NVIDIA's or scuda's) count calls, bytes and time in
// the kernel, per function and CPU, in histograms by powers of two. It also counts the same processes' system calls. It
// knows nothing of scuda's protocol.
//
// Attach attaches; Probes.Read takes a Snapshot as often as one likes; Probes.Close, or the process's end, however it
// comes, takes everything away. One link holds all probes of a library: a session (Linux 6.13) or an entry and a return
// multi-link (6.6). Older kernels (from 5.15) get single links on the functions that programs use most, because each
// takes 0.1 s to remove.
//
// It needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN for other users' processes; what a kernel lacks is told as a
// *FeatureError.
package ebpf

//go:generate go tool bpf2go -cc clang -target bpfel -go-package ebpf -type calls -type operand -type process -type key -type system -type stall_key -type stall kernel bpf/probes.c -- -O2 -g -Wall -Werror -D__TARGET_ARCH_x86 -I/usr/include/x86_64-linux-gnu
//go:generate go run ./names zz_system_gen.go

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// entry is an exported function of a driver library.
type entry struct {
	name string
	size operand
	used int // in how many of the measured workloads it is called
}

// operand says where the number of a copy's bytes is: argument arg (from 1), or the product of size_t fields of the
// structure that it points to.
type operand struct {
	arg    uint8
	fields []uint16
}

// singles is the number of functions that get links of their own where the kernel has no multi-links.
const singles = 40

// Options say what to measure. The zero value measures every process that uses one of the machine's driver libraries.
type Options struct {
	Libraries   []string          // files; nil: those that Find finds; empty, with SystemCalls: none
	PID         int               // only this process (0: see Follow)
	Follow      bool              // only processes named by Probes.Follow, and their children
	Functions   func(string) bool // which functions; nil: all
	PerProcess  bool              // keep figures for each process too
	OffCPU      bool              // measure the time that callers stand without a CPU
	SystemCalls bool              // count the processes' system calls
	Stall       time.Duration     // keep the stacks of calls of at least this length; 0: none
	Logger      *slog.Logger      // nil: discard

	has func(Feature) error // for tests; nil: the running kernel
}

// Probes are attached probes.
type Probes struct {
	objects   kernelObjects
	links     []interface{ Close() error }
	libraries []*library
	probes    []probe
	method    Method
	floors    []Floor
	worst     *Floor // of inherited probes
	options   Options
	began     time.Time
	took      time.Duration
	symbols   *symbols
}

// probe is one attached function; its index is the cookie.
type probe struct {
	library *library
	entry   *entry
}

// Method is how probes are attached.
type Method string

// The methods, from the best down.
const (
	Session Method = "session" // one link and one program per library
	Multi   Method = "multi"   // two links per library
	Single  Method = "single"  // two links per function
)

// Attach attaches probes. The caller closes them.
func Attach(o Options) (_ *Probes, err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.has == nil {
		o.has = running
	}
	if runtime.GOARCH != "amd64" { // whose registers the kernel's part reads
		return nil, fmt.Errorf("%w: they read the registers of x86-64, and this processor is %s", ErrKernel, runtime.GOARCH)
	}
	p := &Probes{options: o, symbols: newSymbols()}
	if p.method, err = method(o.has); err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, err
	}
	// Kernels before 5.11 count maps as locked memory. (The rlimit package of cilium/ebpf asks the kernel when it is
	// imported: every scuda would make a map then, servers in a sandbox too.)
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err !=
		nil {
		o.Logger.Debug("the limit of locked memory stays", "error", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if err = p.load(); err != nil {
		return nil, err
	}
	if err = p.measureFloors(); err != nil {
		return nil, err
	}
	if o.PID != 0 {
		if err = p.Follow(o.PID); err != nil {
			return nil, err
		}
	}
	p.began = time.Now()
	if err = p.attach(); err != nil {
		return nil, err
	}
	p.took = time.Since(p.began)
	if err = p.attachTracepoints(); err != nil {
		return nil, err
	}
	return p, nil
}

// open reads the libraries and lists the functions.
func (p *Probes) open() error {
	files := p.options.Libraries
	if files == nil {
		files = Find(p.options.PID)
	}
	for _, file := range files {
		lib, err := readLibrary(file)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(p.libraries, lib.same) {
			continue
		}
		p.libraries = append(p.libraries, lib)
	}
	if files != nil && len(files) == 0 && p.options.SystemCalls {
		return nil
	}
	if len(p.libraries) == 0 {
		return ErrNoLibrary
	}
	for _, lib := range p.libraries {
		for i := range entries {
			e := &entries[i]
			if _, there := lib.offsets[e.name]; !there || p.options.Functions != nil && !p.options.Functions(e.name) {
				continue
			}
			p.probes = append(p.probes, probe{lib, e})
		}
	}
	if p.method == Single && len(p.probes) > singles {
		slices.SortStableFunc(p.probes, func(a, b probe) int { return b.entry.used - a.entry.used })
		p.options.Logger.Warn(
			"this kernel attaches single probes only; only the functions that programs use most are measured",
			"functions", singles, "of", len(p.probes), "needed", MultiLinks.Needed)
		p.probes = p.probes[:singles]
	}
	if len(p.probes) == 0 {
		return fmt.Errorf("%w: none of the functions that were asked for is exported", ErrNoLibrary)
	}
	return nil
}

func (p *Probes) load() error {
	spec, err := loadKernel()
	if err != nil {
		return fmt.Errorf("programs for the kernel: %w", err)
	}
	n := uint32(len(p.probes) + len(floorEntries))
	spec.Maps["functions"].MaxEntries = n
	spec.Maps["operands"].MaxEntries = n
	for name, v := range map[string]any{
		"follow":      flag(p.options.Follow || p.options.PID != 0),
		"per_process": flag(p.options.PerProcess),
		"stall_ns":    uint64(p.options.Stall.Nanoseconds()),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("programs for the kernel: %s: %w", name, err)
		}
	}
	if err := p.loadObjects(spec); err != nil {
		if v, ok := errors.AsType[*bpf.VerifierError](err); ok {
			p.options.Logger.Debug("the kernel refused a program", "verifier", fmt.Sprintf("%+v", v))
		}
		return fmt.Errorf("programs for the kernel: %w", err)
	}
	for i, probe := range p.probes {
		if probe.entry.size.arg == 0 {
			continue
		}
		o := kernelOperand{Arg: probe.entry.size.arg, Fields: uint8(len(probe.entry.size.fields))}
		copy(o.Offset[:], probe.entry.size.fields)
		if err := p.objects.Operands.Put(uint32(i), o); err != nil {
			return fmt.Errorf("sizes of copies: %w", err)
		}
	}
	return nil
}

// loadObjects loads the maps and the programs that the method needs.
func (p *Probes) loadObjects(spec *bpf.CollectionSpec) error {
	unused := map[Method][]string{
		Session: {"multi_enter", "multi_leave", "single_enter", "single_leave"},
		Multi:   {"session", "single_enter", "single_leave"},
		Single:  {"session", "multi_enter", "multi_leave"},
	}
	for _, name := range unused[p.method] {
		delete(spec.Programs, name)
	}
	c, err := bpf.NewCollection(spec)
	if err != nil {
		return err
	}
	defer c.Close()
	for name, to := range p.maps() {
		*to = c.DetachMap(name)
	}
	o := &p.objects
	for name, to := range map[string]**bpf.Program{
		"session": &o.Session, "multi_enter": &o.MultiEnter, "multi_leave": &o.MultiLeave, "single_enter": &o.SingleEnter,
		"single_leave": &o.SingleLeave,
		"system_enter": &o.SystemEnter, "system_leave": &o.SystemLeave, "switched": &o.Switched, "forked": &o.Forked,
		"executed": &o.Executed, "ended": &o.Ended,
	} {
		*to = c.DetachProgram(name)
	}
	return nil
}

func flag(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

// Follow adds a process to those that are measured; its children, as they come, are too.
func (p *Probes) Follow(pid int) error {
	if err := p.objects.Processes.Put(uint32(pid), kernelProcess{Name: commandName(pid)}); err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	return nil
}

// Method says how the probes are attached.
func (p *Probes) Method() Method { return p.method }

// Count gives the number of probed functions.
func (p *Probes) Count() int { return len(p.probes) }

// Libraries gives the number of probed functions by library.
func (p *Probes) Libraries() map[string]int {
	out := map[string]int{}
	for _, x := range p.probes {
		out[filepath.Base(x.library.path)]++
	}
	return out
}

// Took is the time that attaching all probes took.
func (p *Probes) Took() time.Duration { return p.took }

// Close takes the probes away.
func (p *Probes) Close() error {
	var errs []error
	for _, l := range slices.Backward(p.links) {
		errs = append(errs, l.Close())
	}
	p.links = nil
	o := &p.objects
	for _, m := range p.maps() {
		errs = append(errs, (*m).Close())
	}
	for _, g := range []*bpf.Program{o.Session, o.MultiEnter, o.MultiLeave, o.SingleEnter, o.SingleLeave, o.SystemEnter,
		o.SystemLeave, o.Switched, o.Forked, o.Executed, o.Ended} {
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}

// attachTracepoints attaches to what happens to the processes besides calls.
func (p *Probes) attachTracepoints() error {
	o := &p.objects
	points := []struct {
		name    string
		program *bpf.Program
		wanted  bool
	}{
		{"sched_process_exit", o.Ended, true},
		{"sched_process_fork", o.Forked, p.options.Follow || p.options.PID != 0},
		{"sched_process_exec", o.Executed, p.options.Follow || p.options.PID != 0},
		{"sched_switch", o.Switched, p.options.OffCPU},
		{"sys_exit", o.SystemLeave, p.options.SystemCalls},
		{"sys_enter", o.SystemEnter, p.options.SystemCalls},
	}
	for _, t := range points {
		if !t.wanted {
			continue
		}
		var l link.Link
		var err error
		if t.program.Type() == bpf.Tracing { // it knows the types of its arguments
			l, err = link.AttachTracing(link.TracingOptions{Program: t.program})
		} else {
			l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: t.name, Program: t.program})
		}
		if err != nil {
			return fmt.Errorf("tracepoint %s: %w", t.name, err)
		}
		p.links = append(p.links, l)
	}
	return nil
}

func commandName(pid int) (name [16]int8) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return name
	}
	for i, c := range text[:min(len(text), len(name)-1)] {
		if c != '\n' {
			name[i] = int8(c)
		}
	}
	return name
}
