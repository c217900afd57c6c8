package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

const kernels = "../testdata/kernels/"

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(kernels + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// entry describes a member of a fatbin made by build.
type entry struct {
	kind, arch int
	flags      uint64
	data       []byte
	size       int // after decompression; 0: plain
}

func build(entries ...entry) []byte {
	var body []byte
	for _, e := range entries {
		padded := (len(e.data) + 7) &^ 7
		h := make([]byte, memberMinSize)
		binary.LittleEndian.PutUint16(h, uint16(e.kind))
		binary.LittleEndian.PutUint16(h[2:], 0x101)
		binary.LittleEndian.PutUint32(h[4:], memberMinSize)
		binary.LittleEndian.PutUint32(h[8:], uint32(padded))
		if e.size > 0 {
			binary.LittleEndian.PutUint32(h[16:], uint32(len(e.data)))
			binary.LittleEndian.PutUint64(h[56:], uint64(e.size))
		}
		binary.LittleEndian.PutUint32(h[28:], uint32(e.arch))
		binary.LittleEndian.PutUint64(h[40:], e.flags)
		body = append(append(body, h...), append(bytes.Clone(e.data), make([]byte, padded-len(e.data))...)...)
	}
	b := binary.LittleEndian.AppendUint32(nil, magicFatbin)
	b = binary.LittleEndian.AppendUint32(b, 1|headerSize<<16)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(body)))
	return append(b, body...)
}

type summary struct {
	Kind Kind
	Arch uint32
	Zip  bool
}

func summarise(img *Image) []summary {
	var s []summary
	for i := range img.Members {
		m := &img.Members[i]
		s = append(s, summary{m.Kind, m.Arch, m.Compressed()})
	}
	return s
}

func TestParseNvccFatbins(t *testing.T) {
	ptx := bytes.TrimRight(read(t, "kernels.ptx"), "\x00")
	for name, want := range map[string][]summary{
		"kernels.fatbin":              {{ELF, 75, false}, {PTX, 90, true}, {ELF, 90, false}},
		"kernels-uncompressed.fatbin": {{PTX, 90, false}, {ELF, 90, false}},
	} {
		img, err := Parse(read(t, name))
		if err != nil {
			t.Fatal(name, err)
		}
		if d := cmp.Diff(want, summarise(img)); d != "" {
			t.Error(name, d)
		}
		text, err := img.PTX(90)
		if err != nil {
			t.Fatal(name, err)
		}
		for _, kernel := range []string{".entry vector_add", ".entry struct_arg", ".target sm_90"} {
			if !bytes.Contains(text, []byte(kernel)) || !bytes.Contains(ptx, []byte(kernel)) {
				t.Errorf("%s: PTX without %q", name, kernel)
			}
		}
		if _, err := img.PTX(80); !errors.Is(err, ErrNoMatch) {
			t.Errorf("%s: PTX for sm_80: %v", name, err)
		}
	}
}

// TestPTXTargets: the newest text that a GPU can run, which a letter behind the target may forbid.
func TestPTXTargets(t *testing.T) {
	member := func(target string, arch uint32) Member {
		text := []byte(".version 8.0\n.target " + target + "\n")
		return Member{Kind: PTX, Arch: arch, Size: uint64(len(text)), Payload: text}
	}
	img := &Image{Format: FormatFatbin, Members: []Member{member("sm_80", 80), member("sm_90a", 90),
		member("sm_100f", 100), member("sm_90", 90), member("texmode_independent, sm_52", 52)}}
	for arch, want := range map[uint32]string{50: "", 75: "sm_52", 80: "sm_80", 89: "sm_80", 90: "sm_90a", 100: "sm_100f",
		103: "sm_100f", 120: "sm_90\n"} {
		text, err := img.PTX(arch)
		if want == "" && errors.Is(err, ErrNoMatch) {
			continue
		}
		if err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%d: %q %v, want %s", arch, text, err, want)
		}
	}
}

func cubin(t testing.TB, arch uint32) []byte {
	img, err := Parse(read(t, "kernels.fatbin"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range img.Members {
		if m := &img.Members[i]; m.Kind == ELF && m.Arch == arch {
			b, err := m.Data()
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Fatalf("no cubin for sm_%d", arch)
	return nil
}

func TestELF(t *testing.T) {
	for _, arch := range []uint32{75, 90} {
		b := cubin(t, arch)
		img, err := Parse(append(bytes.Clone(b), "trailing"...))
		if err != nil {
			t.Fatal(err)
		}
		if img.Format != FormatELF || img.Members[0].Arch != arch || !bytes.Equal(img.Bytes, b) {
			t.Errorf("sm_%d: format %v, sm_%d, %d of %d bytes", arch, img.Format, img.Members[0].Arch, len(img.Bytes), len(b))
		}
		if _, err := Parse(b[:len(b)-1]); !errors.Is(err, ErrFormat) {
			t.Errorf("sm_%d cut short: %v", arch, err)
		}
	}
}

func TestParams(t *testing.T) {
	for _, arch := range []uint32{75, 90} {
		got, err := Params(cubin(t, arch))
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string][]Param{
			"vector_add": {{0, 8}, {8, 8}, {16, 8}, {24, 4}},
			"half_axpy":  {{0, 2}, {8, 8}, {16, 8}, {24, 4}},
			"struct_arg": {{0, 528}, {528, 8}, {536, 8}, {544, 8}},
			"spin":       {{0, 8}},
		} {
			if d := cmp.Diff(want, got[name]); d != "" {
				t.Errorf("sm_%d %s: %s", arch, name, d)
			}
		}
		if len(got) != 12 {
			t.Errorf("sm_%d: %d kernels, expected 12", arch, len(got))
		}
	}
}

func TestCompression(t *testing.T) {
	text := []byte(".version 8.0\n.target sm_80\n" + strings.Repeat("// the same line again and again\n", 300))
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	zs := enc.EncodeAll(text, nil)
	lz := make([]byte, lz4.CompressBlockBound(len(text)))
	n, err := lz4.CompressBlock(text, lz, nil)
	if err != nil {
		t.Fatal(err)
	}
	lz = lz[:n]
	for _, c := range []struct {
		name string
		e    entry
		want error
	}{
		{"plain", entry{1, 80, 0x11, text, 0}, nil},
		{"zstd", entry{1, 80, 0x8011, zs, len(text)}, nil},
		{"lz4", entry{1, 80, 0x2011, lz, len(text)}, nil},
		{"zstd, wrong size", entry{1, 80, 0x8011, zs, len(text) + 1}, ErrFormat},
		{"lz4, wrong size", entry{1, 80, 0x2011, lz, len(text) + 1}, ErrFormat},
		{"lz4, too small a size", entry{1, 80, 0x2011, lz, len(text) - 1}, ErrFormat},
		{"lz4 bomb", entry{1, 80, 0x2011, lz[:8], MaxImage}, ErrFormat},
		{"zstd cut", entry{1, 80, 0x8011, zs[:len(zs)/2], len(text)}, ErrFormat},
		{"unknown", entry{1, 80, 0x1011, lz, len(text)}, ErrCompression},
	} {
		t.Run(c.name, func(t *testing.T) {
			img, err := Parse(build(c.e))
			if err != nil {
				t.Fatal(err)
			}
			got, err := img.Members[0].Data()
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, expected %v", err, c.want)
			}
			if c.want == nil && !bytes.Equal(got, text) {
				t.Fatalf("%d bytes, expected %d", len(got), len(text))
			}
		})
	}
}

func TestSelect(t *testing.T) {
	exact := cubin(t, 90)
	accel := bytes.Clone(exact)
	accel[48] |= flagAccelV2
	elf := func(arch int) entry { return entry{2, arch, 0x11, exact, 0} }
	ptx := func(arch int) entry { return entry{1, arch, 0x11, []byte(".version 8.0\n"), 0} }
	for _, c := range []struct {
		name string
		in   []entry
		arch uint32
		want []summary // nil: ErrNoMatch
	}{
		{"exact wins, PTX stays", []entry{elf(75), elf(80), elf(90), ptx(90)}, 90,
			[]summary{{ELF, 90, false}, {PTX, 90, false}}},
		{"older minor of the family", []entry{elf(75), elf(80), elf(90)}, 86, []summary{{ELF, 80, false}}},
		{"newer minor does not run", []entry{elf(86), ptx(75)}, 80, []summary{{PTX, 75, false}}},
		{"PTX too new", []entry{elf(75), ptx(90)}, 80, nil},
		{"only PTX", []entry{ptx(50), ptx(70)}, 90, []summary{{PTX, 50, false}, {PTX, 70, false}}},
		{"best PTX beside the exact cubin", []entry{ptx(50), ptx(70), elf(90)}, 90,
			[]summary{{PTX, 70, false}, {ELF, 90, false}}},
		{"two cubins of the same kind", []entry{elf(90), elf(90), elf(75)}, 90,
			[]summary{{ELF, 90, false}, {ELF, 90, false}}},
		{"90a on 90", []entry{{2, 90, 0x11, accel, 0}}, 90, []summary{{ELF, 90, false}}},
		{"90a on a later member", []entry{{2, 90, 0x11, accel, 0}, ptx(80)}, 93, []summary{{PTX, 80, false}}},
		{"unknown kind stays", []entry{{8, 90, 0, []byte("lto"), 0}, elf(75), elf(90)}, 90,
			[]summary{{8, 90, false}, {ELF, 90, false}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			img, err := Parse(build(c.in...))
			if err != nil {
				t.Fatal(err)
			}
			b, err := Select(img, c.arch)
			if c.want == nil {
				if !errors.Is(err, ErrNoMatch) {
					t.Fatalf("error %v, expected ErrNoMatch", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, summarise(got)); d != "" {
				t.Error(d)
			}
		})
	}
	img, err := Parse(read(t, "kernels.fatbin"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := Select(img, 90); err != nil || len(b) >= len(img.Bytes)*2/3 {
		t.Errorf("nvcc's fatbin shrinks from %d to %d bytes, %v", len(img.Bytes), len(b), err)
	}
}

func TestConcatenatedFatbins(t *testing.T) {
	one, two := build(entry{2, 80, 0x11, []byte("cubin 80"), 0}), build(entry{2, 90, 0x11, []byte("cubin 90"), 0})
	img, err := Parse(append(append(bytes.Clone(one), two...), "rest"...))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]summary{{ELF, 80, false}, {ELF, 90, false}}, summarise(img)); d != "" {
		t.Error(d)
	}
	if len(img.Bytes) != len(one)+len(two) {
		t.Errorf("%d bytes, expected %d", len(img.Bytes), len(one)+len(two))
	}
}

func TestFromMemory(t *testing.T) {
	fat, elf := read(t, "kernels.fatbin"), cubin(t, 90)
	ptx := append(bytes.TrimRight(read(t, "kernels.ptx"), "\x00"), 0)
	two := append(bytes.Clone(fat), fat...)
	wrap := func(version uint32, b []byte) *wrapper {
		return &wrapper{magic: magicWrapper, version: version, data: unsafe.Pointer(&b[0])}
	}
	for _, c := range []struct {
		name string
		p    unsafe.Pointer
		size uint64
		want []byte
	}{
		{"fatbin", unsafe.Pointer(&fat[0]), 0, fat},
		{"fatbin followed by another one", unsafe.Pointer(&two[0]), 0, fat},
		{"two fatbins of known size", unsafe.Pointer(&two[0]), uint64(len(two)), two},
		{"cubin", unsafe.Pointer(&elf[0]), 0, elf},
		{"PTX", unsafe.Pointer(&ptx[0]), 0, ptx},
		{"PTX of known size without its end mark", unsafe.Pointer(&ptx[0]), uint64(len(ptx) - 1), ptx},
		{"wrapper", unsafe.Pointer(wrap(1, fat)), 0, fat},
		{"wrapper of version 2 with a cubin", unsafe.Pointer(wrap(2, elf)), 0, elf},
		{"wrapper of known size", unsafe.Pointer(wrap(1, fat)), 24, fat},
		{"NULL", nil, 0, nil},
		{"wrapper of version 3", unsafe.Pointer(wrap(3, fat)), 0, nil},
		{"empty text", unsafe.Pointer(&[]byte{0, 0}[0]), 0, nil},
		{"text", unsafe.Pointer(&[]byte("abc\x00")[0]), 0, nil},
		{"wrapper to itself", func() unsafe.Pointer {
			w := wrap(1, fat)
			w.data = unsafe.Pointer(w)
			return unsafe.Pointer(w)
		}(), 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			img, err := FromMemory(c.p, c.size)
			if c.want == nil {
				if !errors.Is(err, ErrFormat) {
					t.Fatalf("error %v, expected ErrFormat", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(img.Bytes, c.want) {
				t.Errorf("%d bytes, expected %d", len(img.Bytes), len(c.want))
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(read(f, "kernels.fatbin"))
	f.Add(read(f, "kernels-uncompressed.fatbin"))
	f.Add(cubin(f, 75))
	f.Add([]byte(".version 8.0\n.target sm_90a\n"))
	f.Add(build(entry{1, 80, 0x2011, []byte{0x10, 'a'}, 1}, entry{2, 90, 0x8011, []byte("x"), 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := Parse(b)
		if err != nil {
			return
		}
		for i := range img.Members {
			m := &img.Members[i]
			if m.Size > 64<<20 {
				continue // allowed, but slow here
			}
			if d, err := m.Data(); err == nil && m.Kind == ELF {
				_, _ = Params(d)
			}
		}
		for _, arch := range []uint32{75, 90, 100} {
			s, err := Select(img, arch)
			if err != nil {
				if !errors.Is(err, ErrNoMatch) {
					t.Fatal(err)
				}
				continue
			}
			if _, err := Parse(s); err != nil {
				t.Fatalf("the selection cannot be parsed: %v", err)
			}
		}
	})
}
