package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"scuda.dev/scuda/api/cupti"
)

// Profiles, in the orders of calls of three tools, by both libraries: every kernel, copy and memset once, under the id
// of its call, at a time that can be.
func TestProfiles(t *testing.T) {
	s := serve(t)
	for _, library := range []string{"libcupti.so.12", "libcupti.so.13"} {
		for _, tool := range []string{"none", "kineto", "xla", "proton", "again", "early"} {
			t.Run(library+"/"+tool, func(t *testing.T) {
				p := start(t, s.env("LD_PRELOAD="+lib+"/libscuda.so"), program("cupti"), kernels, tool, library)
				if code := p.wait(patience); code != 0 || p.out.String() != tool+": right\n" {
					t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
				}
				// each function that is not supported is said once, by name
				want := 0
				if tool == "proton" {
					want = 1
				}
				for _, name := range []string{"cuptiActivityConfigurePCSampling", "cuptiProfilerInitialize"} {
					if n := strings.Count(p.err.String(), name+" is not supported by scuda's CUPTI"); n != want {
						t.Errorf("%s: said %d times\n%s", name, n, p.err)
					}
				}
			})
		}
	}
}

// Devices in records are those that the program sees, whichever they are of the server's.
func TestProfilesOfVisibleDevices(t *testing.T) {
	s := serve(t, "--gpu", "sim:2")
	for _, visible := range []string{"0", "1", "1,0"} {
		p := start(t, s.env("LD_PRELOAD="+lib+"/libscuda.so", "CUDA_VISIBLE_DEVICES="+visible),
			program("cupti"), kernels, "kineto", "libcupti.so.13")
		if code := p.wait(patience); code != 0 || p.out.String() != "kineto: right\n" {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s: exit status %d\n%s%s", visible, code, p.out, p.err)
		}
	}
}

// Records of devices, contexts, streams, memory and events, and callbacks when the program's objects come and go. What
// there is no record of cannot be switched on, and is said once, by name.
func TestProfilesOfObjects(t *testing.T) {
	s := serve(t)
	for _, library := range []string{"libcupti.so.12", "libcupti.so.13"} {
		p := start(t, s.env("LD_PRELOAD="+lib+"/libscuda.so"), program("cupti_objects"), kernels, library)
		if code := p.wait(patience); code != 0 || !strings.HasSuffix(p.out.String(), "right\n") {
			t.Fatalf("%s: exit status %d\n%s%s", library, code, p.out, p.err)
		}
		recorded := map[int]bool{}
		for line := range strings.Lines(p.out.String()) {
			var kind int
			var how string
			if n, _ := fmt.Sscanf(line, "kind %d: %s", &kind, &how); n == 2 && how == "recorded" {
				recorded[kind] = true
			}
		}
		for _, kind := range recordedKinds {
			if !recorded[kind] {
				t.Errorf("%s: kind %d is refused", library, kind)
			}
			delete(recorded, kind)
		}
		if len(recorded) != 0 {
			t.Errorf("%s: kinds %v can be switched on, and no test says that they come", library, recorded)
		}
		for _, name := range []string{
			"CUPTI_ACTIVITY_KIND_PC_SAMPLING", "CUPTI_ACTIVITY_KIND_MEMORY_POOL", "CUPTI_CBID_RESOURCE_MODULE_PROFILED",
			"cuptiActivityEnableLatencyTimestamps", "CUPTI_ACTIVITY_ATTR_USER_DEFINED_RECORDS",
		} {
			if n := strings.Count(p.err.String(), name+" is not supported by scuda's CUPTI"); n != 1 {
				t.Errorf("%s: %s: said %d times\n%s", library, name, n, p.err)
			}
		}
	}
}

// Graphs that were instantiated before a profile, in it, and between two are recorded alike: each kernel under its
// launch, its executable graph and its node, by the numbers that the library gives these.
func TestProfilesOfGraphs(t *testing.T) {
	s := serve(t)
	for _, library := range []string{"libcupti.so.12", "libcupti.so.13"} {
		p := start(t, s.env("LD_PRELOAD="+lib+"/libscuda.so"), program("cupti_graphs"), kernels, library)
		const want = "first profile: 4 launches, 13 kernels\nsecond profile: 6 launches, 19 kernels\n" +
			"after cuptiFinalize: 6 launches, 19 kernels\nright\n"
		if code := p.wait(patience); code != 0 || p.out.String() != want {
			t.Errorf("%s: exit status %d\n%s%s", library, code, p.out, p.err)
		}
	}
}

// recordedKinds are the kinds of activities of which there are records.
var recordedKinds = []int{
	cupti.CUPTI_ACTIVITY_KIND_MEMCPY, cupti.CUPTI_ACTIVITY_KIND_MEMSET, cupti.CUPTI_ACTIVITY_KIND_KERNEL,
	cupti.CUPTI_ACTIVITY_KIND_DRIVER, cupti.CUPTI_ACTIVITY_KIND_RUNTIME, cupti.CUPTI_ACTIVITY_KIND_DEVICE,
	cupti.CUPTI_ACTIVITY_KIND_CONTEXT, cupti.CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
	cupti.CUPTI_ACTIVITY_KIND_OVERHEAD, cupti.CUPTI_ACTIVITY_KIND_MEMCPY2, cupti.CUPTI_ACTIVITY_KIND_CUDA_EVENT,
	cupti.CUPTI_ACTIVITY_KIND_STREAM, cupti.CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
	cupti.CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, cupti.CUPTI_ACTIVITY_KIND_MEMORY2,
	cupti.CUPTI_ACTIVITY_KIND_GRAPH_TRACE, cupti.CUPTI_ACTIVITY_KIND_MARKER,
	cupti.CUPTI_ACTIVITY_KIND_NAME,
}

// Of the runtime's calls there are records and callbacks, too, and the driver's calls in them are not told again.
func TestProfilesOfRuntimes(t *testing.T) {
	s := serve(t)
	for _, library := range []string{"libcudart.so.11.0", "libcudart.so.12"} {
		path := filepath.Join(root, "build/cudart", library)
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v: run make runtimes first", err)
		}
		p := start(t, s.env("LD_PRELOAD="+lib+"/libscuda.so"), program("cupti_runtime"), kernels, "libcupti.so.12", path)
		if code := p.wait(patience); code != 0 {
			t.Errorf("%s: exit status %d\n%s%s", library, code, p.out, p.err)
		}
	}
}

// standIn builds a CUPTI whose version is 4242, in a folder of its own.
func standIn(t *testing.T, major int) (folder string) {
	t.Helper()
	folder = t.TempDir()
	name := fmt.Sprintf("libcupti.so.%d", major)
	script := filepath.Join(folder, "map")
	if err := os.WriteFile(script, []byte(name+" { global: cuptiGetVersion; local: *; };\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", filepath.Join(folder, name),
		"-Wl,-soname,"+name, "-Wl,--version-script="+script)
	cmd.Stdin = strings.NewReader("int cuptiGetVersion(unsigned *v) { *v = 4242; return 0; }\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return folder
}

// Which CUPTI a program gets. With a server it is scuda's, by preload before what a wheel's RPATH finds, by name and by
// path. Without one it is the program's own, by preload as well.
func TestWhichCUPTI(t *testing.T) {
	s := serve(t)
	folder := standIn(t, 12)
	// a library as PyTorch's is, linked with the name that its RPATH finds; programs that are linked with that, or with
	// CUPTI itself
	source := filepath.Join(root, "e2e/programs/cupti_version.c")
	wheel, above, direct := folder+"/libwheel.so", folder+"/above", folder+"/direct"
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-DWHEEL", "-o", wheel, source, folder + "/libcupti.so.12"},
		{"-DLINKED=wheel_version", "-o", above, source, wheel, "-ldl"},
		{"-DLINKED=cuptiGetVersion", "-o", direct, source, folder + "/libcupti.so.12", "-ldl"},
	} {
		args = append(args, "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN")
		if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	preload, server := "LD_PRELOAD="+lib+"/libscuda.so", "SCUDA_SERVER="+s.addr
	const none = "SCUDA_SERVER="
	own := func(major int) string { return map[int]string{12: "version 28\n", 13: "version 130201\n"}[major] }
	for _, c := range []struct {
		what string
		env  []string
		args []string
		want string
	}{
		{"a wheel", []string{server, preload}, []string{program("cupti_version"), wheel}, own(12)},
		{"a wheel, no server", []string{none, preload}, []string{program("cupti_version"), wheel}, "version 4242\n"},
		{"a wheel, no preload", []string{server}, []string{program("cupti_version"), wheel}, "version 4242\n"},
		{"linked with a wheel", []string{server, preload}, []string{above}, own(12)},
		{"linked with a wheel, no server", []string{none, preload}, []string{above}, "version 4242\n"},
		{"linked with CUPTI", []string{server, preload + ":" + lib + "/libcupti.so.12"}, []string{direct}, own(12)},
		{"linked with CUPTI, no server", []string{none, preload + ":" + lib + "/libcupti.so.12"}, []string{direct},
			"version 4242\n"},
		{"by name", []string{server, preload}, []string{program("cupti_version"), "libcupti.so.12", "libcupti.so.13"},
			own(12) + own(13)},
		{"by name, no server", []string{none, preload, "LD_LIBRARY_PATH=" + folder},
			[]string{program("cupti_version"), "libcupti.so.12"}, "version 4242\n"},
		{"by path", []string{server}, []string{program("cupti_version"), lib + "/libcupti.so", lib + "/libcupti.so.13"},
			own(12) + own(13)},
		{"by path, no server", []string{none, "LD_LIBRARY_PATH=" + folder},
			[]string{program("cupti_version"), lib + "/libcupti.so.12"}, "version 4242\n"},
		{"another named", []string{none, "SCUDA_REAL_LIBCUPTI=" + folder + "/libcupti.so.12"},
			[]string{program("cupti_version"), lib + "/libcupti.so.12"}, "version 4242\n"},
		{"no server, no other", []string{none, "SCUDA_REAL_LIBCUPTI=" + folder + "/none"},
			[]string{program("cupti_version"), lib + "/libcupti.so.12"}, "result 15\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := start(t, c.env, c.args[0], c.args[1:]...)
			if code := p.wait(patience); code != 0 || p.out.String() != c.want {
				t.Errorf("exit status %d, %q, want %q\n%s", code, p.out.String(), c.want, p.err)
			}
		})
	}
}

// functionsOfCUPTI are the names of what NVIDIA's library exports.
func functionsOfCUPTI(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "api/facts/cupti-functions.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, "\t"); !strings.HasPrefix(name, "#") {
			names = append(names, name)
		}
	}
	if len(names) < 200 {
		t.Fatalf("%d functions", len(names))
	}
	return names
}

// TestAnswersOfCUPTI: each function of NVIDIA's works, or answers that it is not supported, which is said by name.
func TestAnswersOfCUPTI(t *testing.T) {
	s := serve(t)
	names := functionsOfCUPTI(t)
	for _, library := range []string{"libcupti.so.12", "libcupti.so.13"} {
		args := append([]string{kernels, library}, names...)
		p := start(t, s.env("LD_PRELOAD="+lib+"/libscuda.so"), program("cupti_exports"), args...)
		if code := p.wait(patience); code != 0 {
			t.Fatalf("%s: exit status %d\n%s", library, code, p.err)
		}
		answers := strings.Fields(p.out.String())
		if len(answers) != 2*len(names) {
			t.Fatalf("%s: %d answers of %d functions", library, len(answers)/2, len(names))
		}
		// Nsight is told what to do, in one line, once
		const advice = "a profiler or debugger asks for the driver's private tables; run it on the server, next to the GPU\n"
		if n := strings.Count(p.err.String(), advice); n != 1 {
			t.Errorf("%s: a profiler is told %d times\n%s", library, n, p.err)
		}
		works := 0
		for i := 0; i < len(answers); i += 2 {
			said := strings.Count(p.err.String(), " "+answers[i]+" is not supported by scuda's CUPTI")
			refused := answers[i+1] == fmt.Sprint(cupti.CUPTI_ERROR_NOT_SUPPORTED)
			if !refused {
				works++
			}
			if refused != (said == 1) || said > 1 {
				t.Errorf("%s: %s answers %s, and that it is not supported is said %d times", library, answers[i],
					answers[i+1], said)
			}
		}
		if works < 40 || len(names)-works < 100 {
			t.Errorf("%s: %d functions work", library, works)
		}
	}
}

// TestFunctionsOfCUPTI: both libraries export every function that NVIDIA's do, under the version that has the library's
// name: the loader ends programs that miss one.
func TestFunctionsOfCUPTI(t *testing.T) {
	for _, library := range []string{"libcupti.so.12", "libcupti.so.13"} {
		out, err := exec.CommandContext(t.Context(), "readelf", "--dyn-syms", "-W", filepath.Join(lib, library)).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range functionsOfCUPTI(t) {
			if !strings.Contains(string(out), " "+name+"@@"+library+"\n") {
				t.Errorf("%s does not export %s", library, name)
			}
		}
	}
}
