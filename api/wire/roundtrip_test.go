package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api"
)

// structure is one of this package's, by its name in wire.spec; the generated table has all of them.
type structure struct {
	name string
	view func(b []byte) (v any, again, rest []byte, ok bool)
}

func view[T any](b []byte) (any, []byte, []byte, bool) {
	v, rest, ok := View[T](b)
	if !ok {
		return nil, nil, nil, false
	}
	return *v, Bytes(v), rest, true
}

// width is the size of a field's elements.
func width(ctype string) int {
	switch ctype {
	case "uint8_t":
		return 1
	case "uint16_t":
		return 2
	case "uint64_t", "int64_t":
		return 8
	}
	return 4
}

func elements(f api.Field) int {
	n := 1
	for _, d := range f.Array {
		n *= d
	}
	return n
}

// written are the bytes of a structure in which each element of each field has a value of its own.
func written(w api.WireStruct) []byte {
	b := make([]byte, w.Size)
	for i, f := range w.Fields {
		for k := range elements(f) {
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], value(i, k))
			copy(b[f.Offset+k*width(f.CType):][:width(f.CType)], word[:])
		}
	}
	return b
}

// value is that of an element of a field: not that of another one, no negative number and, as a float, a number.
func value(field, element int) uint64 {
	r := rand.New(rand.NewPCG(uint64(field), uint64(element)))
	return r.Uint64() & 0x3fff_ffff_3fff_ffff
}

func unnamed(f reflect.StructField) bool { return f.Name == "_" }

// fields are the values of a structure's fields, element by element, as Go sees them.
func fields(v reflect.Value) (out []uint64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !unnamed(v.Type().Field(i)) {
				out = append(out, fields(v.Field(i))...)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			out = append(out, fields(v.Index(i))...)
		}
	case reflect.Float32:
		var b [4]byte
		if _, err := binary.Encode(b[:], binary.LittleEndian, float32(v.Float())); err != nil {
			panic(err)
		}
		out = append(out, uint64(binary.LittleEndian.Uint32(b[:])))
	case reflect.Int32, reflect.Int64:
		out = append(out, uint64(v.Int()))
	default:
		out = append(out, v.Uint())
	}
	return out
}

// TestRoundTrip: what the description says of a structure, Go reads and writes the same, and takes nothing shorter.
func TestRoundTrip(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(structures) != len(spec.Wire) {
		t.Fatalf("%d structures in the table, %d in wire.spec", len(structures), len(spec.Wire))
	}
	for i, s := range structures {
		w := spec.Wire[i]
		if s.name != w.Name {
			t.Fatalf("%s in the table, %s in wire.spec", s.name, w.Name)
		}
		b := aligned(w.Size + 8)
		copy(b, written(w))
		v, again, rest, ok := s.view(b)
		if !ok || len(rest) != 8 || !bytes.Equal(again, b[:w.Size]) {
			t.Errorf("%s: read %t, %d bytes behind it; written again %x, was %x", s.name, ok, len(rest), again, b)
			continue
		}
		names := slices.DeleteFunc(reflect.VisibleFields(reflect.TypeOf(v)), unnamed)
		if len(names) != len(w.Fields) {
			t.Errorf("%s: %d fields, want %d", s.name, len(names), len(w.Fields))
			continue
		}
		for n, f := range w.Fields {
			if !strings.EqualFold(names[n].Name, strings.ReplaceAll(f.Name, "_", "")) {
				t.Errorf("%s: field %d is %s, want %s", s.name, n, names[n].Name, f.Name)
			}
		}
		var want []uint64
		for n, f := range w.Fields {
			for k := range elements(f) {
				want = append(want, value(n, k)&(1<<(8*width(f.CType))-1))
			}
		}
		if got := fields(reflect.ValueOf(v)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: its fields are %#x, want %#x", s.name, got, want)
		}
		if w.Size > 0 {
			if _, _, _, ok := s.view(b[:w.Size-1]); ok {
				t.Errorf("%s: too short a payload was read", s.name)
			}
		}
	}
}

// TestFrontWritesTheSame: a structure that the C front fills lies in memory as the description says.
func TestFrontWritesTheSame(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	var program strings.Builder
	program.WriteString("#include \"wire_gen.h\"\n#include <stdio.h>\n#include <string.h>\nint main(void) {\n")
	var want []byte
	for _, w := range spec.Wire {
		if w.Size == 0 {
			continue
		}
		want = append(want, written(w)...)
		fmt.Fprintf(&program, "  { struct wire_%s v; memset(&v, 0, sizeof v);\n", w.Name)
		for i, f := range w.Fields {
			for k := range elements(f) {
				fmt.Fprintf(&program, "    memcpy((char *)&v.%s + %d * sizeof(%s), (uint64_t[]){%#x}, sizeof(%s));\n",
					f.Name, k, f.CType, value(i, k), f.CType)
			}
		}
		program.WriteString("    fwrite(&v, sizeof v, 1, stdout); }\n")
	}
	program.WriteString("}\n")
	folder := t.TempDir()
	source, binary := filepath.Join(folder, "write.c"), filepath.Join(folder, "write")
	if err := os.WriteFile(source, []byte(program.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	header := exec.Command("go", "run", "./api/gen", "-build")
	header.Dir = "../.."
	if out, err := header.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cc := exec.Command("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", binary, source)
	cc.Args = append(cc.Args, "-I", "../../shim/front/gen")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := exec.Command(binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range spec.Wire {
		n := min(w.Size, len(got))
		if !bytes.Equal(got[:n], want[:w.Size]) {
			t.Fatalf("%s: the C front writes %x, want %x", w.Name, got[:n], want[:w.Size])
		}
		got, want = got[n:], want[w.Size:]
	}
	if len(got) > 0 {
		t.Errorf("%d bytes more than were described", len(got))
	}
}
