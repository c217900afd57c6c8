package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Kinds of connection manager events (enum rdma_cm_event_type).
const (
	cmAddrResolved   = 0
	cmRouteResolved  = 2
	cmConnectRequest = 4
	cmEstablished    = 9
	cmDisconnected   = 10
)

const (
	cmTimeout = 3 * time.Second // of finding address and route
	cmRetries = 6               // not 7: see ConnectOptions.Retries
)

// ErrRejected is wrapped by the error of a connection that the connection manager did not bring about.
var ErrRejected = errors.New("the connection was not established")

// CMSetup makes what a connection's queue pair needs on the device that the connection manager chose.
type CMSetup func(d *Device) (*PD, QPConfig, error)

// CMConn is a queue pair that was connected by rdma_cm.
type CMConn struct {
	QP      *QP
	id      unsafe.Pointer
	channel *cmChannel
	owned   bool // the channel is this connection's own
}

type cmChannel struct {
	p      unsafe.Pointer
	events *poller
}

// loadCM opens librdmacm, at the first call.
var loadCM = sync.OnceValue(func() error {
	if err := load(); err != nil {
		return err
	}
	if why := C.sv_load_cm(); why != nil {
		return &UnavailableError{C.GoString(why), "install rdma-core and librdmacm1"}
	}
	return nil
})

func newCMChannel() (*cmChannel, error) {
	if err := loadCM(); err != nil {
		return nil, err
	}
	c := &cmChannel{}
	var fd C.int
	if r := C.sv_cm_channel(&c.p, &fd); r != 0 {
		if e := syscall.Errno(r); e == syscall.ENODEV || e == syscall.ENOENT {
			return nil, &UnavailableError{"there is no /dev/infiniband/rdma_cm", "load the module rdma_ucm"}
		}
		return nil, failed("rdma_create_event_channel", "", int(r))
	}
	var err error
	if c.events, err = newPoller(int(fd), "rdma-cm"); err != nil {
		C.sv_cm_destroy_channel(c.p)
		return nil, err
	}
	return c, nil
}

func (c *cmChannel) close() {
	c.events.close()
	C.sv_cm_destroy_channel(c.p)
}

func (c *cmChannel) next(ctx context.Context) (C.sv_cm_event, error) {
	var e C.sv_cm_event
	err := c.events.wait(ctx, func() error { return failed("rdma_get_cm_event", "", int(C.sv_cm_next(c.p, &e))) })
	return e, err
}

// expect waits for an event of one kind.
func (c *cmChannel) expect(ctx context.Context, kind C.uint32_t) error {
	e, err := c.next(ctx)
	if err != nil {
		return err
	}
	if e.kind != kind || e.status != 0 {
		return fmt.Errorf("%w: %s (status %d)", ErrRejected, text(C.sv_cm_event_name(e.kind)), int(e.status))
	}
	return nil
}

// sockaddr is an address in C's form.
func sockaddr(a netip.AddrPort) *[unix.SizeofSockaddrInet6]byte {
	b := new([unix.SizeofSockaddrInet6]byte)
	family := uint16(unix.AF_INET6)
	if a.Addr().Is4() {
		family = unix.AF_INET
		v := a.Addr().As4()
		copy(b[4:], v[:])
	} else {
		v := a.Addr().As16()
		copy(b[8:], v[:])
	}
	*(*uint16)(unsafe.Pointer(&b[0])) = family
	b[2], b[3] = byte(a.Port()>>8), byte(a.Port())
	return b
}

// DialCM connects with a listener of the connection manager at the address of an interface that has an RDMA device. A valid local address
// binds the connection to this side's interface.
func DialCM(ctx context.Context, local netip.Addr, peer netip.AddrPort, setup CMSetup) (*CMConn, error) {
	ch, err := newCMChannel()
	if err != nil {
		return nil, err
	}
	c := &CMConn{channel: ch, owned: true}
	if err := c.dial(ctx, local, peer, setup); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect with %s by rdma_cm: %w", peer, err)
	}
	return c, nil
}

func (c *CMConn) dial(ctx context.Context, local netip.Addr, peer netip.AddrPort, setup CMSetup) error {
	if r := C.sv_cm_create(c.channel.p, &c.id); r != 0 {
		return failed("rdma_create_id", "", int(r))
	}
	var from unsafe.Pointer
	if local.IsValid() {
		from = unsafe.Pointer(sockaddr(netip.AddrPortFrom(local, 0)))
	}
	ms := C.int(cmTimeout.Milliseconds())
	if r := C.sv_cm_resolve(c.id, from, unsafe.Pointer(sockaddr(peer)), ms); r != 0 {
		return failed("rdma_resolve_addr", peer.String(), int(r))
	}
	if err := c.channel.expect(ctx, cmAddrResolved); err != nil {
		return err
	}
	if r := C.sv_cm_resolve_route(c.id, ms); r != 0 {
		return failed("rdma_resolve_route", peer.String(), int(r))
	}
	if err := c.channel.expect(ctx, cmRouteResolved); err != nil {
		return err
	}
	if err := c.makeQP(setup); err != nil {
		return err
	}
	if r := C.sv_cm_connect(c.id, cmRetries, cmRetries, 1); r != 0 {
		return failed("rdma_connect", peer.String(), int(r))
	}
	return c.channel.expect(ctx, cmEstablished)
}

func (c *CMConn) makeQP(setup CMSetup) error {
	ctx := C.sv_cm_context(c.id)
	if ctx == nil {
		return fmt.Errorf("%w: the address belongs to no RDMA device", ErrRejected)
	}
	d := &Device{ctx: ctx, name: C.GoString(C.sv_context_name(ctx)), borrowed: true}
	pd, config, err := setup(d)
	if err != nil {
		return err
	}
	q := &QP{dev: d, config: config, cm: c}
	send, recv, shared := config.queues()
	n := config.toC()
	var number C.uint32_t
	if r := C.sv_cm_create_qp(c.id, pd.p, send, recv, shared, &n, &q.p, &number); r != 0 {
		return failed("rdma_create_qp", d.name, int(r))
	}
	q.number = uint32(number)
	q.config.fromC(&n)
	c.QP = q
	return nil
}

// Disconnect ends the connection for both sides: what is posted is flushed.
func (c *CMConn) Disconnect() error {
	return failed("rdma_disconnect", "", int(C.sv_cm_disconnect(c.id)))
}

// Close frees the queue pair and the connection.
func (c *CMConn) Close() error {
	if c.QP != nil {
		C.sv_cm_destroy_qp(c.id)
		c.QP.p = nil
	}
	var r C.int
	if c.id != nil {
		r = C.sv_cm_destroy(c.id)
		c.id = nil
	}
	if c.owned {
		c.channel.close()
		c.owned = false
	}
	return failed("rdma_destroy_id", "", int(r))
}

// CMListener accepts connections of the connection manager, one at a time.
type CMListener struct {
	id      unsafe.Pointer
	channel *cmChannel
	addr    netip.AddrPort
}

// ListenCM listens on the address of an interface that has an RDMA device; port 0 picks one.
func ListenCM(addr netip.AddrPort) (*CMListener, error) {
	ch, err := newCMChannel()
	if err != nil {
		return nil, err
	}
	l := &CMListener{channel: ch}
	if r := C.sv_cm_create(ch.p, &l.id); r != 0 {
		ch.close()
		return nil, failed("rdma_create_id", "", int(r))
	}
	var port C.uint16_t
	if r := C.sv_cm_listen(l.id, unsafe.Pointer(sockaddr(addr)), 16, &port); r != 0 {
		C.sv_cm_destroy(l.id)
		ch.close()
		return nil, failed("rdma_listen", addr.String(), int(r))
	}
	l.addr = netip.AddrPortFrom(addr.Addr(), uint16(port))
	return l, nil
}

// Addr is the address with the port that was picked.
func (l *CMListener) Addr() netip.AddrPort { return l.addr }

// Accept waits for a connection. It must not be called from two goroutines at once. The connection has to be closed before the listener.
func (l *CMListener) Accept(ctx context.Context, setup CMSetup) (*CMConn, error) {
	for {
		e, err := l.channel.next(ctx)
		if err != nil {
			return nil, err
		}
		if e.kind != cmConnectRequest { // the end of an earlier connection
			continue
		}
		c := &CMConn{id: e.id, channel: l.channel}
		if err := c.makeQP(setup); err != nil {
			C.sv_cm_reject(c.id)
			return nil, errors.Join(err, c.Close())
		}
		if r := C.sv_cm_accept(c.id, cmRetries, 1); r != 0 {
			return nil, errors.Join(failed("rdma_accept", "", int(r)), c.Close())
		}
		if err := l.channel.expect(ctx, cmEstablished); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}
}

// Close ends the listening.
func (l *CMListener) Close() error {
	r := C.sv_cm_destroy(l.id)
	l.channel.close()
	return failed("rdma_destroy_id", "", int(r))
}
