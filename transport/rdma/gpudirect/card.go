package gpudirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"scuda.dev/scuda/verbs"
)

// Copier is what a trial needs of a GPU beside its memory.
type Copier interface {
	GPU
	// PageLocked gives page-locked memory of the host.
	PageLocked(bytes int) (mem []byte, free func(), err error)
	// Write and Read copy between memory of the host and the GPU's, and wait.
	Write(addr uint64, b []byte) error
	Read(b []byte, addr uint64) error
}

const (
	trialTime    = 4 * time.Millisecond // for each direction
	trialDepth   = 4
	trialTimeout = 2 * time.Second
)

// errChanged is a card whose writes or reads of a GPU's memory are not what they should be.
var errChanged = errors.New("bytes that went between card and GPU were changed")

// NetworkCard is a [Card]: a device of package verbs. For its trials it is connected with itself.
type NetworkCard struct {
	gpu  Copier
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   [2]*verbs.QP
	mem  []byte // two halves of trialBytes
	mr   *verbs.MR
	free func()
}

// Open opens a device for trials with a GPU.
func Open(device string, from verbs.Local, gpu Copier) (c *NetworkCard, err error) {
	c = &NetworkCard{gpu: gpu}
	defer func() {
		if err != nil {
			c.Close()
			c = nil
		}
	}()
	if c.mem, c.free, err = gpu.PageLocked(2 * trialBytes); err != nil {
		return
	}
	if c.dev, err = verbs.Open(device); err != nil {
		return
	}
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return
	}
	if c.cq, err = c.dev.CreateCQ(4 * trialDepth); err != nil {
		return
	}
	if c.mr, err = c.pd.Register(c.mem, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		return
	}
	var ends [2]verbs.Endpoint
	for i := range c.qp {
		if c.qp[i], err = c.pd.CreateQP(verbs.QPConfig{SendCQ: c.cq, SendDepth: 2 * trialDepth, RecvDepth: 1}); err != nil {
			return
		}
		if ends[i], err = c.qp[i].Endpoint(from); err != nil {
			return
		}
	}
	for i := range c.qp {
		if err = c.qp[i].Connect(from, ends[1-i], verbs.ConnectOptions{Access: verbs.RemoteWrite}); err != nil {
			return
		}
	}
	return
}

// Close frees what [Open] made.
func (c *NetworkCard) Close() {
	for _, q := range c.qp {
		if q != nil {
			_ = q.Close()
		}
	}
	if c.mr != nil {
		_ = c.mr.Close()
	}
	if c.cq != nil {
		_ = c.cq.Close()
	}
	if c.pd != nil {
		_ = c.pd.Close()
	}
	if c.dev != nil {
		_ = c.dev.Close()
	}
	if c.free != nil {
		c.free()
	}
}

// SupportsDMABuf is the answer to a registration with a bad descriptor.
func (c *NetworkCard) SupportsDMABuf() bool { return c.pd.SupportsDMABuf() }

const access = verbs.LocalWrite | verbs.RemoteWrite

// RegisterDMABuf registers so many bytes of a dma-buf.
func (c *NetworkCard) RegisterDMABuf(fd int, bytes, addr uint64) (Key, error) {
	return keyOf(c.pd.RegisterDMABuf(fd, 0, bytes, addr, access))
}

// RegisterAddress registers memory by its address.
func (c *NetworkCard) RegisterAddress(addr, bytes uint64) (Key, error) {
	return keyOf(c.pd.RegisterRange(addr, bytes, access))
}

// keyOf keeps a nil registration from being a key.
func keyOf(m *verbs.MR, err error) (Key, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Trial writes to registered memory and from it, compares what arrives, and gives the bytes a second of the slower
// direction; without a key that of the slowest of card and copies, which take place side by side when chunks are
// staged.
func (c *NetworkCard) Trial(k Key) (float64, error) {
	near, far := c.mem[:trialBytes], c.mem[trialBytes:]
	if k == nil {
		rate, err := c.writes(c.mr, c.mr.Addr, c.mr, c.mr.Addr+trialBytes)
		if err != nil {
			return 0, err
		}
		addr, free, err := c.gpu.Scratch(trialBytes)
		if err != nil {
			return 0, err
		}
		defer free()
		for _, f := range []func() error{func() error {
			return c.gpu.Write(addr, near)
		}, func() error { return c.gpu.Read(near, addr) }} {
			r, err := rateOf(f)
			if err != nil {
				return 0, err
			}
			rate = min(rate, r)
		}
		return rate, nil
	}
	m := k.(*verbs.MR)
	fill(near, 1)
	clear(far)
	in, err := c.writes(c.mr, c.mr.Addr, m, m.Addr)
	if err != nil {
		return 0, err
	}
	if err := c.gpu.Read(far, m.Addr); err != nil {
		return 0, err
	}
	if !bytes.Equal(near, far) {
		return 0, fmt.Errorf("%w: the card's writes do not show", errChanged)
	}
	fill(near, 2)
	if err := c.gpu.Write(m.Addr, near); err != nil {
		return 0, err
	}
	out, err := c.writes(m, m.Addr, c.mr, c.mr.Addr+trialBytes)
	if err != nil {
		return 0, err
	}
	if !bytes.Equal(near, far) {
		return 0, fmt.Errorf("%w: the card does not read what the GPU wrote", errChanged)
	}
	return min(in, out), nil
}

func fill(b []byte, seed uint32) {
	for i := range b {
		seed = seed*1664525 + 1013904223
		b[i] = byte(seed >> 24)
	}
}

// rateOf moves trialBytes again and again and gives the bytes a second.
func rateOf(f func() error) (float64, error) {
	began := time.Now()
	for n := 1; ; n++ {
		if err := f(); err != nil {
			return 0, err
		}
		if d := time.Since(began); d > trialTime {
			return float64(n) * trialBytes / d.Seconds(), nil
		}
	}
}

// writes lets the card write trialBytes from one registration to another, several at a time, and gives the bytes a
// second.
func (c *NetworkCard) writes(from *verbs.MR, src uint64, to *verbs.MR, dst uint64) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), trialTimeout)
	defer cancel()
	const piece = trialBytes / trialDepth
	var list [trialDepth]verbs.SendRequest
	for i := range list {
		at := uint64(i * piece)
		list[i] = verbs.SendRequest{
			ID: uint64(i), Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: dst + at, RKey: to.RKey, Count: 1,
		}
		list[i].SGE[0] = verbs.SGE{Addr: src + at, Length: piece, LKey: from.LKey}
	}
	var done [trialDepth]verbs.Completion
	return rateOf(func() error {
		if _, err := c.qp[0].PostSend(list[:]); err != nil {
			return err
		}
		for left := trialDepth; left > 0; {
			n, err := c.cq.WaitPoll(ctx, done[:])
			if err != nil {
				return err
			}
			for i := range n {
				if err := done[i].Err(); err != nil {
					return err
				}
			}
			left -= n
		}
		return nil
	})
}
