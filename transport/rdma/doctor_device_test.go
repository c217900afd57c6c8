//go:build rdma

package rdma

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// withoutRights is set in the process that may not open the devices.
const withoutRights = "RDMA_TEST_WITHOUT_RIGHTS"

// The doctor names what keeps RDMA from working, and what to do.
func TestExamine(t *testing.T) {
	here, peer := netip.MustParseAddr(os.Getenv("RXE_IP0")), netip.MustParseAddr(os.Getenv("RXE_IP1"))
	for _, c := range []struct {
		name         string
		before       func(t *testing.T) (after func())
		device       string
		peer         netip.Addr
		what, remedy string // of the check that fails; "": all is well
		note         bool   // it does not keep RDMA from being used
	}{
		{name: "well", peer: peer},
		{name: "link down", device: os.Getenv("RXE_DEV0"), what: "choice", remedy: "bring an interface",
			before: func(t *testing.T) func() {
				command(t, "ip", "link", "set", "rxenet0", "down")
				return func() { command(t, "ip", "link", "set", "rxenet0", "up"); routes(t) }
			}},
		{name: "small MTU", peer: peer, note: true, what: os.Getenv("RXE_DEV0") + " port 1", remedy: "mtu 9000",
			before: func(t *testing.T) func() {
				command(t, "ip", "link", "set", "rxenet0", "mtu", "1500")
				return func() { command(t, "ip", "link", "set", "rxenet0", "mtu", "4200") }
			}},
		{name: "no permission", peer: peer, what: "trial", remedy: "/dev/infiniband", before: func(t *testing.T) func() {
			// Another process, as threads that are made meanwhile would inherit what this one gave up.
			if os.Getenv(withoutRights) != "" {
				return func() {}
			}
			command(t, "sh", "-c", "chown 65534 /dev/infiniband/uverbs* && chmod 600 /dev/infiniband/uverbs*")
			defer command(t, "sh", "-c", "chown 0 /dev/infiniband/uverbs*")
			cmd := exec.Command("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", os.Args[0],
				"-test.run", "^TestExamine$/^no_permission$")
			cmd.Env = append(os.Environ(), withoutRights+"=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			return nil
		}},
		{name: "unreachable", peer: netip.MustParseAddr("10.99.0.1"), what: "way to the peer",
			remedy: "check addresses and routes"},
		{name: "no such device", device: "nothing0", peer: peer, what: "choice", remedy: "bring an interface"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.before != nil {
				after := c.before(t)
				if after == nil {
					return // another process has looked
				}
				defer after()
			}
			r := Examine(c.device, here, c.peer)
			var bad []Check
			for _, k := range r.Checks {
				if !k.OK && (k.Grave || c.note) {
					bad = append(bad, k)
				}
			}
			switch {
			case c.what == "" || c.note:
				if r.Why != "" || r.Place == nil ||
					!strings.Contains(r.Path, os.Getenv("RXE_DEV0")+" port 1, GID 1 (RoCE v2 "+here.String()) {
					t.Errorf("%+v", r)
				}
			case r.Why == "" || r.Place != nil:
				t.Errorf("RDMA is said to work: %+v", r)
			}
			if c.what == "" {
				return
			}
			if len(bad) == 0 || bad[0].What != c.what || !strings.Contains(bad[0].Remedy, c.remedy) {
				t.Errorf("%+v; expected %q to fail with the remedy %q", r.Checks, c.what, c.remedy)
			}
		})
	}
}
