package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"scuda.dev/scuda/api"
)

// How faults of unified memory reach scuda: settings of SCUDA_PAGER. Without userfaultfd the first is the last, before
// Linux 6.7 the second.
var pagers = []string{"uffd", "uffd-sync", "sigsegv"}

var managedSetting = os.Getenv("SCUDA_TEST_MANAGED") // before TestMain takes the settings away

// managedTimes is how often something random is done: SCUDA_TEST_MANAGED, or what suffices for a change.
func managedTimes(enough int) int {
	if n, err := strconv.Atoi(managedSetting); err == nil && n > 0 {
		return n
	}
	return enough
}

// Random programs against a plain model, as many in each way. SCUDA_TEST_MANAGED says how many; each takes some 50 ms.
func TestManagedRandom(t *testing.T) {
	programs := managedTimes(60)
	each := min(programs, 170)
	programs = (programs + each - 1) / each * each
	s := serve(t)
	for i, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			beside(t)
			for n := 0; n < programs; n += each {
				p := start(t, s.env("SCUDA_PAGER="+pager), program("managed_random"), kernels, fmt.Sprint(1+i*programs+n),
					fmt.Sprint(each))
				if code := p.wait(patience); code != 0 || !strings.Contains(p.out.String(), fmt.Sprintf("%d programs", each)) {
					t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
				}
			}
		})
	}
}

// TestManagedNamed makes every call that names memory on unified memory of every attachment, wherever its pages are,
// and random sequences of them. SCUDA_TEST_MANAGED says how many of these; each takes some 25 ms.
func TestManagedNamed(t *testing.T) {
	sequences := managedTimes(20)
	s := serve(t)
	for _, pager := range append([]string{"uffd-user"}, pagers...) {
		t.Run(pager, func(t *testing.T) {
			beside(t)
			// 1: and everything with everything
			first := map[bool]string{true: "1", false: "1001"}[slices.Contains(pagers, pager)]
			p := start(t, s.env("SCUDA_PAGER="+pager), program("managed_named"), kernels, first, fmt.Sprint(sequences))
			if code := p.wait(patience); code != 0 ||
				!strings.Contains(p.out.String(), fmt.Sprintf("calls, %d programs", sequences)) {
				t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
			}
		})
	}
}

// unnamed are functions whose work uses the memory at an address and that managed_named does not call, with the reason.
var unnamed = map[string]string{
	"cuGraphAddBatchMemOpNode":           "a driver refuses to launch such a graph (H200), scuda does as it says",
	"cuGraphBatchMemOpNodeSetParams":     "the same",
	"cuGraphExecBatchMemOpNodeSetParams": "the same",
	"cuGraphExecMemsetNodeSetParams": "a driver changes nodes of one row only (H200), and those of this program " +
		"have several",
	"cuGraphExecMemcpyNodeSetParams": "the same",
	"cuTexRefSetAddress_v2":          "the simulation has no kernels that read texture references",
	"cuTexRefSetAddress2D_v2":        "the same",
	"cuTexRefSetAddress2D_v3":        "the same",
	"cuTensorMapEncodeTiled":         "the simulation has no kernels that use tensor maps",
	"cuTensorMapEncodeIm2col":        "the same",
	"cuTensorMapEncodeIm2colWide":    "the same",
	"cuTensorMapReplaceAddress":      "the same",
}

// TestManagedNamedIsWhole: managed_named calls every function whose work uses the memory at an address, as the API
// description says.
func TestManagedNamedIsWhole(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, []string{"LD_LIBRARY_PATH=" + lib}, program("managed_named"), kernels, "list")
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.err)
	}
	called := map[string]bool{}
	for _, line := range lines(p.out.String()) {
		called[regexp.MustCompile(`^\w*`).FindString(line)] = true
	}
	for _, f := range spec.CUDA.Funcs {
		if takes := f.Base == "" && (f.Flag("takes") || f.Flag("takes_by_hand")); takes && !called[f.Name] &&
			unnamed[f.Name] == "" {
			t.Errorf("%s uses the memory at an address and is not in e2e/programs/managed_named.h", f.Name)
		} else if unnamed[f.Name] != "" && (!takes || called[f.Name]) {
			t.Errorf("%s is not missing any more", f.Name)
		}
	}
}

// The patterns with signals instead of userfaultfd; TestPrograms runs them with what the machine has.
func TestManagedBySignal(t *testing.T) {
	s := serve(t)
	p := start(t, s.env("SCUDA_PAGER=sigsegv"), program("managed"), kernels)
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
}

// What happens around a fault: the server goes while the CPU waits, a child touches its parent's memory, the program
// has handlers of its own. What goes on for long does so eight to ten times longer where SCUDA_TEST_MANAGED is set.
func TestManagedFaults(t *testing.T) {
	for _, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			beside(t)
			s := serve(t, "--grace", "1s")
			env := s.env("SCUDA_PAGER=" + pager)
			long := map[string]string{"unwaited": "80", "cycles": "20000", "runs": "60"}
			for _, what := range []string{"handlers", "child", "calls", "reclaimed", "unwaited", "cycles", "runs", "batches"} {
				args := []string{kernels, what}
				if managedSetting != "" && long[what] != "" {
					args = append(args, long[what])
				}
				p := start(t, env, program("managed_faults"), args...)
				if code := p.wait(patience); code != 0 {
					t.Errorf("%s: exit status %d\n%s%s", what, code, p.out, p.err)
				}
			}
			p := start(t, env, program("managed_faults"), kernels, "lost")
			p.await(p.out, "^ready$")
			s.signal(syscall.SIGKILL)
			if code := p.wait(patience); code != 0 || !strings.Contains(p.out.String(), "SIGBUS") {
				t.Errorf("the server was killed: exit status %d\n%s%s", code, p.out, p.err)
			}
			if said := p.err.String(); !strings.Contains(said, "the program gets SIGBUS where it touches it") {
				t.Errorf("what is said when the server was killed: %q", said)
			}
		})
	}
}

// What travels: nothing that only the GPU uses, every byte once for a program that goes through a range, and with few
// faults; nothing that was discarded; what was read before comes without being asked for, as the preferred location has
// it; and read-mostly memory that kernels only read does not come again.
func TestManagedTraffic(t *testing.T) {
	const large, block = 48 << 20, 64 << 10
	for _, c := range []struct {
		name          string
		faults        int // at most
		fetched, most int // bytes
		sent          int // at most
		noted         int // the same where the kernel notes what is written; 0: no difference
	}{
		{name: "untouched"},
		{name: "in order", faults: 40, fetched: large, most: large},
		{name: "discarded", faults: 40, fetched: block, most: block},
		{name: "read mostly", faults: 200, fetched: large, most: large + 48*block, sent: 32 * block},
		{name: "here and there", faults: 400, fetched: large, most: large + large, sent: large, noted: 48 * block},
		{name: "at the GPU", faults: 3, fetched: 3 * block, most: 3 * block},
		{name: "at the CPU", faults: 1, fetched: 2 * block, most: 2 * block},
	} {
		for _, pager := range pagers {
			t.Run(c.name+"/"+pager, func(t *testing.T) {
				s := serve(t)
				p := start(t, s.env("SCUDA_PAGER="+pager, "SCUDA_LOG=info"), program("managed_faults"), kernels, c.name)
				if code := p.wait(patience); code != 0 {
					t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
				}
				said := regexp.MustCompile(
					`unified memory: (\d+) faults, (\d+) bytes fetched, (\d+) bytes sent`).FindStringSubmatch(p.err.String())
				if said == nil {
					t.Fatalf("nothing is said of what was moved:\n%s", p.err)
				}
				var faults, fetched, sent int
				if _, err := fmt.Sscan(strings.Join(said[1:], " "), &faults, &fetched, &sent); err != nil {
					t.Fatal(err)
				}
				most := c.sent
				if c.noted > 0 && strings.Contains(p.err.String(), "the kernel notes which pages are written") {
					most = c.noted
				}
				if faults > c.faults || fetched < c.fetched || fetched > c.most || sent > most {
					t.Errorf("%d faults, at most %d wanted; %d bytes fetched, %d to %d wanted; %d bytes sent, at most %d wanted",
						faults, c.faults, fetched, c.fetched, c.most, sent, most)
				}
			})
		}
	}
}

// Memory that goes to and fro in every round: from the third round on it costs no fault with a round trip, since it
// comes with the wait, and a fault only where it is looked whether it is still wanted; however many places they are,
// they come in one round trip. Limits are for all rounds together; what the program writes costs a fault more where the
// kernel does not note it.
func TestManagedThrash(t *testing.T) {
	const block = 64 << 10
	for _, c := range []struct {
		name          string
		rounds        int
		faults, noted int // at most: in general, and where the kernel notes what is written
		trips         int // round trips, at most: a wait, a fetch and what is sent, and those of the beginning
		fetched, sent int // blocks, at most
		pinned        int // at least; 0: none at all
	}{
		{"ping-pong", 100, 32, 12, 3*100 + 12, 101, 100, 6},
		{"sharing", 100, 32, 12, 3*100 + 12, 101, 100, 6},
		{"scattered", 40, 48 * 18, 48 * 8, 3*40 + 3*48 + 12, 48 * 41, 48 * 40, 48 * 4},
		{"stencil", 40, 48, 30, 4*40 + 16, 4 * 41, 4 * 40, 4 * 4},
		{"calm", 100, 14, 8, 100 + 50, 12 + 20, 12, 3},
		{"streaming", 12, 12 * 20, 12 * 20, 12*40 + 12, 12 * (24 << 20) / block, 0, 0},
	} {
		for _, pager := range pagers {
			t.Run(c.name+"/"+pager, func(t *testing.T) {
				s := serve(t)
				name := filepath.Join(t.TempDir(), "trace")
				p := start(t, s.env("SCUDA_PAGER="+pager, "SCUDA_LOG=info", "SCUDA_TRACE="+name), program("managed_thrash"),
					kernels, c.name, fmt.Sprint(c.rounds))
				if code := p.wait(patience); code != 0 {
					t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
				}
				var trace struct {
					Counts []struct {
						Kind string
						N    int
					}
					Managed struct {
						Faults, Pushed, Pinned int
						ToHost                 int `json:"to_host"`
						ToDevice               int `json:"to_device"`
					}
				}
				if b, err := os.ReadFile(fmt.Sprintf("%s.%d", name, p.cmd.Process.Pid)); err != nil {
					t.Fatal(err)
				} else if err := json.Unmarshal(b, &trace); err != nil {
					t.Fatal(err)
				}
				trips, m, most := 0, trace.Managed, c.faults
				for _, n := range trace.Counts {
					if n.Kind == "answer" || n.Kind == "data" {
						trips += n.N
					}
				}
				if strings.Contains(p.err.String(), "the kernel notes which pages are written") {
					most = c.noted
				}
				if m.Faults > most || trips > c.trips || m.ToHost > c.fetched*block || m.ToDevice > c.sent*block {
					t.Errorf("%d faults, %d round trips, %d blocks came and %d went; at most %d, %d, %d and %d wanted", m.Faults,
						trips, m.ToHost/block, m.ToDevice/block, most, c.trips, c.fetched, c.sent)
				}
				if m.Pinned < c.pinned || (c.pinned == 0) != (m.Pinned+m.Pushed == 0) {
					t.Errorf("%d times a block was pinned, at least %d wanted; %d bytes came with waits", m.Pinned, c.pinned, m.Pushed)
				}
			})
		}
	}
}

// System calls on memory that the GPU has: by the kernel's faults, and where those are not to be had by the preloaded
// library.
func TestManagedCalls(t *testing.T) {
	s := serve(t)
	for _, c := range []struct{ pager, preload, said string }{
		{"uffd", "", ""},
		{"uffd", lib + "/libscuda.so", ""},
		{"uffd-user", lib + "/libscuda.so", ""},
		{"sigsegv", lib + "/libscuda.so", ""},
		{"sigsegv", "", "Bad address"},
		{"uffd-user", "", "which preloads libscuda.so"},
	} {
		p := start(t, s.env("SCUDA_PAGER="+c.pager, "LD_PRELOAD="+c.preload), program("managed_calls"), kernels, t.TempDir())
		code := p.wait(patience)
		if fine := code == 0 && p.out.String() == "calls ok\n"; fine != (c.said == "") ||
			!strings.Contains(p.err.String(), c.said) {
			t.Errorf("%+v: exit status %d\n%s%s", c, code, p.out, p.err)
		}
	}
}

// System calls that the program makes by itself work where the kernel hands over its own faults; elsewhere they fail as
// on any memory that may not be touched, the remedy is said, and the memory is as good as before.
func TestManagedRawCalls(t *testing.T) {
	s := serve(t)
	for _, c := range []struct{ pager, preload, want, said string }{
		{"uffd", "", "ok ok", ""},
		{"uffd-sync", "", "ok ok", ""},
		{"uffd-user", lib + "/libscuda.so", "Bad address Bad address", "without the C library"},
		{"sigsegv", lib + "/libscuda.so", "Bad address Bad address", "without the C library"},
	} {
		p := start(t, s.env("SCUDA_PAGER="+c.pager, "LD_PRELOAD="+c.preload, "SCUDA_LOG=info"), program("managed_calls"),
			kernels, t.TempDir(), "raw")
		if code := p.wait(patience); code != 0 {
			t.Fatalf("%+v: exit status %d\n%s%s", c, code, p.out, p.err)
		}
		lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
		for _, line := range lines {
			if _, got, _ := strings.Cut(line, ": "); got != c.want {
				t.Errorf("%+v: %s", c, line)
			}
		}
		if len(lines) != 3 && len(lines) != 1 || c.said != "" && !strings.Contains(p.err.String(), c.said) {
			t.Errorf("%+v:\n%s%s", c, p.out, p.err)
		}
	}
}

// AddressSanitizer, which takes over malloc, much address space and SIGSEGV.
func TestManagedSanitized(t *testing.T) {
	target := sanitized(t, "managed_faults")
	s := serve(t)
	for _, pager := range pagers {
		for _, what := range []string{"handlers", "child", "calls", "unwaited"} {
			p := start(t, s.env("SCUDA_PAGER="+pager, "ASAN_OPTIONS=detect_leaks=0:allow_user_segv_handler=1"), target, kernels,
				what)
			if code := p.wait(patience); code != 0 {
				t.Errorf("%s, %s: exit status %d\n%s%s", pager, what, code, p.out, p.err)
			}
		}
	}
}

// Python's faulthandler reports the program's own faults, and no others.
func TestManagedPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("python3 is missing: apt-get install python3")
	}
	s := serve(t)
	for _, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			p := start(t, s.env("SCUDA_PAGER="+pager), python, filepath.Join(root, "e2e/programs/managed_python.py"))
			code := p.wait(patience)
			if code == 0 || p.out.String() != "first True\nsecond True True\n" ||
				strings.Count(p.err.String(), "Fatal Python error: Segmentation fault") != 1 {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
		})
	}
}

// More unified memory than the GPU has is refused with cause and remedy, what just fits is given, and everything goes
// on.
func TestManagedTooMuch(t *testing.T) {
	for _, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			beside(t)
			s := serve(t) // a GPU of its own, as the program fills it
			p := start(t, s.env("SCUDA_PAGER="+pager), program("managed_faults"), kernels, "too much")
			// it fills a GPU three times, which takes 24 s alone on a slow machine
			if code := p.wait(3 * patience); code != 0 || p.out.String() != "" {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
			if n := strings.Count(p.err.String(), "unified memory: no room for "); n != 1 ||
				!strings.Contains(p.err.String(), "free some, ask for less, or use a larger GPU") {
				t.Errorf("it is said %d times that there is no room:\n%s", n, p.err)
			}
			s.run(t, "managed_faults", "untouched")
		})
	}
}

// `scuda info` names the way that the library takes.
func TestManagedInfo(t *testing.T) {
	s := serve(t)
	for _, pager := range []string{"", "uffd", "uffd-sync", "uffd-user", "sigsegv"} {
		info := start(t, s.env("SCUDA_PAGER="+pager), scuda, "info")
		p := start(t, s.env("SCUDA_PAGER="+pager, "SCUDA_LOG=info"), program("managed_faults"), kernels, "untouched")
		if info.wait(patience) != 0 || p.wait(patience) != 0 {
			t.Fatalf("%s%s", info.err, p.err)
		}
		ways := regexp.MustCompile(`faults +of unified memory are seen by userfaultfd \(uffd\)|` +
			`seen by userfaultfd \(uffd-user|seen by SIGSEGV`)
		seen := ways.FindString(info.out.String())
		want := "faults come by SIGSEGV"
		switch {
		case strings.HasSuffix(seen, "(uffd)"):
			want = "faults come by userfaultfd\n"
		case strings.HasSuffix(seen, "(uffd-user"):
			want = "faults come by userfaultfd, user mode"
		}
		if seen == "" || !strings.Contains(p.err.String(), want) {
			t.Errorf("SCUDA_PAGER=%s: info says %q, the library\n%s", pager, seen, p.err)
		}
	}
}
