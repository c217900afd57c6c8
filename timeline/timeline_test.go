package timeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// TestBuild: by one clock, no kernel is before its launch nor after the wait that saw it, each has its call, idle time
// has its causes, and all of it sums up.
func TestBuild(t *testing.T) {
	line := build(t, sample(), nvtxSample())
	if len(line.Processes) != 1 || len(line.GPUs) != 1 {
		t.Fatalf("%+v", line)
	}
	p, g := line.Processes[0], line.GPUs[0]
	if !p.GPU || !p.NVTX || !p.Orderly || p.Program != "python3 train.py" || p.Threads[78] != "loader" {
		t.Errorf("%+v", p)
	}
	if c := line.Clock; c.Likely > 1e3 || c.Most > 2e3 || c.Shortest > 2e3 ||
		c.Shortest == 0 || max(c.Offset-ahead, ahead-c.Offset) > 1e3 {
		t.Errorf("%+v", c)
	}
	if len(p.Work) != 3 || len(p.Calls) != 4 || len(p.Commands) != 4 || len(p.Turns) != 1 || len(p.Waits) != 2 {
		t.Fatalf("%d pieces of work, %d calls, %d commands, %d turns, %d waits", len(p.Work), len(p.Calls), len(p.Commands),
			len(p.Turns), len(p.Waits))
	}
	if w := p.Work[0]; w.From < 99e3 || w.Title() != "add" || p.Calls[w.Call].Name != "cuLaunchKernel" || w.Stream != 7 {
		t.Errorf("%+v", w)
	}
	if w := p.Work[1]; w.To > 300e3 || w.To < 290e3 || p.Calls[w.Call].Correlation != 12 {
		t.Errorf("%+v", w)
	}
	if w := p.Work[2]; w.Kind != cuda.WorkCopy || w.Bytes != 4096 || w.Title() != "copy, host to device" {
		t.Errorf("%+v", w)
	}
	sums := map[Cause]time.Duration{}
	all := g.BusyTime()
	for _, s := range g.Causes() {
		sums[s.Cause] = s.Time
		all += s.Time
	}
	if all != g.Time() || g.Time() != time.Millisecond {
		t.Errorf("%v of %v", all, g.Time())
	}
	about := func(c Cause, want int64) {
		if d := sums[c].Microseconds() - want; d < -15 || d > 15 {
			t.Errorf("%v: %v, want %d µs", c, sums[c], want)
		}
	}
	about(Others, 20)   // 210 to 230
	about(Server, 20+2) // 230 to 250, and a copy's command
	about(Network, 10+18+10)
	about(Program, 99+50+100+489)
}

// several is a program whose two servers have clocks that are far apart, and number their names alike.
func several() *file {
	const other = ahead - 7e11
	record := func(kind, correlation uint32, clock, from, to int64, more wire.ProfileRecord) wire.ProfileRecord {
		more.Kind, more.Correlation = kind, correlation
		more.Start, more.End = uint64(from*1e3+clock), uint64(to*1e3+clock)
		return more
	}
	first := wire.ProfileRecord{Device: 0, Context: 1, Stream: 1, Name: 1}
	second := wire.ProfileRecord{Device: 1, Context: 2, Stream: 2, Name: 1}
	launch := wire.ProfileRecord{Value: uint32(wire.OpLaunch)}
	f := newFile(7, "x", 0, 1000e3)
	f.block(7, "x", event(eventName, 1, 0, "cuLaunchKernel"), callEvent(1, 11, 100e3, 101e3, 0, 0),
		callEvent(1, 12, 200e3, 201e3, 0, 0),
		event(eventControl, 775, 775, int64(0), int64(2e3), int64(1e3)+ahead),
		from(1, event(eventControl, 775, 775, int64(2e3), int64(4e3), int64(3e3)+other)),
		read(600e3, 602e3, 601e3+ahead, []string{"add"}, record(wire.ProfileKernels, 11, ahead, 110, 150, first),
			record(wire.ProfileCommands, 11, ahead, 105, 900, launch)),
		from(1, read(603e3, 605e3, 604e3+other, []string{"scale"},
			record(wire.ProfileKernels, 12, other, 230, 250, second),
			record(wire.ProfileCommands, 12, other, 210, 220, launch))))
	return f
}

// TestServers: each server's times are by its own clock, its names by its own numbers, and what one has in hand holds
// up no GPU of the other's.
func TestServers(t *testing.T) {
	line := build(t, several())
	p := line.Processes[0]
	if len(p.Work) != 2 || len(p.Commands) != 2 || len(line.GPUs) != 2 || len(line.Clocks) != 2 {
		t.Fatalf("%+v, clocks %v", p, line.Clocks)
	}
	near := func(at, want int64) bool { return at > want-2e3 && at < want+2e3 }
	for i, want := range []struct {
		name     string
		from, to int64
		clock    int64
		server   time.Duration // of which the GPU is idle because of the server
	}{{"add", 110e3, 150e3, ahead, 755e3}, {"scale", 230e3, 250e3, ahead - 7e11, 20e3}} {
		w := p.Work[i]
		if w.Name != want.name || int(w.Device) != i || int(w.Server) != i || w.Call != i || !near(w.From, want.from) ||
			!near(w.To, want.to) {
			t.Errorf("%+v", w)
		}
		if c := line.Clocks[uint16(i)]; !near(c.Offset, want.clock) || c.Most > 2e3 || c.Most > line.Clock.Most {
			t.Errorf("clock %d: %+v", i, c)
		}
		if got := line.GPUs[i].Causes()[Server].Time; !near(int64(got), int64(want.server)) {
			t.Errorf("GPU %d was idle for %v because of its server, want %v", i, got, want.server)
		}
	}
	var b bytes.Buffer
	if err := line.Chrome(&b); err != nil {
		t.Fatal(err)
	}
	events, err := Validate(b.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	var groups []string
	for _, e := range events {
		if e.Name == "process_name" && strings.HasPrefix(e.Args["name"].(string), "server") {
			groups = append(groups, e.Args["name"].(string))
		}
	}
	if !slices.Equal(groups, []string{"server 1, for process 7", "server 2, for process 7"}) ||
		!strings.Contains(b.String(), `"server_clocks_ns":[`) {
		t.Errorf("%q\n%s", groups, b.String())
	}
}

func TestRanges(t *testing.T) {
	p := build(t, sample(), nvtxSample()).Processes[0]
	var got []string
	for _, r := range p.Ranges {
		got = append(got, fmt.Sprintf("%s/%s/%s %d-%d %v %v %#x", r.Domain, r.Category, r.Text, r.From/1000, r.To/1000, r.Own,
			r.Payload, r.Color))
	}
	want := []string{
		"//step 20-50 true <nil> 0x0", "steps/io/inner 30-40 true -5 0x3366cc", "//across 70-90 false <nil> 0x0",
		"//never popped 95-1000 true <nil> 0x0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if len(p.Marks) != 1 || p.Marks[0].Text != "here" || p.Marks[0].At != 60e3 {
		t.Errorf("%+v", p.Marks)
	}
}

// TestChrome: the file is what the Trace Event Format asks for, with rows by name, and each kernel hangs on its call.
func TestChrome(t *testing.T) {
	var b bytes.Buffer
	if err := build(t, sample(), nvtxSample()).Chrome(&b); err != nil {
		t.Fatal(err)
	}
	events, err := Validate(b.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	rows := map[string]bool{}
	for _, e := range events {
		if e.Category == "runtime" && (e.Name != "cudaLaunchKernel" || e.Time != 98 || e.Args["result"] != 1.0) {
			t.Errorf("%+v", e)
		}
		rows[e.Category] = true
		if e.Phase == "M" && (e.Name == "process_name" || e.Name == "thread_name") {
			rows[e.Args["name"].(string)] = true
		}
	}
	for _, want := range []string{"python3 train.py", "python3 (77)", "loader (78)", "GPU 0, of process 77", "stream 7",
		"stream 8", "GPU 0: why it is idle", "server, for process 77", "carries out", "kept back: another session's turn",
		"NVTX of python3 (77)", "steps: NVTX of python3 (77)", "runtime"} {
		if !rows[want] {
			t.Errorf("no row %q in %v", want, slices.Sorted(maps.Keys(rows)))
		}
	}
	var file struct {
		OtherData map[string]any `json:"otherData"`
	}
	if err := json.Unmarshal(b.Bytes(), &file); err != nil || file.OtherData["server_error_ns"] == nil {
		t.Errorf("%v, %v", err, file.OtherData)
	}
}

func TestTable(t *testing.T) {
	killed := newFile(78, "killed", 0, 0)
	killed.block(78, "x", event(eventName, 1, 0, "cuInit"), callEvent(1, 1, 5, 6, 0, 0))
	copy(killed.b[48:], []byte{3}) // lost events
	var b strings.Builder
	if err := build(t, sample(), nvtxSample(), killed).Table(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"GPU 0: busy ", " of 1ms (", "with 3 kernels, copies and memsets",
		"other session: its turn, before launch", "program: the program gave it no work", "may be wrong by ",
		"3 events are missing", "the processes [78] did not end in order"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := build(t, killed).Table(&b); err != nil || !strings.Contains(b.String(), "no kernel or copy was recorded") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// TestHTML: the page has its parts, and names nothing that it would fetch.
func TestHTML(t *testing.T) {
	var b strings.Builder
	if err := build(t, sample(), nvtxSample()).HTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Why is GPU 0 idle?", "What the GPU waited for", "Its longest pauses", "Timeline",
		"GPU 0, stream 7 (77)", "loader (78)", "<h2>Kernels</h2>", "Copies and memsets", "4 KiB", "Calls of the driver",
		"Ranges of NVTX", "steps: inner", "Bytes by transport", "prefers-color-scheme:dark", `class="bar"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, other := range []string{"http://", "https://", "src=", "@import", "url("} {
		if strings.Contains(b.String(), other) {
			t.Errorf("the page has %q", other)
		}
	}
	if strings.Contains(b.String(), "ZgotmplZ") {
		t.Error("a value was refused by the template")
	}
}
