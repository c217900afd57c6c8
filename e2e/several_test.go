package e2e

import (
	"encoding/json"
	"strings"
	"testing"
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
	env := []string{"SCUDA_SERVER=" + list, "SCUDA_ADMIN=auto", "XDG_RUNTIME_DIR=" + t.TempDir()}
	user := second.client(t, "hold", "16")
	user.await(user.out, "^ready")

	says := func(code int, args ...string) (out, err string) {
		t.Helper()
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

// CUDA with several servers says what to do instead.
func TestSeveralHaveNoCUDA(t *testing.T) {
	_, _, list := two(t)
	p := start(t, clientEnv(list), program("init"))
	p.wait(patience)
	if out := p.out.String(); !strings.HasPrefix(out, "cuInit = 801\ncuInit = 801\n") {
		t.Errorf("%s", out)
	}
	if errs := p.err.String(); strings.Count(errs, "CUDA with several servers in one program is not supported yet") != 1 ||
		!strings.Contains(errs, "scuda run --spread") {
		t.Errorf("%s", errs)
	}
}
