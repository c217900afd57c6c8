package fatbin

import (
	"bytes"
	"strconv"
	"strings"
)

// Block is the shape of blocks that a kernel was made for (.reqntid): threads in x, y and z.
type Block [3]uint32

// Findings are what the code of an image tells beyond what a driver does.
type Findings struct {
	Uses   []bool           // whether it refers to each of the symbols that were looked for
	Blocks map[string]Block // kernels that take blocks of one shape only; nil when there are none
}

// Scan goes through all code of the image: whether it refers to symbols that the image does not define by itself, such
// as vprintf, and which kernels were made for one shape of blocks. A name in a comment of PTX counts as well.
func Scan(img *Image, symbols ...string) (found Findings, err error) {
	found.Uses = make([]bool, len(symbols))
	if img.Format != FormatFatbin {
		kind := PTX
		if img.Format == FormatELF {
			kind = ELF
		}
		return found, found.add(img.Bytes, kind, symbols)
	}
	for i := range img.Members {
		m := &img.Members[i]
		b, err := m.Data()
		if err != nil {
			return found, err
		}
		if err := found.add(b, m.Kind, symbols); err != nil {
			return found, err
		}
	}
	return found, nil
}

func (f *Findings) add(b []byte, kind Kind, symbols []string) error {
	look := func(text []byte, around string) {
		for i, symbol := range symbols {
			f.Uses[i] = f.Uses[i] || bytes.Contains(text, []byte(around+symbol+around))
		}
	}
	if kind != ELF {
		look(b, "")
		f.ptxBlocks(b)
		return nil
	}
	err := sections(b, ".strtab", func(_ string, names []byte) error {
		look(names, "\x00")
		return nil
	})
	if err != nil {
		return err
	}
	return sections(b, infoPrefix, func(section string, b []byte) error {
		return infoAttributes(section, b, func(attr byte, v []byte) {
			if attr == infoBlock && len(v) >= 12 {
				f.block(strings.TrimPrefix(section, infoPrefix), Block{le.Uint32(v), le.Uint32(v[4:]), le.Uint32(v[8:])})
			}
		})
	})
}

func (f *Findings) block(kernel string, b Block) {
	if f.Blocks == nil {
		f.Blocks = map[string]Block{}
	}
	f.Blocks[kernel] = b
}

// ptxBlocks looks between the name of each entry and its body.
func (f *Findings) ptxBlocks(text []byte) {
	entry, directive := []byte(".entry"), []byte(".reqntid")
	if !bytes.Contains(text, directive) {
		return
	}
	for {
		_, rest, ok := bytes.Cut(text, entry)
		if !ok {
			return
		}
		head, _, _ := bytes.Cut(rest, []byte("{"))
		text = rest[len(head):]
		before, after, ok := bytes.Cut(head, directive)
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSpace(string(before)), "(")
		b := Block{1, 1, 1}
		for i, word := range strings.SplitN(string(after), ",", len(b)) {
			word = strings.TrimSpace(word)
			if end := strings.IndexFunc(word, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
				word = word[:end]
			}
			n, err := strconv.ParseUint(word, 10, 32)
			if err != nil {
				break
			}
			b[i] = uint32(n)
		}
		if words := strings.Fields(name); len(words) > 0 {
			f.block(words[0], b)
		}
	}
}
