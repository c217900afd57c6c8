package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// load opens libibverbs, at the first call.
var load = sync.OnceValue(func() error {
	if why := C.sv_load(); why != nil {
		return &UnavailableError{C.GoString(why), "install rdma-core, libibverbs1 and ibverbs-providers"}
	}
	return nil
})

// Devices lists the names of the machine's RDMA devices. Without any the error wraps [ErrUnavailable] and says why.
func Devices() ([]string, error) {
	var names []string
	err := eachDevice(func(_ unsafe.Pointer, name string) bool {
		names = append(names, name)
		return true
	})
	if err == nil && len(names) == 0 {
		err = noDevice()
	}
	slices.Sort(names)
	return names, err
}

func noDevice() error {
	return &UnavailableError{
		"this machine has no RDMA device",
		"load the driver of the network card (or 'rdma link add rxe0 type rxe netdev INTERFACE' for soft-RoCE)",
	}
}

func eachDevice(f func(p unsafe.Pointer, name string) bool) error {
	if err := load(); err != nil {
		return err
	}
	var list *unsafe.Pointer
	var n C.int
	if r := C.sv_devices(&list, &n); r != 0 {
		if syscall.Errno(r) == syscall.ENODEV {
			return &UnavailableError{
				"the kernel has no RDMA (module ib_uverbs)", "load the driver of the network card and ib_uverbs",
			}
		}
		return failed("ibv_get_device_list", "", int(r))
	}
	defer C.sv_free_devices(list)
	for _, p := range unsafe.Slice(list, int(n)) {
		if !f(p, C.GoString(C.sv_device_name(p))) {
			break
		}
	}
	return nil
}

// Device is an opened RDMA device. Its methods may be called from several goroutines.
type Device struct {
	ctx    unsafe.Pointer
	name   string
	events *poller
}

// Open opens a device by its name.
func Open(name string) (*Device, error) {
	var d *Device
	var oerr error
	found := false
	err := eachDevice(func(p unsafe.Pointer, n string) bool {
		if n != name {
			return true
		}
		found = true
		var ctx unsafe.Pointer
		if r := C.sv_open(p, &ctx); r != 0 {
			if syscall.Errno(r) == syscall.ENOENT &&
				errors.Is(unix.Access(deviceFile(name), unix.R_OK|unix.W_OK), syscall.EACCES) {
				r = C.int(syscall.EACCES) // libibverbs looks elsewhere then, and speaks of that
			}
			oerr = failed("ibv_open_device", name, int(r))
			return false
		}
		d = &Device{ctx: ctx, name: name}
		return false
	})
	if err = errors.Join(err, oerr); err != nil {
		return nil, err
	}
	if !found {
		return nil, &UnavailableError{
			fmt.Sprintf("there is no RDMA device %q", name), "'rdma link' lists those that there are",
		}
	}
	if d.events, err = newPoller(int(C.sv_async_fd(d.ctx))); err != nil {
		C.sv_close(d.ctx)
		return nil, err
	}
	return d, nil
}

// Name is the device's name, such as mlx5_0.
func (d *Device) Name() string { return d.name }

// FD is the descriptor through which the process drives the device; a forked child should close it.
func (d *Device) FD() int { return int(C.sv_async_fd(d.ctx)) }

// Removed says whether the device has been removed from the system, or is about to be: some drivers (rxe) report no
// event, but wait until everybody has closed the device.
func (d *Device) Removed() bool {
	_, err := os.Stat("/sys/class/infiniband_verbs/" + C.GoString(C.sv_node_name(d.ctx)))
	return errors.Is(err, os.ErrNotExist)
}

// Close closes the device, after everything that was made on it.
func (d *Device) Close() error {
	if d.ctx == nil {
		return nil
	}
	d.events.close()
	r := C.sv_close(d.ctx)
	d.ctx = nil
	return failed("ibv_close_device", d.name, int(r))
}

// DeviceAttributes are a device's abilities and limits.
type DeviceAttributes struct {
	Firmware       string
	NodeGUID       uint64 // network byte order
	VendorID       uint32
	VendorPart     uint32
	Ports          int
	MaxQP          int
	MaxQPRequests  int // requests outstanding in a queue
	MaxSGE         int
	MaxCQ          int
	MaxCQE         int
	MaxMR          int
	MaxMRBytes     uint64
	MaxMW          int // 0: no memory windows
	MaxSRQ         int
	MaxReads       int // READs and atomic operations outstanding at a peer
	WindowType2    bool
	OnDemand       bool // on-demand paging for reliable connections: SEND, WRITE and READ
	ImplicitMemory bool // a registration may cover the whole address space
}

const (
	capMW2A, capMW2B      = 1 << 23, 1 << 24
	odpGeneral, odpWhole  = 1, 2
	odpSend, odpWR, odpRD = 1, 4, 8
)

// Attributes asks for the device's abilities.
func (d *Device) Attributes() (*DeviceAttributes, error) {
	var a C.sv_device
	if r := C.sv_query(d.ctx, &a); r != 0 {
		return nil, failed("ibv_query_device", d.name, int(r))
	}
	const rc = odpSend | odpWR | odpRD
	return &DeviceAttributes{
		Firmware: C.GoString(&a.firmware[0]), NodeGUID: uint64(a.node_guid), VendorID: uint32(a.vendor_id),
		VendorPart: uint32(a.vendor_part), Ports: int(a.ports),
		MaxQP: int(a.max_qp), MaxQPRequests: int(a.max_qp_wr), MaxSGE: int(a.max_sge), MaxCQ: int(a.max_cq),
		MaxCQE: int(a.max_cqe), MaxMR: int(a.max_mr),
		MaxMRBytes: uint64(a.max_mr_size), MaxMW: int(a.max_mw), MaxSRQ: int(a.max_srq), MaxReads: int(a.max_rd_atomic),
		WindowType2: a.caps&(capMW2A|capMW2B) != 0, OnDemand: a.odp_caps&odpGeneral != 0 && a.odp_rc&rc == rc,
		ImplicitMemory: a.odp_caps&odpWhole != 0,
	}, nil
}

// LinkLayer is what carries a port's packets.
type LinkLayer uint32

// Link layers.
const (
	InfiniBand LinkLayer = 1
	Ethernet   LinkLayer = 2 // RoCE
)

func (l LinkLayer) String() string {
	switch l {
	case InfiniBand:
		return "InfiniBand"
	case Ethernet:
		return "Ethernet"
	}
	return "unknown link layer"
}

// PortAttributes are the state and limits of a port.
type PortAttributes struct {
	State      PortState
	Link       LinkLayer
	MaxMTU     MTU
	ActiveMTU  MTU
	GIDs       int    // entries of the table
	MaxMessage uint32 // bytes of one message
	LID        uint16 // address in an InfiniBand subnet
}

// Port asks for the state of a port; the first one is 1.
func (d *Device) Port(port int) (*PortAttributes, error) {
	var a C.sv_port
	if r := C.sv_query_port(d.ctx, C.int(port), &a); r != 0 {
		return nil, failed("ibv_query_port", d.name, int(r))
	}
	return &PortAttributes{State: PortState(a.state), Link: LinkLayer(a.link_layer), MaxMTU: MTU(a.max_mtu),
		ActiveMTU: MTU(a.active_mtu), GIDs: int(a.gids),
		MaxMessage: uint32(a.max_message), LID: uint16(a.lid)}, nil
}

// GID asks for an entry of a port's table of addresses. [ReadDevice] tells more of it.
func (d *Device) GID(port, index int) (netip.Addr, error) {
	var g [16]byte
	r := C.sv_query_gid(d.ctx, C.int(port), C.int(index), (*C.uint8_t)(&g[0]))
	return netip.AddrFrom16(g).Unmap(), failed("ibv_query_gid", fmt.Sprintf("%s, index %d", d.name, index), int(r))
}

// PD is a protection domain: keys of memory and queue pairs of one do not work with those of another.
type PD struct {
	p   unsafe.Pointer
	dev *Device
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	pd := &PD{dev: d}
	return pd, failed("ibv_alloc_pd", d.name, int(C.sv_alloc_pd(d.ctx, &pd.p)))
}

// Device is the device on which the domain is.
func (p *PD) Device() *Device { return p.dev }

// Close ends the domain.
func (p *PD) Close() error { return failed("ibv_dealloc_pd", p.dev.name, int(C.sv_dealloc_pd(p.p))) }

// MR is registered memory.
type MR struct {
	p          unsafe.Pointer
	Addr       uint64
	Length     uint64
	LKey, RKey uint32 // for requests of this side, and of the peer
	pinner     runtime.Pinner
}

// Register registers memory, which must stay mapped until the registration is closed. Memory of Go's heap is pinned
// meanwhile.
func (p *PD) Register(mem []byte, access Access) (*MR, error) {
	if len(mem) == 0 {
		return nil, failed("ibv_reg_mr", "no bytes", int(syscall.EINVAL))
	}
	m := &MR{}
	m.pinner.Pin(&mem[0])
	if err := m.register(p, uint64(uintptr(unsafe.Pointer(&mem[0]))), uint64(len(mem)), access); err != nil {
		m.pinner.Unpin()
		return nil, err
	}
	return m, nil
}

// RegisterRange is [PD.Register] for memory that is not Go's. With [OnDemand], address 0 and the length 2^64-1 the
// registration covers the whole address space, where the device can do that.
func (p *PD) RegisterRange(addr, length uint64, access Access) (*MR, error) {
	m := &MR{}
	return m, m.register(p, addr, length, access)
}

func (m *MR) register(p *PD, addr, length uint64, access Access) error {
	var l, r C.uint32_t
	if e := C.sv_reg(p.p, C.uint64_t(addr), C.uint64_t(length), C.uint32_t(access), &m.p, &l, &r); e != 0 {
		return registerError("ibv_reg_mr", length, syscall.Errno(e))
	}
	m.Addr, m.Length, m.LKey, m.RKey = addr, length, uint32(l), uint32(r)
	return nil
}

// RegisterDMABuf registers memory of another device (a GPU) through the descriptor of a dma-buf: length bytes at offset
// of the buffer, which requests address from iova on. Whether a device can do that is told by [PD.SupportsDMABuf].
func (p *PD) RegisterDMABuf(fd int, offset, length, iova uint64, access Access) (*MR, error) {
	m := &MR{Addr: iova, Length: length}
	var l, r C.uint32_t
	e := C.sv_reg_dmabuf(p.p, C.uint64_t(offset), C.uint64_t(length), C.uint64_t(iova), C.int(fd), C.uint32_t(access),
		&m.p, &l, &r)
	if e != 0 {
		return nil, registerError("ibv_reg_dmabuf_mr", length, syscall.Errno(e))
	}
	m.LKey, m.RKey = uint32(l), uint32(r)
	return m, nil
}

// SupportsDMABuf says whether the device takes dma-bufs. It tries one with a bad descriptor: a device that knows the
// call says EBADF, one that does not says EOPNOTSUPP or EPROTONOSUPPORT.
func (p *PD) SupportsDMABuf() bool {
	m, err := p.RegisterDMABuf(-1, 0, 4096, 0, LocalWrite)
	if err == nil { // no device should take this, but its registration must not leak
		_ = m.Close()
		return false
	}
	return errors.Is(err, syscall.EBADF)
}

func registerError(call string, length uint64, errno syscall.Errno) error {
	e := newError(call, fmt.Sprintf("%d bytes", length), errno)
	switch errno {
	case syscall.ENOMEM:
		e.Remedy = memlockRemedy(length)
	case syscall.EFAULT:
		e.Remedy = "the memory is not mapped, or not writable"
	case syscall.EOPNOTSUPP, syscall.EPROTONOSUPPORT:
		e.Remedy = "the device or its driver cannot do that"
	}
	return e
}

func memlockRemedy(length uint64) string {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil || l.Cur > length*16 && l.Cur != unix.RLIM_INFINITY {
		return "memory may be short"
	}
	if l.Cur == unix.RLIM_INFINITY {
		return "memory is short (the memlock limit is not the cause)"
	}
	return fmt.Sprintf(
		"the memlock limit is %d KiB: raise it with 'ulimit -l unlimited', in /etc/security/limits.conf, or "+
			"LimitMEMLOCK=infinity in the systemd unit", l.Cur>>10)
}

// Close ends the registration. Its keys are dead from then on.
func (m *MR) Close() error {
	if m.p == nil {
		return nil
	}
	r := C.sv_dereg(m.p)
	if r == 0 {
		m.p = nil
		m.pinner.Unpin()
	}
	return failed("ibv_dereg_mr", "", int(r))
}

// MW is a memory window of type 2: a key for a part of registered memory that is given and taken back by requests of a
// queue pair, which is far cheaper than registering.
type MW struct {
	p    unsafe.Pointer
	RKey uint32 // valid after a completed [QP.Bind]
}

// AllocMW makes a memory window.
func (p *PD) AllocMW() (*MW, error) {
	w := &MW{}
	var k C.uint32_t
	r := C.sv_alloc_mw(p.p, 2, &w.p, &k)
	w.RKey = uint32(k)
	return w, failed("ibv_alloc_mw", p.dev.name, int(r))
}

// Close frees the window, bound or not. It comes before the end of the queue pair that the window is bound on: some
// drivers (rxe) wait for each other otherwise.
func (w *MW) Close() error {
	if w.p == nil {
		return nil
	}
	r := C.sv_dealloc_mw(w.p)
	if r == 0 {
		w.p = nil
	}
	return failed("ibv_dealloc_mw", "", int(r))
}

// names that C gives: never nil.
func text(s *C.char) string { return strings.TrimSpace(C.GoString(s)) }
