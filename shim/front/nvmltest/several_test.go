package nvmltest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"scuda.dev/scuda/api/nvml"
)

// numbered is a machine that knows which it is, where something happens to GPUs for which a set was registered, and
// whose GPUs are sampled.
type numbered struct {
	machine
	number float64

	mu      sync.Mutex // guards what follows
	sets    map[nvml.NvmlEventSet]nvml.NvmlDevice
	made    int // sets and samples that are there
	sampled bool
}

func (m *numbered) add(n int) nvml.NvmlReturn {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made += n
	return nvml.NVML_SUCCESS
}

func (m *numbered) NvmlEventSetCreate(set *nvml.NvmlEventSet) nvml.NvmlReturn {
	*set = 0x900 + nvml.NvmlEventSet(m.number)
	return m.add(1)
}

func (m *numbered) NvmlEventSetFree(nvml.NvmlEventSet) nvml.NvmlReturn { return m.add(-1) }

func (m *numbered) NvmlDeviceRegisterEvents(
	d nvml.NvmlDevice, _ uint64, set nvml.NvmlEventSet,
) nvml.NvmlReturn {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets[set] = d
	return nvml.NVML_SUCCESS
}

func (m *numbered) NvmlEventSetWait_v2(
	set nvml.NvmlEventSet, data *nvml.NvmlEventData, _ uint32,
) nvml.NvmlReturn {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, registered := m.sets[set]
	if !registered {
		return nvml.NVML_ERROR_TIMEOUT
	}
	data.Device, data.EventType = d, 8
	delete(m.sets, set)
	return nvml.NVML_SUCCESS
}

func (m *numbered) NvmlGpmSampleAlloc(to *nvml.NvmlGpmSample) nvml.NvmlReturn {
	defer m.add(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	*to = 0x7000 + nvml.NvmlGpmSample(m.made)
	return nvml.NVML_SUCCESS
}

func (m *numbered) NvmlGpmSampleFree(nvml.NvmlGpmSample) nvml.NvmlReturn { return m.add(-1) }

func (m *numbered) NvmlGpmSampleGet(nvml.NvmlDevice, nvml.NvmlGpmSample) nvml.NvmlReturn {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sampled = true
	return nvml.NVML_SUCCESS
}

func (m *numbered) NvmlGpmMetricsGet(get *nvml.NvmlGpmMetricsGet) nvml.NvmlReturn {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.sampled {
		return nvml.NVML_ERROR_UNKNOWN
	}
	for i := range get.NumMetrics {
		get.Metrics[i].Value = m.number
	}
	return nvml.NVML_SUCCESS
}

// TestSeveral: a set is for GPUs of several servers, and a sample is taken where its GPU is.
func TestSeveral(t *testing.T) {
	machines, list := []*numbered{{number: 1}, {number: 2}, {number: 3}}, []string{}
	for _, m := range machines {
		m.sets = map[nvml.NvmlEventSet]nvml.NvmlDevice{}
		srv := startServer(t, "")
		srv.mu.Lock()
		srv.own = func(own machine) nvml.Driver {
			if m.Driver == nil { // of the first of its sessions
				m.machine = own
			}
			return m
		}
		srv.mu.Unlock()
		list = append(list, srv.addr)
	}
	out, errs := as(t, "several", "SCUDA_SERVER="+strings.Join(list, ","))
	want := `init SUCCESS, 6 devices
register SUCCESS SUCCESS
events of 1 5
then ERROR_TIMEOUT
free SUCCESS
sample SUCCESS SUCCESS: 3
sample SUCCESS SUCCESS: 1
of two: ERROR_INVALID_ARGUMENT
free SUCCESS SUCCESS
begun anew: 6 devices, register SUCCESS, event of 5
`
	if out != want || errs != "" {
		t.Errorf("got\n%swant\n%s%s", out, want, errs)
	}
	for i, m := range machines {
		m.mu.Lock()
		if want := []int{1, 0, 1}[i]; m.made != want { // the last set is not given back
			t.Errorf("server %d has %d sets and samples", i+1, m.made)
		}
		m.mu.Unlock()
	}
}

// TestTokenOfEach: each server is shown its own token.
func TestTokenOfEach(t *testing.T) {
	one, two := startServer(t, "secret of one"), startServer(t, "secret of two")
	home := t.TempDir()
	folder := filepath.Join(home, ".config/scuda")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"servers": "one " + one.addr + " token=secret%20of%20one\ntwo " + two.addr + " token=secret%20of%20two\n",
		"host":    "two,one\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, errs := as(t, "count", "HOME="+home); out != "SUCCESS 4\n" || errs != "" {
		t.Errorf("%s%s", out, errs)
	}
	out, errs := as(t, "count", "HOME="+home, "SCUDA_TOKEN=secret of one")
	if !strings.HasPrefix(out, "ERROR_DRIVER_NOT_LOADED") || !strings.Contains(errs, two.addr) {
		t.Errorf("%s%s", out, errs)
	}
}

// TestOneIsAway: while a server is away and a thread waits for it, calls for another are answered.
func TestOneIsAway(t *testing.T) {
	one, other := startServer(t, ""), startServer(t, "")
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = environment(t, roleVariable+"=away", "SCUDA_TEST_LIBRARY="+library,
		"SCUDA_SERVER="+one.addr+","+other.addr)
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
	lines := bufio.NewScanner(out)
	says := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, not %q", lines.Text(), want)
		}
	}
	says("ready")
	held := make(chan struct{}, 100)
	one.mu.Lock()
	one.hold = held
	one.mu.Unlock()
	one.hangUp()
	if _, err := io.WriteString(in, "first\n"); err != nil {
		t.Fatal(err)
	}
	<-held // the front dials again, and has no answer
	if _, err := io.WriteString(in, "second\n"); err != nil {
		t.Fatal(err)
	}
	says("second SUCCESS")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// askOther asks a GPU of the first server, and meanwhile one of the second.
func askOther(lib gonvml.Interface) {
	first, _ := lib.DeviceGetHandleByIndex(0)
	second, _ := lib.DeviceGetHandleByIndex(2)
	fmt.Println("ready")
	var word string
	fmt.Scanln(&word)
	go func() {
		_, r := first.GetMemoryInfo()
		fmt.Println("first", name(r))
	}()
	fmt.Scanln(&word)
	_, r := second.GetMemoryInfo()
	fmt.Println("second", name(r))
	fmt.Scanln(&word)
}

// askSeveral uses what belongs to no GPU when it is made.
func askSeveral(lib gonvml.Interface, r gonvml.Return) {
	n, _ := lib.DeviceGetCount()
	fmt.Printf("init %s, %d devices\n", name(r), n)
	device := func(i int) gonvml.Device {
		d, _ := lib.DeviceGetHandleByIndex(i)
		return d
	}
	set, _ := lib.EventSetCreate()
	fmt.Println("register", name(lib.DeviceRegisterEvents(device(1), 8, set)),
		name(lib.DeviceRegisterEvents(device(5), 8, set)))
	fmt.Print("events of")
	for range 2 {
		data, _ := set.Wait(1000)
		index, _ := data.Device.GetIndex()
		fmt.Print(" ", index)
	}
	_, r = set.Wait(20)
	fmt.Println("\nthen", name(r))
	fmt.Println("free", name(set.Free()))

	a, _ := lib.GpmSampleAlloc()
	b, _ := lib.GpmSampleAlloc()
	for _, i := range []int{4, 0} {
		fmt.Print("sample ", name(a.Get(device(i))), " ", name(b.Get(device(i))))
		get := gonvml.GpmMetricsGetType{NumMetrics: 1, Sample1: a, Sample2: b}
		lib.GpmMetricsGet(&get)
		fmt.Println(":", get.Metrics[0].Value)
	}
	a.Get(device(2))
	fmt.Println("of two:", name(lib.GpmMetricsGet(&gonvml.GpmMetricsGetType{NumMetrics: 1, Sample1: a, Sample2: b})))
	fmt.Println("free", name(a.Free()), name(b.Free()))

	lib.Shutdown()
	lib.Init()
	n, _ = lib.DeviceGetCount()
	set, _ = lib.EventSetCreate()
	r = lib.DeviceRegisterEvents(device(5), 8, set)
	data, _ := set.Wait(1000)
	index, _ := data.Device.GetIndex()
	fmt.Printf("begun anew: %d devices, register %s, event of %d\n", n, name(r), index)
	lib.Shutdown()
}
