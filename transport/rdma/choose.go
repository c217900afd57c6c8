package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"scuda.dev/scuda/verbs"
)

// Place is a device's port and address from which paths start.
type Place struct {
	Device string
	Port   int
	GID    verbs.GID
	Info   *verbs.DeviceInfo
	Why    string // by what it was chosen
}

// ErrNoPlace is wrapped by the errors of [Choose].
var ErrNoPlace = errors.New("no usable RDMA device")

// Choose chooses the device for paths between two addresses, those of an ordinary connection of the two machines. wish
// names a device, or DEVICE:PORT, or DEVICE:PORT:GIDINDEX; empty, the device is taken that has the local address, else
// the first with an active port and an address of the peer's family.
func Choose(wish string, local, peer netip.Addr) (*Place, error) {
	names, err := verbs.Devices()
	if err != nil {
		return nil, err
	}
	var list []*verbs.DeviceInfo
	for _, n := range names {
		d, err := verbs.ReadDevice(n)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return choose(list, wish, local.Unmap(), peer.Unmap())
}

func choose(list []*verbs.DeviceInfo, wish string, local, peer netip.Addr) (*Place, error) {
	name, port, index, err := parseWish(wish)
	if err != nil {
		return nil, err
	}
	var best *Place
	var reasons []string
	for _, d := range list {
		if name != "" && d.Name != name {
			continue
		}
		for i := range d.Ports {
			p := &d.Ports[i]
			if port != 0 && p.Number != port {
				continue
			}
			where := fmt.Sprintf("%s port %d", d.Name, p.Number)
			if p.State != verbs.PortActive {
				reasons = append(reasons, fmt.Sprintf("%s is %v: bring its interface up", where, p.State))
				continue
			}
			gid, err := pick(p, index, local, peer)
			if err != nil {
				reasons = append(reasons, where+": "+err.Error())
				continue
			}
			c := &Place{
				Device: d.Name, Port: p.Number, GID: gid, Info: d, Why: "the first with an active port and a fitting address",
			}
			switch {
			case name != "":
				c.Why = "it was named (" + wish + ")"
			case gid.Addr == local.WithZone(""):
				c.Why = "it has the address of the connection to the peer"
				return c, nil
			}
			if best == nil {
				best = c
			}
		}
	}
	if best == nil {
		if name != "" && len(reasons) == 0 {
			reasons = []string{fmt.Sprintf("there is no %s; 'rdma link' lists what there is", wish)}
		}
		return nil, fmt.Errorf("%w: %s", ErrNoPlace, strings.Join(reasons, "; "))
	}
	return best, nil
}

// ErrStranger is wrapped by the errors of ends of paths that do not belong to the connection's peer.
var ErrStranger = errors.New("the RDMA address is not that of the connection's peer")

// belongs says whether an end that was told over a connection from local to remote can be the other machine's. GIDs of
// RoCE v2 are IP addresses. Where this side's is the connection's own address, RDMA and the connection take the same
// network, and the other side's has to be the connection's, too. Elsewhere (InfiniBand, a network of its own for RDMA,
// two devices of one machine) nothing can be told.
func belongs(p *Place, local, remote netip.Addr, end verbs.Endpoint) error {
	local, remote = local.Unmap().WithZone(""), remote.Unmap().WithZone("")
	at, own := end.GID.Unmap().WithZone(""), p.GID.Addr.Unmap().WithZone("")
	if p.GID.Type != verbs.RoCEv2 || !remote.IsValid() || own != local || at == remote || local == remote {
		return nil
	}
	return fmt.Errorf("%w: it is %v, and the connection goes to %v; let the other side use the device of that address "+
		"(SCUDA_RDMA_DEVICE)", ErrStranger, at, remote)
}

func pick(p *verbs.PortInfo, index int, local, peer netip.Addr) (verbs.GID, error) {
	if index < 0 {
		return verbs.SelectGID(p, local, peer)
	}
	for _, g := range p.GIDs {
		if g.Index == index {
			return g, nil
		}
	}
	return verbs.GID{}, fmt.Errorf("%w: no GID with index %d", verbs.ErrNoGID, index)
}

func parseWish(wish string) (name string, port, index int, err error) {
	parts := strings.Split(wish, ":")
	index = -1
	if len(parts) > 3 {
		err = errors.New("too many colons")
	}
	if err == nil && len(parts) > 1 {
		port, err = strconv.Atoi(parts[1])
	}
	if err == nil && len(parts) > 2 {
		index, err = strconv.Atoi(parts[2])
	}
	if err != nil {
		return "", 0, 0, fmt.Errorf("%w: %q is not DEVICE, DEVICE:PORT or DEVICE:PORT:GIDINDEX: %w", ErrNoPlace, wish, err)
	}
	return parts[0], port, index, nil
}
