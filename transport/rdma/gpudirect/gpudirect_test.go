package gpudirect

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// pair is an invented GPU and card, and counts what it lends.
type pair struct {
	gpuBuf, cardBuf, peermem bool
	exportErr, trialErr      error // of direct ways
	stagedErr                error
	direct, staged           float64
	open                     int
}

type key struct {
	p   *pair
	buf bool
}

func (k key) Close() error { k.p.open--; return nil }

type card struct{ *pair }
type gpu struct{ *pair }

func (c card) SupportsDMABuf() bool { return c.cardBuf }
func (c card) RegisterDMABuf(fd int, bytes, _ uint64) (Key, error) {
	if fd != 5 || bytes == 0 {
		return nil, syscall.EBADF
	}
	c.open++
	return key{c.pair, true}, nil
}
func (c card) RegisterAddress(uint64, uint64) (Key, error) {
	if !c.peermem {
		return nil, syscall.EFAULT
	}
	c.open++
	return key{c.pair, false}, nil
}
func (c card) Trial(k Key) (float64, error) {
	if k == nil {
		return c.staged, c.stagedErr
	}
	return c.direct, c.trialErr
}
func (g gpu) SupportsDMABuf() bool { return g.gpuBuf }
func (g gpu) Scratch(uint64) (uint64, func(), error) {
	g.open++
	return 0x7f0000000000, func() { g.open-- }, nil
}
func (g gpu) Export(uint64, uint64) (int, func(), error) {
	if g.exportErr != nil {
		return -1, nil, g.exportErr
	}
	g.open++
	return 5, func() { g.open-- }, nil
}

func TestChoose(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		pair pair
		want Method // "": none
		why  string
	}{
		{"everything", pair{gpuBuf: true, cardBuf: true, peermem: true, direct: 40e9, staged: 25e9}, DMABuf, ""},
		{"soft-RoCE: the card refuses", pair{gpuBuf: true, direct: 40e9, staged: 25e9}, Staged,
			"the card's driver takes none"},
		{"closed kernel modules", pair{cardBuf: true, peermem: true, direct: 40e9, staged: 25e9}, PeerMem,
			"open kernel modules"},
		{"export fails", pair{gpuBuf: true, cardBuf: true, peermem: true, exportErr: broken, direct: 40e9, staged: 25e9},
			PeerMem, "dma-buf: broken"},
		{"trial fails", pair{gpuBuf: true, cardBuf: true, peermem: true, trialErr: broken, staged: 25e9}, Staged,
			"nvidia-peermem: broken"},
		{"across sockets", pair{gpuBuf: true, cardBuf: true, direct: 11e9, staged: 23e9}, Staged, "different sockets"},
		{"about the same", pair{gpuBuf: true, cardBuf: true, direct: 24e9, staged: 24.5e9}, DMABuf, ""},
		{"staging fails", pair{gpuBuf: true, cardBuf: true, direct: 24e9, stagedErr: broken}, DMABuf, "staged: broken"},
		{"nothing works", pair{stagedErr: broken}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Choose(card{&c.pair}, gpu{&c.pair})
			if (c.want == "") != errors.Is(err, ErrNoWay) || got.Method != c.want || !strings.Contains(got.Why, c.why) {
				t.Errorf("%+v, %v; expected %s because of %q", got, err, c.want, c.why)
			}
			if err == nil && got.Rate == 0 {
				t.Error("no rate")
			}
			if c.pair.open != 0 {
				t.Errorf("%d things were not given back", c.pair.open)
			}
		})
	}
}
