package verbs

import "fmt"

// Opcode is what a send request does.
type Opcode uint32

// Operations of a send request.
const (
	OpWrite Opcode = 0 // RDMA WRITE to Remote
	// the same, and completes a receive request of the peer, which sees Imm and the number of bytes
	OpWriteImm        Opcode = 1
	OpSend            Opcode = 2 // into the memory of a receive request of the peer
	OpSendImm         Opcode = 3
	OpRead            Opcode = 4 // RDMA READ from Remote
	OpCompareSwap     Opcode = 5 // on 8 bytes at Remote; the old value goes to the one segment
	OpFetchAdd        Opcode = 6
	OpLocalInvalidate Opcode = 7 // ends the use of the key Imm of a memory window
)

// SendFlags of a send request.
type SendFlags uint32

// Flags of a send request.
const (
	Fence     SendFlags = 1 << iota // start after all earlier READs and atomic operations are over
	Signaled                        // give a completion (failures always do)
	Solicited                       // wake a peer that waits for solicited events only
	Inline                          // take the data while posting; no lkey is needed, and the memory may be reused at once
)

// WorkKind is what a completion is of.
type WorkKind uint32

// Kinds of completed work.
const (
	WorkSend        WorkKind = 0
	WorkWrite       WorkKind = 1
	WorkRead        WorkKind = 2
	WorkCompareSwap WorkKind = 3
	WorkFetchAdd    WorkKind = 4
	WorkBind        WorkKind = 5
	WorkInvalidate  WorkKind = 6
	WorkRecv        WorkKind = 128
	WorkRecvImm     WorkKind = 129 // a receive request that an RDMA WRITE with immediate used up
)

// CompletionFlags of a completion.
type CompletionFlags uint32

// HasImm says that Imm of a received message is valid.
const HasImm CompletionFlags = 1 << 1

// Status is how a request ended (enum ibv_wc_status).
type Status uint32

// Ends of a request that callers tell apart; [Status.String] knows the others as well.
const (
	StatusOK            Status = 0
	StatusLocalProtect  Status = 4  // the local key or range is wrong
	StatusFlushed       Status = 5  // the queue pair was in error before the request was carried out
	StatusRemoteInvalid Status = 9  // the peer could make nothing of the packets
	StatusRemoteAccess  Status = 10 // the peer's key or range is wrong
	StatusRetries       Status = 12 // the peer does not answer
	StatusRNR           Status = 13 // the peer has no receive request
)

var statusNames = [...]string{"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR",
	"WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR",
	"LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR",
	"LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR",
	"REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR"}

// String gives the name of the verbs interface, such as IBV_WC_RETRY_EXC_ERR.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return "IBV_WC_" + statusNames[s]
	}
	return fmt.Sprintf("IBV_WC status %d", uint32(s))
}

var statusHints = map[Status]string{
	StatusRetries: "the peer does not answer: it or its device is gone, its link is down, or its GID cannot be reached",
	StatusRNR:     "the peer has posted no receive request",
	StatusRemoteInvalid: "the peer's device has received packets in an impossible order or of a wrong length " +
		"(soft-RoCE sends such when it has to repeat what it is repeating)",
	StatusRemoteAccess: "the peer has not granted that range or key",
	StatusLocalProtect: "the local memory is not registered for this",
	StatusFlushed:      "the queue pair had failed or was closed before",
}

// Access is what may be done to registered memory.
type Access uint32

// Rights on registered memory. The owner's device may always read it.
const (
	LocalWrite   Access = 1 << 0
	RemoteWrite  Access = 1 << 1 // requires LocalWrite
	RemoteRead   Access = 1 << 2
	RemoteAtomic Access = 1 << 3 // requires LocalWrite
	WindowBind   Access = 1 << 4 // memory windows may be bound to it
	// pages are brought in when touched instead of being locked; see DeviceAttributes.OnDemand
	OnDemand        Access = 1 << 6
	RelaxedOrdering Access = 1 << 20
)

// QPState is the state of a queue pair.
type QPState uint32

// States of a queue pair.
const (
	StateReset QPState = 0
	StateInit  QPState = 1
	StateRTR   QPState = 2 // receives
	StateRTS   QPState = 3 // receives and sends
	StateError QPState = 6
)

func (s QPState) String() string {
	names := [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// MTU is a path's largest packet, as verbs number it.
type MTU uint32

// MTUs of a path.
const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes is the payload of a packet; 0 for an invalid value.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// PortState is the state of a device's port.
type PortState uint32

// States of a port.
const (
	PortDown   PortState = 1
	PortInit   PortState = 2
	PortArmed  PortState = 3
	PortActive PortState = 4
)

func (s PortState) String() string {
	names := [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// EventType is the type of an asynchronous event.
type EventType uint32

// Events that callers tell apart; the others are in [Event.Name].
const (
	EventQPFatal     EventType = 1
	EventDeviceFatal EventType = 8
	EventPortActive  EventType = 9
	EventPortDown    EventType = 10
	EventGIDChange   EventType = 18
)

// SGE is a piece of local memory of a request.
type SGE struct {
	Addr   uint64 // virtual address
	Length uint32 // bytes
	LKey   uint32 // of the registration that holds it
}

// MaxSGE is the number of pieces of memory that a request of this package may have.
const MaxSGE = 4

// SendRequest is work for a send queue. Its memory layout is that of the C side.
type SendRequest struct {
	ID      uint64 // comes back in the completion
	Op      Opcode
	Flags   SendFlags
	Remote  uint64 // address of the peer's memory, for WRITE, READ and atomic operations
	RKey    uint32 // its key
	Imm     uint32 // the immediate value in host order; for OpLocalInvalidate the key
	Compare uint64 // for OpCompareSwap; the addend of OpFetchAdd
	Swap    uint64
	Count   uint32 // how many of SGE count
	_       uint32
	SGE     [MaxSGE]SGE
}

// RecvRequest is memory for one message of the peer.
type RecvRequest struct {
	ID    uint64
	Count uint32 // how many of SGE count; 0 will do for WRITEs with immediate
	_     uint32
	SGE   [MaxSGE]SGE
}

// Completion is the end of a request.
type Completion struct {
	ID     uint64
	Status Status
	Kind   WorkKind // undefined where Status is not StatusOK
	Vendor uint32   // the vendor's own error code
	Bytes  uint32   // of received messages
	Imm    uint32   // host order; valid with HasImm
	QP     uint32   // number of the queue pair
	Flags  CompletionFlags
	_      uint32
}

// Err is nil for a request that was carried out, else a [*StatusError].
func (c *Completion) Err() error {
	if c.Status == StatusOK {
		return nil
	}
	return &StatusError{Status: c.Status, Vendor: c.Vendor}
}
