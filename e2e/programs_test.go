package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"scuda.dev/scuda/api"
)

// Every program checks its results itself; where there is a golden file, a real GPU printed the same. Those that take
// long come first, since some run at the same time.
var all = []string{
	"progress", "capture_ends", "object_lives", "holdup", "managed", "ipc_order", "query", "compute", "copies",
	"streams", "graph", "graph_nodes", "graph_changes", "graph_captured", "captures", "graph_found", "graph_edits",
	"graph_updates", "bodies", "settings", "flags", "ordering", "threads", "per_thread", "fork", "errors", "limits",
	"misuse", "handles", "upload_seen", "vmm", "occupancy", "clusters", "mapped", "managed_advice", "linker",
	"mapped_runs",
	"userobject", "callbacks", "lives", "workspaces", "rarely", "print", "boxes", "batches", "arrays", "textures",
	"sharing", "ipc", "nvml", "capacities",
}

// What the simulated GPU does not have: it must say so at once.
var realOnly = map[string]string{"texrefs": "cuTexRefCreate(&t): got 801 (CUDA_ERROR_NOT_SUPPORTED)"}

// hurried is a program that sees that the GPU is still busy, for which the program must not be slow itself.
const hurried = "streams"

// TestPrograms runs every program over scuda and, but for those of which a comment says why not, directly on the
// simulation, which is the driver then: both print the same, and what a golden file has.
func TestPrograms(t *testing.T) {
	s := serve(t)
	names := append(slices.Clone(all), "elsewhere", "names") // which natively is not refused, and a fault
	for name, says := range realOnly {
		if gpu == "real" {
			names = append(names, name)
			continue
		}
		p := start(t, s.env(), program(name), kernels)
		if code := p.wait(patience); code == 0 || !strings.Contains(p.err.String(), says) {
			t.Errorf("%s on the simulated GPU: exit status %d\n%s%s", name, code, p.out, p.err)
		}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if name != hurried {
				beside(t)
			}
			got := s.run(t, name)
			printed.Store(name, got)
			switch want, err := os.ReadFile(filepath.Join("testdata", name+".golden")); {
			case err == nil:
				if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
					t.Errorf("native (-), simulated over scuda (+):\n%s", diff)
				}
			case !os.IsNotExist(err):
				t.Fatal(err)
			}
			if !slices.Contains(all, name) || name == "capacities" { // the stand-alone simulation has no logs of a compiler
				return
			}
			if diff := cmp.Diff(lines(directly(t, name, "")), lines(got)); diff != "" {
				t.Errorf("directly on the simulation (-), over scuda (+):\n%s", diff)
			}
		})
	}
}

// printed is what programs print when nothing disturbs them, by name, once a test has run them.
var printed sync.Map

// prints runs a program, if no test has done so yet, and gives what it prints.
func (s *server) prints(t *testing.T, name string) string {
	t.Helper()
	got, known := printed.Load(name)
	if !known {
		got = s.run(t, name, timesOf(name)...)
		printed.Store(name, got)
	}
	return got.(string)
}

// Two processes whose kernels find the memory that they share by addresses in memory.
func TestHiddenSharing(t *testing.T) {
	s := serve(t)
	p := start(t, s.env("LD_PRELOAD="+lib+"/libscuda.so"), program("ipc_order"), kernels, "hidden")
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
}

// TestCapacitiesAreWhole: every function that fills an array of a length that another parameter tells is in the program
// about that.
func TestCapacitiesAreWhole(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(filepath.Join("testdata", "capacities.golden"))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(map[string]bool)
	for line := range strings.Lines(string(lines)) {
		asked[strings.TrimSuffix(strings.Fields(line)[0], ":")] = true
	}
	for _, f := range spec.CUDA.Funcs {
		for _, p := range f.Params {
			if fills := p.Dir == api.Out || p.Dir == api.InOut || p.Dir == api.Ret; fills && p.Counted() && !asked[f.Name] {
				t.Errorf("capacities.c does not ask %s, which fills %s", f.Name, p.Name)
			}
		}
	}
}

// Every asynchronous call answered: the same results.
func TestLaunchBlocking(t *testing.T) {
	s := serve(t)
	for _, name := range []string{"compute", "graph", "graph_nodes", "errors"} {
		p := start(t, s.env("SCUDA_LAUNCH_BLOCKING=1"), program(name), kernels)
		if code := p.wait(patience); code != 0 {
			t.Errorf("%s: exit status %d\n%s%s", name, code, p.out, p.err)
		}
	}
}

// The server and its workers with the race detector on, with the programs that do most at once.
func TestRace(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "scuda")
	build := exec.CommandContext(t.Context(), "go", "build", "-race", "-o", binary, "./cmd/scuda")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := serveBy(t, binary)
	for _, name := range []string{"streams", "graph", "graph_nodes", "graph_changes", "graph_captured", "ordering",
		"threads", "progress"} {
		s.run(t, name)
	}
}

func TestTwoClientsAtOnce(t *testing.T) {
	s := serve(t)
	a, b := s.client(t, "compute"), s.client(t, "copies")
	for _, p := range []*process{a, b} {
		if code := p.wait(patience); code != 0 {
			t.Errorf("%s: exit status %d\n%s%s", p.name, code, p.out, p.err)
		}
	}
}

func TestModulesAreSentOnce(t *testing.T) {
	s := serve(t, "--log", "debug")
	s.run(t, "compute")
	stored := func() int {
		n := 0
		folders := []string{s.cache}
		own, _ := filepath.Glob(filepath.Join(os.Getenv("SCUDA_WORKER_FOLDER"), "*/modules")) // of tenants with a user id
		for _, folder := range append(folders, own...) {
			err := filepath.WalkDir(folder, func(_ string, e os.DirEntry, err error) error {
				if err == nil && e.Type().IsRegular() {
					n++
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	first := stored()
	if first == 0 {
		t.Fatal("no module was kept on disk")
	}
	s.run(t, "compute")
	if again := stored(); again != first {
		t.Errorf("%d modules after the first run, %d after the second", first, again)
	}
}

// answers counts the round trips that a program makes.
func (s *server) answers(t *testing.T, name string, args ...string) (n int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace")
	p := start(t, s.env("SCUDA_TRACE="+file), program(name), append([]string{kernels}, args...)...)
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.err)
	}
	return p.answers(t, file, nil)
}

// answers counts the answers that a process with SCUDA_TRACE=file waited for, to these commands, or to all.
func (p *process) answers(t *testing.T, file string, ops []uint16) (n int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("%s.%d", file, p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		Counts []struct {
			Kind string
			Op   uint16
			N    int
		}
	}
	if err := json.Unmarshal(b, &trace); err != nil {
		t.Fatal(err)
	}
	for _, c := range trace.Counts {
		if c.Kind == "answer" && (ops == nil || slices.Contains(ops, c.Op)) {
			n += c.N
		}
	}
	return n
}

// TestAskedOnce: attributes that go to and fro between values cost no question that was answered before; what is
// captured costs none at all; changes of an executable graph that are like earlier ones cost none.
func TestAskedOnce(t *testing.T) {
	s := serve(t)
	for name, rounds := range map[string][2]string{
		"occupancy": {"1", "20"}, "captures": {"1", "500"}, "graph_updates": {"100", "300"},
	} {
		s.run(t, name) // from now on the server has the module
		if one, many := s.answers(t, name, rounds[0]), s.answers(t, name, rounds[1]); one == 0 || many != one {
			t.Errorf("%s: %d round trips for %s rounds, %d for %s", name, one, rounds[0], many, rounds[1])
		}
	}
}

// Two GPUs of one server, where there are two.
func TestPeers(t *testing.T) {
	var two []string
	if gpu == "sim" {
		two = []string{"--gpu", "sim:2"}
	}
	s := serve(t, two...)
	s.run(t, "lives")
	if got := s.run(t, "peers"); gpu == "sim" && !strings.HasSuffix(got, "two GPUs\n") {
		t.Errorf("got %q", got)
	}
	for _, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			beside(t)
			p := start(t, s.env("SCUDA_PAGER="+pager), program("managed_gpus"), kernels)
			if code := p.wait(patience); gpu == "sim" && (code != 0 || !strings.HasSuffix(p.out.String(), "two GPUs\n")) {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
		})
	}
}
