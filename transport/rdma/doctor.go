package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/verbs"
)

// Check is one thing that was looked at.
type Check struct {
	What   string `json:"what"`
	OK     bool   `json:"ok"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // what to do about it
	Grave  bool   `json:"grave,omitempty"`  // without it there is no RDMA
}

// Report is what [Examine] found.
type Report struct {
	Checks []Check `json:"checks"`
	Place  *Place  `json:"-"` // nil: there is no RDMA here
	Path   string  `json:"path,omitempty"`
	Why    string  `json:"why,omitempty"` // why RDMA is not used
}

// memlockLeast is the memlock limit below which copies of ordinary size cannot be registered.
const memlockLeast = 256 << 20

// Examine looks at what RDMA needs on this machine: library, kernel, devices, permission, limits; and chooses the
// device for paths between two addresses, as links do (see [Choose]).
func Examine(wish string, local, peer netip.Addr) *Report {
	r := &Report{}
	names, err := verbs.Devices()
	if err != nil {
		found, remedy := err.Error(), ""
		if u := (*verbs.UnavailableError)(nil); errors.As(err, &u) {
			found, remedy = u.Reason, u.Remedy
		}
		r.fail("library and kernel", found, remedy)
		return r
	}
	r.pass("library and kernel", "libibverbs finds "+strings.Join(names, ", "))
	nets := r.links()
	r.memlock()
	for _, name := range names {
		r.device(name, nets[name])
	}
	p, err := Choose(wish, local, peer)
	if err != nil {
		r.fail("choice", err.Error(), "bring an interface with an RDMA device up and give it an address of the peer's family")
		return r
	}
	r.pass("choice", fmt.Sprintf("%s port %d, GID %d (%s %s, %s), because %s", p.Device, p.Port, p.GID.Index, p.GID.Type,
		p.GID.Addr, p.GID.NetDev, p.Why))
	if err := r.try(p); err != nil {
		r.fail("trial", err.Error(), remedyOf(err))
		return r
	}
	// Where the device has the address of the connection to the peer, the peer's has most likely the other one.
	if peer = peer.Unmap(); peer.IsValid() && p.GID.Addr == local.Unmap() {
		if err := reach(p, peer); err != nil {
			r.fail("way to the peer", err.Error(), remedyOf(err))
			return r
		}
		r.pass("way to the peer", fmt.Sprintf("%s has a route to %s", p.Device, peer))
	}
	if r.Why == "" {
		r.Place = p
		r.Path = fmt.Sprintf("%s port %d, GID %d (%s %s, %s)", p.Device, p.Port, p.GID.Index, p.GID.Type, p.GID.Addr,
			p.GID.NetDev)
	}
	return r
}

func remedyOf(err error) string {
	if e := (*verbs.Error)(nil); errors.As(err, &e) {
		return e.Remedy
	}
	return ""
}

// reach lets the kernel find the way from a place to an address, by a queue pair that is never used.
func reach(p *Place, peer netip.Addr) (err error) {
	d, err := verbs.Open(p.Device)
	if err != nil {
		return err
	}
	defer d.Close()
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	cq, err := d.CreateCQ(1)
	if err != nil {
		return err
	}
	defer cq.Close()
	q, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, SendDepth: 1, RecvDepth: 1})
	if err != nil {
		return err
	}
	defer q.Close()
	from := verbs.Local{Port: p.Port, GIDIndex: p.GID.Index}
	e, err := q.Endpoint(from)
	if err != nil {
		return err
	}
	e.GID = peer
	return q.Connect(from, e, verbs.ConnectOptions{})
}

func (r *Report) pass(what, found string) {
	r.Checks = append(r.Checks, Check{What: what, OK: true, Found: found})
}

func (r *Report) warn(what, found, remedy string) {
	r.Checks = append(r.Checks, Check{What: what, Found: found, Remedy: remedy})
}

func (r *Report) fail(what, found, remedy string) {
	r.Checks = append(r.Checks, Check{What: what, Found: found, Remedy: remedy, Grave: true})
	if r.Why == "" {
		r.Why = found
	}
}

// links asks the kernel's RDMA netlink for the devices, and gives the type of each (firmware, or nothing where it has
// none).
func (r *Report) links() map[string]string {
	found := map[string]string{}
	list, err := netlink.RdmaLinkList()
	if err != nil {
		r.warn("rdma netlink", err.Error(),
			"the kernel has no RDMA netlink, or this is a container without it; nothing else needs it")
		return found
	}
	for _, l := range list {
		found[l.Attrs.Name] = l.Attrs.FirmwareVersion
	}
	return found
}

func (r *Report) memlock() {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return
	}
	r.judgeMemlock(l.Cur, os.Geteuid() == 0)
}

func (r *Report) judgeMemlock(limit uint64, root bool) {
	switch {
	case limit == unix.RLIM_INFINITY:
		r.pass("memlock limit", "unlimited")
	case limit < memlockLeast && !root:
		r.warn("memlock limit", fmt.Sprintf("%d KiB: copies of larger memory go through a small buffer, or over TCP",
			limit>>10), "'ulimit -l unlimited', /etc/security/limits.conf, or LimitMEMLOCK=infinity in the systemd unit")
	default:
		r.pass("memlock limit", fmt.Sprintf("%d KiB", limit>>10))
	}
}

// roceHeaders is what an Ethernet frame has to carry beside RoCE's payload.
const roceHeaders = 74

func (r *Report) device(name, firmware string) {
	d, err := verbs.ReadDevice(name)
	if err != nil {
		r.warn(name, err.Error(), "")
		return
	}
	for _, p := range d.Ports {
		what := fmt.Sprintf("%s port %d", name, p.Number)
		text := fmt.Sprintf("%v, %s, %s, %d GIDs", p.State, p.Link, p.Rate, len(p.GIDs))
		if firmware != "" {
			text += ", firmware " + firmware
		}
		if d.PCI != "" && strings.Contains(d.PCI, ":") {
			text += fmt.Sprintf(", PCI %s, NUMA node %d", d.PCI, d.NUMANode)
		}
		if p.State != verbs.PortActive {
			r.warn(what, text, "bring its interface up ('ip link set INTERFACE up') and check the cable")
			continue
		}
		if dev := netdev(p.GIDs); dev != "" {
			if l, err := netlink.LinkByName(dev); err == nil {
				mtu := l.Attrs().MTU
				text += fmt.Sprintf(", %s with MTU %d", dev, mtu)
				if mtu < 4096+roceHeaders {
					r.warn(what, text,
						fmt.Sprintf(
							"an MTU of 4200 or more on all of the way ('ip link set %s mtu 9000') lets RoCE use packets of 4096 bytes", dev))
					continue
				}
			}
		}
		r.pass(what, text)
	}
}

func netdev(list []verbs.GID) string {
	for _, g := range list {
		if g.NetDev != "" {
			return g.NetDev
		}
	}
	return ""
}

// try opens the device and registers memory.
func (r *Report) try(p *Place) error {
	d, err := verbs.Open(p.Device)
	if err != nil {
		return err
	}
	defer d.Close()
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	mem, err := mapMemory(1 << 20)
	if err != nil {
		return err
	}
	defer func() { _ = unmapMemory(mem) }()
	m, err := pd.Register(mem, verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		return err
	}
	defer m.Close()
	a, err := d.Attributes()
	if err != nil {
		return err
	}
	port, err := d.Port(p.Port)
	if err != nil {
		return err
	}
	yes := func(b bool) string {
		if b {
			return "yes"
		}
		return "no"
	}
	r.pass("trial",
		fmt.Sprintf(
			"%s opens and registers memory; packets of %d bytes, memory windows: %s, dma-buf (GPUDirect): %s, on-demand "+
				"paging: %s", p.Device, port.ActiveMTU.Bytes(),
			yes(a.WindowType2), yes(pd.SupportsDMABuf()), yes(a.OnDemand)))
	return nil
}
