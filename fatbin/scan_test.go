package fatbin

import (
	"bytes"
	"maps"
	"os"
	"testing"
)

func TestScanUses(t *testing.T) {
	image := func(name string) []byte {
		b, err := os.ReadFile("../testdata/kernels/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		name   string
		image  []byte
		symbol string
		want   bool
	}{
		{"PTX that prints", append(image("print.ptx"), 0), "vprintf", true},
		{"PTX that does not", append(image("kernels.ptx"), 0), "vprintf", false},
		{"compressed fatbin without it", image("kernels.fatbin"), "vprintf", false},
		{"compressed fatbin with a kernel", image("kernels.fatbin"), "vector_add", true},
		{"plain fatbin with a kernel", image("kernels-uncompressed.fatbin"), "vector_add", true},
		{"a part of a name", image("kernels-uncompressed.fatbin"), "vector_ad", true}, // in its PTX
	} {
		img, err := Parse(c.image)
		if err != nil {
			t.Fatal(c.name, err)
		}
		got, err := Scan(img, c.symbol)
		if err != nil || got.Uses[0] != c.want || got.Blocks != nil {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
		for i := range img.Members {
			if m := &img.Members[i]; m.Kind == ELF { // a cubin by itself: whole names only
				b, err := m.Data()
				if err != nil {
					t.Fatal(err)
				}
				elf, err := Parse(b)
				if err != nil {
					t.Fatal(err)
				}
				for symbol, want := range map[string]bool{"vector_add": true, "vector_ad": false, "vprintf": false} {
					if got, err := Scan(elf, symbol); err != nil || got.Uses[0] != want {
						t.Errorf("%s, cubin, %s: %v, %v", c.name, symbol, got, err)
					}
				}
			}
		}
	}
}

func TestScanBlocks(t *testing.T) {
	for _, c := range []struct {
		name, ptx string
		want      map[string]Block
	}{
		{"none", ".visible .entry a() { ret; }", nil},
		{"bounds are no shapes", ".visible .entry a() .maxntid 64, 2, 1 { ret; }", nil},
		{"three, one and two numbers", ".entry a().reqntid 32, 2, 4 {ret;}\n.entry b(\n .param .u64 p\n)\n.reqntid 128\n" +
			"{ ret; }.entry c() .reqntid 8,4\n.minnctapersm 2 {}",
			map[string]Block{"a": {32, 2, 4}, "b": {128, 1, 1}, "c": {8, 4, 1}}},
		{"one of two", ".entry plain() { ret; }\n.entry b() .reqntid 16 { ret; }", map[string]Block{"b": {16, 1, 1}}},
		{"broken off", ".entry a() .reqntid", map[string]Block{"a": {1, 1, 1}}},
		{"without a name", ".entry .reqntid 4 {", nil},
	} {
		got, err := Scan(&Image{Format: FormatPTX, Bytes: []byte(c.ptx)}, "vprintf")
		if err != nil || !maps.Equal(got.Blocks, c.want) {
			t.Errorf("%s: %v, %v", c.name, got.Blocks, err)
		}
	}
	// A cubin whose parameters' attributes are turned into shapes.
	b, err := os.ReadFile("../testdata/kernels/kernels-uncompressed.fatbin")
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.ReplaceAll(b, []byte{infoSized, infoKernelArgs, 12, 0}, []byte{infoSized, infoBlock, 12, 0})
	img, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Scan(img, "vprintf")
	if _, ok := got.Blocks["vector_add"]; err != nil || !ok {
		t.Errorf("cubin: %v, %v", got.Blocks, err)
	}
}
