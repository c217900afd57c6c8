package main

/*
#include <stdlib.h>
#include "../front/base/core.h"
*/
import "C"

import (
	"slices"
	"unsafe"

	"scuda.dev/scuda/fatbin"
	"scuda.dev/scuda/shim/session"
	"scuda.dev/scuda/transport"
)

// Both sides of the shared memory have the same layout: else this does not compile.
const (
	_ = -(unsafe.Sizeof(session.Shared{}) ^ unsafe.Sizeof(C.struct_scuda_shared{}))
	_ = -(unsafe.Offsetof(session.Shared{}.LostOf) ^ unsafe.Offsetof(C.struct_scuda_shared{}.lost_of))
	_ = -(unsafe.Sizeof(session.MappedUpload{}) ^ unsafe.Sizeof(C.struct_scuda_mapped_upload{}))
	_ = -(unsafe.Offsetof(session.MappedUpload{}.Source) ^ unsafe.Offsetof(C.struct_scuda_mapped_upload{}.data))
)

// bytes is the program's memory at p.
func bytes(p unsafe.Pointer, n C.uint64_t) []byte {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*byte)(p), int(n))
}

//export scuda_core_open
func scuda_core_open(shared *C.struct_scuda_shared, boot *C.struct_scuda_boot) C.int32_t {
	if r := open((*session.Shared)(unsafe.Pointer(shared))); r != session.Success {
		return C.int32_t(r)
	}
	all := current.Load()
	boot.servers = C.uint32_t(all.Servers())
	boot.driver_version = C.int32_t(all.Of(0).Welcome().DriverVersion)
	boot.profiles, boot.collectives = 1, 1
	var gpus []gpu
	for i := range all.Servers() {
		w := all.Of(i).Welcome()
		boot.driver_version = min(boot.driver_version, C.int32_t(w.DriverVersion))
		if !slices.Contains(w.Capabilities, transport.CapProfile) {
			boot.profiles = 0
		}
		if !slices.Contains(w.Capabilities, transport.CapNCCL) {
			boot.collectives = 0
		}
		for k := range w.Devices {
			gpus = append(gpus, gpu{&w.Devices[k], i, k})
		}
	}
	boot.device_count = C.int32_t(len(gpus))
	boot.devices = devices(gpus)
	text(boot.server[:], all.Of(0).Server())
	return 0
}

// gpu is one of a server's.
type gpu struct {
	*transport.Device
	server, ordinal int
}

// ofDevice gives a GPU by its number among those of all servers.
func ofDevice(all *session.Sessions, number int) (s *session.Session, d *transport.Device) {
	for i := range all.Servers() {
		list := all.Of(i).Welcome().Devices
		if number < len(list) {
			return all.Of(i), &list[number]
		}
		number -= len(list)
	}
	return nil, nil
}

// text copies s into a C string of fixed size.
func text(dst []C.char, s string) {
	for i := range dst {
		if i == len(dst)-1 || i >= len(s) {
			dst[i] = 0
			return
		}
		dst[i] = C.char(s[i])
	}
}

func devices(list []gpu) *C.struct_scuda_device {
	if len(list) == 0 {
		return nil
	}
	p := (*C.struct_scuda_device)(C.calloc(C.size_t(len(list)), C.sizeof_struct_scuda_device))
	all := unsafe.Slice(p, len(list))
	for i := range all {
		d, o := &list[i], &all[i]
		o.server, o.ordinal = C.uint32_t(d.server), C.int32_t(d.ordinal)
		text(o.name[:], d.Name)
		text(o.pci_bus_id[:], d.PCIBusID)
		o.uuid = *(*[16]C.uint8_t)(unsafe.Pointer(&d.UUID))
		o.uuid_v1 = *(*[16]C.uint8_t)(unsafe.Pointer(&d.UUIDv1))
		o.luid = *(*[8]C.uint8_t)(unsafe.Pointer(&d.LUID))
		o.total_mem = C.uint64_t(d.TotalMem)
		o.attributes = *(*[256]C.int32_t)(unsafe.Pointer(&d.Attributes))
		o.attribute_result = *(*[256]C.int32_t)(unsafe.Pointer(&d.AttributeResult))
		o.limits = *(*[16]C.uint64_t)(unsafe.Pointer(&d.Limits))
		o.limit_result = *(*[16]C.int32_t)(unsafe.Pointer(&d.LimitResult))
		o.priority_least, o.priority_greatest = C.int32_t(d.PriorityLeast), C.int32_t(d.PriorityGreatest)
		o.ctx_api_version, o.ctx_flags = C.uint32_t(d.CtxAPIVersion), C.uint32_t(d.CtxFlags)
		o.has_fp8, o.fp8 = C.uint32_t(d.HasFP8), C.int32_t(d.FP8)
		o.tpc_map_bytes = C.uint64_t(d.TPCMapBytes)
		o.tpc_in_gpc = *(*[256]C.uint8_t)(unsafe.Pointer(&d.TPCInGPC))
		o.gpc_of_tpc = *(*[256]C.uint8_t)(unsafe.Pointer(&d.GPCOfTPC))
	}
	return p
}

//export scuda_core_call
func scuda_core_call(c *C.struct_scuda_call) {
	all := current.Load()
	if all == nil {
		c.result = C.int32_t(session.SystemNotReady)
		return
	}
	s, thread := all.OfThread(uint32(c.thread))
	call := session.Call{
		Begin: uint64(c.begin), End: uint64(c.end), Thread: thread,
		Reply: bytes(c.reply, C.uint64_t(c.reply_cap)), Timed: c.timed != 0,
	}
	s.Call(&call)
	c.came = C.uint64_t(call.Came)
	c.result, c.reply_len = C.int32_t(call.Result), C.uint32_t(call.Length)
}

//export scuda_core_send
func scuda_core_send(end C.uint64_t) {
	if all := current.Load(); all != nil {
		all.Send(uint64(end))
	}
}

//export scuda_core_bulk
func scuda_core_bulk(server C.uint32_t, end C.uint64_t, data unsafe.Pointer, n C.uint64_t) C.int32_t {
	all := current.Load()
	if all == nil {
		return C.int32_t(session.SystemNotReady)
	}
	return C.int32_t(all.Of(int(server)).Bulk(uint64(end), bytes(data, n)))
}

//export scuda_core_mapped
func scuda_core_mapped(server C.uint32_t, context C.uint64_t, onlyFlags C.uint32_t) C.int32_t {
	all := current.Load()
	if all == nil {
		return C.int32_t(session.SystemNotReady)
	}
	return C.int32_t(all.Of(int(server)).Mapped(uint64(context), onlyFlags != 0))
}

//export scuda_core_transfer
func scuda_core_transfer(dst unsafe.Pointer, n C.uint64_t, word, async C.uint32_t) C.uint32_t {
	all := current.Load()
	if all == nil {
		return word
	}
	s, thread := all.OfThread(uint32(word))
	return C.uint32_t(s.Transfer(bytes(dst, n), thread, session.TransferKind(async)))
}

//export scuda_core_overlaps
func scuda_core_overlaps(p unsafe.Pointer, n C.uint64_t) C.int32_t {
	if s := current.Load(); s != nil && s.Overlaps(bytes(p, n)) {
		return 1
	}
	return 0
}

//export scuda_core_source
func scuda_core_source(server C.uint32_t, src unsafe.Pointer, n C.uint64_t, graph C.uint32_t) C.uint32_t {
	all := current.Load()
	if all == nil {
		return 0
	}
	return C.uint32_t(all.Of(int(server)).Source(bytes(src, n), graph != 0))
}

//export scuda_core_hostfn
func scuda_core_hostfn(
	server C.uint32_t, fn, user unsafe.Pointer, stream C.uint64_t, kind, keep C.uint32_t,
) C.uint64_t {
	all := current.Load()
	if all == nil {
		return 0
	}
	return C.uint64_t(all.Of(int(server)).HostFunction(session.HostFunction{
		Func: uintptr(fn), User: uintptr(user), Stream: uint64(stream), Kind: uint32(kind), Keep: keep != 0,
	}))
}

// Attributes of a device that make up its compute capability.
const (
	attributeMajor = 75
	attributeMinor = 76
)

//export scuda_core_image
func scuda_core_image(
	image unsafe.Pointer, n C.uint64_t, device, send C.uint32_t, hash *C.uint8_t, sent *C.uint64_t, errText *C.char,
	errCap C.uint32_t,
) C.int32_t {
	fail := func(r int32, err error) C.int32_t {
		logger().Debug("module image refused", "result", r, "error", err)
		if errText != nil && errCap > 0 {
			text(unsafe.Slice(errText, int(errCap)), err.Error())
		}
		return C.int32_t(r)
	}
	all := current.Load()
	if all == nil {
		return C.int32_t(session.SystemNotReady)
	}
	s, gpu := ofDevice(all, int(device))
	if gpu == nil {
		return C.int32_t(session.InvalidValue)
	}
	img, err := fatbin.FromMemory(image, uint64(n))
	if err != nil {
		return fail(session.InvalidImage, err)
	}
	a := &gpu.Attributes
	h, bytesSent, r, err := s.Image(img, uint32(a[attributeMajor]*10+a[attributeMinor]), send != 0)
	*sent = C.uint64_t(bytesSent)
	if err != nil {
		return fail(r, err)
	}
	copy(bytes(unsafe.Pointer(hash), C.uint64_t(len(h))), h[:])
	return C.int32_t(r)
}

//export scuda_core_pin
func scuda_core_pin(p unsafe.Pointer, n C.uint64_t) {
	if s := current.Load(); s != nil {
		s.Pin(uint64(uintptr(p)), uint64(n))
	}
}

//export scuda_core_look
func scuda_core_look() {
	if s := current.Load(); s != nil {
		s.Look()
	}
}

//export scuda_core_peer
func scuda_core_peer(from, to C.uint32_t) C.uint32_t {
	if all := current.Load(); all != nil {
		return C.uint32_t(all.Peer(int(from), int(to)))
	}
	return 0
}

//export scuda_core_peer_lost
func scuda_core_peer_lost(from, to, epoch C.uint32_t) {
	if all := current.Load(); all != nil {
		all.PeerLost(int(from), int(to), uint32(epoch))
	}
}

//export scuda_core_figures
func scuda_core_figures(n *C.uint64_t) {
	all := current.Load()
	if all == nil {
		return
	}
	sums := unsafe.Slice(n, 4)
	clear(sums)
	for i := range all.Servers() {
		s := all.Of(i)
		f := s.Figures()
		for k, v := range []uint64{f.Sent, f.Received, s.RDMA.SentBytes.Load(), s.RDMA.ReceivedBytes.Load()} {
			sums[k] += C.uint64_t(v)
		}
	}
}

//export scuda_core_close
func scuda_core_close() {
	if s := current.Load(); s != nil {
		s.Close()
	}
}

//export scuda_core_log
func scuda_core_log(level C.int32_t, line *C.char) { logLine(int32(level), C.GoString(line)) }
