package cuptitest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestClock: whatever a server's clock shows, also beside another's, and however lopsided the network is, no kernel
// begins before its launch, none ends after the wait for it, and their lengths stay.
func TestClock(t *testing.T) {
	folder := t.TempDir()
	front, program := filepath.Join(folder, "libcuda.so.1"), filepath.Join(folder, "clock")
	for _, args := range [][]string{
		{"sh", "../../build-cupti.sh", folder},
		{"cc", "-std=gnu11", "-O1", "-shared", "-fPIC", "-I../../front", "-o", front, "testdata/front.c",
			"-Wl,-soname,libcuda.so.1"},
		{"cc", "-std=gnu11", "-O1", "-I../../front", "-o", program, "testdata/clock.c", front, "-ldl",
			"-Wl,-rpath," + folder},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	for _, c := range []struct {
		what string
		args []string
	}{
		{"right", []string{"0", "0", "0", "0"}},
		{"ahead", []string{"5000000000", "0", "0", "0"}},
		{"behind", []string{"-3600000000000", "0", "0", "0"}},
		{"drifts", []string{"7000", "0.0001", "0", "0"}},
		{"slow there", []string{"1000", "0", "2000", "0"}},
		{"slow back", []string{"1000", "0", "0", "2000"}},
		{"all of it", []string{"-5000000000", "-0.0001", "3000", "100"}},
		{"two servers", []string{"5000000000", "0", "0", "0", "-3600000000000"}},
		{"two servers, all of it", []string{"-5000000000", "-0.0001", "3000", "100", "7000000"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			for _, library := range []string{"libcupti.so.12", "libcupti.so.13"} {
				cmd := exec.CommandContext(t.Context(), program, append([]string{filepath.Join(folder, library)}, c.args...)...)
				cmd.Env = append(os.Environ(), "SCUDA_SERVER=a-server", "LD_PRELOAD=")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", library, err, out)
				} else {
					t.Logf("%s: %s", library, out)
				}
			}
		})
	}
}
