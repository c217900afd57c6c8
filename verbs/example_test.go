package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"scuda.dev/scuda/verbs"
)

// List the machine's devices, their ports and addresses.
func Example_devices() {
	list, err := verbs.Devices()
	if errors.Is(err, verbs.ErrUnavailable) {
		fmt.Println("no RDMA here")
		return
	}
	for _, name := range list {
		d, err := verbs.ReadDevice(name)
		if err != nil {
			continue
		}
		for _, p := range d.Ports {
			fmt.Println(d.Name, p.Number, p.State, p.Rate)
			for _, g := range p.GIDs {
				fmt.Println("  GID", g.Index, g.Addr, g.Type, g.NetDev)
			}
		}
	}
}

// Write memory to a peer. exchange sends this side's part to the peer and gives the peer's, by whatever connection
// there is.
func Example_write() {
	type part struct {
		Endpoint verbs.Endpoint
		Addr     uint64
		RKey     uint32
	}
	write := func(exchange func(part) (part, error), message []byte) error {
		info, err := verbs.ReadDevice("mlx5_0")
		if err != nil {
			return err
		}
		gid, err := verbs.SelectGID(&info.Ports[0], netip.Addr{}, netip.Addr{})
		if err != nil {
			return err
		}
		from := verbs.Local{Port: 1, GIDIndex: gid.Index}
		d, err := verbs.Open("mlx5_0")
		if err != nil {
			return err
		}
		defer d.Close()
		pd, err := d.AllocPD()
		if err != nil {
			return err
		}
		defer pd.Close()
		cq, err := d.CreateCQ(16)
		if err != nil {
			return err
		}
		defer cq.Close()
		mr, err := pd.Register(message, verbs.LocalWrite|verbs.RemoteWrite)
		if err != nil {
			return err
		}
		defer mr.Close()
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, SendDepth: 16, RecvDepth: 16})
		if err != nil {
			return err
		}
		defer qp.Close()
		me, err := qp.Endpoint(from)
		if err != nil {
			return err
		}
		peer, err := exchange(part{me, mr.Addr, mr.RKey})
		if err != nil {
			return err
		}
		if err := qp.Connect(from, peer.Endpoint, verbs.ConnectOptions{}); err != nil {
			return err
		}
		_, err = qp.PostSend([]verbs.SendRequest{{
			Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: peer.Addr, RKey: peer.RKey,
			Count: 1, SGE: [verbs.MaxSGE]verbs.SGE{{Addr: mr.Addr, Length: uint32(mr.Length), LKey: mr.LKey}},
		}})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		done := make([]verbs.Completion, 16)
		n, err := cq.WaitPoll(ctx, done)
		if err != nil {
			return err
		}
		for _, c := range done[:n] {
			if err := c.Err(); err != nil {
				return err
			}
		}
		return nil
	}
	_ = write // a machine with RDMA calls it
}
