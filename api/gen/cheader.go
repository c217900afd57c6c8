package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"scuda.dev/scuda/api"
)

// plainNames says which version a name without a version means in a program, where that is not the oldest: a header's
// default macros. Names whose oldest form has 32-bit sizes and addresses are added by rule.
var plainNames = map[string]string{
	"cuCtxCreate": "cuCtxCreate_v2", "cuCtxDestroy": "cuCtxDestroy_v2", "cuCtxPopCurrent": "cuCtxPopCurrent_v2",
	"cuCtxPushCurrent": "cuCtxPushCurrent_v2", "cuStreamDestroy": "cuStreamDestroy_v2",
	"cuEventDestroy":            "cuEventDestroy_v2",
	"cuDevicePrimaryCtxRelease": "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset": "cuDevicePrimaryCtxReset_v2",
	"cuDevicePrimaryCtxSetFlags": "cuDevicePrimaryCtxSetFlags_v2", "cuMemHostRegister": "cuMemHostRegister_v2",
	"cuDeviceGetUuid": "cuDeviceGetUuid_v2", "cuGetProcAddress": "cuGetProcAddress_v2",
	"cuStreamBeginCapture":   "cuStreamBeginCapture_v2",
	"cuStreamGetCaptureInfo": "cuStreamGetCaptureInfo_v2", "cuGraphInstantiate": "cuGraphInstantiateWithFlags",
	"cuGraphExecUpdate": "cuGraphExecUpdate_v2", "cuGraphAddKernelNode": "cuGraphAddKernelNode_v2",
	"cuGraphKernelNodeGetParams":     "cuGraphKernelNodeGetParams_v2",
	"cuGraphKernelNodeSetParams":     "cuGraphKernelNodeSetParams_v2",
	"cuGraphExecKernelNodeSetParams": "cuGraphExecKernelNodeSetParams_v2", "cuLinkCreate": "cuLinkCreate_v2",
	"cuLinkAddData": "cuLinkAddData_v2", "cuLinkAddFile": "cuLinkAddFile_v2",
	"cuIpcOpenMemHandle":  "cuIpcOpenMemHandle_v2",
	"cuStreamWaitValue32": "cuStreamWaitValue32_v2", "cuStreamWriteValue32": "cuStreamWriteValue32_v2",
	"cuStreamWaitValue64": "cuStreamWaitValue64_v2", "cuStreamWriteValue64": "cuStreamWriteValue64_v2",
	"cuStreamBatchMemOp": "cuStreamBatchMemOp_v2",
}

// cudaVersion is the version of CUDA whose driver API the description is of.
const cudaVersion = "13000"

// macros are values that the header spells as macros, which the facts do not have.
var macros = [][2]string{
	{"CUDA_VERSION", cudaVersion},
	{"CU_STREAM_LEGACY", "((CUstream)0x1)"}, {"CU_STREAM_PER_THREAD", "((CUstream)0x2)"},
	{"CU_LAUNCH_PARAM_END", "((void *)0x0)"}, {"CU_LAUNCH_PARAM_BUFFER_POINTER", "((void *)0x1)"},
	{"CU_LAUNCH_PARAM_BUFFER_SIZE", "((void *)0x2)"},
	{"CU_MEMHOSTALLOC_PORTABLE", "0x1"}, {"CU_MEMHOSTALLOC_DEVICEMAP", "0x2"}, {"CU_MEMHOSTALLOC_WRITECOMBINED", "0x4"},
	{"CU_MEMHOSTREGISTER_PORTABLE", "0x1"}, {"CU_MEMHOSTREGISTER_DEVICEMAP", "0x2"},
	{"CU_MEMHOSTREGISTER_IOMEMORY", "0x4"},
	{"CU_MEMHOSTREGISTER_READ_ONLY", "0x8"}, {"CUDA_ARRAY3D_LAYERED", "0x1"}, {"CUDA_ARRAY3D_SURFACE_LDST", "0x2"},
	{"CUDA_ARRAY3D_CUBEMAP", "0x4"}, {"CUDA_ARRAY3D_TEXTURE_GATHER", "0x8"}, {"CU_TRSF_READ_AS_INTEGER", "0x1"},
	{"CU_TRSF_NORMALIZED_COORDINATES", "0x2"}, {"CU_TRSF_SRGB", "0x10"}, {"CU_DEVICE_CPU", "((CUdevice)-1)"},
	{"CU_DEVICE_INVALID", "((CUdevice)-2)"},
}

// emitHeader writes a cuda.h of our own, with which driver-API programs build on machines without a toolkit.
func emitHeader(spec *api.Spec, out *Output) error {
	lib := spec.CUDA
	b := &buffer{}
	b.f(
		"/* The CUDA driver API for programs that are built without NVIDIA's toolkit: types, constants and prototypes. */\n")
	b.f("#ifndef SCUDA_CUDA_H\n#define SCUDA_CUDA_H\n#include <stddef.h>\n#include <stdint.h>\n\n#ifdef __cplusplus\n" +
		"extern \"C\" {\n#endif\n\n#define CUDAAPI\n#define CUDA_CB\n")
	h := &header{lib: lib, b: b, done: map[string]bool{}, tags: map[string]bool{}}
	h.types()
	for _, s := range lib.Structs {
		b.f("\n%s ", s.Tag())
		h.body(s, "")
		if s.Align > 8 {
			b.f(" __attribute__((aligned(%d)))", s.Align)
		}
		b.f(";\n")
	}
	b.f("\n")
	for _, m := range macros {
		b.f("#define %s %s\n", m[0], m[1])
	}
	b.f("\n")
	h.prototypes()
	b.f("\n#ifdef __cplusplus\n}\n#endif\n#endif\n")
	return out.CFile("shim/include/cuda.h", b.Bytes())
}

type header struct {
	lib  *api.Library
	b    *buffer
	done map[string]bool
	tags map[string]bool // records that were written inside of others
}

// types writes enums, then all typedefs so that each follows those that it mentions; records stay incomplete.
func (h *header) types() {
	for _, tag := range slices.Sorted(maps.Keys(h.lib.Enums)) {
		values := h.lib.Enums[tag]
		names := slices.SortedFunc(maps.Keys(values), func(a, c string) int {
			return cmp.Or(cmp.Compare(values[a], values[c]), strings.Compare(a, c))
		})
		h.b.f("\nenum %s {\n", tag)
		for _, n := range names {
			h.b.f("  %s = %s,\n", n, enumValue(values[n]))
		}
		h.b.f("};\n")
	}
	h.b.f("\n")
	for _, name := range slices.Sorted(maps.Keys(h.lib.Types)) {
		h.typedef(name)
	}
}

func enumValue(v int64) string {
	if v > 1<<31-1 {
		return fmt.Sprintf("(int)%#x", v)
	}
	return fmt.Sprint(v)
}

func (h *header) typedef(name string) {
	t, ok := h.lib.Types[name]
	if !ok || h.done[name] {
		return
	}
	h.done[name] = true
	for _, word := range strings.FieldsFunc(t.Text, func(r rune) bool { return strings.ContainsRune(" (),*", r) }) {
		h.typedef(word)
	}
	if before, after, ok := strings.Cut(t.Text, "(*)"); ok {
		h.b.f("typedef %s(CUDA_CB *%s)%s;\n", before, name, after)
		return
	}
	h.b.f("typedef %s %s;\n", t.Text, name)
}

func (h *header) body(s *api.Struct, indent string) {
	h.b.f("{\n")
	for _, f := range s.Fields {
		h.b.f("%s  ", indent)
		if f.Sub != nil {
			kind, tag, _ := strings.Cut(f.CType, " ")
			h.b.f("%s ", kind)
			if !strings.Contains(tag, "(unnamed") {
				h.b.f("%s ", tag)
				h.tags[tag] = true
			}
			h.body(f.Sub, indent+"  ")
		} else {
			h.b.f("%s", f.CType)
		}
		if f.Name != "" {
			h.b.f(" %s", f.Name)
		}
		for _, d := range f.Array {
			h.b.f("[%d]", d)
		}
		h.b.f(";\n")
	}
	h.b.f("%s}", indent)
}

func (h *header) prototypes() {
	for _, fn := range h.lib.Funcs {
		if fn.NoProto {
			continue
		}
		var params []string
		for _, p := range fn.Params {
			params = append(params, strings.Replace(p.CType+" "+p.Name, "* ", "*", 1))
		}
		if len(params) == 0 {
			params = []string{"void"}
		}
		h.b.f("%s CUDAAPI %s(%s);\n", fn.Ret, fn.Name, strings.Join(params, ", "))
	}
	plain := map[string]string{}
	for _, fn := range h.lib.Funcs {
		if fn.PTSZ || fn.NoProto {
			continue
		}
		to := plainNames[fn.Name]
		if v2 := fn.Name + "_v2"; to == "" && h.lib.ByName[v2] != nil && narrow(fn, h.lib.ByName[v2]) {
			to = v2
		}
		plain[fn.Name] = to
	}
	for _, thread := range []bool{true, false} {
		h.b.f("%s\n", map[bool]string{true: "\n#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM", false: "#else"}[thread])
		for _, name := range slices.Sorted(maps.Keys(plain)) {
			to := plain[name]
			if thread {
				base := cmp.Or(to, name)
				for _, suffix := range []string{"_ptsz", "_ptds"} {
					if h.lib.ByName[base+suffix] != nil {
						to = base + suffix
					}
				}
			}
			if to != "" {
				h.b.f("#define %s %s\n", name, to)
			}
		}
	}
	h.b.f("#endif\n")
}

// narrow says whether a function is the 32-bit form of its second version.
func narrow(v1, v2 *api.Func) bool {
	if len(v1.Params) != len(v2.Params) {
		return false
	}
	for i := range v1.Params {
		a, b := v1.Params[i].CType, v2.Params[i].CType
		if strings.Contains(a, "CUdeviceptr_v1") || strings.Contains(a, "_v1 *") && !strings.Contains(b, "_v1 *") ||
			strings.HasPrefix(a, "unsigned int") && strings.HasPrefix(b, "size_t") {
			return true
		}
	}
	return false
}
