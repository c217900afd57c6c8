package fatbin

import (
	"os"
	"testing"
)

func TestUses(t *testing.T) {
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
		got, err := Uses(img, c.symbol)
		if err != nil || got != c.want {
			t.Errorf("%s: %v, %v", c.name, got, err)
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
					if got, err := Uses(elf, symbol); err != nil || got != want {
						t.Errorf("%s, cubin, %s: %v, %v", c.name, symbol, got, err)
					}
				}
			}
		}
	}
}
