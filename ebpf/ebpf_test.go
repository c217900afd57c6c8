package ebpf

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// needProbes fails, with the reason, where probes cannot be attached; only SCUDA_TEST_NO_BPF=1 leaves these tests out.
func needProbes(t testing.TB) {
	t.Helper()
	if os.Getenv("SCUDA_TEST_NO_BPF") == "1" {
		t.Skip("SCUDA_TEST_NO_BPF=1: the probes are not tested")
	}
	if err := Able(); err != nil {
		t.Fatalf("the probes cannot be tested here: %v (SCUDA_TEST_NO_BPF=1 leaves these tests out)", err)
	}
}

// lacking is a kernel without the features named.
func lacking(names ...string) func(Feature) error {
	return func(f Feature) error {
		if slices.Contains(names, f.Name) {
			return fmt.Errorf("%w: invalid argument", bpf.ErrNotSupported)
		}
		return nil
	}
}

func TestMethod(t *testing.T) {
	for _, c := range []struct {
		lacks []string
		want  Method
		says  []string
	}{
		{nil, Session, nil},
		{[]string{SessionLinks.Name}, Multi, nil},
		{[]string{SessionLinks.Name, MultiLinks.Name}, Single, nil},
		{[]string{Cookies.Name}, "", []string{"probes with cookies", "5.15", "newer kernel"}},
		{[]string{Types.Name}, "", []string{"/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF", "distribution"}},
		{[]string{Permission.Name}, "", []string{"permission", "root", "CAP_BPF"}},
	} {
		got, err := method(lacking(c.lacks...))
		if got != c.want {
			t.Errorf("without %q: %q, want %q", c.lacks, got, c.want)
		}
		var missing *FeatureError
		if (err != nil) != (c.says != nil) ||
			err != nil && (!errors.Is(err, ErrKernel) || !errors.As(err, &missing) || missing.Feature.Name != c.lacks[0]) {
			t.Errorf("without %q: %v", c.lacks, err)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("without %q: %q does not say %q", c.lacks, err, s)
			}
		}
	}
}

// TestOldKernel: what an old kernel refuses reaches the caller by name.
func TestOldKernel(t *testing.T) {
	_, err := Attach(Options{has: lacking(Cookies.Name)})
	if !errors.Is(err, ErrKernel) || !errors.Is(err, bpf.ErrNotSupported) {
		t.Errorf("got %v", err)
	}
}

// bucket gives the bucket of a length, as the probes find it.
func bucket(d time.Duration) int {
	if d < 1 {
		return 0
	}
	return min(bits.Len64(uint64(d))-1, Buckets-1)
}

func TestQuantile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.Int64Range(1, 1<<39), 1, 200).Draw(t, "lengths")
		q := rapid.Float64Range(0.01, 1).Draw(t, "q")
		var h Histogram
		for _, n := range lengths {
			h[bucket(time.Duration(n))]++
		}
		if h.Count() != uint64(len(lengths)) {
			t.Fatalf("%d counted of %d", h.Count(), len(lengths))
		}
		slices.Sort(lengths)
		rank := max(int(q*float64(len(lengths))+0.999999)-1, 0)
		exact := time.Duration(lengths[min(rank, len(lengths)-1)])
		got := h.Quantile(q)
		if d := bucket(got) - bucket(exact); d < -1 || d > 1 {
			t.Fatalf("quantile %v is %v, exactly %v", q, got, exact)
		}
	})
	if (&Histogram{}).Quantile(0.5) != 0 {
		t.Error("the median of nothing is not 0")
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add([]byte("7f0000000000-7f0000001000 r-xp 00002000 08:01 17      /usr/lib/libcuda.so.1\n" +
		"7f0000001000-7f0000002000 rw-p 00000000 00:00 0 \n"))
	f.Add([]byte("7f00-zz r-xp x 1 1 /a\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, m := range parseMaps(text) {
			if !strings.HasPrefix(m.path, "/") {
				t.Errorf("%+v", m)
			}
		}
	})
}

func TestParseMaps(t *testing.T) {
	got := parseMaps([]byte("7f0000000000-7f0000001000 r-xp 00002000 08:01 17                 /a b/libcuda.so.1\n" +
		"7f0000001000-7f0000002000 rw-p 00000000 00:00 0 \n" +
		"7f0000003000-7f0000004000 r--p 00000000 08:01 17 /a b/libcuda.so.1\n"))
	want := []mapping{{0x7f0000000000, 0x7f0000001000, 0x2000, "/a b/libcuda.so.1"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		first []byte
		want  Entry
	}{
		{[]byte{0x0f, 0x1f, 0x44, 0, 0}, Emulated},
		{[]byte{0x55, 0x48, 0x89, 0xe5, 0x90}, Emulated},
		{[]byte{0x41, 0x57, 0x41, 0x56, 0x41}, Emulated},
		{[]byte{0x90, 0x48, 0x83, 0xec, 8}, Emulated},
		{[]byte{0xf3, 0x0f, 0x1e, 0xfa, 0x55}, Stepped},
		{[]byte{0x48, 0x83, 0xec, 0x08, 0x48}, Stepped},
		{[]byte{0x0f, 0x1f, 0x40, 0, 0}, Stepped},
	} {
		if got := kindOf(c.first); got != c.want {
			t.Errorf("% x: %v, want %v", c.first, got, c.want)
		}
	}
}

func TestWriteFolded(t *testing.T) {
	var b bytes.Buffer
	err := WriteFolded(&b, []Stall{
		{Process: "py thon", Stack: []string{"main", "a;b"}, Function: "cuCtxSynchronize", Sum: 100, OffCPU: 70},
		{Process: "py thon", Stack: []string{"main", "a;b"}, Function: "cuCtxSynchronize", Sum: 10},
		{Function: "cuInit", Sum: 5},
	})
	want := "process;cuInit 5\npy_thon;main;a:b;cuCtxSynchronize 40\npy_thon;main;a:b;cuCtxSynchronize;[off-CPU] 70\n"
	if err != nil || b.String() != want {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// build compiles the library and the program that calls it.
func build(t testing.TB) (library, program string) {
	t.Helper()
	folder := t.TempDir()
	library, program = filepath.Join(folder, "libcuda.so.1"), filepath.Join(folder, "caller")
	gcc(t, "-O1", "-fno-optimize-sibling-calls", "-fno-omit-frame-pointer", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1",
		"-o", library, "testdata/driver.c")
	gcc(t, "-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o", program, "testdata/caller.c", library,
		"-Wl,-rpath,"+folder)
	return library, program
}

func gcc(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
}

// TestFigures measures a program by each method: exact counts, bytes, calls in flight and off the CPU, callers,
// children, system calls.
func TestFigures(t *testing.T) {
	needProbes(t)
	library, program := build(t)
	const calls = 5000
	for _, c := range []struct {
		method Method
		has    func(Feature) error
	}{
		{Session, nil},
		{Multi, lacking(SessionLinks.Name)},
		{Single, lacking(SessionLinks.Name, MultiLinks.Name)},
	} {
		t.Run(string(c.method), func(t *testing.T) {
			if c.method != Single && running(MultiLinks) != nil || c.method == Session && running(SessionLinks) != nil {
				t.Skipf("this kernel is too old: %v", running(SessionLinks))
			}
			p, err := Attach(Options{
				Libraries: []string{library}, Follow: true, PerProcess: true, OffCPU: true, SystemCalls: true,
				Stall: 20 * time.Millisecond, has: c.has,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}()
			if p.Method() != c.method || p.Count() != 6 {
				t.Errorf("method %s, %d functions", p.Method(), p.Count())
			}
			cmd := exec.Command("/bin/sh", "-c", `read go && exec "$0" "$1"`, program, fmt.Sprint(calls))
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			if err := p.Follow(cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(in, "\n"); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "waiting\n" {
				t.Fatalf("%q, %v", line, err)
			}
			p.Refresh()
			deadline := time.Now().Add(time.Minute)
			s := read(t, p)
			for named(s.Functions, "cuEventSynchronize", 0).InFlight != 1 {
				if time.Now().After(deadline) {
					t.Fatalf("no call in flight: %+v", s.Functions)
				}
				s = read(t, p)
			}
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			check(t, read(t, p), cmd.Process.Pid, calls)
		})
	}
}

func read(t *testing.T, p *Probes) *Snapshot {
	t.Helper()
	s, err := p.Read()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func named(all []Function, name string, pid int) Function {
	for _, f := range all {
		if f.Name == name && (pid == 0 || f.PID == pid) {
			return f
		}
	}
	return Function{}
}

func check(t *testing.T, s *Snapshot, pid, calls int) {
	t.Helper()
	for name, want := range map[string]struct {
		calls, bytes uint64
	}{
		"cuDriverGetVersion": {uint64(calls) + 7, 0}, "cuMemcpyHtoD_v2": {uint64(calls), uint64(calls) * 100},
		"cuMemcpy2D_v2": {uint64(calls), uint64(calls) * 64 * 3},
		"cuInit":        {4, 0}, "cuCtxSynchronize": {1, 0}, "cuEventSynchronize": {1, 0},
	} {
		f := named(s.Functions, name, 0)
		if f.Calls != want.calls || f.Count() != want.calls || f.Bytes != want.bytes || f.InFlight != 0 {
			t.Errorf("%s: %d calls (%d in the histogram), %d bytes, %d in flight; want %d and %d", name, f.Calls, f.Count(),
				f.Bytes, f.InFlight, want.calls, want.bytes)
		}
	}
	slept := named(s.Functions, "cuCtxSynchronize", 0)
	if slept.OffCPU < 29*time.Millisecond || slept.OffCPU > slept.Sum || slept.Max != slept.Sum {
		t.Errorf("a call that sleeps 30 ms: %+v", slept.Figures)
	}
	if f := named(s.Processes, "cuDriverGetVersion", pid); f.Calls != uint64(calls) || f.Process != "caller" {
		t.Errorf("of the process: %+v", f)
	}
	seen := map[string]uint64{}
	for _, c := range s.SystemCalls {
		seen[c.Name+" "+c.Class] += c.Calls
	}
	if seen["getppid "] < 1000 || seen["getppid "] > 1001 || seen["read file"] < 10 { // the shell asks for its parent too
		t.Errorf("system calls: %v", seen)
	}
	i := slices.IndexFunc(s.Stalls, func(x Stall) bool { return x.Function == "cuCtxSynchronize" })
	if i < 0 || !slices.Contains(s.Stalls[i].Stack, "slow_caller") || s.Stalls[i].Calls != 1 {
		t.Errorf("stalls: %+v", s.Stalls)
	}
	if s.Lost != (Lost{}) {
		t.Errorf("lost: %+v", s.Lost)
	}
	if s.Floor.Seen <= 0 || s.Floor.Cost <= 0 {
		t.Errorf("floor: %+v", s.Floor)
	}
}

// TestAllFunctions attaches to as many functions as the driver libraries have.
func TestAllFunctions(t *testing.T) {
	needProbes(t)
	folder := t.TempDir()
	var source strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&source, "int %s(void) { return 0; }\n", e.name)
	}
	file := filepath.Join(folder, "all.c")
	if err := os.WriteFile(file, []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(folder, "libcuda.so.1")
	gcc(t, "-O1", "-fno-builtin", "-shared", "-fPIC", "-o", library, file)
	p, err := Attach(Options{Libraries: []string{library, library}})
	if err != nil {
		t.Fatal(err)
	}
	took, count := p.Took(), p.Count()
	began := time.Now()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if p.Method() == Single {
		t.Skip("this kernel has no links of many probes")
	}
	if count != len(entries) {
		t.Errorf("%d of %d functions attached in %v, detached in %v", count, len(entries), took, time.Since(began))
	}
	t.Logf("%d functions attached in %v (%s), detached in %v; floors %v", count, took, p.Method(), time.Since(began),
		p.Floors())
}

// TestFloor: a function whose first instruction is emulated is cheaper to probe by far than one where it is stepped.
// What a probed call costs in nanoseconds is the machine's affair, so BenchmarkFloor says it.
func TestFloor(t *testing.T) {
	floors := probeFloors(t)
	if 2*floors[Emulated].Cost > floors[Stepped].Cost { // 8 times on an idle machine, 3 on a busy one
		t.Errorf("emulation is hardly cheaper than an instruction that is stepped: %v", floors)
	}
	t.Logf("floors %v", floors)
}

// BenchmarkFloor prints what a probed call of a function with a nop costs, and what of that is the kernel's: the cost
// with an empty program.
func BenchmarkFloor(b *testing.B) {
	var probed, empty time.Duration
	for b.Loop() {
		probed += probeFloors(b)[Emulated].Cost
		empty += emptySession(b)
	}
	b.ReportMetric(float64(probed)/float64(b.N), "probed-ns")
	b.ReportMetric(float64(empty)/float64(b.N), "empty-ns")
	b.ReportMetric(float64(probed)/float64(empty), "ratio")
}

func probeFloors(t testing.TB) []Floor {
	t.Helper()
	needProbes(t)
	if running(SessionLinks) != nil {
		t.Skip("this kernel has no sessions")
	}
	library, _ := build(t)
	p, err := Attach(Options{Libraries: []string{library}, PID: os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	return p.Floors()
}

// emptySession is what a probed call costs with a program that does nothing.
func emptySession(t testing.TB) time.Duration {
	t.Helper()
	g, err := bpf.NewProgram(&bpf.ProgramSpec{
		Type: bpf.Kprobe, AttachType: bpf.AttachType(attachSession), License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	maps, err := readMaps(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	at := floorAddress(Emulated)
	i := slices.IndexFunc(maps, func(m mapping) bool { return m.from <= at && at < m.to })
	bare := shortest(Emulated)
	l, err := linkMulti("/proc/self/exe", g, attachSession, 0, os.Getpid(), []uint64{at - maps[i].from + maps[i].offset},
		[]uint64{0})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return time.Duration(shortest(Emulated) - bare)
}
