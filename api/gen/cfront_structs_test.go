package main

import (
	"strings"
	"testing"

	"scuda.dev/scuda/api"
)

// TestEndsOfCopies: a record whose two ends differ, or lack something, is refused; a record that stands for another one
// has its layout.
func TestEndsOfCopies(t *testing.T) {
	field := func(name, ctype string, offset int) api.Field {
		return api.Field{Name: name, CType: ctype, Offset: offset}
	}
	good := []api.Field{field("srcXInBytes", "size_t", 0), field("srcHost", "const void *", 8),
		field("dstXInBytes", "size_t", 16), field("dstHost", "void *", 24), field("WidthInBytes", "size_t", 32)}
	changed := func(i int, f api.Field) []api.Field {
		fields := append([]api.Field(nil), good...)
		fields[i] = f
		return fields
	}
	for _, c := range []struct {
		name   string
		fields []api.Field
		says   string
	}{
		{"both ends", good, ""},
		{"another name", changed(3, field("dstArray", "void *", 24)), "dstArray is not what the source has"},
		{"another place", changed(3, field("dstHost", "void *", 28)), "dstHost is not what the source has"},
		{"no destination", good[:2], "2 members of the source, 0 of the destination"},
	} {
		w := structWriter{&cfront{lib: spec(t).CUDA}, &buffer{}, nil}
		record := &api.Struct{Name: "COPY", Size: 40, Fields: c.fields}
		err := w.ends(record, "copy")
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
		if c.says == "" {
			want := "struct copy_end {\n  uint64_t x;\n  uint64_t host;\n};"
			if text := w.b.String(); !strings.Contains(text, want) || !strings.Contains(text, "uint64_t width;") {
				t.Errorf("%s: %s", c.name, text)
			}
		}
	}
	w := structWriter{&cfront{lib: spec(t).CUDA}, &buffer{}, nil}
	as := &api.Struct{Name: "COPY", Size: 40, Fields: good}
	if err := w.same(&api.Struct{Size: 40, Fields: changed(1, field("reserved0", "void *", 8))}, as); err != nil {
		t.Error(err)
	}
	if w.same(&api.Struct{Size: 48, Fields: good}, as) == nil ||
		w.same(&api.Struct{Size: 40, Fields: changed(1, field("srcHost", "void *", 12))}, as) == nil ||
		w.same(&api.Struct{Size: 40, Fields: changed(1, field("srcOther", "void *", 8))}, as) == nil ||
		w.same(&api.Struct{Size: 40, Fields: good[:4]}, as) == nil {
		t.Error("a record with another layout stands for this one")
	}
}

// TestPadding: what lies between the members of a record has members of its own.
func TestPadding(t *testing.T) {
	w := structWriter{&cfront{lib: spec(t).CUDA}, &buffer{}, nil}
	fields := []api.Field{{Name: "a", CType: "int"}, {Name: "b", CType: "CUstream", Offset: 8},
		{Name: "c", CType: "unsigned short", Offset: 16, Array: []int{3}}}
	if err := w.body(fields, false, 24, ""); err != nil {
		t.Fatal(err)
	}
	const want = "{\n  int32_t a;\n  uint8_t pad4[4];\n  uint64_t b;\n  uint16_t c[3];\n  uint8_t pad22[2];\n}"
	if got := w.b.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
