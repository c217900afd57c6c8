package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Programs of Debian's packages, on the driver that the simulated GPU has by default and on one of CUDA 12.4.
var drivers = map[string]string{"default": "sim", "12.4": "sim:driver=12040"}

func packaged(t *testing.T, name string) string {
	t.Helper()
	if gpu != "sim" {
		t.Skip("perf/gpu has the programs of the GPU machine")
	}
	folder := filepath.Join(root, "build/packaged", name)
	if _, err := os.Stat(folder); err != nil {
		t.Fatalf("%v: run make runtimes first", err)
	}
	return folder
}

// numba 0.61 looks for each function with _v2 behind its name first, and calls what it finds as it knows it:
// cuCtxGetDevice_v2, which came with CUDA 13 and takes a context, with one argument.
func TestNumba(t *testing.T) {
	python := filepath.Join(packaged(t, "numba"), "python")
	for name, driver := range drivers {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "--gpu", driver)
			p := start(t, s.env("NUMBA_CUDA_DRIVER="+lib+"/libcuda.so.1"), python,
				filepath.Join(root, "e2e/programs/numba_starts.py"))
			if code := p.wait(patience); code != 0 ||
				p.out.String() != "numba 0.61.2\nthe array came back: True\ntimes: True\n" {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
		})
	}
}

// hashcat asks for nvmlDeviceGetPciInfo, whose structure it has on its stack, and closes the driver's library at its
// end.
func TestHashcat(t *testing.T) {
	folder := packaged(t, "hashcat")
	for name, driver := range drivers {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "--gpu", driver)
			home := t.TempDir()
			hashes, words := filepath.Join(home, "hashes"), filepath.Join(home, "words")
			for file, text := range map[string]string{hashes: "5d41402abc4b2a76b9719d911017c592\n", words: "hello\n"} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			libraries := "LD_LIBRARY_PATH=" + lib + ":" + filepath.Join(folder, "usr/lib/x86_64-linux-gnu")
			run := func(args ...string) *process {
				return start(t, s.env(libraries, "HOME="+home), "sh",
					append([]string{"-c", `cd "$0" && exec ./hashcat "$@"`, folder}, args...)...)
			}
			info := run("-I")
			if code := info.wait(patience); code != 0 ||
				!strings.Contains(info.out.String(), "Name...........: scuda simulated GPU") {
				t.Errorf("-I: exit status %d\n%s%s", code, info.out, info.err)
			}
			// What comes behind this line takes a minute; e2e/frameworks/test.sh waits for it.
			p := run("-m", "0", "-a", "0", "--force", "--backend-ignore-opencl", "--potfile-disable", "--hwmon-temp-abort", "90",
				hashes, words)
			p.await(p.out, "^Watchdog: Temperature abort trigger set to 90c$")
			p.await(p.out, "Initializing backend runtime for device #1")
			p.signal(syscall.SIGKILL)
		})
	}
}
