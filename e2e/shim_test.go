package e2e

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A program may close the library, whose threads go on, and open it again.
func TestClosedLibrary(t *testing.T) {
	s := serve(t)
	p := start(t, s.env(), program("dlopen"), "again")
	if code := p.wait(patience); code != 0 || strings.Count(p.out.String(), "again: cuInit = 0\n") != 3 {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
}

// The library that a program opens by name is the preloaded one; no other setting is needed.
func TestPreloadAlone(t *testing.T) {
	s := serve(t)
	p := start(t, []string{"SCUDA_SERVER=" + s.addr, "LD_PRELOAD=" + lib + "/libscuda.so"}, program("dlopen"))
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	want := "cuInit = 0\ncuGetProcAddress = 0, status 0\ncuDeviceGetCount = 0, 1 devices\n" +
		"cuNoSuchFunction: 0, status 1, no address\n"
	if got := p.out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	// A library path with another libcuda.so.1 in it, as machines with a driver have: the preloaded one comes first all
	// the same.
	decoy := t.TempDir()
	if err := os.Symlink(lib+"/libnvidia-ml.so.1", decoy+"/libcuda.so.1"); err != nil {
		t.Fatal(err)
	}
	p = start(t, []string{"SCUDA_SERVER=" + s.addr, "LD_PRELOAD=" + lib + "/libscuda.so", "LD_LIBRARY_PATH=" + decoy},
		program("dlopen"))
	if code := p.wait(patience); code != 0 || p.out.String() != want {
		t.Errorf("with another libcuda.so.1 in the library path: exit status %d\n%s%s", code, p.out, p.err)
	}
	// So does one that the program was linked with.
	for _, env := range [][]string{nil, {"LD_LIBRARY_PATH=" + decoy}} {
		p = start(t, append([]string{"SCUDA_SERVER=" + s.addr, "LD_PRELOAD=" + lib + "/libscuda.so"}, env...),
			program("copies"), kernels)
		if code := p.wait(patience); code != 0 {
			t.Errorf("a linked program with %q: exit status %d\n%s%s", env, code, p.out, p.err)
		}
	}
	nvml := start(t, []string{"SCUDA_SERVER=" + s.addr, "LD_PRELOAD=" + lib + "/libscuda.so"}, program("nvml"))
	if code := nvml.wait(patience); code != 0 {
		t.Errorf("nvml: exit status %d\n%s%s", code, nvml.out, nvml.err)
	}
}

// With no server and no driver, a program learns what it would learn on a machine without a GPU.
func TestNoServer(t *testing.T) {
	p := start(t, []string{"LD_LIBRARY_PATH=" + lib}, program("init"))
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	want := "cuInit = 100\ncuInit = 100\ncuDriverGetVersion = 0\ncuDeviceGetCount = 3\ncuMemAlloc = 3\n"
	if got := p.out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if p.err.String() != "" {
		t.Errorf("a library must be silent: %s", p.err)
	}
}

func strace(t *testing.T, env []string, trace string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is missing: apt-get install strace")
	}
	file := filepath.Join(t.TempDir(), "trace")
	var with []string
	for _, e := range env {
		with = append(with, "-E", e)
	}
	p := start(t, nil, path, append(append([]string{"-f", "-e", "trace=" + trace, "-o", file}, with...), args...)...)
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Loading the libraries into a program that never uses them starts no thread and opens no socket.
func TestLoadingCostsNothing(t *testing.T) {
	env := []string{"LD_PRELOAD=" + lib + "/libscuda.so", "SCUDA_SERVER=127.0.0.1:1"}
	trace := strace(t, env, "clone,clone3,fork,vfork,socket,connect,openat", "/bin/true")
	if m := regexp.MustCompile(`(?m)^.*\b(clone|clone3|vfork|fork|socket|connect)\(.*$`).FindString(trace); m != "" {
		t.Errorf("loading did this: %s", m)
	}
	if !strings.Contains(trace, "libcuda.so.1") || strings.Contains(trace, "libscuda-core.so") {
		t.Errorf("opened the wrong libraries:\n%s", trace)
	}
}

// A client opens connections to its server and to nobody else: one for commands, one beside it.
func TestConnectsOnlyToItsServer(t *testing.T) {
	s := serve(t)
	trace := strace(t, s.env(), "connect,sendto,socket", program("copies"), kernels)
	port := s.addr[strings.LastIndexByte(s.addr, ':')+1:]
	server := regexp.MustCompile(`sin_port=htons\(` + port + `\), sin_addr=inet_addr\("127\.0\.0\.1"\)`)
	connects := 0
	for line := range strings.Lines(trace) {
		switch {
		case strings.Contains(line, "connect(") && server.MatchString(line):
			connects++
		case strings.Contains(line, "connect("), strings.Contains(line, "sin_port") && !server.MatchString(line):
			t.Errorf("the client talks to somebody else: %s", line)
		}
	}
	// The main and the callback connection, and up to four for big copies.
	if connects < 2 || connects > 6 {
		t.Errorf("%d connections to the server, not 2 to 6:\n%s", connects, trace)
	}
}

// CUDA_VISIBLE_DEVICES chooses and orders devices as natively: by index, by the beginning of a UUID, up to the first
// entry that is none.
func TestVisibleDevices(t *testing.T) {
	s := serve(t, "--gpu", "sim:2") // the front answers by itself, whatever GPUs they are
	see := func(value ...string) string {
		t.Helper()
		var env []string
		for _, v := range value {
			env = append(env, "CUDA_VISIBLE_DEVICES="+v)
		}
		p := start(t, s.env(env...), program("devices"), kernels)
		if code := p.wait(patience); code != 0 {
			t.Fatalf("%q: exit status %d\n%s%s", value, code, p.out, p.err)
		}
		return strings.TrimSpace(p.out.String())
	}
	two := strings.Fields(see())
	if len(two) != 2 || two[0] == two[1] || !strings.HasPrefix(two[0], "GPU-") {
		t.Fatalf("without CUDA_VISIBLE_DEVICES: %q", two)
	}
	a, b, none := two[0], two[1], "cuInit = 100"
	for value, want := range map[string]string{
		"0": a, "1": b, "0,1": a + " " + b, "1,0": b + " " + a, "0,9": a, "9,0": none, "7": none, "": none, "-1": none,
		"1,-1,0": b, "NoDevFiles": none,
		a: a, b: b, b + "," + a: b + " " + a, b[:12]: b, a + ",GPU-0000": a, "GPU-0000": none, "0," + b: a + " " + b,
	} {
		if got := see(value); got != want {
			t.Errorf("CUDA_VISIBLE_DEVICES=%q: %s, want %s", value, got, want)
		}
	}
}

// TestEntries: every exported function begins with the one-byte nop, which costs little with a probe and survives a
// fork.
func TestEntries(t *testing.T) {
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		f, err := elf.Open(filepath.Join(lib, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		symbols, err := f.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		functions := 0
		for _, s := range symbols {
			if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF {
				continue
			}
			functions++
			var first [1]byte
			section := f.Sections[s.Section]
			if _, err := section.ReadAt(first[:], int64(s.Value-section.Addr)); err != nil {
				t.Fatal(err)
			}
			if first != [1]byte{0x90} {
				t.Errorf("%s: %s begins with % x", name, s.Name, first)
			}
		}
		if functions < 300 {
			t.Errorf("%s: only %d functions", name, functions)
		}
	}
}
