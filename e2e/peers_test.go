package e2e

import (
	"strings"
	"testing"

	"scuda.dev/scuda/transport/chaos"
)

// connecting is what servers need to connect to each other here.
var connecting = []string{"--peers", "127.0.0.0/8,::1", "--log", "debug", "--metrics", "127.0.0.1:0"}

const (
	copied    = "copied between two GPUs\n"
	connected = "two servers are connected"
	apart     = "copies between two servers come this way"
)

// sentToPeers is how many bytes a server has sent to others.
func (s *server) sentToPeers(t *testing.T) float64 {
	t.Helper()
	got := scrape(t, s.await(s.out, `metrics on (http://\S+)`)[1])
	return got.value("scuda_peer_bytes_total", "direction", "sent", "transport", "tcp")
}

// Bytes of copies between two servers go from one to the other, and not by way of the program: to and fro, from several
// threads at once.
func TestPeersCopy(t *testing.T) {
	first, second, list := two(t, connecting...)
	p := start(t, clientEnv(list, "SCUDA_LOG=debug"), program("several_peers"), kernels, "30")
	p.stdin.Close()
	if code := p.wait(patience); code != 0 || p.out.String() != copied || strings.Count(p.err.String(), connected) != 1 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	for _, s := range []*server{first, second} {
		if n := s.sentToPeers(t); n < 10<<20 {
			t.Errorf("%s has sent %v bytes to the other server", s.addr, n)
		}
	}
}

// One of the two is enough that may connect to the other.
func TestPeersOneWay(t *testing.T) {
	first, second := serve(t), serve(t, connecting...)
	for _, list := range []string{first.addr + "," + second.addr, second.addr + "," + first.addr} {
		p := start(t, clientEnv(list, "SCUDA_LOG=debug"), program("several_peers"), kernels)
		p.stdin.Close()
		if code := p.wait(patience); code != 0 || p.out.String() != copied ||
			!strings.Contains(p.err.String(), connected) {
			t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
		}
	}
	if n := second.sentToPeers(t); n < 1<<20 {
		t.Errorf("%v bytes were sent to the other server", n)
	}
}

// A server connects to nobody unless its operator says so, and not to addresses beside those.
func TestPeersForbidden(t *testing.T) {
	for name, more := range map[string][]string{"unsaid": nil, "elsewhere": {"--peers", "10.0.0.0/8,127.0.0.2"}} {
		t.Run(name, func(t *testing.T) {
			first, _, list := two(t, more...)
			p := start(t, clientEnv(list, "SCUDA_LOG=info"), program("several_peers"), kernels, "4")
			p.stdin.Close()
			if code := p.wait(patience); code != 0 || p.out.String() != copied || strings.Count(p.err.String(), apart) != 1 {
				t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
			}
			const refused = "this server does not connect to 127.0.0.1 (scuda serve --peers says to which networks it may)"
			if !strings.Contains(p.err.String(), refused) || !strings.Contains(first.err.String(), refused) {
				t.Errorf("%s%s", p.err, first.err)
			}
		})
	}
}

// With TLS each server knows the other by the fingerprint that the client has seen, and tells tenants by invitations
// alone: the servers have no credential of the client's.
func TestPeersTLS(t *testing.T) {
	first, one := serveTLS(t, connecting...)
	second, other := serveTLS(t, connecting...)
	home := "XDG_CONFIG_HOME=" + t.TempDir()
	for i, s := range []*server{first, second} {
		login := start(t, []string{home}, scuda, "login", "--fingerprint", []string{one, other}[i], s.addr)
		if code := login.wait(patience); code != 0 {
			t.Fatalf("exit status %d\n%s%s", code, login.out, login.err)
		}
	}
	env := append(clientEnv(first.addr+","+second.addr, "SCUDA_LOG=debug"), home)
	p := start(t, env, program("several_peers"), kernels)
	p.stdin.Close()
	if code := p.wait(patience); code != 0 || p.out.String() != copied || !strings.Contains(p.err.String(), connected) {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	if n := first.sentToPeers(t); n < 1<<20 {
		t.Errorf("%v bytes were sent to the other server", n)
	}
}

// Connections between the servers are cut again and again, and so are those with the client. What does not arrive comes
// by way of the program, and the servers find each other again.
func TestPeersCut(t *testing.T) {
	first, second, _ := two(t, connecting...)
	for seed := range uint64(3) {
		var proxies []*chaos.Proxy
		for k, s := range []*server{first, second} {
			proxies = append(proxies, s.through(t, chaos.Config{Harm: mostlyCut(300 + 10*seed + uint64(k))}))
		}
		p := start(t, clientEnv(proxies[0].Address()+","+proxies[1].Address(), "SCUDA_LOG=debug"), program("several_peers"),
			kernels, "16")
		p.stdin.Close()
		if code := p.wait(patience); code != 0 || p.out.String() != copied {
			t.Fatalf("exit status %d behind %d and %d cuts\n%s%s", code, proxies[0].Cuts(), proxies[1].Cuts(), p.out, p.err)
		}
	}
}
