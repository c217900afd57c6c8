package verbs

/*
#include "verbs.h"

// These only read or fill the arrays that they are given, and call nothing of Go's.
#cgo noescape sv_poll
#cgo nocallback sv_poll
#cgo noescape sv_poll_or_arm
#cgo nocallback sv_poll_or_arm
#cgo noescape sv_post_send
#cgo nocallback sv_post_send
#cgo noescape sv_post_spin
#cgo nocallback sv_post_spin
#cgo noescape sv_post_recv
#cgo nocallback sv_post_recv
#cgo noescape sv_post_srq
#cgo nocallback sv_post_srq
#cgo noescape sv_bind_mw
#cgo nocallback sv_bind_mw
*/
import "C"

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"unsafe"
)

// CQ is a completion queue. One goroutine may poll at a time.
type CQ struct {
	p       unsafe.Pointer
	channel unsafe.Pointer
	events  *poller
	dev     *Device
}

// CreateCQ makes a queue for at least depth completions, with a completion channel for [CQ.Wait]. A queue that
// overflows is lost, so depth has to cover every request that may be outstanding.
func (d *Device) CreateCQ(depth int) (*CQ, error) {
	q := &CQ{dev: d}
	var fd C.int
	if r := C.sv_create_channel(d.ctx, &q.channel, &fd); r != 0 {
		return nil, failed("ibv_create_comp_channel", d.name, int(r))
	}
	if r := C.sv_create_cq(d.ctx, C.int(depth), q.channel, &q.p); r != 0 {
		C.sv_destroy_channel(q.channel)
		return nil, failed("ibv_create_cq", fmt.Sprintf("%s, %d entries", d.name, depth), int(r))
	}
	var err error
	if q.events, err = newPoller(int(fd)); err != nil {
		C.sv_destroy_cq(q.p)
		C.sv_destroy_channel(q.channel)
		return nil, err
	}
	return q, nil
}

// Poll takes completions without waiting and says how many. It makes one call into C and does not allocate.
func (q *CQ) Poll(list []Completion) (int, error) { return q.Spin(list, 1) }

// Spin is [CQ.Poll] that looks so many times while there is nothing, within the one call into C. It keeps the processor
// busy and the goroutine's thread with it, so looks is best the number that fits in some microseconds: a device's queue
// takes 10 to 50 ns. A goroutine that spins on and on does best to call [runtime.Gosched] within each 10 ms, and to
// leave an element of GOMAXPROCS idle; else Go's monitor thread, which then looks after it every 20 µs, slows it down.
func (q *CQ) Spin(list []Completion, looks int) (int, error) {
	if len(list) == 0 {
		return 0, nil
	}
	return q.polled(C.sv_poll(q.handle(), (*C.sv_completion)(unsafe.Pointer(&list[0])), C.int(len(list)),
		C.int(min(looks, math.MaxInt32))))
}

func (q *CQ) handle() C.uintptr_t { return C.uintptr_t(uintptr(q.p)) }

func (q *CQ) polled(n C.int) (int, error) {
	if n < 0 {
		return 0, failed("ibv_poll_cq", q.dev.name, -int(n))
	}
	return int(n), nil
}

// Arm lets the next completion (with solicited: the next of a request that the peer flagged) end a [CQ.Wait].
func (q *CQ) Arm(solicited bool) error {
	flag := C.int(0)
	if solicited {
		flag = 1
	}
	return failed("ibv_req_notify_cq", q.dev.name, int(C.sv_arm(q.p, flag)))
}

// Wait waits for the event of an armed queue. As a completion may have come before the arming took effect, the order
// is: Arm, Poll once more, and Wait only if that found nothing. It returns ctx's error when that ends.
func (q *CQ) Wait(ctx context.Context) error {
	return q.events.wait(ctx, func() error {
		return failed("ibv_get_cq_event", q.dev.name, int(C.sv_cq_event(q.channel)))
	})
}

// WaitPoll waits until there are completions and takes them: it polls, arms and polls once more with one call into C,
// and then waits.
func (q *CQ) WaitPoll(ctx context.Context, list []Completion) (int, error) {
	if len(list) == 0 {
		return 0, nil
	}
	for {
		if n, err := q.polled(
			C.sv_poll_or_arm(q.handle(), (*C.sv_completion)(unsafe.Pointer(&list[0])), C.int(len(list)))); n != 0 || err != nil {
			return n, err
		}
		if err := q.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// Wake ends a present or the next Wait without a completion.
func (q *CQ) Wake() { q.events.wake() }

// Close frees the queue, after the queue pairs that use it.
func (q *CQ) Close() error {
	q.events.close()
	if r := C.sv_destroy_cq(q.p); r != 0 {
		return failed("ibv_destroy_cq", q.dev.name, int(r))
	}
	return failed("ibv_destroy_comp_channel", q.dev.name, int(C.sv_destroy_channel(q.channel)))
}

// SRQ is a receive queue that several queue pairs share.
type SRQ struct {
	p   unsafe.Pointer
	dev *Device
}

// CreateSRQ makes a shared receive queue for depth requests of at most sges pieces.
func (p *PD) CreateSRQ(depth, sges int) (*SRQ, error) {
	s := &SRQ{dev: p.dev}
	return s, failed("ibv_create_srq", p.dev.name, int(C.sv_create_srq(p.p, C.int(depth), C.int(sges), &s.p)))
}

// PostRecv posts receive requests and says how many were taken.
func (s *SRQ) PostRecv(list []RecvRequest) (int, error) {
	if len(list) == 0 {
		return 0, nil
	}
	var done C.int
	r := C.sv_post_srq(s.p, (*C.sv_recv)(unsafe.Pointer(&list[0])), C.int(len(list)), &done)
	return int(done), failed("ibv_post_srq_recv", s.dev.name, int(r))
}

// Close frees the queue.
func (s *SRQ) Close() error { return failed("ibv_destroy_srq", s.dev.name, int(C.sv_destroy_srq(s.p))) }

// QPConfig is what a queue pair is to have. After its creation the values are those that the device gave, which may be
// larger.
type QPConfig struct {
	SendCQ, RecvCQ *CQ // RecvCQ nil: the same
	SRQ            *SRQ
	SendDepth      int // requests outstanding
	RecvDepth      int
	SendSGEs       int // pieces of memory a request, at most [MaxSGE]; 0: 1
	RecvSGEs       int
	InlineBytes    int  // data that [Inline] can take
	SignalAll      bool // every send request gives a completion
}

func (c *QPConfig) toC() C.sv_qp_config {
	n := C.sv_qp_config{send_depth: C.uint32_t(c.SendDepth), recv_depth: C.uint32_t(c.RecvDepth),
		send_sges: C.uint32_t(max(c.SendSGEs, 1)), recv_sges: C.uint32_t(max(c.RecvSGEs, 1)),
		inline_bytes: C.uint32_t(c.InlineBytes)}
	if c.SignalAll {
		n.signal_all = 1
	}
	return n
}

func (c *QPConfig) fromC(n *C.sv_qp_config) {
	c.SendDepth, c.RecvDepth, c.SendSGEs, c.RecvSGEs, c.InlineBytes = int(n.send_depth), int(n.recv_depth),
		int(n.send_sges), int(n.recv_sges), int(n.inline_bytes)
}

func (c *QPConfig) queues() (send, recv, shared unsafe.Pointer) {
	send = c.SendCQ.p
	if recv = send; c.RecvCQ != nil {
		recv = c.RecvCQ.p
	}
	if c.SRQ != nil {
		shared = c.SRQ.p
	}
	return send, recv, shared
}

// QP is a queue pair of a reliable connection. One goroutine may post sends while another posts receives.
type QP struct {
	p      unsafe.Pointer
	dev    *Device
	number uint32
	psn    uint32
	config QPConfig
}

// CreateQP makes a queue pair.
func (p *PD) CreateQP(config QPConfig) (*QP, error) {
	if config.SendCQ == nil {
		return nil, failed("ibv_create_qp", "no completion queue", int(syscall.EINVAL))
	}
	q := &QP{dev: p.dev, config: config, psn: rand.Uint32() & 0xffffff}
	send, recv, shared := config.queues()
	c := config.toC()
	var n C.uint32_t
	if r := C.sv_create_qp(p.p, send, recv, shared, &c, &q.p, &n); r != 0 {
		return nil, failed("ibv_create_qp",
			fmt.Sprintf("%s, %d and %d requests", p.dev.name, config.SendDepth, config.RecvDepth), int(r))
	}
	q.number = uint32(n)
	q.config.fromC(&c)
	return q, nil
}

// Number is the queue pair's number on its device.
func (q *QP) Number() uint32 { return q.number }

// Config is what the queue pair has.
func (q *QP) Config() QPConfig { return q.config }

// Endpoint is what one side has to tell the other for a connection. It travels by other means, for example as JSON over
// TCP.
type Endpoint struct {
	QPN uint32
	PSN uint32 // first packet sequence number
	GID netip.Addr
	LID uint16 `json:",omitempty"` // InfiniBand only
	MTU MTU    // the largest that this side can take
}

// Local names the place from which a queue pair connects.
type Local struct {
	Port     int // 1 where 0
	GIDIndex int // entry of the port's table; see [ReadDevice] and [SelectGID]
}

// Endpoint gives this side's part of a connection from a port.
func (q *QP) Endpoint(from Local) (Endpoint, error) {
	port := max(from.Port, 1)
	a, err := q.dev.Port(port)
	if err != nil {
		return Endpoint{}, err
	}
	gid, err := q.dev.GID(port, from.GIDIndex)
	if err != nil {
		return Endpoint{}, err
	}
	return Endpoint{QPN: q.number, PSN: q.psn, GID: gid, LID: a.LID, MTU: a.ActiveMTU}, nil
}

// ConnectOptions are a connection's times and rights. The zero value has sensible ones.
type ConnectOptions struct {
	Access  Access // what the peer may do to registered memory that allows it; 0: RemoteWrite | RemoteRead
	Timeout int    // of an answer: 4.096 µs · 2^n; 0: 14 (67 ms)
	// Retries are attempts before a request fails with StatusRetries, 1 to 7; 0: 6. Some implementations (rxe) take 7 for
	// "without end".
	Retries  int
	MaxReads int // READs outstanding; 0: 1
	Hops     int // 0: 64
}

// Connect moves a new queue pair to RTS, connected with the peer's endpoint. Both sides call it; a side may send when
// the other has returned.
func (q *QP) Connect(from Local, peer Endpoint, o ConnectOptions) error {
	me, err := q.Endpoint(from)
	if err != nil {
		return err
	}
	orElse := func(v, usual int) C.uint32_t {
		if v == 0 {
			v = usual
		}
		return C.uint32_t(v)
	}
	gid := peer.GID.As16()
	a := C.sv_qp_attr{
		psn: C.uint32_t(q.psn), port: orElse(from.Port, 1), gid_index: C.uint32_t(from.GIDIndex), hops: orElse(o.Hops, 64),
		timeout: orElse(o.Timeout, 14),
		retries: orElse(o.Retries, 6), rnr_retries: 6, rnr_timer: 12, max_read: orElse(o.MaxReads, 1),
		access:   orElse(int(o.Access), int(RemoteWrite|RemoteRead)),
		dest_qpn: C.uint32_t(peer.QPN), dest_psn: C.uint32_t(peer.PSN), lid: C.uint32_t(peer.LID),
		mtu: C.uint32_t(min(me.MTU, peer.MTU)),
	}
	if peer.LID == 0 || !peer.GID.IsUnspecified() && peer.GID.IsValid() {
		a.global = 1
	}
	for i, b := range gid {
		a.gid[i] = C.uint8_t(b)
	}
	if r := C.sv_to_init(q.p, &a); r != 0 {
		return failed("ibv_modify_qp to INIT", q.dev.name, int(r))
	}
	if r := C.sv_to_rtr(q.p, &a); r != 0 {
		e := newError("ibv_modify_qp to RTR", fmt.Sprintf("%s, peer %s", q.dev.name, peer.GID), syscall.Errno(r))
		if e.Errno == syscall.EINVAL || e.Errno == syscall.ENETUNREACH || e.Errno == syscall.ETIMEDOUT ||
			e.Errno == syscall.EHOSTUNREACH {
			e.Remedy =
				"the peer's GID cannot be reached from this one: check addresses and routes of the interfaces of both devices"
		}
		return e
	}
	return failed("ibv_modify_qp to RTS", q.dev.name, int(C.sv_to_rts(q.p, &a)))
}

// State asks for the state.
func (q *QP) State() (QPState, error) {
	var s C.uint32_t
	r := C.sv_qp_state(q.p, &s)
	return QPState(s), failed("ibv_query_qp", q.dev.name, int(r))
}

// Fail moves the queue pair into the error state: nothing is sent or received any more, and what was posted comes back
// with [StatusFlushed].
func (q *QP) Fail() error {
	if q.p == nil {
		return os.ErrClosed
	}
	return failed("ibv_modify_qp to ERR", q.dev.name, int(C.sv_to_error(q.p)))
}

// PostSend posts requests with one call into C, in order, and says how many were taken. It does not allocate. ENOMEM
// (errors.Is) means that the queue is full.
func (q *QP) PostSend(list []SendRequest) (int, error) {
	if len(list) == 0 {
		return 0, nil
	}
	if q.p == nil {
		return 0, os.ErrClosed
	}
	var done C.int
	r := C.sv_post_send(q.handle(), (*C.sv_send)(unsafe.Pointer(&list[0])), C.int(len(list)), &done)
	return int(done), failed("ibv_post_send", q.dev.name, int(r))
}

// PostSpin is [QP.PostSend] followed by [CQ.Spin] on the queue of the send requests' completions, with one call into C:
// for requests whose latency counts. It says how many requests were taken and how many completions there were, which is
// 0 where looks were too few, and which may be of earlier requests.
func (q *QP) PostSpin(list []SendRequest, done []Completion, looks int) (taken, completed int, err error) {
	if len(list) == 0 || len(done) == 0 {
		return 0, 0, nil
	}
	if q.p == nil {
		return 0, 0, os.ErrClosed
	}
	var n C.int
	r := C.sv_post_spin(q.handle(), (*C.sv_send)(unsafe.Pointer(&list[0])), C.int(len(list)), &n, q.config.SendCQ.handle(),
		(*C.sv_completion)(unsafe.Pointer(&done[0])), C.int(len(done)), C.int(min(looks, math.MaxInt32)))
	if taken = int(n); taken < len(list) {
		return taken, 0, failed("ibv_post_send", q.dev.name, -int(r))
	}
	completed, err = q.config.SendCQ.polled(r)
	return taken, completed, err
}

func (q *QP) handle() C.uintptr_t { return C.uintptr_t(uintptr(q.p)) }

// PostRecv posts receive requests with one call into C and says how many were taken.
func (q *QP) PostRecv(list []RecvRequest) (int, error) {
	if len(list) == 0 {
		return 0, nil
	}
	if q.p == nil {
		return 0, os.ErrClosed
	}
	var done C.int
	r := C.sv_post_recv(q.p, (*C.sv_recv)(unsafe.Pointer(&list[0])), C.int(len(list)), &done)
	return int(done), failed("ibv_post_recv", q.dev.name, int(r))
}

// Bind posts a request that binds a window to a part of registered memory (which must allow [WindowBind]). The window's
// RKey is the key when the completion has come; a request with [OpLocalInvalidate] takes it back.
func (q *QP) Bind(id uint64, w *MW, m *MR, addr, length uint64, access Access) error {
	if q.p == nil {
		return os.ErrClosed
	}
	var k C.uint32_t
	r := C.sv_bind_mw(q.p, w.p, m.p, C.uint64_t(id), C.uint64_t(addr), C.uint64_t(length), C.uint32_t(access), &k)
	if r == 0 {
		w.RKey = uint32(k)
	}
	return failed("ibv_post_send (bind)", q.dev.name, int(r))
}

// Close frees the queue pair.
func (q *QP) Close() error {
	if q.p == nil {
		return nil
	}
	r := C.sv_destroy_qp(q.p)
	if r == 0 {
		q.p = nil
	}
	return failed("ibv_destroy_qp", q.dev.name, int(r))
}

// Event is an asynchronous event of a device.
type Event struct {
	Type EventType
	Name string
	Port int // of port events

	element unsafe.Pointer
}

// Of says whether the event is about the queue pair.
func (e *Event) Of(q *QP) bool { return e.element != nil && e.element == q.p }

// NextEvent waits for the device's next asynchronous event: a port that goes down or up, a queue pair or device that
// failed.
func (d *Device) NextEvent(ctx context.Context) (Event, error) {
	var e C.sv_event
	err := d.events.wait(ctx, func() error {
		return failed("ibv_get_async_event", d.name, int(C.sv_async_event(d.ctx, &e)))
	})
	if err != nil {
		return Event{}, err
	}
	return Event{
		Type: EventType(e._type), Name: text(C.sv_event_name(e._type)), Port: int(e.port), element: e.element,
	}, nil
}
