package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"scuda.dev/scuda/transport/chaos"
)

// TestOutage: both sides' metrics, scuda ps and scuda trace tell of a client that is away, and of what that was.
func TestOutage(t *testing.T) {
	s, env := administered(t, "--metrics", "127.0.0.1:0", "--grace", "1h")
	theirs := s.await(s.out, `metrics on (http://\S+)`)[1]
	p := s.through(t, chaos.Config{})
	c := start(t, clientEnv(p.Address(), "SCUDA_METRICS=127.0.0.1:0", "SCUDA_LOG=info"),
		scuda, "trace", "--json", "--", program("hold"), kernels, "16")
	ours := c.await(c.err, `url=(http://\S+/metrics)`)[1]
	c.await(c.out, "^ready$")
	p.Reach(false)
	p.Cut()
	eventually(t, patience, "the session is without its client", func() bool { return list(t, env)[0].State == "away" })
	x := list(t, env)[0]
	if x.Away == nil || x.Away.Seconds < 0 || x.Away.Seconds > 3600 {
		t.Errorf("%+v", x)
	}
	if text := ask(t, env, 0, "ps").out.String(); !strings.Contains(text, " away ") || !strings.Contains(text, "LEFT\n") {
		t.Errorf("the table is\n%s", text)
	}
	eventually(t, patience, "the client is away", func() bool { return scrape(t, ours).value("scuda_client_away") == 1 })
	if n := scrape(t, theirs).value("scuda_sessions_away"); n != 1 {
		t.Errorf("the server counts %v sessions without their clients", n)
	}
	p.Reach(true)
	eventually(t, patience, "the client is back", func() bool { return scrape(t, ours).value("scuda_client_away") == 0 })
	eventually(t, patience, "the session has its client", func() bool { return list(t, env)[0].State != "away" })
	if n := scrape(t, ours).value("scuda_client_outage_seconds"); n < 1 {
		t.Errorf("the client counts %v outages", n)
	}
	if h := scrape(t, theirs)["scuda_outage_seconds"].GetMetric()[0].GetHistogram(); h.GetSampleCount() < 1 {
		t.Errorf("the server counts %v", h)
	}
	c.stdin.Close()
	if code := c.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s", code, c.err)
	}
	var traces []struct {
		Stalls []struct {
			Why, Call string
			Count     int64
			NS        int64
		}
	}
	text := c.err.String()
	_, list, _ := strings.Cut(text, "[{")
	if err := json.Unmarshal([]byte("[{"+list), &traces); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	found := false
	for _, l := range traces[0].Stalls {
		found = found || l.Why == "outage" && l.Call == "-" && l.Count > 0 && l.NS > 0
	}
	if !found {
		t.Errorf("the trace has no outage:\n%s", text)
	}
}

// A session can be ended while its client is away, which is told why when it comes back.
func TestKillAway(t *testing.T) {
	s, env := administered(t, "--grace", "1h")
	p := s.through(t, chaos.Config{})
	c := start(t, clientEnv(p.Address()), program("hold"), kernels, "16", "loop")
	c.await(c.out, "^ready$")
	p.Reach(false)
	p.Cut()
	eventually(t, patience, "the session is without its client", func() bool { return list(t, env)[0].State == "away" })
	ask(t, env, 0, "kill", list(t, env)[0].ID, "--reason", "its place is needed")
	if all := list(t, env); len(all) != 0 {
		t.Errorf("left are %+v", all)
	}
	p.Reach(true)
	c.await(c.err, "the server has ended it meanwhile: .*an administrator ends this session: its place is needed")
	c.wait(patience)
	if out := c.out.String(); !strings.Contains(out, "error 46\n") {
		t.Errorf("its calls answered\n%s", out)
	}
}
