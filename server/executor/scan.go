package executor

import (
	"scuda.dev/scuda/fatbin"
	"scuda.dev/scuda/server/modcache"
)

// scanLimit is up to which size an image is searched at once; the search of a larger or compressed one goes on beside.
const scanLimit = 4 << 20

// scan is what an image's code tells: whether it prints or has assertions, and which kernels take blocks of one shape
// only. Until it is done, it may print.
type scan struct {
	done            chan struct{}
	prints, asserts bool
	blocks          map[string]fatbin.Block
	noted           bool // a kernel was launched
}

func (p *scan) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// block is the only shape of blocks that the kernel takes, as far as that is known.
func (p *scan) block(kernel string) (b fatbin.Block) {
	if p != nil && p.ended() {
		b = p.blocks[kernel]
	}
	return b
}

// scanImage starts the search, once an image.
func (m *modules) scanImage(h modcache.Hash) *scan {
	if p := m.scans[h]; p != nil {
		return p
	}
	p := &scan{done: make(chan struct{})}
	m.scans[h] = p
	data := m.images[h].Data
	search := func() {
		defer close(p.done)
		img, err := fatbin.Parse(data)
		var found fatbin.Findings
		if err == nil {
			found, err = fatbin.Scan(img, "vprintf", "__assertfail")
		}
		if err != nil { // what is not understood may print
			p.prints, p.asserts = true, true
			return
		}
		p.prints, p.asserts, p.blocks = found.Uses[0], found.Uses[1], found.Blocks
	}
	if len(data) <= scanLimit && isPlain(data) {
		search()
	} else {
		go search()
	}
	return p
}

func isPlain(image []byte) bool {
	img, err := fatbin.Parse(image)
	if err != nil {
		return true
	}
	for i := range img.Members {
		if img.Members[i].Compressed() {
			return false
		}
	}
	return true
}

// scanOf finds the search for what a module, library, kernel or function came from.
func (m *modules) scanOf(h uint64) *scan {
	for range 4 {
		if p := m.scanned[h]; p != nil || h == 0 {
			return p
		}
		h = m.table.Parent(h)
	}
	return nil
}
