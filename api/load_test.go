package api

import (
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api/codec"
)

func load(t testing.TB) *Spec {
	t.Helper()
	s, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLoad(t *testing.T) {
	s := load(t)
	for _, c := range []struct {
		lib                *Library
		funcs, pts, protos int // at least: new versions bring more
	}{{s.CUDA, 707, 99, 634 + 2}, {s.NVML, 404, 0, 401}} {
		pts, protos := 0, 0
		for _, fn := range c.lib.Funcs {
			if fn.PTSZ {
				pts++
			}
			if !fn.NoProto {
				protos++
			}
			if c.lib.ByName[fn.Name] != fn {
				t.Errorf("%s is listed twice", fn.Name)
			}
		}
		if len(c.lib.Funcs) < c.funcs || pts < c.pts || protos < c.protos {
			t.Errorf("%s: %d functions, %d per-thread forms, %d prototypes", c.lib.Soname, len(c.lib.Funcs), pts, protos)
		}
	}
	if s.Digest == [32]byte{} {
		t.Error("no digest")
	}
}

// Every function says what becomes of it, and operations have numbers of their own.
func TestClasses(t *testing.T) {
	s := load(t)
	for _, lib := range []*Library{s.CUDA, s.NVML} {
		ops := map[uint16]string{}
		for _, fn := range lib.Funcs {
			absent := fn.Class == Missing || fn.Class == Unsupported || fn.Class == Refused
			if absent && fn.Reason == "" {
				t.Errorf("%s is %v without a reason", fn.Name, fn.Class)
			}
			if onWire := !absent && fn.Class != Local; onWire != (fn.Op != 0) {
				t.Errorf("%s is %v and has operation %d", fn.Name, fn.Class, fn.Op)
			}
			if fn.PTSZ {
				base := lib.ByName[fn.Base]
				if base.Op != fn.Op || base.Class != fn.Class {
					t.Errorf("%s differs from its base", fn.Name)
				}
				continue
			}
			if fn.Op != 0 {
				if ops[fn.Op] != "" || fn.Op >= FirstWireOp {
					t.Errorf("%s and %s share operation %d", fn.Name, ops[fn.Op], fn.Op)
				}
				ops[fn.Op] = fn.Name
			}
		}
	}
	wire := map[uint16]bool{}
	for _, w := range s.Wire {
		if w.Op != 0 {
			if wire[w.Op] || w.Op < FirstWireOp {
				t.Errorf("%s: operation %#x", w.Name, w.Op)
			}
			wire[w.Op] = true
		}
	}
}

// What programs were measured to call is there.
func TestCallMixIsCovered(t *testing.T) {
	s := load(t)
	mix, err := os.ReadFile("facts/call-mix.json")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, fn := range s.CUDA.Funcs {
		if !strings.Contains(string(mix), `"`+fn.Name+`"`) {
			continue
		}
		found++
		if fn.Class == Missing || fn.Class == Unsupported {
			t.Errorf("%s is %v", fn.Name, fn.Class)
		}
	}
	if found != 98 {
		t.Errorf("%d of 98 functions", found)
	}
}

func TestParameters(t *testing.T) {
	lib := load(t).CUDA
	get := func(fn, param string) Param {
		i := slices.IndexFunc(lib.ByName[fn].Params, func(p Param) bool { return p.Name == param })
		if i < 0 {
			t.Fatalf("%s has no %s", fn, param)
		}
		return lib.ByName[fn].Params[i]
	}
	for _, c := range []struct {
		fn, param string
		dir       Dir
		count     string
		size      int
		handle    string
		goType    string
	}{
		{"cuMemAlloc_v2", "dptr", Out, "1", 8, "", "*CUdeviceptr"},
		{"cuMemAlloc_v2", "bytesize", Value, "", 8, "", "uint64"},
		{"cuStreamCreate", "phStream", New, "1", 8, "CUstream", "*CUstream"},
		{"cuStreamDestroy_v2", "hStream", Value, "", 8, "CUstream", "CUstream"},
		{"cuStreamGetCtx", "pctx", Ret, "1", 8, "CUcontext", "*CUcontext"},
		{"cuGraphGetNodes", "nodes", Ret, "*numNodes", 8, "CUgraphNode", "*CUgraphNode"},
		{"cuGraphAddEmptyNode", "dependencies", In, "numDependencies", 8, "CUgraphNode", "*CUgraphNode"},
		{"cuTensorMapEncodeTiled", "globalStrides", In, "tensorRank-1", 8, "", "*Cuuint64"},
		{"cuGraphInstantiate", "logBuffer", InOut, "bufferSize", 1, "", "unsafe.Pointer"},
		{"cuMemsetD8Async", "uc", Value, "", 1, "", "uint8"},
		{"cuModuleGetFunction", "name", Str, "1", 1, "", "unsafe.Pointer"},
		{"cuIpcOpenMemHandle_v2", "handle", Value, "", 64, "", "CUipcMemHandle"},
		{"cuStreamWaitEvent_ptsz", "hEvent", Value, "", 8, "CUevent", "CUevent"},
	} {
		p := get(c.fn, c.param)
		if p.Dir != c.dir || p.Count != c.count || p.Size != c.size || p.Handle != c.handle || p.GoType != c.goType {
			t.Errorf("%s %s: %v %q %d %q %q", c.fn, c.param, p.Dir, p.Count, p.Size, p.Handle, p.GoType)
		}
	}
	if !get("cuStreamDestroy_v2", "hStream").Delete || get("cuStreamQuery", "hStream").Delete {
		t.Error("which calls end a stream")
	}
	if !get("cuDeviceGetMemPool", "dev").Device {
		t.Error("a device is not marked")
	}
}

func TestPatches(t *testing.T) {
	lib := load(t).CUDA
	patches := func(fn string, i int) []Patch { return lib.ByName[fn].Params[i].Patch }
	tex := patches("cuTexObjectCreate", 1)
	if len(tex) != 2 || tex[0].Offset != 8 || tex[0].Handle != "CUarray" || tex[0].When == nil ||
		!slices.Equal(tex[0].When.Values, []int64{0}) ||
		tex[1].Handle != "CUmipmappedArray" || tex[1].When.Offset != 0 || !slices.Equal(tex[1].When.Values, []int64{1}) {
		t.Errorf("texture: %+v", tex)
	}
	access := patches("cuMemSetAccess", 2)
	if len(access) != 1 || access[0].Offset != 4 || access[0].Handle != "CUdevice" ||
		!slices.Equal(access[0].When.Values, []int64{1}) {
		t.Errorf("access: %+v", access)
	}
	prop := patches("cuMemCreate", 2)
	if len(prop) != 1 || prop[0].Offset != 12 || prop[0].When.Offset != 8 {
		t.Errorf("allocation: %+v %+v", prop, prop[0].When)
	}
	inst := patches("cuGraphInstantiateWithParams", 2)
	if len(inst) != 2 || inst[0].Handle != "CUstream" || inst[1].Handle != "CUgraphNode" || inst[0].When != nil {
		t.Errorf("instantiate: %+v", inst)
	}
	if r := lib.ByName["cuMemcpy2D_v2"].Params[0].Refuse; len(r) != 2 || r[0].Offset != 16 || r[1].Offset != 72 {
		t.Errorf("refusals: %+v", r)
	}
}

func TestWire(t *testing.T) {
	parsed, err := parseWire(
		"# comment\nstruct a op 0xF003 # doc\n  u8 x\n  u32[2] y   # z\n  u64 w\n  then w bytes, as they are\n  reply b\n" +
			"struct b\n  u64 v\n")
	if err != nil {
		t.Fatal(err)
	}
	ws := parsed.structs
	a := ws[0]
	if a.Size != 24 || a.Fields[1].Offset != 4 || a.Fields[2].Offset != 16 || a.Op != FirstWireOp+3 || a.Reply != "b" ||
		ws[1].Op != 0 {
		t.Errorf("%+v", ws)
	}
	for _, bad := range []string{"u8 x", "struct", "struct a\n u9 x", "struct a\n u32 x", "struct a\nstruct a",
		"struct a op", "struct a op x", "struct a op 5", "struct a op 0xF000 what", "struct a op 0xF000\nstruct b op 0xF000",
		"removed a op 0xF000\nstruct b op 0xF000", "removed a", "const a", "const a x", "const a 1<<40",
		"const a 1\nconst a 2", "flags", "flags a\nflags a", "flags a\n b 3", "flags a\n b 0", "flags a\n b 1\n c 1",
		"enum a\n b 1\n b 2", "enum a\n removed b 1\n c 1", "enum a\n removed b", "enum a\n b", "b 1", "struct a\n reply b",
		"struct a\n u8[x] b"} {
		if _, err := parseWire(bad); !errors.Is(err, ErrInput) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestWireConstants(t *testing.T) {
	parsed, err := parseWire(
		"const most 1<<20 # bytes\nflags copy # of copies\n sync 1 # waits\n done 2\nenum message\n reply 1\n" +
			" removed old 2\n data 0x3\nstruct a\n u64 b\nconst first 0xF000\n")
	if err != nil {
		t.Fatal(err)
	}
	if c := parsed.consts; len(c) != 2 || c[0] != (WireConst{"most", 1 << 20, "bytes", false}) || c[1].Value != 0xF000 {
		t.Errorf("%+v", c)
	}
	if s := parsed.sets; len(s) != 2 || !s[0].Flags || s[1].Flags || s[0].Doc != "of copies" ||
		s[0].Values[0].Doc != "waits" ||
		!s[1].Values[1].Removed || s[1].Values[2] != (WireConst{"data", 3, "", false}) {
		t.Errorf("%+v", s)
	}
	spec := load(t)
	i := slices.IndexFunc(spec.Consts, func(c WireConst) bool { return c.Name == "first_op" })
	if i < 0 || spec.Consts[i].Value != FirstWireOp {
		t.Errorf("first_op is not %#x", FirstWireOp)
	}
}

func TestSemanticErrors(t *testing.T) {
	for _, bad := range []string{"f", "f what", "f sync x:sideways", "f sync\nf sync", "f missing:why", "reason x",
		"when a b", "refuse a", "void", "address a b", "object", "object A", "token", "token A", "absent why A",
		"f sync x:in[-1]", "f sync :in"} {
		if _, err := parseSemantics("x.semantics", bad); !errors.Is(err, ErrInput) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, c := range []struct{ row, want string }{
		{"cuMemAlloc_v2 async", "output"},
		{"cuLaunchHostFunc sync", "function pointer"},
		{"cuMemcpyHtoD_v2 sync", "direction"},
		{"cuLaunchKernelEx sync kernelParams:opaque extra:opaque", "pointer"},
		{"cuMemcpyHtoD_v2 sync srcHost:in[Bytes]", "count"},
		{"cuInit sync nothing:in", "no parameter"},
		{"cuGraphGetNodes sync nodes:ret[numNodes]", "count"},
		{"cudbgMain sync", "prototype"},
	} {
		name, _, _ := strings.Cut(c.row, " ")
		sem, err := parseSemantics("x.semantics", c.row)
		if err != nil {
			t.Errorf("%q: %v", c.row, err)
			continue
		}
		lib := load(t).CUDA
		fn := *lib.ByName[name]
		fn.Generic = false
		fn.Params = slices.Clone(fn.Params)
		for i := range fn.Params {
			fn.Params[i] = Param{Name: fn.Params[i].Name, CType: fn.Params[i].CType}
		}
		fn.Class = sem.rows[name].class
		err = (&binder{sem: sem, lib: lib, lf: cudaFiles}).function(&fn, sem.rows[name])
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.row, err)
		}
	}
}

func FuzzSemantics(f *testing.F) {
	text, err := os.ReadFile("cuda.semantics")
	if err != nil {
		f.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n")[:200] {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		sem, err := parseSemantics("fuzz", line)
		if err != nil && !errors.Is(err, ErrInput) {
			t.Error(err)
		}
		if err == nil && len(sem.rows) == 0 &&
			len(sem.reasons)+len(sem.whens)+len(sem.refuses)+len(sem.members)+len(sem.pointers)+len(sem.unknown)+len(sem.tokens)+
				len(sem.groups)+len(sem.absent)+len(sem.parts)+len(sem.writes) == 0 &&
			strings.TrimSpace(strings.Split(line, "#")[0]) != "" && !strings.ContainsAny(line, "\n\r") {
			t.Errorf("%q was lost", line)
		}
	})
}

func FuzzWire(f *testing.F) {
	text, err := os.ReadFile("wire.spec")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := parseWire(text)
		if err != nil {
			if !errors.Is(err, ErrInput) {
				t.Error(err)
			}
			return
		}
		for _, w := range parsed.structs {
			if w.Size%8 != 0 || w.Size < 0 {
				t.Errorf("%+v", w)
			}
		}
	})
}

// TestOlderStructures: functions under their first names take the structure of their first days, which is shorter than
// the one that the header's prototype names. What NVIDIA's library writes there is recorded in
// testdata/answers/nvml.written as far as a GPU answers; programs that were built for them have room for no more.
func TestOlderStructures(t *testing.T) {
	spec, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	for function, size := range map[string]int{
		"nvmlDeviceGetPciInfo": 32, "nvmlDeviceGetPciInfo_v2": 36, "nvmlDeviceGetPciInfo_v3": 68,
		"nvmlDeviceGetNvLinkRemotePciInfo": 32, "nvmlDeviceGetNvLinkRemotePciInfo_v2": 68,
		"nvmlEventSetWait": 24, "nvmlEventSetWait_v2": 32,
		"nvmlComputeInstanceGetInfo": 24, "nvmlComputeInstanceGetInfo_v2": 32,
		"nvmlDeviceGetAttributes": 24, "nvmlDeviceGetAttributes_v2": 40,
		"nvmlVgpuInstanceGetLicenseInfo": 20, "nvmlVgpuInstanceGetLicenseInfo_v2": 24,
		"nvmlDeviceGetGridLicensableFeatures": 416, "nvmlDeviceGetGridLicensableFeatures_v2": 800,
		"nvmlDeviceGetGridLicensableFeatures_v3": 812, "nvmlDeviceGetGridLicensableFeatures_v4": 860,
		"nvmlDeviceGetComputeRunningProcesses": 16, "nvmlDeviceGetComputeRunningProcesses_v2": 24,
		"nvmlDeviceGetComputeRunningProcesses_v3": 24,
		"nvmlDeviceGetMemoryInfo":                 24, "nvmlDeviceGetMemoryInfo_v2": 40,
	} {
		got := 0
		for _, p := range spec.NVML.ByName[function].Params {
			if p.Struct && p.Dir != Value {
				got = p.Size
			}
		}
		if got != size {
			t.Errorf("%s takes a structure of %d bytes, want %d", function, got, size)
		}
	}
}

// What Enumerator lets through is all that enumerations have: a constant above it would never reach a driver.
func TestEnumerationsEndBelowUnknown(t *testing.T) {
	spec := load(t)
	for _, lib := range []*Library{spec.CUDA, spec.NVML} {
		for tag, constants := range lib.Enums {
			for name, v := range constants {
				if v > codec.UnknownEnum && v != math.MaxInt32 && passed(lib, tag) {
					t.Errorf("%s of %s is %d", name, tag, v)
				}
			}
		}
	}
}

// passed says whether values of an enumeration travel as parameters or in structures.
func passed(lib *Library, tag string) bool {
	of := func(ctype string) bool {
		return lib.enumTag(strings.TrimRight(strings.TrimPrefix(ctype, "const "), " *")) == tag
	}
	for _, fn := range lib.Funcs {
		if slices.ContainsFunc(fn.Params, func(p Param) bool { return of(p.CType) }) {
			return true
		}
	}
	if lib.Soname != "libcuda.so.1" { // what is in NVML's structures goes unchanged
		return false
	}
	for _, s := range lib.Structs {
		if slices.ContainsFunc(s.Fields, func(f Field) bool { return of(f.CType) }) {
			return true
		}
	}
	return false
}
