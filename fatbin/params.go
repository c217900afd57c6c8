package fatbin

import (
	"cmp"
	"slices"
	"strings"
)

// Param is a kernel parameter's place in the packed parameter buffer.
type Param struct {
	Offset, Size uint32
}

// Attributes of .nv.info sections: a byte of form, a byte of attribute, two bytes of value or size.
const (
	infoSized      = 4    // the value follows, its size comes first
	infoBlock      = 0x10 // the block's shape that the kernel was made for
	infoKernelArgs = 0x17
	infoPrefix     = ".nv.info."
)

// Params reads the parameter layouts of a cubin's kernels, by name.
func Params(cubin []byte) (map[string][]Param, error) {
	all := make(map[string][]Param)
	err := sections(cubin, infoPrefix, func(section string, b []byte) error {
		name := strings.TrimPrefix(section, infoPrefix)
		type entry struct {
			ordinal uint16
			Param
		}
		var entries []entry
		err := infoAttributes(section, b, func(attr byte, v []byte) {
			if attr == infoKernelArgs && len(v) >= 12 {
				// index u32, ordinal u16, offset u16, then bits with the size in 18…31
				entries = append(entries, entry{
					le.Uint16(v[4:]), Param{Offset: uint32(le.Uint16(v[6:])), Size: le.Uint32(v[8:]) >> 18},
				})
			}
		})
		if err != nil {
			return err
		}
		slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.ordinal, b.ordinal) })
		list := make([]Param, len(entries))
		for i, e := range entries {
			if int(e.ordinal) != i {
				return broken(0, "%s describes parameter %d, expected %d", section, e.ordinal, i)
			}
			list[i] = e.Param
		}
		all[name] = list
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// infoAttributes visits the attributes of a .nv.info section that have a value of their own.
func infoAttributes(section string, b []byte, visit func(attr byte, v []byte)) error {
	for at := 0; at+4 <= len(b); {
		form, attr, size := b[at], b[at+1], int(le.Uint16(b[at+2:]))
		at += 4
		if form != infoSized {
			continue
		}
		if size > len(b)-at {
			return broken(at, "attribute of %d bytes in %s, %d are left", size, section, len(b)-at)
		}
		visit(attr, b[at:at+size])
		at += size
	}
	return nil
}
