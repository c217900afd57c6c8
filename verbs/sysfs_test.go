package verbs

import (
	"errors"
	"net/netip"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text + "\n")} }

func sample() fstest.MapFS {
	const p = sysClass + "/mlx5_0/ports/1/"
	return fstest.MapFS{
		sysClass + "/mlx5_0/device/numa_node": file("1"),
		p + "state":                           file("4: ACTIVE"),
		p + "link_layer":                      file("Ethernet"),
		p + "rate":                            file("400 Gb/sec (4X NDR)"),
		p + "gids/0":                          file("fe80:0000:0000:0000:0202:03ff:fe04:0506"),
		p + "gid_attrs/types/0":               file("IB/RoCE v1"),
		p + "gid_attrs/ndevs/0":               file("eth2"),
		p + "gids/1":                          file("fe80:0000:0000:0000:0202:03ff:fe04:0506"),
		p + "gid_attrs/types/1":               file("RoCE v2"),
		p + "gids/2":                          file("0000:0000:0000:0000:0000:ffff:0a4d:0001"),
		p + "gid_attrs/types/2":               file("IB/RoCE v1"),
		p + "gids/3":                          file("0000:0000:0000:0000:0000:ffff:0a4d:0001"),
		p + "gid_attrs/types/3":               file("RoCE v2"),
		p + "gids/4":                          file("0000:0000:0000:0000:0000:ffff:0a4d:0101"),
		p + "gid_attrs/types/4":               file("RoCE v2"),
		p + "gids/10":                         file("fd00:0000:0000:0000:0000:0000:0000:0001"),
		p + "gid_attrs/types/10":              file("RoCE v2"),
		p + "gids/11":                         file("0000:0000:0000:0000:0000:0000:0000:0000"),
	}
}

func TestReadDevice(t *testing.T) {
	d, err := readDevice(sample(), "mlx5_0")
	if err != nil {
		t.Fatal(err)
	}
	if d.NUMANode != 1 || len(d.Ports) != 1 || d.Ports[0].State != PortActive || d.Ports[0].Rate != "400 Gb/sec (4X NDR)" {
		t.Errorf("%+v", d)
	}
	var got []int
	for _, g := range d.Ports[0].GIDs {
		got = append(got, g.Index)
	}
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 10}, got); diff != "" {
		t.Errorf("indices %s", diff)
	}
	if g := d.Ports[0].GIDs[0]; g.Type != RoCEv1 || g.NetDev != "eth2" {
		t.Errorf("%+v", g)
	}
	if _, err := readDevice(sample(), "none"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestSelectGID(t *testing.T) {
	d, err := readDevice(sample(), "mlx5_0")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		local, peer string
		want        int // -1: none
	}{
		{"", "", 3},
		{"10.77.0.1", "10.77.0.2", 3},
		{"10.77.1.1", "10.77.0.2", 4},
		{"::ffff:10.77.1.1", "::ffff:10.77.0.2", 4},
		{"fd00::1", "fd00::2", 10},
		{"fe80::202:3ff:fe04:506%eth2", "fe80::1%eth2", 1},
		{"192.168.0.1", "10.77.0.2", 3},
	} {
		addr := func(s string) netip.Addr {
			if s == "" {
				return netip.Addr{}
			}
			return netip.MustParseAddr(s)
		}
		g, err := SelectGID(&d.Ports[0], addr(c.local), addr(c.peer))
		if err != nil || g.Index != c.want {
			t.Errorf("from %q to %q: %d, %v; expected %d", c.local, c.peer, g.Index, err, c.want)
		}
	}
	only4 := PortInfo{GIDs: []GID{{Index: 1, Addr: netip.MustParseAddr("10.0.0.1"), Type: RoCEv2}}}
	if _, err := SelectGID(&only4, netip.Addr{}, netip.MustParseAddr("fd00::2")); !errors.Is(err, ErrNoGID) {
		t.Errorf("an IPv6 peer of an IPv4 port: %v", err)
	}
}
