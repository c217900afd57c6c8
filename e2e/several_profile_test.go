package e2e

import (
	"fmt"
	"math"
	"testing"

	"scuda.dev/scuda/timeline"
)

// A profile has the work of both servers' GPUs: each kernel, copy and memset once, under the numbers that the program
// is told, behind its call and before the end of the wait for it. When a server is lost, those of the other come still.
// Two GPUs of one server have the same.
func TestSeveralHaveProfiles(t *testing.T) {
	alone := serve(t, "--gpu", "sim:2")
	p := start(t, alone.env("LD_PRELOAD="+lib+"/libscuda.so"), program("several_cupti"), kernels, "libcupti.so.13")
	if code := p.wait(patience); code != 0 || p.out.String() != "right\n" {
		t.Errorf("one server: exit status %d\n%s%s", code, p.out, p.err)
	}
	for _, library := range []string{"libcupti.so.12", "libcupti.so.13"} {
		_, second, list := two(t)
		p := start(t, clientEnv(list, "SCUDA_RESUME=0", "LD_PRELOAD="+lib+"/libscuda.so"), program("several_cupti"), kernels,
			library, fmt.Sprintf("kill -9 %d", second.cmd.Process.Pid))
		if code := p.wait(patience); code != 0 || p.out.String() != "right\none server\n" {
			t.Errorf("%s: exit status %d\n%s%s", library, code, p.out, p.err)
		}
	}
}

// The three tools' profiles are the same on the GPU of the second server.
func TestSeveralHaveProfilesOfTheSecond(t *testing.T) {
	first, second := serve(t), serve(t)
	for _, args := range [][]string{{"cupti", "kineto"}, {"cupti", "xla"}, {"cupti", "proton"}, {"cupti", "again"},
		{"cupti", "early"}, {"cupti_objects"}, {"cupti_graphs"}} {
		p := start(t, clientEnv(first.addr+","+second.addr, "CUDA_VISIBLE_DEVICES=1", "LD_PRELOAD="+lib+"/libscuda.so"),
			program(args[0]), append(append([]string{kernels}, args[1:]...), "libcupti.so.13")...)
		if code := p.wait(patience); code != 0 {
			t.Errorf("%v: exit status %d\n%s%s", args, code, p.out, p.err)
		}
	}
}

// A timeline has the work of both servers' GPUs on the right device, by one clock, and what each server had in hand;
// also where the program profiles itself.
func TestSeveralHaveTimelines(t *testing.T) {
	for _, library := range []string{"none", "libcupti.so.12"} {
		t.Run(library, func(t *testing.T) {
			beside(t)
			_, _, list := two(t)
			x := traceWith(t, clientEnv(list), 0, "several_cupti", kernels, library)
			rounds := 1
			if library != "none" {
				rounds = 2
			}
			calls := map[float64]timeline.Event{}
			for _, c := range x.of("call", "") {
				calls[c.Args["correlation"].(float64)] = c
			}
			latest := 0.0
			for _, w := range x.of("call", "cuStreamSynchronize") {
				latest = max(latest, w.Time+*w.Duration)
			}
			seen := map[string]int{}
			for _, kind := range []string{"kernel", "copy", "memset"} {
				for _, k := range x.of(kind, "") {
					seen[fmt.Sprintf("%.5s: %s", x.groups[k.PID], k.Name)]++
					c, found := calls[k.Args["correlation"].(float64)]
					if !found || k.Time < c.Time {
						t.Errorf("%s at %v, its call %v at %v", k.Name, k.Time, found, c.Time)
					}
					if kind == "kernel" && k.Time+*k.Duration > latest+1.5e-3 {
						t.Errorf("%s at %v for %v, waited until %v", k.Name, k.Time, *k.Duration, latest)
					}
				}
			}
			for what, n := range map[string]int{
				"GPU 0: vector_add": 23, "GPU 2: saxpy": 24, "GPU 0: copy, host to device": 1, "GPU 2: copy, host to device": 2,
				"GPU 0: copy, device to host": 2, "GPU 2: copy, device to host": 1,
			} {
				if seen[what] != n*rounds {
					t.Errorf("%d of %s, want %d", seen[what], what, n*rounds)
				}
				delete(seen, what)
			}
			if seen["GPU 0: memset"] != rounds+2 || seen["GPU 2: memset"] != rounds+2 || len(seen) != 2 {
				t.Errorf("%v", seen)
			}
			servers := map[string]int{}
			for _, e := range x.of("server", "launch") {
				servers[x.groups[e.PID][:len("server 1")]]++
			}
			if servers["server 1"] != 20*rounds+3 || servers["server 2"] != 21*rounds+3 { // 3 are captured
				t.Errorf("launches by %v", servers)
			}
			// both servers' clocks are this machine's
			clocks, most := x.other["server_clocks_ns"].([]any), x.other["server_error_most_ns"].(float64)
			for _, clock := range clocks {
				if off := math.Abs(clock.(float64) - realSinceBoot()); off > most+1000 {
					t.Errorf("a server's clock is off by %v ns, said to be %v at most", off, most)
				}
			}
			if len(clocks) != 2 {
				t.Errorf("clocks %v", clocks)
			}
		})
	}
}
