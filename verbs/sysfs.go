package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// GIDType is the protocol that packets from an address use.
type GIDType string

// Types of addresses.
const (
	IB     GIDType = "IB"
	RoCEv1 GIDType = "RoCE v1" // Ethernet frames, not routed
	RoCEv2 GIDType = "RoCE v2" // UDP
)

// GID is an entry of a port's table of addresses.
type GID struct {
	Index  int
	Addr   netip.Addr // IPv4 where it is one
	Type   GIDType
	NetDev string // the interface it belongs to
}

// PortInfo is what the kernel says of a port.
type PortInfo struct {
	Number int
	State  PortState
	Link   string // "Ethernet" or "InfiniBand"
	Rate   string // such as "400 Gb/sec (4X NDR)"
	GIDs   []GID
}

// DeviceInfo is what the kernel says of a device without opening it.
type DeviceInfo struct {
	Name     string
	PCI      string // address such as 0000:3b:00.0; empty for devices in software
	NUMANode int    // -1: none
	Ports    []PortInfo
}

const sysClass = "sys/class/infiniband"

// deviceFile is the file through which a device is driven; empty where the system does not say.
func deviceFile(device string) string {
	list, _ := filepath.Glob("/sys/class/infiniband_verbs/*/ibdev")
	for _, f := range list {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == device {
			return "/dev/infiniband/" + filepath.Base(filepath.Dir(f))
		}
	}
	return ""
}

// ReadDevice reads a device's ports and addresses from sysfs. It needs no permission and no library.
func ReadDevice(name string) (*DeviceInfo, error) {
	d, err := readDevice(os.DirFS("/"), name)
	if err != nil {
		return nil, err
	}
	if link, err := os.Readlink(path.Join("/", sysClass, name, "device")); err == nil {
		d.PCI = filepath.Base(link)
	}
	return d, nil
}

func readDevice(root fs.FS, name string) (*DeviceInfo, error) {
	base := path.Join(sysClass, name)
	entries, err := fs.ReadDir(root, path.Join(base, "ports"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &UnavailableError{
			fmt.Sprintf("there is no RDMA device %q", name), "'rdma link' lists those that there are",
		}
	}
	if err != nil {
		return nil, err
	}
	d := &DeviceInfo{Name: name, NUMANode: -1}
	if n, err := strconv.Atoi(line(root, path.Join(base, "device/numa_node"))); err == nil {
		d.NUMANode = n
	}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		at := path.Join(base, "ports", e.Name())
		p := PortInfo{Number: number, Link: line(root, path.Join(at, "link_layer")), Rate: line(root, path.Join(at, "rate"))}
		state, _, _ := strings.Cut(line(root, path.Join(at, "state")), ":")
		if n, err := strconv.ParseUint(state, 10, 32); err == nil {
			p.State = PortState(n)
		}
		if p.GIDs, err = readGIDs(root, at, p.Link); err != nil {
			return nil, err
		}
		d.Ports = append(d.Ports, p)
	}
	slices.SortFunc(d.Ports, func(a, b PortInfo) int { return cmp.Compare(a.Number, b.Number) })
	return d, nil
}

func readGIDs(root fs.FS, port, link string) ([]GID, error) {
	entries, err := fs.ReadDir(root, path.Join(port, "gids"))
	if err != nil {
		return nil, err
	}
	var list []GID
	for _, e := range entries {
		index, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		addr, err := netip.ParseAddr(line(root, path.Join(port, "gids", e.Name())))
		if err != nil || addr.IsUnspecified() {
			continue // an empty place
		}
		g := GID{Index: index, Addr: addr.Unmap(), NetDev: line(root, path.Join(port, "gid_attrs/ndevs", e.Name()))}
		switch t := line(root, path.Join(port, "gid_attrs/types", e.Name())); {
		case strings.Contains(t, "v2"):
			g.Type = RoCEv2
		case link == "InfiniBand":
			g.Type = IB
		default:
			g.Type = RoCEv1
		}
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b GID) int { return cmp.Compare(a.Index, b.Index) })
	return list, nil
}

func line(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// SelectGID chooses the address from which a port reaches peer: one of RoCE v2 (or InfiniBand) of the peer's family.
// local, where valid, is preferred: it is the address from which an ordinary connection to the peer comes. Link-local
// addresses are for link-local peers only. An invalid peer fits every family, IPv4 first.
func SelectGID(p *PortInfo, local, peer netip.Addr) (GID, error) {
	local, peer = local.Unmap(), peer.Unmap()
	var best *GID
	rank := 0
	for i := range p.GIDs {
		g := &p.GIDs[i]
		r := 1
		switch {
		case g.Type == RoCEv1:
			continue
		case g.Type == IB:
		case peer.IsValid() && g.Addr.Is4() != peer.Is4():
			continue
		case g.Addr.IsLinkLocalUnicast() != (peer.IsValid() && peer.IsLinkLocalUnicast()):
			continue
		case g.Addr == local.WithZone(""):
			r = 3
		case g.Addr.Is4():
			r = 2
		}
		if r > rank {
			best, rank = g, r
		}
	}
	if best == nil {
		want := "of any family"
		if peer.IsValid() {
			want = "that could reach " + peer.String()
		}
		return GID{}, fmt.Errorf(
			"%w: the port has %d GIDs, none of them of RoCE v2 %s; give the interface an address of that family", ErrNoGID,
			len(p.GIDs), want)
	}
	return *best, nil
}
