package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/timeline"
)

// traced is a timeline as it was written.
type traced struct {
	t      *testing.T
	events []timeline.Event
	other  map[string]any // otherData
	text   string         // what scuda trace said
	html   string
	rows   map[[2]uint64]string
	groups map[uint64]string
}

// trace runs the program timeline under scuda trace --kernels.
func (s *server) trace(t *testing.T, code int, args ...string) *traced {
	t.Helper()
	return s.traceOf(t, code, "timeline", append([]string{kernels}, args...)...)
}

func (s *server) traceOf(t *testing.T, code int, name string, args ...string) *traced {
	t.Helper()
	return traceWith(t, s.env(), code, name, args...)
}

func traceWith(t *testing.T, env []string, code int, name string, args ...string) *traced {
	t.Helper()
	folder := t.TempDir()
	out, page := filepath.Join(folder, "trace.json"), filepath.Join(folder, "trace.html")
	all := append([]string{"trace", "--kernels", "-o", out, "--html", page, "--", program(name)}, args...)
	p := start(t, env, scuda, all...)
	if got := p.wait(patience); got != code {
		t.Fatalf("exit status %d\n%s%s", got, p.out, p.err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(folder, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	x := &traced{t, nil, nil, p.err.String(), string(html), map[[2]uint64]string{}, map[uint64]string{}}
	if x.events, err = timeline.Validate(b); err != nil {
		t.Fatal(err)
	}
	var file struct {
		OtherData map[string]any `json:"otherData"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	x.other = file.OtherData
	for _, e := range x.events {
		switch {
		case e.Phase == "M" && e.Name == "thread_name":
			x.rows[[2]uint64{e.PID, e.TID}] = e.Args["name"].(string)
		case e.Phase == "M" && e.Name == "process_name":
			x.groups[e.PID] = e.Args["name"].(string)
		}
	}
	return x
}

// of gives the slices of a category with a name ("": any).
func (x *traced) of(category, name string) (list []timeline.Event) {
	for _, e := range x.events {
		if e.Phase == "X" && e.Category == category && (name == "" || e.Name == name) {
			list = append(list, e)
		}
	}
	return list
}

func (x *traced) one(category, name string) timeline.Event {
	x.t.Helper()
	list := x.of(category, name)
	if len(list) != 1 {
		x.t.Fatalf("%d slices %q of %q", len(list), name, category)
	}
	return list[0]
}

// realSinceBoot is CLOCK_REALTIME less CLOCK_MONOTONIC, in ns: of some tries the one that nobody came between.
func realSinceBoot() (ns float64) {
	shortest := int64(math.MaxInt64)
	for range 100 {
		var a, real, b unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &a)
		_ = unix.ClockGettime(unix.CLOCK_REALTIME, &real)
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &b)
		if took := b.Nano() - a.Nano(); took < shortest {
			shortest, ns = took, float64(real.Nano()-a.Nano()-took/2)
		}
	}
	return ns
}

func within(in, out timeline.Event) bool {
	const ns = 1.5e-3
	return out.Time-ns <= in.Time && in.Time+*in.Duration <= out.Time+*out.Duration+ns
}

// A program with known phases: everything that it and the GPU did is in its place, and a pause of the program's is
// named as one.
func TestTimeline(t *testing.T) {
	s := serve(t)
	x := s.trace(t, 0)
	calls, kernels, copies := x.of("call", "cuLaunchKernel"), x.of("kernel", "vector_add"), x.of("copy", "")
	if len(calls) != 40 || len(kernels) != 40 || len(copies) != 2 || len(x.of("memset", "")) != 1 {
		t.Fatalf("%d launches, %d kernels, %d copies, %d memsets", len(calls), len(kernels), len(copies),
			len(x.of("memset", "")))
	}
	byID := map[float64]timeline.Event{}
	for _, c := range calls {
		byID[c.Args["correlation"].(float64)] = c
	}
	streams := map[string]int{}
	waits := x.of("call", "cuStreamSynchronize")
	if len(waits) != 2 {
		t.Fatalf("%d waits", len(waits))
	}
	latest := max(waits[0].Time+*waits[0].Duration, waits[1].Time+*waits[1].Duration)
	for _, k := range kernels {
		c, found := byID[k.Args["correlation"].(float64)]
		if !found || k.Time < c.Time || k.Time+*k.Duration > latest+1.5e-3 {
			t.Errorf("kernel at %v for %v, its call %v at %v, waits until %v", k.Time, *k.Duration, found, c.Time, latest)
		}
		streams[x.rows[[2]uint64{k.PID, k.TID}]]++
	}
	if len(streams) != 2 {
		t.Errorf("kernels in the rows %v", streams)
	}
	flows := 0
	for _, e := range x.events {
		if e.Phase == "f" {
			flows++
		}
	}
	if flows != 43 {
		t.Errorf("%d flows, want 43", flows)
	}
	for _, c := range copies {
		if c.Args["bytes"].(float64) != 4<<20 {
			t.Errorf("a copy of %v", c.Args)
		}
	}

	// rows by name, and what is in them
	var rows []string
	for _, name := range x.rows {
		rows = append(rows, regexp.MustCompile(` \(\d+\)$`).ReplaceAllString(name, ""))
	}
	for _, want := range []string{"timeline", "helper", "carries out", "idle, because of", "NVTX of timeline",
		"phases: NVTX of timeline", "NVTX of helper"} {
		if !slices.Contains(rows, want) {
			t.Errorf("no row %q in %q", want, rows)
		}
	}
	if r := x.one("nvtx", "copies"); r.Args["category"] != "data" || r.Args["color"] != "#3366cc" ||
		r.Args["payload"].(float64) != -5 || !within(x.one("call", "cuMemcpyHtoD_v2"), r) ||
		!within(x.one("nvtx", "länger"), r) {
		t.Errorf("%+v", r)
	}
	if launch := x.of("server", "launch"); len(launch) != 40 || launch[0].Args["queue_us"].(float64) < 0 {
		t.Errorf("%d launches on the server: %+v", len(launch), launch)
	}
	if len(x.of("wait", "waits: answer")) == 0 || len(x.of("wait", "waits: bytes")) != 2 {
		t.Error("waits are missing")
	}
	var sent float64
	for _, e := range x.events {
		if e.Phase == "C" {
			sent += e.Args["sent by TCP"].(float64)
		}
	}
	if sent == 0 {
		t.Error("no bytes by transport")
	}

	// Client and server have one clock here, by which the error can be told.
	other := x.other
	most, likely := other["server_error_most_ns"].(float64), other["server_error_ns"].(float64)
	if off := math.Abs(other["server_clock_ns"].(float64) - realSinceBoot()); off > likely+1000 || likely > most ||
		likely > 20e3 || other["round_trip_ns"].(float64) <= 0 {
		t.Errorf("the server's clock is off by %v ns, said to be %v or %v at most: %v", off, likely, most, other)
	} else {
		t.Logf("the server's clock is off by %v ns, said to be %v or %v at most", off, likely, most)
	}

	// while the program slept the GPU was idle because of it, and of nothing else
	sleep := x.one("nvtx", "sleep in the program")
	if !slices.ContainsFunc(x.of("idle", "program"), func(e timeline.Event) bool { return within(sleep, e) }) {
		t.Errorf("%v for %v µs the program slept; gaps: %+v", sleep.Time, *sleep.Duration, x.of("idle", ""))
	}
	for _, want := range []string{"GPU 0: busy ", "why is it idle?", "with 43 kernels, copies and memsets",
		"program: the program gave it no work", "network: ", "server: ", "may be wrong by ",
		"open it on https://ui.perfetto.dev"} {
		if !strings.Contains(x.text, want) {
			t.Errorf("no %q in\n%s", want, x.text)
		}
	}
	for _, want := range []string{"Why is GPU 0 idle?", "vector_add", "Ranges of NVTX", "phases: copies",
		"cuMemcpyHtoD_v2"} {
		if !strings.Contains(x.html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
}

// Each process has its part: one that was forked and only says something by NVTX, one that was executed and uses the
// GPU as well. All are in one timeline.
func TestTimelineOfProcesses(t *testing.T) {
	x := serve(t).trace(t, 0, "fork")
	if n := len(x.of("kernel", "vector_add")); n != 80 {
		t.Errorf("%d kernels", n)
	}
	parents, child := x.of("nvtx", "load"), x.one("nvtx", "in the child")
	if len(parents) != 2 || parents[0].PID == parents[1].PID || child.PID == parents[0].PID ||
		child.PID == parents[1].PID {
		t.Errorf("processes %+v, %+v", parents, child)
	}
	for _, e := range append(parents, child) {
		if !strings.Contains(x.groups[e.PID], "timeline") {
			t.Errorf("process %d is called %q", e.PID, x.groups[e.PID])
		}
	}
}

// A program that profiles itself while it is traced gets all of its records, and so does the timeline.
func TestTimelineOfProfiler(t *testing.T) {
	s := serve(t)
	for _, tool := range []string{"kineto", "again"} {
		t.Run(tool, func(t *testing.T) {
			beside(t)
			x := s.traceOf(t, 0, "cupti", kernels, tool, "libcupti.so.12")
			if n := len(x.of("kernel", "vector_add")); n < 200 {
				t.Errorf("%d kernels", n)
			}
		})
	}
}

// Calls of CUDA's runtime are around those of the driver, also where the program profiles itself at times.
func TestTimelineOfRuntime(t *testing.T) {
	runtime := filepath.Join(root, "build/cudart/libcudart.so.12")
	if _, err := os.Stat(runtime); err != nil {
		t.Fatalf("%v: run make runtimes first", err)
	}
	x := serve(t).traceOf(t, 0, "cupti_runtime", kernels, "libcupti.so.12", runtime)
	launches := x.of("runtime", "cudaLaunchKernel")
	if len(launches) == 0 || len(x.of("runtime", "cudaMalloc")) == 0 {
		t.Fatalf("%d launches of the runtime's; %v", len(launches), x.of("runtime", ""))
	}
	around := 0
	for _, c := range x.of("call", "cuLaunchKernel") {
		if slices.ContainsFunc(launches, func(l timeline.Event) bool { return l.TID == c.TID && within(c, l) }) {
			around++
		}
	}
	if around != len(launches) {
		t.Errorf("%d launches of the runtime's are around one of the driver's, of %d", around, len(launches))
	}
}

// NVIDIA's own header of NVTX finds what it looks for, and what it says is in the timeline.
func TestTimelineOfNVTX(t *testing.T) {
	headers := filepath.Join(root, "build/cudart")
	if _, err := os.Stat(headers + "/nvtx3/nvToolsExt.h"); err != nil {
		t.Fatalf("%v: run make runtimes first", err)
	}
	if err := compile("testdata/nvtx.c", program("nvtx"), "-I", headers); err != nil {
		t.Fatal(err)
	}
	x := serve(t).traceOf(t, 0, "nvtx")
	var got []string
	for _, e := range x.events {
		if e.Category == "nvtx" {
			row, _, _ := strings.Cut(x.rows[[2]uint64{e.PID, e.TID}], " (")
			got = append(got, fmt.Sprint(e.Phase, " ", row, " ", e.Name, " ", e.Args))
		}
	}
	const attributes = "map[category:three color:#112233 payload:2.5]"
	const ofTwo = "map[category:four of two color:#112233 payload:-7]"
	want := []string{
		"X NVTX of the thread text map[]", "X NVTX of the thread wïde map[]", "X NVTX of the thread attributes " + attributes,
		"i NVTX of the thread mark map[]", "i NVTX of the thread märk map[]", "i NVTX of the thread attributes " + attributes,
		"b the thread start map[]", "b the thread stärt map[]", "b the thread attributes " + attributes,
		"e the thread start map[]", "e the thread stärt map[]", "e the thread attributes map[]",
		"X one: NVTX of the thread registered map[category:three of one color:#112233 payload:2.5]",
		"X twö: NVTX of the thread registëred " + ofTwo, "i twö: NVTX of the thread registëred " + ofTwo,
		"b the thread registëred map[category:four of two color:#112233 domain:twö payload:-7]",
		"e the thread registëred map[]",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// What was there stays when a program is killed.
func TestTimelineOfKilled(t *testing.T) {
	x := serve(t).trace(t, 1, "kill")
	if n := len(x.of("call", "cuLaunchKernel")); n != 40 {
		t.Errorf("%d launches", n)
	}
	x.one("nvtx", "sleep in the program")
	if !strings.Contains(x.text, "did not end in order") {
		t.Errorf("it does not say that the program was killed:\n%s", x.text)
	}
}
