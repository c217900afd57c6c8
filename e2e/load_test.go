package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestLoad: load, memory, temperature, power and processes, as an NVML program sees them in another process than the
// one that makes the GPU busy, on the simulation itself and over scuda. They rise while a program works and fall when
// it has been killed.
func TestLoad(t *testing.T) {
	if gpu != "sim" {
		t.Skip("a real GPU may be busy with something else: perf/gpu/check.py compares what it shows")
	}
	s := serve(t)
	for name, env := range map[string][]string{
		"native": {"LD_LIBRARY_PATH=" + standAlone(t), "SCUDA_SIM=memory=1GiB,board=" + filepath.Join(t.TempDir(), "board")},
		"scuda":  s.env(),
	} {
		t.Run(name, func(t *testing.T) {
			smi := start(t, env, program("smi"))
			idle := watch(t, smi, func(g shown) bool { return true })
			busy := start(t, env, program("busy"), kernels, "100")
			pid := busy.cmd.Process.Pid
			atWork := watch(t, smi, func(g shown) bool {
				return g.load >= 90 && g.users[pid] == 100 && g.celsius > idle.celsius
			})
			if atWork.used < 100 || atWork.watts < 500 || atWork.watts > atWork.limit || idle.watts >= atWork.watts {
				t.Errorf("%+v, before it worked %+v", atWork, idle)
			}
			if name == "scuda" {
				checkInfo(t, s)
			}
			if err := busy.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			watch(t, smi, func(g shown) bool {
				_, there := g.users[pid]
				return !there && g.load <= 10 && g.used < 100 && g.celsius < atWork.celsius+1
			})
			smi.stdin.Close()
			if code := smi.wait(patience); code != 0 {
				t.Errorf("exit status %d\n%s", code, smi.out)
			}
		})
	}
}

// checkInfo compares with what scuda info says.
func checkInfo(t *testing.T, s *server) {
	p := start(t, s.env(), scuda, "info", "--json")
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	var facts struct {
		Devices []struct {
			Load struct {
				Percent, Celsius uint32
				Used             uint64 `json:"memory_used_bytes"`
				Watts            float64
			}
		}
	}
	if err := json.Unmarshal([]byte(p.out.String()), &facts); err != nil {
		t.Fatal(err)
	}
	if l := facts.Devices[0].Load; l.Percent < 50 || l.Celsius < 30 || l.Used>>20 != 100 || l.Watts < 300 {
		t.Errorf("scuda info says %+v", l)
	}
	p = start(t, s.env(), scuda, "info")
	if p.wait(patience); !regexp.MustCompile(` % busy, 100[.\d]* MiB in use, \d+ °C, \d+ W\n`).MatchString(
		p.out.String()) {
		t.Errorf("scuda info says\n%s", p.out)
	}
}

// shown is a line of smi.
type shown struct {
	load, memory, used, celsius, watts, limit int
	users                                     map[int]int // MiB of each process
}

var (
	smiLine = regexp.MustCompile(
		`(?m)^GPU 0 .*: (\d+) % \(memory (\d+) %\), (\d+) of \d+ MiB, (\d+) C, (\d+) of (\d+) W, 1980 MHz;(.*)$`)
	smiUser = regexp.MustCompile(`process (\d+) has (\d+) MiB,`)
)

// watch reads what smi prints until it is as it should be.
func watch(t *testing.T, smi *process, good func(shown) bool) (g shown) {
	t.Helper()
	seen := strings.Count(smi.out.String(), "\n")
	eventually(t, patience, fmt.Sprintf("after line %d of smi, GPU 0 is not as it should be", seen), func() bool {
		lines := strings.SplitAfter(smi.out.String(), "\n")
		for ; seen < len(lines)-1; seen++ {
			m := smiLine.FindStringSubmatch(lines[seen])
			if m == nil {
				t.Fatalf("line %q", lines[seen])
			}
			for i, to := range []*int{&g.load, &g.memory, &g.used, &g.celsius, &g.watts, &g.limit} {
				*to, _ = strconv.Atoi(m[i+1])
			}
			g.users = map[int]int{}
			for _, u := range smiUser.FindAllStringSubmatch(m[7], -1) {
				pid, _ := strconv.Atoi(u[1])
				g.users[pid], _ = strconv.Atoi(u[2])
			}
			if good(g) {
				return true
			}
		}
		return false
	})
	return g
}
