package fatbin

import (
	"fmt"
)

// Select shrinks an image to what a GPU of compute capability arch (90 for 9.0) can use: the cubins that match best,
// and PTX as the fallback that the driver compiles. What is not understood is kept: a wrongly dropped member would make
// a program fail, a wrongly kept one only costs bytes. The result is img.Bytes itself where nothing is dropped.
// [ErrNoMatch] says that nothing fits.
func Select(img *Image, arch uint32) ([]byte, error) {
	if img.Format != FormatFatbin {
		return img.Bytes, nil
	}
	exactELF := false
	usable := false
	for i := range img.Members {
		m := &img.Members[i]
		exactELF = exactELF || m.Kind == ELF && m.Arch == arch
		usable = usable || m.runs(arch)
	}
	if !usable {
		return nil, noMatch(img, arch)
	}
	best := bestPTX(img, arch)
	var keep []*Member
	total := 0
	for i := range img.Members {
		m := &img.Members[i]
		if !m.runs(arch) || exactELF && (m.Kind == ELF && m.Arch != arch || m.Kind == PTX && m.Arch != best) {
			continue
		}
		keep = append(keep, m)
		total += len(m.raw)
	}
	if len(keep) == len(img.Members) {
		return img.Bytes, nil
	}
	out := make([]byte, 0, headerSize+total)
	out = le.AppendUint32(out, magicFatbin)
	out = le.AppendUint16(out, 1)
	out = le.AppendUint16(out, headerSize)
	out = le.AppendUint64(out, uint64(total))
	for _, m := range keep {
		out = append(out, m.raw...)
	}
	return out, nil
}

// runs says whether the member may run on arch; when that is unsure, it does.
func (m *Member) runs(arch uint32) bool {
	switch m.Kind {
	case PTX:
		return m.Arch <= arch
	case ELF:
		if m.Major() != arch/10 || m.Minor() > arch%10 {
			return false
		}
		// Code for sm_90a is not portable to later members of the family. Where it is compressed one cannot see it.
		return m.Arch == arch || m.Compressed() || len(m.Payload) < elfHeaderSize || !elfExact(m.Payload)
	}
	return true
}

func bestPTX(img *Image, arch uint32) uint32 {
	var best uint32
	for i := range img.Members {
		if m := &img.Members[i]; m.Kind == PTX && m.Arch <= arch {
			best = max(best, m.Arch)
		}
	}
	return best
}

func noMatch(img *Image, arch uint32) error {
	var has string
	for i := range img.Members {
		m := &img.Members[i]
		if i > 0 {
			has += ", "
		}
		if i == 8 {
			has += "…"
			break
		}
		has += fmt.Sprintf("%v sm_%d", m.Kind, m.Arch)
	}
	return fmt.Errorf("%w: the GPU is sm_%d, the image has %s; build the program for this GPU or with PTX", ErrNoMatch,
		arch, has)
}
