package api

import (
	"strings"
	"testing"
)

// TestDigest: what changes the bytes of a session changes the digest, and nothing else does.
func TestDigest(t *testing.T) {
	const facts = "facts/cuda-driver-api.json"
	before := load(t)
	if len(before.layout()) < 700 {
		t.Errorf("the layout has %d lines", len(before.layout()))
	}
	for _, c := range []struct {
		what    string
		edit    []string
		changes bool
	}{
		{"a comment in semantics", []string{"cuda.semantics", "\nwrites ", "\n# what is written\nwrites "}, false},
		{"a comment in NVML's semantics", []string{"nvml.semantics", "# Flags: versioned", "# Flags: Versioned"}, false},
		{"a comment in wire.spec", []string{
			"wire.spec", "# function or kernel handle", "# a function's or a kernel's handle",
		}, false},
		{"a reason's text", []string{"cuda.semantics", "reason multicast multicast", "reason multicast Multicast"}, false},
		{"a class of counting", []string{"cuda.semantics", "group fill cuMemset", "group filling cuMemset"}, false},
		{"a hook of the front", []string{"cuda.semantics", "cuMemsetD8_v2 async pre takes", "cuMemsetD8_v2 async takes"},
			false},
		{"who carries it out", []string{"cuda.semantics", "cuStreamQuery sync server", "cuStreamQuery sync"}, false},
		{"whether it is answered", []string{"cuda.semantics", "cuMemsetD8_v2 async", "cuMemsetD8_v2 sync"}, false},
		{"the order in wire.spec", []string{"wire.spec", "struct thread_exit op 0xF00C contextless",
			"struct ping op 0xF00D contextless\n  u64 reserved\nstruct thread_exit op 0xF00C contextless",
			"wire.spec", "\nstruct ping op 0xF00D contextless\n  u64 reserved\nstruct pointer", "\nstruct pointer"}, false},
		{"a function that is not on the wire",
			[]string{"facts/libcuda-exports.txt", "cuArrayCreate\n", "cuArrayCreate\ncuAAA\n",
				"cuda.semantics", "cuArrayCreate ", "cuAAA local\ncuArrayCreate "}, false},
		{"a record that does not travel", []string{facts, `"decl": "unsigned int flags"`, `"decl": "unsigned int marks"`},
			false},

		{"a field added", []string{
			"wire.spec", "struct primary op 0xF00A contextless", "struct primary op 0xF00A contextless\n  u64 more",
		}, true},
		{"fields of one type that change places", []string{
			"wire.spec", "u32[3] grid\n  u32[3] block", "u32[3] block\n  u32[3] grid",
		}, true},
		{"a flag's value", []string{"wire.spec", "  cooperative 1", "  cooperative 2"}, true},
		{"a bound", []string{"wire.spec", "const max_command 1<<20", "const max_command 1<<21"}, true},
		{"what follows the fields", []string{"wire.spec", "then param_bytes bytes", "then param_bytes*2 bytes"}, true},
		{"an operation's number", []string{"wire.spec", "struct order op 0xF026", "struct order op 0xFF30"}, true},
		{"a function's number", []string{operationsFile, "cuda\t324\t", "cuda\t1367\t"}, true},
		{"a direction", []string{
			"cuda.semantics", "cuStreamGetAttribute sync value:out!", "cuStreamGetAttribute sync value:inout",
		}, true},
		{"a count", []string{"cuda.semantics", "dependencies:in[numDependencies]", "dependencies:in[2]"}, true},
		{"outputs with failures", []string{
			"cuda.semantics", "instantiateParams:inout outs_on_error", "instantiateParams:inout",
		}, true},
		{"a size in the first word", []string{"nvml.semantics", "mode:inout versioned", "mode:inout"}, true},
		{"the size of a type", []string{facts, `"CUdeviceptr_v2": "unsigned long long"`, `"CUdeviceptr_v2": "unsigned int"`},
			true},
		{"a function that is on the wire now", []string{
			"cuda.semantics", "cuArrayCreate refused:narrow CUDA_ERROR_INVALID_CONTEXT", "cuArrayCreate sync",
		}, true},
	} {
		after, err := loadFrom(edited(t, c.edit...))
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if (after.Digest != before.Digest) != c.changes {
			t.Errorf("%s: the digest changes is %v", c.what, !c.changes)
		}
	}
}

// TestRecordLayouts: a field of a record that travels is in the layout, of one inside another record too.
func TestRecordLayouts(t *testing.T) {
	lib := load(t).CUDA
	copy3d := lib.Struct("CUDA_MEMCPY3D")
	before := lib.recordLayout(copy3d)
	if !strings.HasPrefix(before, "{200 0:uint64 8:uint64") {
		t.Errorf("layout %.60s", before)
	}
	copy3d.Fields = append(copy3d.Fields, Field{Name: "more", CType: "size_t", Offset: 200})
	if lib.recordLayout(copy3d) == before {
		t.Error("a field more changes nothing")
	}
	desc := lib.Struct("CUDA_RESOURCE_DESC_v1")
	if desc == nil {
		t.Fatal("no CUDA_RESOURCE_DESC_v1")
	}
	before = lib.recordLayout(desc)
	for i, f := range desc.Fields {
		if f.Sub != nil {
			desc.Fields[i].Sub.Fields[0].Offset++
		}
	}
	if lib.recordLayout(desc) == before {
		t.Error("a field that moves inside a union changes nothing")
	}
}
