package fatbin

import "bytes"

// Uses says whether code of the image refers to a symbol that the image does not define by itself, such as vprintf. A name in a comment of PTX counts as well.
func Uses(img *Image, symbol string) (bool, error) {
	switch img.Format {
	case FormatFatbin:
		for i := range img.Members {
			m := &img.Members[i]
			b, err := m.Data()
			if err != nil {
				return false, err
			}
			if found, err := uses(b, m.Kind, symbol); found || err != nil {
				return found, err
			}
		}
		return false, nil
	case FormatELF:
		return uses(img.Bytes, ELF, symbol)
	}
	return uses(img.Bytes, PTX, symbol)
}

func uses(b []byte, kind Kind, symbol string) (found bool, err error) {
	if kind != ELF {
		return bytes.Contains(b, []byte(symbol)), nil
	}
	name := append(append([]byte{0}, symbol...), 0)
	err = sections(b, ".strtab", func(_ string, names []byte) error {
		found = found || bytes.Contains(names, name)
		return nil
	})
	return found, err
}
