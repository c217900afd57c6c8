package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"scuda.dev/scuda/transport/chaos"
)

// two starts two servers, whose GPUs are told apart by their names and so by their UUIDs, and gives them with the list
// of their addresses. The first has two GPUs.
func two(t *testing.T, more ...string) (first, second *server, list string) {
	t.Helper()
	serveOne := func(sim string) *server { return serve(t, append([]string{"--gpu", sim}, more...)...) }
	first, second = serveOne("sim:2,name=First"), serveOne("sim:name=Second")
	return first, second, first.addr + "," + second.addr
}

// What asks servers asks all that are configured. One that is gone is named, and the others are shown.
func TestSeveralAreAsked(t *testing.T) {
	first, second, list := two(t)
	env := []string{"SCUDA_SERVER=" + list}
	user := second.client(t, "hold", "16")
	user.await(user.out, "^ready")

	says := func(code int, args ...string) (out, err string) {
		t.Helper()
		if args[0] == "ps" && !slices.Contains(args, "--server") { // else it would ask a server of another test here
			args = append(args, "--server", list)
		}
		p := start(t, env, scuda, args...)
		if got := p.wait(patience); got != code {
			t.Fatalf("scuda %v: exit status %d, not %d\n%s%s", args, got, code, p.out, p.err)
		}
		return p.out.String(), p.err.String()
	}
	out, _ := says(0, "info")
	a, b := strings.Index(out, "server      "+first.addr), strings.Index(out, "server      "+second.addr)
	if a < 0 || b < a || !strings.Contains(out[a:b], "GPU 1       First") ||
		!strings.Contains(out[b:], "GPU 0       Second") {
		t.Errorf("%s", out)
	}
	out, _ = says(0, "ps")
	if !strings.HasPrefix(out, "SERVER ") || !strings.Contains(out, "\n"+second.addr+" ") ||
		strings.Contains(out, "\n"+first.addr+" ") {
		t.Errorf("%s", out)
	}
	var sessions []struct{ Server, Program string }
	out, _ = says(0, "ps", "--json")
	if err := json.Unmarshal([]byte(out), &sessions); err != nil || len(sessions) != 1 ||
		sessions[0].Server != second.addr || sessions[0].Program != "hold" {
		t.Errorf("%v: %s", err, out)
	}

	// Of one server everything is as ever.
	out, _ = says(0, "ps", "--json", "--server", second.addr)
	if strings.Contains(out, `"server"`) {
		t.Errorf("%s", out)
	}

	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-first.done
	out, errs := says(3, "info")
	if !strings.Contains(out, first.addr+" (from SCUDA_SERVER)\nerror ") || !strings.Contains(out, "Second") ||
		!strings.Contains(errs, "1 of 2 servers failed: "+first.addr) {
		t.Errorf("%s%s", out, errs)
	}
	var facts []struct {
		Server, Error string
		Devices       []struct{ Name string }
	}
	out, _ = says(3, "info", "--json")
	if err := json.Unmarshal([]byte(out), &facts); err != nil || len(facts) != 2 || facts[0].Error == "" ||
		facts[1].Error != "" || len(facts[1].Devices) != 1 {
		t.Errorf("%v: %s", err, out)
	}
	out, errs = says(3, "ps")
	if !strings.Contains(out, "\n"+second.addr+" ") || !strings.Contains(errs, "1 of 2 servers failed: "+first.addr) {
		t.Errorf("%s%s", out, errs)
	}
	user.stdin.Close()
	user.wait(patience)
}

// NVML shows the GPUs of all servers one behind the other, each is found by its names, and two of two servers have no
// connection.
func TestSeveralShowTheirGPUs(t *testing.T) {
	_, _, list := two(t)
	p := start(t, clientEnv(list, "SCUDA_RESUME=0"), program("nvml_several"))
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	out := p.out.String()
	for _, want := range []string{
		"3 devices\n", "GPU 0: First, index 0, found 1 1, 00000000:", "GPU 1: First, index 1, found 1 1, 00000000:",
		"GPU 2: Second, index 2, found 1 1, 00001000:", ", domain 1000\n", ", 1000:",
		"first and last: 0 0 0, level 50, P2P 5, board 0\n",
		"wait 10\n", "again 3 devices, the last 0\n", "nvml ok\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s%s", want, out, p.err)
		}
	}
	alone := start(t, clientEnv(strings.Split(list, ",")[0]), program("nvml_several"))
	alone.stdin.Close()
	if code := alone.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, alone.out, alone.err)
	}
	part := func(of string) string { return of[strings.Index(of, "GPU 0:"):strings.Index(of, "GPU 1:")] }
	if part(out) != part(alone.out.String()) {
		t.Errorf("the first server is not as it is:\n%s%s", part(out), part(alone.out.String()))
	}
	for line := range strings.SplitSeq(alone.out.String(), "\n") {
		for _, begin := range []string{"register", "one server", "one more"} {
			if strings.HasPrefix(line, begin) && !strings.Contains(out, line+"\n") {
				t.Errorf("no %q, as with one server, in\n%s", line, out)
			}
		}
	}
}

// Of a server that is killed the GPUs are lost, also where the program begins anew; those of the other go on.
func TestSeveralLoseOne(t *testing.T) {
	for name, kill := range map[string]int{"first": 0, "second": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second, list := two(t)
			p := start(t, clientEnv(list, "SCUDA_RESUME=0"), program("nvml_several"))
			p.await(p.out, "^ready")
			killed := []*server{first, second}[kill]
			if err := killed.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-killed.done
			if _, err := p.stdin.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
			p.await(p.out, "^asked")
			if _, err := p.stdin.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if code := p.wait(patience); code != 0 {
				t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
			}
			want := "memory of 0: 0\nmemory of 1: 0\nmemory of 2: 15\nasked\nagain 3 devices, the last 15\n"
			if kill == 0 {
				want = "memory of 0: 15\nmemory of 1: 15\nmemory of 2: 0\nasked\nagain 3 devices, the last 0\n"
			}
			if out := p.out.String(); !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s%s", want, out, p.err)
			}
			if errs := p.err.String(); strings.Count(errs, "lost the server "+killed.addr) != 1 {
				t.Errorf("%s", errs)
			}
		})
	}
}

// A server that does not answer when NVML begins is named, and nothing is shown under a number that is not its own.
func TestSeveralBeginTogether(t *testing.T) {
	s := serve(t)
	for _, list := range []string{s.addr + ",127.0.0.1:1", "127.0.0.1:1," + s.addr} {
		p := start(t, clientEnv(list), program("nvml_several"))
		if code := p.wait(patience); code != 1 || p.out.String() != "nvmlInit_v2() = 9\n" ||
			!strings.Contains(p.err.String(), "127.0.0.1:1: ") {
			t.Errorf("%d: %s%s", code, p.out, p.err)
		}
	}
}

// All that NVIDIA's Go bindings can ask of a GPU of the second server is answered as where that server is alone, but
// for its number and its place.
func TestSeveralAnswerAsAlone(t *testing.T) {
	target := goProgram(t, "gonvml")
	first, second, list := two(t)
	answers := func(servers string) []string {
		p := start(t, clientEnv(servers), target)
		if code := p.wait(patience); code != 0 {
			t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
		}
		return strings.Split(p.out.String(), "\n")
	}
	of := func(lines []string, device string) (found []string) {
		for _, line := range lines {
			if answer, ok := strings.CutPrefix(line, device); ok {
				found = append(found, answer)
			}
		}
		return found
	}
	all := answers(list)
	if diff := cmp.Diff(of(answers(first.addr), "device 1 "), of(all, "device 1 ")); diff != "" {
		t.Errorf("the first server alone (-), with the second (+):\n%s", diff)
	}
	alone, together := of(answers(second.addr), "device 0 "), of(all, "device 2 ")
	if len(alone) < 100 || len(alone) != len(together) {
		t.Fatalf("%d answers alone, %d together", len(alone), len(together))
	}
	var different []string
	for i := range alone {
		if alone[i] != together[i] {
			name, _, _ := strings.Cut(alone[i], ":")
			different = append(different, name)
		}
	}
	if want := []string{"GetIndex", "GetPciInfo", "GetPciInfoExt"}; !slices.Equal(different, want) {
		t.Errorf("%v are different, not %v", different, want)
	}
}

// Each server has its own fingerprint and TLS, and a process of its own that passes NVML's bytes on.
func TestSeveralWithTLS(t *testing.T) {
	first, one := serveTLS(t, "--gpu", "sim:2,name=First")
	second, other := serveTLS(t, "--gpu", "sim:name=Second")
	home := "XDG_CONFIG_HOME=" + t.TempDir()
	says := func(args ...string) string {
		t.Helper()
		p := start(t, []string{home}, scuda, args...)
		if code := p.wait(patience); code != 0 {
			t.Fatalf("scuda %v: exit status %d\n%s%s", args, code, p.out, p.err)
		}
		return p.out.String()
	}
	says("login", "--name", "first", "--fingerprint", one, first.addr)
	says("login", "--name", "second", "--fingerprint", other, second.addr)
	says("use", "second,first")
	if out := says("info"); strings.Count(out, "TLS 1.3") != 2 ||
		strings.Index(out, second.addr) > strings.Index(out, first.addr) {
		t.Errorf("%s", out)
	}
	p := start(t, []string{home, "LD_LIBRARY_PATH=" + lib}, program("nvml_several"))
	p.stdin.Close()
	if code := p.wait(patience); code != 0 || !strings.Contains(p.out.String(), "GPU 0: Second, index 0, found 1 1") ||
		!strings.Contains(p.out.String(), "again 3 devices, the last 0\n") {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
	for _, s := range []*server{first, second} {
		s.signal(syscall.SIGTERM)
		s.wait(patience)
	}
}

// A program that sees the GPU of the last of two servers alone runs as with one server.
func TestSeveralRunPrograms(t *testing.T) {
	first, second := serve(t), serve(t)
	for _, name := range all {
		if name == "nvml" || name == "query" { // which show the GPUs of all servers, and the PCI domains of the second
			continue
		}
		t.Run(name, func(t *testing.T) {
			beside(t)
			want := first.prints(t, name)
			env := clientEnv(first.addr+","+second.addr, "CUDA_VISIBLE_DEVICES=1")
			p := start(t, env, program(name), kernels)
			p.stdin.Close()
			if code := p.wait(patience); code != 0 {
				t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
			}
			if diff := cmp.Diff(lines(want), lines(p.out.String())); diff != "" {
				t.Errorf("with one server (-), with two (+):\n%s", diff)
			}
		})
	}
}

// CUDA's runtime loads its kernels for all GPUs that it sees, and uses them on the second server's.
func TestSeveralRunTheRuntime(t *testing.T) {
	first, second := serve(t), serve(t)
	for _, library := range []string{"libcudart.so.11.0", "libcudart.so.12"} {
		path := filepath.Join(root, "build/cudart", library)
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v: run make runtimes first", err)
		}
		run := func(env []string, args ...string) string {
			p := start(t, env, program("cudart"), append([]string{kernels, path}, args...)...)
			if code := p.wait(patience); code != 0 {
				t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
			}
			return p.out.String()
		}
		want, got := run(first.env()), run(clientEnv(first.addr+","+second.addr), "1")
		if diff := cmp.Diff(lines(want), lines(got)); diff != "" {
			t.Errorf("%s: with one server (-), on the second of two (+):\n%s", library, diff)
		}
	}
}

// A program uses the GPUs of two servers. When one of them is gone it goes on with the other's.
func TestSeveralShareAProgram(t *testing.T) {
	first, second, list := two(t)
	p := start(t, clientEnv(list, "SCUDA_RESUME=0"), program("several"), kernels,
		fmt.Sprintf("kill -9 %d", second.cmd.Process.Pid))
	p.stdin.Close()
	if code := p.wait(patience); code != 0 || p.out.String() != "two servers\none server\n" {
		t.Fatalf("exit status %d\n%s%s\nthe first server:\n%s", code, p.out, p.err, first.err)
	}
	errs := p.err.String()
	for _, want := range []string{
		"cuMemsetD8Async: what it names is of two servers",
		"the session with the scuda server " + second.addr + " is lost",
	} {
		if strings.Count(errs, want) != 1 {
			t.Errorf("not once %q in\n%s", want, errs)
		}
	}
}

// Kernels of both servers use the same pinned memory, in turns and at once. With one server it is the same.
func TestSeveralUsePinned(t *testing.T) {
	first, second, list := two(t)
	for _, env := range [][]string{first.env(), clientEnv(list)} {
		p := start(t, env, program("several_pinned"), kernels)
		p.stdin.Close()
		if code := p.wait(patience); code != 0 || p.out.String() != "pinned memory of two servers\n" {
			t.Errorf("exit status %d\n%s%s\n%s", code, p.out, p.err, second.err)
		}
	}
}

// Launches that follow each other see what was written before each of them, also where two servers have them in turns.
func TestSeveralUsePinnedInARow(t *testing.T) {
	_, second, list := two(t)
	p := start(t, clientEnv(list), program("mapped_runs"), kernels)
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s%s\n%s", code, p.out, p.err, second.err)
	}
}

// Boxes go from memory of one server to memory of the other. With one server that has two GPUs it is the same, and with
// the simulation itself (TestDifferential).
func TestSeveralCopyBoxes(t *testing.T) {
	want := serve(t, "--gpu", "sim:2").run(t, "several_boxes", "wrong")
	for way, more := range map[string][]string{"by the program": nil, "by the servers": connecting} {
		t.Run(way, func(t *testing.T) {
			_, second, list := two(t, more...)
			p := start(t, clientEnv(list), program("several_boxes"), kernels, "wrong")
			p.stdin.Close()
			if code := p.wait(patience); code != 0 {
				t.Fatalf("exit status %d\n%s%s\n%s", code, p.out, p.err, second.err)
			}
			if diff := cmp.Diff(lines(want), lines(p.out.String())); diff != "" {
				t.Errorf("with one server (-), with two (+):\n%s", diff)
			}
			const refused = "a copy: what it names is of two servers"
			if errs := p.err.String(); strings.Count(errs, refused) != 1 {
				t.Errorf("not once %q in\n%s", refused, errs)
			}
		})
	}
}

// Unified memory goes to the server whose GPU uses it, and back. With one server that has two GPUs it is the same, and
// with the simulation itself (TestDifferential).
func TestSeveralUseManaged(t *testing.T) {
	want := serve(t, "--gpu", "sim:2").run(t, "several_managed")
	for _, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			beside(t)
			_, second, list := two(t)
			p := start(t, clientEnv(list, "SCUDA_PAGER="+pager), program("several_managed"), kernels)
			p.stdin.Close()
			if code := p.wait(patience); code != 0 || p.out.String() != want {
				t.Errorf("exit status %d\n%s%s\n%s", code, p.out, p.err, second.err)
			}
			const refused = "unified memory of one server is to be used by another, while a stream is captured"
			if errs := p.err.String(); strings.Count(errs, refused) != 1 {
				t.Errorf("not once %q in\n%s", refused, errs)
			}
		})
	}
}

// Random programs over two servers agree with a plain model. When one of the servers is gone the other's memory stays.
func TestSeveralManagedRandom(t *testing.T) {
	for i, pager := range pagers {
		t.Run(pager, func(t *testing.T) {
			beside(t)
			_, second, list := two(t)
			p := start(t, clientEnv(list, "SCUDA_PAGER="+pager, "SCUDA_RESUME=0"), program("several_managed_random"), kernels,
				fmt.Sprint(100*i+1), "30", fmt.Sprintf("kill -9 %d", second.cmd.Process.Pid))
			p.stdin.Close()
			if code := p.wait(patience); code != 0 || p.out.String() != "30 programs\none server\n" {
				t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
			}
			if errs := p.err.String(); strings.Count(errs, "unified memory cannot be fetched any more") != 1 {
				t.Errorf("%s", errs)
			}
		})
	}
}

// What one server's GPU alone uses stays there, however often the other one has work: each range comes to its GPU once,
// and a block of it comes back when the CPU reads.
func TestSeveralManagedStays(t *testing.T) {
	_, _, list := two(t)
	p := start(t, clientEnv(list, "SCUDA_LOG=info"), program("several_managed"), kernels, "apart")
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	m := regexp.MustCompile(`(\d+) bytes fetched, (\d+) bytes sent`).FindStringSubmatch(p.err.String())
	if m == nil {
		t.Fatalf("%s", p.err)
	}
	fetched, err := strconv.Atoi(m[1])
	sent, err2 := strconv.Atoi(m[2])
	if err != nil || err2 != nil || fetched > 4*65536 || sent > 65536 {
		t.Errorf("%d bytes fetched, %d sent", fetched, sent)
	}
}

// Work of two processes is in order on each server. What a process asks of the other server delays nobody.
func TestSeveralKeepOrder(t *testing.T) {
	first, second, list := two(t)
	p := start(t, clientEnv(list, "CUDA_VISIBLE_DEVICES=2,0"), program("ipc_order"), kernels, "both")
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
	for _, s := range []*server{first, second} {
		if log := s.err.String(); strings.Contains(log, "does not get on") {
			t.Errorf("%s", log)
		}
	}
}

// Connections with both servers are cut again and again, and the sessions come back, each by itself.
func TestSeveralResume(t *testing.T) {
	first, second, _ := two(t)
	plain := serve(t)
	for i, name := range []string{"several", "copies", "streams", "callbacks", "progress", "managed", "ipc", "counted"} {
		t.Run(name, func(t *testing.T) {
			if name != hurried {
				beside(t)
			}
			want, visible := "two servers\n", "CUDA_VISIBLE_DEVICES=0,1,2"
			if name != "several" {
				want, visible = plain.prints(t, name), "CUDA_VISIBLE_DEVICES=2"
			}
			var proxies []*chaos.Proxy
			for k, s := range []*server{first, second} {
				proxies = append(proxies, s.through(t, chaos.Config{Harm: mostlyCut(uint64(100*k + i))}))
			}
			p := start(t, clientEnv(proxies[0].Address()+","+proxies[1].Address(), visible), program(name),
				append([]string{kernels}, timesOf(name)...)...)
			p.stdin.Close()
			if code := p.wait(patience); code != 0 || p.out.String() != want {
				t.Errorf("exit status %d behind %d and %d cuts\n%s%s", code, proxies[0].Cuts(), proxies[1].Cuts(), p.out, p.err)
			}
			if name == "several" && (proxies[0].Cuts() == 0 || proxies[1].Cuts() == 0) {
				t.Errorf("only %d and %d cuts", proxies[0].Cuts(), proxies[1].Cuts())
			}
		})
	}
}

// What a client counts of its sessions is told apart by their servers.
func TestSeveralHaveMetrics(t *testing.T) {
	first, second, list := two(t)
	p := start(t, clientEnv(list, "SCUDA_METRICS=127.0.0.1:0", "SCUDA_LOG=info", "CUDA_VISIBLE_DEVICES=2"),
		program("metered"), kernels)
	url := p.await(p.err, `url=(http://\S+/metrics)`)[1]
	p.await(p.out, "ready")
	got := scrape(t, url)
	for _, want := range []struct {
		server      *server
		least, most float64 // bytes that were sent
	}{{first, 0, 64 << 10}, {second, 10 * 65536, 4 << 20}} {
		if n := got.value("scuda_client_connected", "server", want.server.addr); n != 1 {
			t.Errorf("%s: %v sessions", want.server.addr, n)
		}
		n := got.value("scuda_client_transport_bytes_total", "direction", "sent", "server", want.server.addr)
		if n < want.least || n > want.most {
			t.Errorf("%v bytes were sent to %s, want %v to %v", n, want.server.addr, want.least, want.most)
		}
	}
	if n := got.value("scuda_client_calls_total", "class", "fill"); n < 101 || n > 102 {
		t.Errorf("%v fills", n)
	}
	p.stdin.Close()
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s", code, p.err)
	}
}
