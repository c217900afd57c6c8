package e2e

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"scuda.dev/scuda/ebpf"
	"scuda.dev/scuda/perf/baseline"
)

// needProbes fails, with the reason, where probes cannot be attached; only SCUDA_TEST_NO_BPF=1 leaves these tests out.
func needProbes(t *testing.T) {
	t.Helper()
	if noProbes {
		t.Skip("SCUDA_TEST_NO_BPF=1: the probes are not tested")
	}
	if err := ebpf.Able(); err != nil {
		t.Fatalf("the probes cannot be tested here: %v (SCUDA_TEST_NO_BPF=1 leaves these tests out)", err)
	}
}

func snapshot(t *testing.T, text string) (s ebpf.Snapshot) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return s
}

// TestMillionCalls compares what the probes see of a million calls with what the program made, for a program and for a
// running process.
func TestMillionCalls(t *testing.T) {
	needProbes(t)
	for _, way := range []string{"program", "process"} {
		t.Run(way, func(t *testing.T) {
			s := serve(t)
			var printed, seen string
			if way == "program" {
				p := start(t, s.env(), scuda, "trace", "--ebpf", "--json", "--", program("million"), kernels)
				if code := p.wait(patience); code != 0 {
					t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
				}
				printed, seen = p.out.String(), p.err.String()
			} else {
				program := start(t, s.env(), program("million"), kernels, "wait")
				program.await(program.out, "^ready$")
				p := start(t, nil, scuda, "trace", "--ebpf", "--json", "-p", fmt.Sprint(program.cmd.Process.Pid))
				p.await(p.err, "functions probed in")
				program.stdin.Close()
				if code := program.wait(patience); code != 0 {
					t.Fatalf("exit status %d\n%s%s", code, program.out, program.err)
				}
				if code := p.wait(patience); code != 0 {
					t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
				}
				printed, seen = strings.TrimPrefix(program.out.String(), "ready\n"), p.out.String()
			}
			got := map[string]ebpf.Function{}
			snap := snapshot(t, seen)
			for _, f := range snap.Functions {
				got[f.Name] = f
			}
			if snap.Lost != (ebpf.Lost{}) {
				t.Errorf("lost %+v", snap.Lost)
			}
			total := 0
			for line := range strings.SplitSeq(strings.TrimSpace(printed), "\n") {
				var name string
				var calls uint64
				var median time.Duration
				if _, err := fmt.Sscan(line, &name, &calls, &median); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				total += int(calls)
				f := got[name]
				if f.Calls != calls || f.Count() != calls || f.InFlight != 0 {
					t.Errorf("%s: %d calls seen (%d in the histogram, %d in flight), %d made", name, f.Calls, f.Count(), f.InFlight,
						calls)
				}
				if median > 0 {
					// The histogram's buckets are powers of two.
					seen, own := bits.Len64(uint64(f.Quantile(0.5))), bits.Len64(uint64(median))
					if seen < own-1 || seen > own+1 {
						t.Errorf("%s: median %v seen, %v by the program's clock", name, f.Quantile(0.5), median)
					}
				}
			}
			if total != 1_000_000 {
				t.Errorf("the program made %d calls", total)
			}
			if b := got["cuMemcpyHtoD_v2"].Bytes; b != 9000*256 {
				t.Errorf("%d bytes copied, want %d", b, 9000*256)
			}
			t.Logf("probes' own cost: %v a call, an empty function is seen as %v (%s)", snap.Floor.Cost, snap.Floor.Seen,
				snap.Floor.Kind)
		})
	}
}

// TestFolded: where a program stood still, as lines for flame graphs, and its system calls by name.
func TestFolded(t *testing.T) {
	needProbes(t)
	s := serve(t)
	file := filepath.Join(t.TempDir(), "stalls.txt")
	p := start(t, s.env(), scuda, "trace", "--ebpf", "--json", "--stall", "1ms", "--folded", file, "--",
		program("first_tensor"))
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	folded, err := os.ReadFile(file)
	if err != nil || !regexp.MustCompile(`(?m)^first_tensor;(.+;)*cuInit(;\[off-CPU\])? [0-9]{6,}$`).Match(folded) {
		t.Errorf("%v\n%s", err, folded)
	}
	for line := range strings.Lines(string(folded)) {
		if !regexp.MustCompile(`^[^ ]+ [0-9]+\n$`).MatchString(line) {
			t.Errorf("no line of a flame graph: %q", line)
		}
	}
	calls := map[string]uint64{}
	for _, c := range snapshot(t, p.err.String()).SystemCalls {
		calls[c.Name+" "+c.Class] += c.Calls
		if c.Sum < c.Max || c.Name == "sendmsg" && c.Max <= 0 { // some never return
			t.Errorf("%+v", c)
		}
	}
	// The greeting of NVML's session is the "write": scuda-connect makes it, which is counted with the program that
	// started it.
	for name, least := range map[string]uint64{"sendmsg network": 3, "write network": 1, "recvfrom network": 5,
		"openat ": 5, "mmap ": 10, "exit_group ": 1} {
		if calls[name] < least {
			t.Errorf("%d calls of %s, want at least %d of %v", calls[name], name, least, calls)
		}
	}
}

// TestKilledTracer kills the tracer with SIGKILL and looks at what is left: nothing in the kernel, and the functions'
// code is as it was.
func TestKilledTracer(t *testing.T) {
	needProbes(t)
	s := serve(t)
	target := start(t, s.env(), program("million"), kernels, "endless")
	target.await(target.out, "^ready$")
	pid := target.cmd.Process.Pid
	code := entryOf(t, pid, "cuDriverGetVersion")
	before := string(code())
	if want := "\x90"; !strings.HasPrefix(before, want) {
		t.Fatalf("the function begins with % x, want the nop % x", before, want)
	}
	programs, links := held(t) // of other tests too, which end
	p := start(t, nil, scuda, "trace", "--ebpf", "-p", fmt.Sprint(pid))
	p.await(p.err, "functions probed in")
	eventually(t, patience, "a probe in the function's code", func() bool { return string(code()) != before })
	p.signal(syscall.SIGKILL)
	p.wait(patience)
	eventually(t, patience, "no program or link left in the kernel", func() bool {
		p, l := held(t)
		return p <= programs && l <= links
	})
	eventually(t, patience, "the function's code as it was", func() bool { return string(code()) == before })
	target.stdin.Close()
	if code := target.wait(patience); code != 0 {
		t.Errorf("the program ended with %d\n%s", code, target.err)
	}
}

// TestTracedFork: the children of a traced program call functions that have probes, and that their parent has called.
func TestTracedFork(t *testing.T) {
	needProbes(t)
	s := serve(t)
	p := start(t, s.env(), scuda, "trace", "--ebpf", "--", program("fork"), kernels)
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
}

// entryOf gives a reader of a function's first bytes in a process.
func entryOf(t *testing.T, pid int, name string) func() []byte {
	t.Helper()
	at := addressOf(t, pid, name)
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { memory.Close() })
	return func() []byte {
		b := make([]byte, 5)
		if _, err := memory.ReadAt(b, int64(at)); err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// addressOf gives the address of a function of the client library in a process.
func addressOf(t *testing.T, pid int, name string) uint64 {
	t.Helper()
	file, err := filepath.EvalSymlinks(filepath.Join(lib, "libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == name && s.Value != 0 })
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil || i < 0 {
		t.Fatalf("%s in %s: symbol %d, %v", name, file, i, err)
	}
	for line := range strings.Lines(string(maps)) { // the library's first mapping is its beginning
		if strings.HasSuffix(line, " "+file+"\n") {
			from, _, _ := strings.Cut(line, "-")
			base, err := strconv.ParseUint(from, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return base + symbols[i].Value
		}
	}
	t.Fatalf("process %d has no %s", pid, file)
	return 0
}

// held counts the programs and links in the kernel.
func held(t *testing.T) (programs, links int) {
	t.Helper()
	for id := bpf.ProgramID(0); ; programs++ {
		next, err := bpf.ProgramGetNextID(id)
		if err != nil {
			break
		}
		id = next
	}
	for each := new(link.Iterator); each.Next(); links++ {
	}
	return programs, links
}

// TestExporter scrapes the exporter, which has no capability left, while a program makes a million calls.
func TestExporter(t *testing.T) {
	needProbes(t)
	s := serve(t)
	own := t.TempDir() // the whole machine is measured, and other tests use the libraries too
	if err := os.CopyFS(own, os.DirFS(lib)); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, scuda, "exporter", "--listen", "127.0.0.1:0", "--library", own+"/libcuda.so.1", "--library",
		own+"/libnvidia-ml.so.1")
	address := p.await(p.out, `^listening on (\S+)$`)[1]
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if !strings.Contains(string(status), set+":\t0000000000000000\n") {
			t.Errorf("capabilities are left:\n%s", status)
			break
		}
	}
	million := start(t, s.env("LD_LIBRARY_PATH="+own), program("million"), kernels)
	if code := million.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s", code, million.err)
	}
	text := get(t, "http://"+address+"/metrics")
	for _, want := range []string{
		`scuda_probe_call_duration_seconds_count{function="cuCtxGetCurrent",library="libcuda.so.1"} 600000`,
		`scuda_probe_copied_bytes_total{function="cuMemcpyHtoD_v2",library="libcuda.so.1"} 2.304e+06`,
		`scuda_probe_calls_in_flight{function="cuCtxGetCurrent",library="libcuda.so.1"} 0`,
		`scuda_probe_cost_seconds{entry="emulated"}`, `scuda_probe_system_calls_total{call="`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%.3000s", want, text)
		}
	}
	if body := get(t, "http://"+address+"/healthz"); body != "ok\n" {
		t.Errorf("/healthz says %q", body)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s", code, p.err)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", url, answer.Status, err, body)
	}
	return string(body)
}

// TestSystemCalls: what scuda itself reads and writes on the network for a program that only looks whether there is a
// GPU, and for one that does what PyTorch does for tensor.to('cuda:0'), by either counter. A greeting and its answer
// for each connection, a question and its answer for what has to be known, and the goodbye. scuda-connect, which is
// among them, reads the answer to NVML's greeting in two parts: nothing behind it may be read. Go reads before it
// waits, so each of the two connections may have one read in vain beyond the 13 that are needed. The copy, which the
// program does not wait for, may be on its way before the question behind it: then they are two writes. A long answer
// may come in two pieces.
func TestSystemCalls(t *testing.T) {
	s := serve(t)
	for _, counter := range []string{"strace", "ebpf"} {
		if counter == "ebpf" {
			needProbes(t)
		}
		for _, tt := range []struct {
			program             string
			reads, writes, both uint64
		}{{"init", 5, 5, 10}, {"first_tensor", 9, 9, 17}} {
			p := start(t, s.env(), scuda, "bench", "syscalls", "--counter", counter, "--base", "true", "--json", "--",
				program(tt.program))
			if code := p.wait(patience); code != 0 {
				t.Fatalf("%s: exit status %d\n%s%s", counter, code, p.out, p.err)
			}
			var counted struct{ Run *baseline.Run }
			lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &counted); err != nil {
				t.Fatal(err)
			}
			n := map[string]uint64{}
			for _, row := range baseline.Rows {
				n[row.Name] = counted.Run.Sum(row.Calls, "network")
			}
			reads, writes := n["everything that reads"], n["everything that writes"]
			t.Logf("%s, %s: %d reads and %d writes on the network", tt.program, counter, reads, writes)
			if reads < 2 || writes < 2 || reads > tt.reads || writes > tt.writes || reads+writes > tt.both {
				t.Errorf("%s, %s: %d reads and %d writes on the network, want at most %d and %d, %d together\n%s",
					tt.program, counter, reads, writes, tt.reads, tt.writes, tt.both, lines[len(lines)-1])
			}
		}
	}
}
