package nvmltest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/nvml"
)

// The front decides once a process what it is, so every case runs in a process of its own: this test binary again, with
// roleVariable set.
const roleVariable = "SCUDA_NVMLTEST_ROLE"

var library, callAll, shapes, connectUnder string

func TestMain(m *testing.M) {
	if os.Args[0] == connector {
		unix.Exit(standIn()) // not os.Exit, which sleeps too; a connector is not given GORACE
	}
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nvmltest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	library, callAll, shapes = filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "callall"),
		filepath.Join(dir, "shapes")
	connectUnder = filepath.Join(dir, "connect")
	for _, cmd := range []*exec.Cmd{
		exec.Command("sh", "../../build-nvml.sh", library),
		exec.Command("go", "build", "-o", filepath.Join(dir, connector), "scuda.dev/scuda/cmd/scuda-connect"),
		exec.Command("cc", "-O1", "-o", callAll, "testdata/callall.c", "-ldl"),
		exec.Command("cc", "-O1", "-o", shapes, "testdata/shapes.c", "-ldl"),
		exec.Command("cc", "-O1", "-Wall", "-o", connectUnder, "testdata/connect.c", "-ldl"),
	} {
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			fmt.Fprintf(os.Stderr, "%v: %v\n%s", cmd.Args, err, out)
			return 1
		}
	}
	if code := m.Run(); code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// leaveAtOnce: with the race detector a process of this test binary would sleep for a second when it ends. Those beside
// the test itself are stand-ins for others' programs.
const leaveAtOnce = "GORACE=atexit_sleep_ms=0"

// environment gives a process's variables: none of the tester's own settings.
func environment(t *testing.T, set ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), leaveAtOnce}, set...)
}

func exports(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../../api/facts/libnvidia-ml-exports.txt")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(b))
	slices.Sort(names)
	return names
}

func TestExports(t *testing.T) {
	f, err := elf.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range syms {
		if s.Section == elf.SHN_UNDEF {
			continue
		}
		got = append(got, s.Name)
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			t.Errorf("%s is exported as %v", s.Name, elf.ST_TYPE(s.Info))
		}
	}
	slices.Sort(got)
	if want := exports(t); !slices.Equal(got, want) || len(want) < 404 {
		t.Errorf("%d exports, want the %d of the facts", len(got), len(want))
	}
	if names, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Equal(names, []string{"libnvidia-ml.so.1"}) {
		t.Errorf("SONAME %v, %v", names, err)
	}
	imports, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range imports {
		var minor int
		if n, _ := fmt.Sscanf(s.Version, "GLIBC_2.%d", &minor); n == 1 && minor > 31 {
			t.Errorf("%s needs %s, newer than 2.31", s.Name, s.Version)
		}
	}
}

// TestCallAll calls all functions with zeros.
func TestCallAll(t *testing.T) {
	srv := startServer(t, "")
	all, names := exports(t), filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(names, []byte(strings.Join(all, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, when string
		env        []string
		want       map[string]string // results of some functions; "" is that of all others
	}{
		{"no driver", "", nil, map[string]string{
			"": "1", "nvmlInit_v2": "9", "nvmlInit": "9", "nvmlInitWithFlags": "9", "nvmlErrorString": "Success",
		}},
		{"server, before init", "", []string{"SCUDA_SERVER=" + srv.addr},
			map[string]string{"nvmlDeviceGetCount_v2": "1", "nvmlDeviceSetComputeMode": "1"}},
		{"server", "init", []string{"SCUDA_SERVER=" + srv.addr}, map[string]string{
			"nvmlDeviceGetCount_v2": "2", "nvmlDeviceSetComputeMode": "2", "nvmlGpmMetricsGet": "2",
			"nvmlDeviceGetPowerUsage":      "2",
			"nvmlDeviceGetRemappedRows_v2": "2", "nvmlInternalGetExportTable": "2", "nvmlEventSetCreate": "2",
			"nvmlGetBlacklistDeviceCount": "2"}},
		{"forked child", "fork", []string{"SCUDA_SERVER=" + srv.addr},
			map[string]string{"nvmlDeviceGetCount_v2": "1", "nvmlDeviceSetComputeMode": "1", "nvmlErrorString": "Success"}},
		{"forked child after its nvmlInit", "again", []string{"SCUDA_SERVER=" + srv.addr}, map[string]string{
			"nvmlDeviceGetCount_v2": "2", "nvmlDeviceSetComputeMode": "2", "nvmlErrorString": "Success"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), callAll, library, names, tt.when)
			cmd.Env = environment(t, append(tt.env, "SCUDA_REAL_LIBNVML=/nonexistent", "SCUDA_LOG=error")...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v after\n%s%s", err, out, &stderr)
			}
			results := map[string]string{}
			for line := range strings.Lines(string(out)) {
				name, result, _ := strings.Cut(strings.TrimSpace(line), " ")
				results[name] = result
				if want, ok := tt.want[""]; ok && tt.want[name] == "" && result != want {
					t.Errorf("%s answers %s, want %s", name, result, want)
				}
			}
			want := len(all) - 1
			if tt.when != "" {
				want = len(all) - 4
			}
			if len(results) != want {
				t.Errorf("%d functions were called, want %d", len(results), want)
			}
			for name, want := range tt.want {
				if name != "" && results[name] != want {
					t.Errorf("%s answers %s, want %s", name, results[name], want)
				}
			}
		})
	}
}

// TestShapes calls what does not fit the generic form as it stands.
func TestShapes(t *testing.T) {
	const usual = `init 0, device 0
how many: 7, 2
utilization 0, 2: pid 200 4242, sm 55, array kept
other version 25
instances 0, 2: two handles
sample 0, metrics 0: 0 5.0 %, 3
again 0, the same string
table of 2160 bytes, value 0 7, text 0 part
processes 0, 2: 4242 python3, 200 x
too many 7, 2; no such slot 3
counters 0, 2: 101 202 0
metadata 7, 140 bytes, 0: 77, compatibility 0: 77
system's events 0, 0, wait 10 kept 0, free 0, again 2, wrong version 25
`
	const slotCall = 48
	for name, c := range map[string]struct {
		forge func(op uint16, req, reply []byte)
		want  string
	}{
		"usual": {nil, usual},
		"more processes than there are": {func(op uint16, req, reply []byte) {
			if op == nvml.OpNvmlInternalGetExportTable && len(req) == slotCall && req[24] == 213 && req[40] != 1 {
				binary.LittleEndian.PutUint64(reply, 1<<20)
			}
		}, usual},
	} {
		t.Run(name, func(t *testing.T) {
			srv := startServer(t, "")
			srv.mu.Lock()
			srv.forge = c.forge
			srv.mu.Unlock()
			cmd := exec.CommandContext(t.Context(), shapes, library)
			cmd.Env = environment(t, "SCUDA_SERVER="+srv.addr)
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != c.want {
				t.Errorf("%v, got\n%s\nwant\n%s", err, out, c.want)
			}
		})
	}
}

// TestFork: the parent's connection and the child's are two.
func TestFork(t *testing.T) {
	srv := startServer(t, "")
	names := filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(names, []byte("nvmlSystemGetCudaDriverVersion_v2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), callAll, library, names, "again")
	cmd.Env = environment(t, "SCUDA_SERVER="+srv.addr)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "nvmlSystemGetCudaDriverVersion_v2 2\n" {
		t.Errorf("%v\n%s", err, out)
	}
	if n := srv.sessions.Load(); n != 2 {
		t.Errorf("%d sessions, want the parent's and the child's", n)
	}
}

// as runs this binary again in a role and gives what it wrote.
func as(t *testing.T, role string, env ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = environment(t,
		append(env, roleVariable+"="+role, "SCUDA_TEST_LIBRARY="+library, "SCUDA_REAL_LIBNVML=/nonexistent")...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", role, err, &out, &errs)
	}
	return out.String(), errs.String()
}

const golden = `init SUCCESS
driver 580.00
nvml 13.580.00
cuda 13000
devices 2
0: scuda simulated GPU GPU-ab010000-0000-0000-0000-000000000000 00000000:1B:00.0 8589934592 9.0
1: another GPU-ab020000-0000-0000-0000-000000000000 00000000:1C:00.0 4294967296 9.0
by uuid: index 1
by pci: index 0
memory v2 SUCCESS 4294967296
utilization SUCCESS 0
processes SUCCESS 2
power SUCCESS 75000
fan ERROR_NOT_SUPPORTED
texts: a text of the server's, a text of the server's, Not Supported
fields SUCCESS ERROR_NOT_SUPPORTED
wait ERROR_TIMEOUT
set compute mode ERROR_NO_PERMISSION
no such device ERROR_INVALID_ARGUMENT
after shutdown ERROR_UNINITIALIZED
again 2
the old handle: another
`

// TestGoNVML lets NVIDIA's own Go binding ask.
func TestGoNVML(t *testing.T) {
	srv := startServer(t, "secret")
	out, errs := as(t, "ask", "SCUDA_SERVER="+srv.addr, "SCUDA_TOKEN=secret")
	if out != golden {
		t.Errorf("got\n%s\nwant\n%s\nstderr\n%s", out, golden, errs)
	}
	if log := srv.logged(); !strings.Contains(log, "function=nvmlDeviceSetComputeMode") ||
		!strings.Contains(log, "--allow-nvml-set") {
		t.Errorf("the server does not log the refused setter by name: %q", log)
	}
}

func TestRefusals(t *testing.T) {
	srv := startServer(t, "secret")
	tests := []struct {
		name, want string
		env        []string
	}{
		{"wrong token", "refused the token of SCUDA_TOKEN: the token is wrong; set SCUDA_TOKEN",
			[]string{"SCUDA_SERVER=" + srv.addr, "SCUDA_TOKEN=guess"}},
		{"refused", "start the server with 'scuda serve ADDRESS'", []string{"SCUDA_SERVER=127.0.0.1:1"}},
		{"unknown host", `the host name "no-such-host.invalid"`, []string{"SCUDA_SERVER=no-such-host.invalid:1"}},
		{"bare IPv6 address", "scuda server [::1]:14833: ", []string{"SCUDA_SERVER= ::1 "}},
		{"bad address", "the bracket is not closed; write HOST", []string{"SCUDA_SERVER=[::1"}},
		{"token too long", "the limit is 512", []string{
			"SCUDA_SERVER=" + srv.addr, "SCUDA_TOKEN=" + strings.Repeat("x", 513),
		}},
		{"web server", "not a scuda server", []string{"SCUDA_SERVER=" + peer(t, "HTTP/1.1 400 Bad Request\r\n\r\n")}},
		{"half an answer", "closed the connection during the handshake",
			[]string{"SCUDA_SERVER=" + peer(t, "SCUDA\r\n\x1a\x01\x00")}},
		{"no answer", "closed the connection during the handshake", []string{"SCUDA_SERVER=" + peer(t, "")}},
		{"huge welcome", "not a scuda server", []string{
			"SCUDA_SERVER=" + peer(t, "SCUDA\r\n\x1a\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"),
		}},
		{"other version", "the server speaks version 9, this client version 1",
			[]string{"SCUDA_SERVER=" + peer(t, "SCUDA\r\n\x1a\x09\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00{}")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, errs := as(t, "init", tt.env...)
			if out != "ERROR_DRIVER_NOT_LOADED\n" || !strings.Contains(errs, tt.want) || strings.Count(errs, "\n") != 1 {
				t.Errorf("%q and one line with %q expected, got %q and %q", "ERROR_DRIVER_NOT_LOADED", tt.want, out, errs)
			}
		})
	}
}

// A server without room is not a driver that is missing: programs may try again.
func TestBusy(t *testing.T) {
	const busy = "SCUDA\r\n\x1a\x01\x00\x00\x00\x04\x00\x00\x00\x02\x00\x00\x00{}"
	out, errs := as(t, "init", "SCUDA_SERVER="+peer(t, busy))
	const insufficientResources = "23\n"
	if out != insufficientResources || !strings.Contains(errs, "has no room for another session") {
		t.Errorf("%q and %q", out, errs)
	}
}

func TestPassThroughWithoutDriver(t *testing.T) {
	out, errs := as(t, "init")
	if out != "ERROR_DRIVER_NOT_LOADED\n" || errs != "" {
		t.Errorf("%q %q", out, errs)
	}
}

// TestPassThrough: without a server the calls reach the machine's own library, here a stand-in.
func TestPassThrough(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", real, "testdata/standin.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = environment(t, roleVariable+"=pass", "SCUDA_TEST_LIBRARY="+library, "SCUDA_REAL_LIBNVML="+real)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "SUCCESS\n7\nthe machine's own GPU\nERROR_FUNCTION_NOT_FOUND\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLostServer: a server that goes away gives a program that is not to come back GPU_IS_LOST and one line;
// initialising again finds a new one.
func TestLostServer(t *testing.T) {
	srv := startServer(t, "")
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = environment(t, roleVariable+"=lose", "SCUDA_TEST_LIBRARY="+library, "SCUDA_SERVER="+srv.addr,
		"SCUDA_RESUME=0")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	outPipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := func() string {
		b := make([]byte, 256)
		n, _ := outPipe.Read(b)
		return string(b[:n])
	}
	if got := line(); got != "SUCCESS 2\n" {
		t.Errorf("first: %q", got)
	}
	srv.hangUp()
	fmt.Fprintln(in, "go on")
	if got := line(); got != "ERROR_GPU_IS_LOST ERROR_GPU_IS_LOST SUCCESS 2\n" {
		t.Errorf("after the loss: %q", got)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if got := errs.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "lost the server "+srv.addr) {
		t.Errorf("stderr %q", got)
	}
}

// play is the other side of as.
func play(role string) int {
	lib := gonvml.New(gonvml.WithLibraryPath(os.Getenv("SCUDA_TEST_LIBRARY")))
	r := lib.Init()
	switch role {
	case "ask":
		ask(lib, r)
	case "init":
		fmt.Println(name(r))
	case "pass":
		n, _ := lib.DeviceGetCount()
		d, _ := lib.DeviceGetHandleByIndex(0)
		text, _ := d.GetName()
		_, r2 := d.GetPowerUsage()
		fmt.Printf("%s\n%d\n%s\n%s\n", name(r), n, text, name(r2))
	case "return":
		askAgain(lib, r)
	case "count":
		n, _ := lib.DeviceGetCount()
		fmt.Println(name(r), n)
	case "away":
		askOther(lib)
	case "several":
		askSeveral(lib, r)
	case "lose":
		n, _ := lib.DeviceGetCount()
		fmt.Println(name(r), n)
		var wait string
		fmt.Scanln(&wait)
		_, r1 := lib.DeviceGetCount()
		_, r2 := lib.DeviceGetCount()
		lib.Shutdown()
		r3 := lib.Init()
		n, _ = lib.DeviceGetCount()
		fmt.Println(name(r1), name(r2), name(r3), n)
	}
	return 0
}

// name is a status by the name of its constant.
func name(r gonvml.Return) string {
	names := map[gonvml.Return]string{gonvml.SUCCESS: "SUCCESS", gonvml.ERROR_UNINITIALIZED: "ERROR_UNINITIALIZED",
		gonvml.ERROR_INVALID_ARGUMENT: "ERROR_INVALID_ARGUMENT", gonvml.ERROR_NOT_SUPPORTED: "ERROR_NOT_SUPPORTED",
		gonvml.ERROR_NO_PERMISSION: "ERROR_NO_PERMISSION", gonvml.ERROR_DRIVER_NOT_LOADED: "ERROR_DRIVER_NOT_LOADED",
		gonvml.ERROR_TIMEOUT: "ERROR_TIMEOUT", gonvml.ERROR_GPU_IS_LOST: "ERROR_GPU_IS_LOST",
		gonvml.ERROR_FUNCTION_NOT_FOUND: "ERROR_FUNCTION_NOT_FOUND"}
	if s, ok := names[r]; ok {
		return s
	}
	return fmt.Sprint(int(r))
}

func ask(lib gonvml.Interface, r gonvml.Return) {
	fmt.Println("init", name(r))
	text, _ := lib.SystemGetDriverVersion()
	fmt.Println("driver", text)
	text, _ = lib.SystemGetNVMLVersion()
	fmt.Println("nvml", text)
	version, _ := lib.SystemGetCudaDriverVersion_v2()
	fmt.Println("cuda", version)
	n, _ := lib.DeviceGetCount()
	fmt.Println("devices", n)
	var second gonvml.Device
	for i := range n {
		d, _ := lib.DeviceGetHandleByIndex(i)
		title, _ := d.GetName()
		uuid, _ := d.GetUUID()
		pci, _ := d.GetPciInfo()
		bus := make([]byte, 0, 32)
		for _, c := range pci.BusId {
			if c != 0 {
				bus = append(bus, c)
			}
		}
		mem, _ := d.GetMemoryInfo()
		major, minor, _ := d.GetCudaComputeCapability()
		fmt.Printf("%d: %s %s %s %d %d.%d\n", i, title, uuid, bus, mem.Total, major, minor)
		second = d
	}
	d, _ := lib.DeviceGetHandleByUUID("GPU-ab020000-0000-0000-0000-000000000000")
	index, _ := d.GetIndex()
	fmt.Println("by uuid: index", index)
	d, _ = lib.DeviceGetHandleByPciBusId("00000000:1b:00.0")
	index, _ = d.GetIndex()
	fmt.Println("by pci: index", index)
	mem2, r := second.GetMemoryInfo_v2()
	fmt.Println("memory v2", name(r), mem2.Total)
	use, r := second.GetUtilizationRates()
	fmt.Println("utilization", name(r), use.Gpu)
	procs, r := second.GetComputeRunningProcesses()
	fmt.Println("processes", name(r), len(procs))
	milliwatts, r := second.GetPowerUsage()
	fmt.Println("power", name(r), milliwatts)
	_, r = second.GetFanSpeed()
	fmt.Println("fan", name(r))
	fmt.Printf("texts: %s, %s, %s\n", lib.ErrorString(gonvml.ERROR_IN_USE), lib.ErrorString(gonvml.ERROR_IN_USE),
		lib.ErrorString(gonvml.ERROR_NOT_SUPPORTED))
	fields := []gonvml.FieldValue{{FieldId: 1}, {FieldId: 2}}
	r = second.GetFieldValues(fields)
	fmt.Println("fields", name(r), name(gonvml.Return(fields[1].NvmlReturn)))
	set, _ := lib.EventSetCreate()
	_, r = set.Wait(120)
	fmt.Println("wait", name(r))
	set.Free()
	fmt.Println("set compute mode", name(second.SetComputeMode(gonvml.COMPUTEMODE_PROHIBITED)))
	_, r = lib.DeviceGetHandleByIndex(9)
	fmt.Println("no such device", name(r))
	lib.Shutdown()
	_, r = lib.DeviceGetCount()
	fmt.Println("after shutdown", name(r))
	lib.Init()
	n, _ = lib.DeviceGetCount()
	fmt.Println("again", n)
	text, _ = second.GetName()
	fmt.Println("the old handle:", text)
}
