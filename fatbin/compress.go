package fatbin

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// lz4Ratio is the most that LZ4 can expand: a byte of input stands for at most 255 bytes of output.
const lz4Ratio = 255

// zstdDecoder has no goroutines and little memory of its own; DecodeAll may be called concurrently.
var zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxImage))
})

// Data gives the member's contents, decompressed; PTX text comes without trailing NUL bytes. A plain member is not
// copied.
func (m *Member) Data() ([]byte, error) {
	b, err := m.decompress()
	if err != nil {
		return nil, err
	}
	switch m.Kind {
	case PTX:
		b = bytes.TrimRight(b, "\x00")
	case ELF:
		if n, err := elfSize(b); err == nil && n <= uint64(len(b)) {
			b = b[:n:n] // without padding
		}
	}
	return b, nil
}

func (m *Member) decompress() ([]byte, error) {
	switch {
	case !m.Compressed():
		return m.Payload, nil
	case m.Flags&FlagZstd != 0:
		return m.unzstd()
	case m.Flags&FlagLZ4 != 0:
		return m.unlz4()
	}
	return nil, fmt.Errorf("%w: %v member for sm_%d has flags %#x; rebuild the program with a newer CUDA toolkit",
		ErrCompression, m.Kind, m.Arch, m.Flags)
}

func (m *Member) unzstd() ([]byte, error) {
	dec, err := zstdDecoder()
	if err != nil {
		return nil, err
	}
	// The decoder grows its output as it goes; the promised size only serves as a first guess.
	out, err := dec.DecodeAll(m.Payload, make([]byte, 0, min(m.Size, uint64(len(m.Payload))*8)))
	if err != nil {
		return nil, broken(0, "zstd data of the %v member for sm_%d: %v", m.Kind, m.Arch, err)
	}
	if uint64(len(out)) != m.Size {
		return nil, broken(0, "the %v member for sm_%d has %d bytes, its header says %d", m.Kind, m.Arch, len(out), m.Size)
	}
	return out, nil
}

func (m *Member) unlz4() ([]byte, error) {
	if m.Size > uint64(len(m.Payload))*lz4Ratio {
		return nil, broken(0, "the %v member for sm_%d promises %d bytes from %d", m.Kind, m.Arch, m.Size, len(m.Payload))
	}
	out := make([]byte, m.Size)
	n, err := lz4.UncompressBlock(m.Payload, out)
	if err != nil {
		return nil, broken(0, "LZ4 data of the %v member for sm_%d: %v", m.Kind, m.Arch, err)
	}
	if uint64(n) != m.Size {
		return nil, broken(0, "the %v member for sm_%d has %d bytes, its header says %d", m.Kind, m.Arch, n, m.Size)
	}
	return out, nil
}
