// Package fatbin reads the images that CUDA programs hand to the driver: fat binaries, cubins (ELF) and PTX text.
//
// A *fatbin* is a container: a header and members, each a cubin for one architecture or PTX text, plain or compressed.
// [Parse] takes an image whose bounds are known; [FromMemory] finds the bounds of an image of which only the address is
// known, which is what programs pass, often as a *wrapper* that points to the fatbin. [Select] shrinks an image to what
// a given GPU can use. [Params] gives the parameter layouts of a cubin's kernels.
//
// Everything is bounds-checked: garbage gives an error that wraps [ErrFormat], never a panic, and nothing is allocated
// on an image's mere promise.
package fatbin

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Errors.
var (
	ErrFormat = errors.New("not a CUDA image") // neither fatbin, cubin nor PTX, or a broken one
	// a member is compressed in a way that this package does not know
	ErrCompression = errors.New("unsupported compression")
	ErrNoMatch     = errors.New("no code for this GPU") // an image without a member that the GPU could use
	ErrTooLarge    = errors.New("image too large")      // beyond MaxImage
)

// FormatError says what is wrong with an image.
type FormatError struct {
	Offset int
	Detail string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("broken CUDA image at byte %d: %s", e.Offset, e.Detail)
}
func (e *FormatError) Unwrap() error { return ErrFormat }

func broken(off int, format string, args ...any) error {
	return &FormatError{Offset: off, Detail: fmt.Sprintf(format, args...)}
}

// MaxImage bounds an image and each of its members after decompression.
const MaxImage = 2 << 30

const (
	magicWrapper  = 0x466243B1
	magicFatbin   = 0xBA55ED50
	magicAncient  = 0x1EE55A01
	magicELF      = "\x7fELF"
	headerSize    = 16
	memberMinSize = 64
)

var le = binary.LittleEndian

// Kind is what a member holds.
type Kind uint16

// Kinds of members; others exist and are kept as they are.
const (
	PTX Kind = 1
	ELF Kind = 2
)

func (k Kind) String() string {
	switch k {
	case PTX:
		return "PTX"
	case ELF:
		return "ELF"
	}
	return fmt.Sprintf("kind %d", uint16(k))
}

// Flags of a member.
const (
	Flag64Bit         = 0x1
	FlagDebug         = 0x2
	FlagLinux         = 0x10
	FlagOldCompressed = 0x1000
	FlagLZ4           = 0x2000
	FlagZstd          = 0x8000
)

// Format is the outer form of an image.
type Format int

// Formats.
const (
	FormatFatbin Format = iota + 1
	FormatELF
	FormatPTX
)

// Member is one entry of a fatbin, or the whole of an ELF or PTX image.
type Member struct {
	Kind       Kind
	Arch       uint32 // 90 for sm_90; 0 where a bare PTX image does not say
	PTXVersion uint32 // major<<16 | minor
	Flags      uint64
	Size       uint64 // after decompression
	Payload    []byte // as stored, without padding
	raw        []byte // header and padded payload
}

// Image is a parsed image. Its members point into the bytes that were parsed.
type Image struct {
	Format  Format
	Members []Member
	Bytes   []byte // the image itself, without what follows it; PTX text with its NUL, as drivers want it
}

// Parse reads an image that lies in b. Bytes behind it are ignored, but several fatbins in a row (the linker
// concatenates them) are read as one.
func Parse(b []byte) (*Image, error) {
	switch {
	case len(b) >= 4 && le.Uint32(b) == magicFatbin:
		return parseFatbins(b)
	case bytes.HasPrefix(b, []byte(magicELF)):
		n, err := elfSize(b)
		if err != nil {
			return nil, err
		}
		if n > uint64(len(b)) {
			return nil, broken(len(b), "the ELF file has %d bytes by its headers, there are %d", n, len(b))
		}
		b = b[:n:n]
		m := Member{Kind: ELF, Arch: elfArch(b), Flags: Flag64Bit, Size: n, Payload: b}
		return &Image{Format: FormatELF, Members: []Member{m}, Bytes: b}, nil
	case len(b) >= 4 && le.Uint32(b) == magicAncient:
		return nil, broken(0, "fatbin of the format before CUDA 4, which no current driver loads")
	case len(b) >= 4 && le.Uint32(b) == magicWrapper:
		return nil, broken(0, "a wrapper holds addresses and means nothing outside its process")
	}
	return parsePTX(b)
}

// Binary says whether an image is one of the forms with headers, which need no NUL at their end.
func Binary(b []byte) bool {
	return bytes.HasPrefix(b, []byte(magicELF)) || len(b) >= 4 && le.Uint32(b) == magicFatbin
}

// Check says what keeps an image from a driver that is not told its size, as cuModuleLoadData is not: headers that
// promise more than there is, in the image itself or in a cubin that it holds uncompressed. Text passes, whatever it
// says: a driver reads it up to its NUL.
func Check(b []byte) error {
	if len(b) == 0 {
		return broken(0, "an empty image")
	}
	if !Binary(b) {
		return nil
	}
	img, err := Parse(b)
	if err != nil {
		return err
	}
	for i := range img.Members {
		m := &img.Members[i]
		if m.Kind != ELF || m.Compressed() {
			continue
		}
		if n, err := elfSize(m.Payload); err != nil || n > uint64(len(m.Payload)) {
			return cmp.Or(err,
				broken(0, "member %d is an ELF file of %d bytes by its headers, there are %d", i, n, len(m.Payload)))
		}
	}
	return nil
}

func parseFatbins(b []byte) (*Image, error) {
	img := &Image{Format: FormatFatbin}
	off := 0
	for off == 0 || len(b)-off >= headerSize && le.Uint32(b[off:]) == magicFatbin {
		n, err := fatbinSize(b[off:])
		if err != nil {
			return nil, err
		}
		if n > uint64(len(b)-off) {
			return nil, broken(off, "the fatbin has %d bytes by its header, there are %d", n, len(b)-off)
		}
		end := off + int(n)
		at := off + int(le.Uint16(b[off+6:]))
		for at < end {
			m, err := parseMember(b[at:end], at)
			if err != nil {
				return nil, err
			}
			img.Members = append(img.Members, m)
			at += len(m.raw)
		}
		off = end
	}
	img.Bytes = b[:off:off]
	return img, nil
}

// fatbinSize gives the size of the fatbin whose header b starts with.
func fatbinSize(b []byte) (uint64, error) {
	if len(b) < headerSize {
		return 0, broken(0, "fatbin header of %d bytes, it needs %d", len(b), headerSize)
	}
	hs, fs := le.Uint16(b[6:]), le.Uint64(b[8:])
	if hs < headerSize || hs%8 != 0 {
		return 0, broken(6, "fatbin header size %d", hs)
	}
	if fs > MaxImage {
		return 0, fmt.Errorf("%w: a fatbin of %d bytes, the limit is %d", ErrTooLarge, fs, MaxImage)
	}
	return uint64(hs) + fs, nil
}

func parseMember(b []byte, off int) (Member, error) {
	if len(b) < memberMinSize {
		return Member{}, broken(off, "member header of %d bytes, it needs %d", len(b), memberMinSize)
	}
	hs, padded := uint64(le.Uint32(b[4:])), uint64(le.Uint32(b[8:]))
	stored := uint64(le.Uint32(b[16:]))
	m := Member{
		Kind: Kind(le.Uint16(b)), PTXVersion: le.Uint32(b[24:]), Arch: le.Uint32(b[28:]), Flags: le.Uint64(b[40:]),
		Size: le.Uint64(b[56:]),
	}
	if hs < memberMinSize || hs+padded > uint64(len(b)) {
		return Member{}, broken(off, "member of %d+%d bytes, %d are left", hs, padded, len(b))
	}
	if stored > padded {
		return Member{}, broken(off, "member with %d bytes of payload in %d", stored, padded)
	}
	if !m.Compressed() {
		stored, m.Size = padded, padded
	} else if stored == 0 {
		stored = padded
	}
	if m.Size > MaxImage {
		return Member{}, fmt.Errorf("%w: a member of %d bytes, the limit is %d", ErrTooLarge, m.Size, MaxImage)
	}
	m.raw = b[: hs+padded : hs+padded]
	m.Payload = b[hs : hs+stored : hs+stored]
	return m, nil
}

func parsePTX(b []byte) (*Image, error) {
	text, whole := b, []byte(nil)
	if i := bytes.IndexByte(b, 0); i >= 0 {
		text, whole = b[:i:i], b[:i+1:i+1]
	}
	if !looksLikePTX(text) {
		return nil, broken(0, "neither fatbin, ELF nor PTX text")
	}
	if whole == nil {
		whole = append(bytes.Clone(text), 0)
	}
	m := Member{Kind: PTX, Arch: ptxArch(text), Size: uint64(len(text)), Payload: text}
	return &Image{Format: FormatPTX, Members: []Member{m}, Bytes: whole}, nil
}

func looksLikePTX(b []byte) bool {
	head := b[:min(len(b), 4096)]
	for _, c := range head {
		if c < ' ' && c != '\n' && c != '\t' && c != '\r' && c != '\f' && c != '\v' {
			return false
		}
	}
	head = bytes.TrimLeft(head, " \t\r\n\f\v")
	return bytes.HasPrefix(head, []byte(".")) || bytes.HasPrefix(head, []byte("/"))
}

// ptxArch reads the architecture from the text's ".target sm_90a" line.
func ptxArch(b []byte) uint32 {
	arch, _ := ptxTarget(b)
	return arch
}

// ptxTarget reads the architecture and the letter behind it, 90 and 'a' for ".target sm_90a"; 0 where there is none.
func ptxTarget(b []byte) (arch uint32, letter byte) {
	i := bytes.Index(b, []byte(".target"))
	if i < 0 {
		return 0, 0
	}
	line := b[i:min(len(b), i+256)]
	_, after, ok := bytes.Cut(line, []byte("sm_"))
	if !ok {
		return 0, 0
	}
	for _, c := range after {
		if c < '0' || c > '9' || arch > 9999 {
			if c == 'a' || c == 'f' {
				letter = c
			}
			break
		}
		arch = arch*10 + uint32(c-'0')
	}
	return arch, letter
}

// runsOn says whether a PTX text may be translated for arch: for its own and all later ones, with an "a" behind the
// target for its own alone, with an "f" for those of its family.
func runsOn(text []byte, arch uint32) bool {
	target, letter := ptxTarget(text)
	switch letter {
	case 'a':
		return target == arch
	case 'f':
		return target <= arch && target/10 == arch/10
	}
	return target <= arch
}

// Compressed says whether [Member.Data] has to decompress.
func (m *Member) Compressed() bool { return m.Flags&(FlagOldCompressed|FlagLZ4|FlagZstd) != 0 }

// Major and Minor split the architecture: 9 and 0 for sm_90, 10 and 3 for sm_103.
func (m *Member) Major() uint32 { return m.Arch / 10 }

// Minor is the last digit of the architecture.
func (m *Member) Minor() uint32 { return m.Arch % 10 }

// PTX gives the text of the PTX member with the highest architecture that a GPU of arch (90 for 9.0) can run.
func (img *Image) PTX(arch uint32) ([]byte, error) {
	var candidates []*Member
	for i := range img.Members {
		if m := &img.Members[i]; m.Kind == PTX && m.Arch <= arch {
			candidates = append(candidates, m)
		}
	}
	slices.SortStableFunc(candidates, func(a, b *Member) int { return cmp.Compare(b.Arch, a.Arch) })
	for _, m := range candidates {
		text, err := m.Data()
		if err != nil || runsOn(text, arch) {
			return text, err
		}
	}
	return nil, fmt.Errorf("%w: no PTX for sm_%d or older", ErrNoMatch, arch)
}
