package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The driver in processes of other kinds: each does what programs e2e/programs/host.c says.
func TestHostProcesses(t *testing.T) {
	s := serve(t)
	for name, want := range map[string]string{
		"signals": "before CUDA: handlers run\nafter cuInit: handlers run\nwith handlers set before: right\n" +
			"set after cuInit: handlers run\nwith handlers set after: right\nat the end: handlers run\n",
		"atexit": "registered after cuInit: right\nregistered before cuInit: fine\n",
		"forks": "child from before: right\nchild from before: right\nparent: right\ncuInit(0) = 3\n" +
			"cuDeviceGetCount(&count) = 3\n" +
			"cuMemAlloc(&p, 4) = 3\nparent again: right\n",
		"memory": "sanitized: right\nmemory: right\n",
	} {
		t.Run(name, func(t *testing.T) {
			if got := s.run(t, "host", name); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// sanitized builds a test program with AddressSanitizer.
func sanitized(t *testing.T, name string) string {
	t.Helper()
	target := filepath.Join(programs, name+"-asan")
	build := exec.CommandContext(t.Context(), "gcc", "-std=gnu11", "-O1", "-g", "-fsanitize=address", "-o", target,
		filepath.Join(root, "e2e/programs", name+".c"),
		"-I", filepath.Join(root, "shim/include"), "-L", lib, "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined", "-lpthread")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return target
}

// A program built with AddressSanitizer, which takes over malloc, signals and much address space.
func TestAddressSanitizer(t *testing.T) {
	target := sanitized(t, "host")
	s := serve(t)
	for _, name := range []string{"memory", "signals", "forks"} {
		p := start(t, s.env("ASAN_OPTIONS=detect_leaks=0:allow_user_segv_handler=1"), target, kernels, name)
		if code := p.wait(patience); code != 0 {
			t.Errorf("%s: exit status %d\n%s%s", name, code, p.out, p.err)
		}
	}
}

// A Go program with a runtime of its own beside the core's: its goroutines, its garbage collector and its signals go
// on.
func TestGoProgram(t *testing.T) {
	s := serve(t)
	p := start(t, s.env(), goProgram(t, "gohost"), kernels)
	if code := p.wait(patience); code != 0 || p.out.String() != "64 goroutines right\n" {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
}

// goProgram builds a program of e2e/programs that is written in Go.
func goProgram(t *testing.T, name string) string {
	t.Helper()
	target := filepath.Join(programs, name)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", target, "./e2e/programs/"+name)
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return target
}

// NVIDIA's Go bindings of NVML get the same answers from the simulation itself and over scuda. (From a GPU:
// perf/gpu/check.py go:nvml.)
func TestGoNVML(t *testing.T) {
	target, s := goProgram(t, "gonvml"), serve(t)
	native := start(t, []string{"LD_LIBRARY_PATH=" + standAlone(t), "SCUDA_SIM=memory=1GiB"}, target)
	remote := start(t, s.env(), target)
	for _, p := range []*process{native, remote} {
		if code := p.wait(patience); code != 0 {
			t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
		}
	}
	if diff := cmp.Diff(strings.Split(native.out.String(), "\n"), strings.Split(remote.out.String(), "\n")); diff != "" {
		t.Errorf("native (-), over scuda (+):\n%s", diff)
	}
	if n := strings.Count(native.out.String(), "\n"); n < 200 ||
		!strings.Contains(native.out.String(), "SystemGetCudaDriverVersion: 0 ") {
		t.Errorf("%d answers:\n%s", n, native.out)
	}
}

// Programs of other CUDA versions: their runtime finds what it wants in this driver. (CUDA 13's is tried on the GPU
// machine: perf/gpu.)
func TestRuntimes(t *testing.T) {
	s := serve(t)
	half := `a stream: right
the default stream: right
another thread's stream: right
variable 35, blocks 1
graph: right, host function 10 times
too much: cudaErrorMemoryAllocation, then cudaErrorMemoryAllocation and cudaSuccess
too many threads: cudaErrorInvalidConfiguration
`
	for library, version := range map[string]string{"libcudart.so.11.0": "11.8", "libcudart.so.12": "12.4",
		"libcudart_static.11.0.a": "11.8", "libcudart_static.12.a": "12.4"} {
		path, name := filepath.Join(root, "build/cudart", library), program("cudart")
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v: run make runtimes first", err)
		}
		if strings.HasSuffix(library, ".a") {
			name = filepath.Join(programs, library+".cudart")
			if err := compile(filepath.Join(root, "e2e/programs/cudart.c"), name, "-DSTATIC", path, "-lrt"); err != nil {
				t.Fatal(err)
			}
			path = "static"
		}
		want := "runtime " + version + ", devices 1, capability 9\n" + half + half +
			"a fault: cudaErrorIllegalAddress, sticky: cudaErrorIllegalAddress\n"
		for _, loading := range []string{"LAZY", "EAGER"} {
			p := start(t, s.env("CUDA_MODULE_LOADING="+loading), name, kernels, path)
			if code := p.wait(patience); code != 0 || p.out.String() != want {
				t.Errorf("%s, %s: exit status %d\n%s%s", library, loading, code, p.out, p.err)
			}
		}
	}
}

// A server whose driver is older than the client's library and the program's runtime: a runtime of the same major
// version works, its kernels' parameters come from their code, and a newer one says what it would say on that driver.
// What such a driver does not have is not there (shim/front/cudatest, TestOtherDrivers). Of a driver newer than the
// client's library the program is told the library's version, as it has the functions of no later one.
func TestOtherServers(t *testing.T) {
	if gpu != "sim" {
		t.Skip("the GPU's driver is what it is")
	}
	for _, c := range []struct{ driver, told, library, want string }{
		{"13020", "13000", "libcudart.so.12", "runtime 12.4, devices 1, capability 9\n"},
		{"12080", "12080", "libcudart.so.12", "runtime 12.4, devices 1, capability 9\n"},
		{"12020", "12020", "libcudart.so.12", "runtime 12.4, devices 1, capability 9\n"},
		{"12020", "12020", "libcudart.so.11.0", "runtime 11.8, devices 1, capability 9\n"},
		{"11080", "11080", "libcudart.so.11.0", "runtime 11.8, devices 1, capability 9\n"},
		{"11080", "11080", "libcudart.so.12", "cudaErrorInsufficientDriver"},
	} {
		t.Run(c.driver+" "+c.library, func(t *testing.T) {
			s := serve(t, "--gpu", "sim:driver="+c.driver)
			p := start(t, s.env(), program("cudart"), kernels, filepath.Join(root, "build/cudart", c.library))
			code := p.wait(patience)
			works := !strings.HasPrefix(c.want, "cuda")
			if (code == 0) != works || !strings.Contains(p.out.String()+p.err.String(), c.want) {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
			if query := s.run(t, "query"); !strings.HasPrefix(query, "driver "+c.told+",") {
				t.Errorf("the program is told %.40q", query)
			}
			s.run(t, "names")
		})
	}
}

// A Java machine, which lives of SIGSEGV, has many threads and loads the library from a library of the program.
func TestJavaProgram(t *testing.T) {
	java, err := exec.LookPath("java")
	if err != nil {
		t.Fatal("java is missing: apt-get install default-jre-headless")
	}
	folder := filepath.Join(root, "e2e/programs/jvm")
	target := filepath.Join(programs, "libhost.so")
	build := exec.CommandContext(t.Context(), "gcc", "-std=gnu11", "-O1", "-Wall", "-Wno-unused", "-shared", "-fPIC", "-o",
		target, filepath.Join(folder, "host.c"),
		"-I", filepath.Join(root, "shim/include"), "-L", lib, "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := serve(t)
	preloaded := []string{"SCUDA_SERVER=" + s.addr, "LD_PRELOAD=" + lib + "/libscuda.so"}
	for name, env := range map[string][]string{
		"by the library path":                   s.env(),
		"preloaded":                             preloaded,
		"unified memory, uffd":                  s.env("HOST_MANAGED=1", "SCUDA_PAGER=uffd"),
		"unified memory, sigsegv":               s.env("HOST_MANAGED=1", "SCUDA_PAGER=sigsegv"),
		"unified memory, sigsegv and preloaded": append(preloaded, "HOST_MANAGED=1", "SCUDA_PAGER=sigsegv"),
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, env, java, "-Xmx256m", "-Xss512k", "-cp", folder, "Host", target)
			if code := p.wait(patience); code != 0 || p.out.String() != "8 threads right\n" {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
		})
	}
}

func TestManyThreads(t *testing.T) {
	s := serve(t)
	if got := s.run(t, "crowd"); got != "300 threads right\n" {
		t.Error(got)
	}
}

// A program that is far ahead of the server: bounded memory on both sides, and nothing that waits for itself.
func TestFlood(t *testing.T) {
	const limit = 96 << 20 // by which a process of the server may grow
	s := serve(t)
	p := s.client(t, "flood")
	before, most := map[int]int64{}, int64(0)
	for tick, running := time.NewTicker(5*time.Millisecond), true; running; {
		select {
		case <-p.done:
			running = false
		case <-tick.C:
		}
		for _, pid := range tree(t, s.cmd.Process.Pid) {
			now := resident(pid)
			if before[pid] == 0 {
				before[pid] = now
			}
			most = max(most, now-before[pid])
		}
	}
	if code := p.wait(patience); code != 0 || p.out.String() != "flood ok\n" || most == 0 || most > limit {
		t.Errorf("exit status %d, a process of the server grew by %d bytes, the limit is %d\n%s%s", code, most, limit, p.out,
			p.err)
	}
}

// resident is a process's memory; 0 when it has ended.
func resident(pid int) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, pages int64
	_, _ = fmt.Sscan(string(b), &size, &pages)
	return pages * int64(os.Getpagesize())
}

// What kernels assert comes to the client's standard error.
func TestAssertText(t *testing.T) {
	s := serve(t)
	p := s.client(t, "print")
	const want = "print.cu:17: check: block: [0,0,0], thread: [0,0,0] Assertion `condition` failed.\n"
	if code := p.wait(patience); code != 0 || p.err.String() != want {
		t.Errorf("exit status %d, standard error\n%swant\n%s", code, p.err, want)
	}
}

// serveOn starts a server at an address, and gives the one that it says.
func serveOn(t *testing.T, addr string) string {
	t.Helper()
	p := start(t, nil, scuda, "-l", addr, "--gpu", gpu, "--sim-memory", "1GiB", "--cache-dir", t.TempDir())
	return p.await(p.out, `^listening on (\S+)$`)[1]
}

// A cuInit that found no server is no final word.
func TestInitIsTriedAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.3:0") // an address of its own: no other test is given this port meanwhile
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	p := start(t, clientEnv(addr), program("retry"))
	p.await(p.out, "^waiting$")
	serveOn(t, addr)
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	want := "cuInit(0) = 802\ncuDeviceGetCount(&count) = 3\nwaiting\ncuInit(0) = 0\ncuDriverGetVersion(&version) = 0\n" +
		"cuDeviceGetCount(&count) = 0\n1 devices\n"
	if got := p.out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Servers are named by IPv6 addresses in brackets and by names too.
func TestAddresses(t *testing.T) {
	for _, host := range []string{"[::1]", "localhost"} {
		listen := strings.Replace(host, "localhost", "127.0.0.1", 1) + ":0"
		_, port, err := net.SplitHostPort(serveOn(t, listen))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"compute", "nvml"} {
			p := start(t, clientEnv(host+":"+port), program(name), kernels)
			if code := p.wait(patience); code != 0 {
				t.Errorf("%s by %s: exit status %d\n%s%s", name, host, code, p.out, p.err)
			}
		}
	}
}
