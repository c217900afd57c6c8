package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// standAlone is the folder of the simulation as libraries.
func standAlone(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(root, "build/sim")
	for _, name := range []string{"libcuda.so.1", "libscuda-sim.so", "libnvidia-ml.so.1"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			t.Fatalf("%v: run make build first", err)
		}
	}
	return folder
}

// directly runs a program on the stand-alone simulation, and gives its output.
func directly(t *testing.T, name, settings string, args ...string) string {
	t.Helper()
	p := start(t, []string{
		"LD_LIBRARY_PATH=" + standAlone(t), "SCUDA_SIM=" + strings.TrimPrefix(settings+",memory=1GiB", ","),
	}, program(name), append([]string{kernels}, args...)...)
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("directly: exit status %d\nstdout:\n%s\nstderr:\n%s", code, p.out, p.err)
	}
	return p.out.String()
}

// TestDifferential runs programs that want arguments or several GPUs as TestPrograms runs the others: directly on the
// simulation and over scuda.
func TestDifferential(t *testing.T) {
	if gpu != "sim" {
		t.Skip("it compares with the simulation")
	}
	for _, c := range []struct {
		name, settings string
		args           []string
	}{
		{"crowd", "", nil},
		{"fault", "", nil},
		{"host", "", []string{"signals"}},
		{"host", "", []string{"atexit"}},
		{"managed_random", "", []string{"1", "2"}},
		{"random_calls", "", []string{"1"}},
		{"random_calls", "", []string{"2"}},
		{"random_calls", "", []string{"3"}},
		{"random_calls", "", []string{"10"}},
		{"devices", "3", nil},
		{"peers", "2", nil},
		{"managed_gpus", "2", nil},
		{"several_boxes", "2", []string{"wrong"}},
		{"several_managed", "2", nil},
		{"several_peers", "2", nil},
		{"several_managed_random", "2", []string{"1", "10"}},
	} {
		t.Run(strings.Join(append([]string{c.name}, c.args...), " "), func(t *testing.T) {
			native := directly(t, c.name, c.settings, c.args...)
			s := serve(t, "--gpu", strings.TrimSuffix("sim:"+c.settings, ":"))
			if diff := cmp.Diff(lines(native), lines(s.run(t, c.name, c.args...))); diff != "" {
				t.Errorf("native (-), over scuda (+):\n%s", diff)
			}
		})
	}
}

// lines leaves out what scuda changes on purpose: device attribute 91, because kernels cannot use the client's
// pointers.
func lines(text string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "attribute 91 ")
	})
}

// TestSettings: the stand-alone library is what SCUDA_SIM says, and refuses what that cannot mean.
func TestSettings(t *testing.T) {
	folder := standAlone(t)
	for setting, want := range map[string]string{"3,preset=small": "3 devices", "colour=red": "no such setting"} {
		p := start(t, []string{"LD_LIBRARY_PATH=" + folder, "SCUDA_SIM=" + setting}, program("nvml"), kernels)
		p.stdin.Close()
		p.wait(patience)
		if text := p.out.String() + p.err.String(); !strings.Contains(text, want) {
			t.Errorf("%s: %q is missing in\n%s", setting, want, text)
		}
	}
}

// TestFaultCodes: after each kind of fault every call answers what it answered on an H200, on the simulation itself and
// over scuda.
func TestFaultCodes(t *testing.T) {
	want, err := os.ReadFile("testdata/faults.golden")
	if err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string][]string{
		"native": {"LD_LIBRARY_PATH=" + standAlone(t), "SCUDA_SIM=memory=1GiB"},
		"scuda":  serve(t).env(),
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, env, program("faults"), kernels)
			p.stdin.Close()
			if code := p.wait(patience); code != 0 {
				t.Fatalf("exit status %d\nstderr:\n%s", code, p.err)
			}
			if diff := cmp.Diff(lines(string(want)), lines(p.out.String())); diff != "" {
				t.Errorf("an H200 (-), here (+):\n%s", diff)
			}
		})
	}
}
