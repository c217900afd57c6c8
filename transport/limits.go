package transport

import "time"

// Version is the newest version of the protocol that this release speaks.
const Version = 1

// DefaultPort is used where an address names none.
const DefaultPort = 14833

// Magic opens the preface and its answer. As in PNG, the line end and the ^Z betray connections that rewrite text.
const Magic = "SCUDA\r\n\x1a"

// FrameMagic opens every frame of commands ("SUCF" in memory).
const FrameMagic = 0x46435553

// Limits. All of them are checked before anything is allocated.
const (
	MaxToken   = 512
	MaxHello   = 64 << 10
	MaxWelcome = 4 << 20
	MaxFrame   = 64 << 20
	MaxCommand = 1 << 20
	MaxMessage = 64 << 20
	MaxThreads = 1 << 16
	MaxDevices = 256

	// CoreThread is the ordinal that the client's core uses for commands of its own (module upload, bye); programs' threads stay below.
	CoreThread = MaxThreads - 1

	// FirstTransfer is the first identifier of asynchronous downloads; smaller ones are thread ordinals, for synchronous downloads.
	FirstTransfer = MaxThreads

	// MaxText is the largest payload of MsgText.
	MaxText = 1 << 20
	// MaxPush is the largest payload of MsgPush.
	MaxPush = 1 << 20

	// MaxChunk is the largest payload of MsgChunk, and MaxBulkConns how many connections may carry them.
	MaxChunk     = 1 << 20
	MaxBulkConns = 16

	// PullUnit is the unit in which MsgPull's result field counts the offset.
	PullUnit = 1 << 20
)

// Times. A dead peer is noticed within Unanswered, whether data are under way (user timeout) or not (keep-alive).
const (
	ConnectTimeout   = 5 * time.Second
	HandshakeTimeout = 40 * time.Second // longer than a server waits for a worker
	PrefaceTimeout   = 5 * time.Second
	Unanswered       = 15 * time.Second

	keepIdle     = 5 * time.Second
	keepInterval = 3 * time.Second
	keepCount    = 3
)

// CommandFlags of a command header.
type CommandFlags uint16

// A command's flags.
const (
	FlagAnswer  CommandFlags = 1 << iota // a reply is expected
	FlagPTDS                             // the per-thread default-stream form was called
	FlagBulk                             // bulk data follow the frame; their size is the payload's last 8 bytes
	FlagWatch                            // of a command that records an event: PROGRESS is to tell when it is complete
	FlagStriped                          // of a bulk command: its data come over the bulk connections
	FlagOwn                              // made by the client's library on its own behalf: no capture of the program's forbids it
)

// MessageType says what a message is.
type MessageType uint16

// Messages of the main connection (server to client) and of the side connection (from MsgRun on).
const (
	MsgReply  MessageType = 1
	MsgData   MessageType = 2
	MsgDone   MessageType = 3
	MsgNotice MessageType = 4
	MsgText   MessageType = 5
	// MsgProgress says that everything up to position seq is complete for the event or stream aux, or (result) that nothing will be said.
	MsgProgress MessageType = 6
	// MsgFlushed answers MsgFlush seq: every download that the GPU had finished by then has been sent.
	MsgFlushed MessageType = 7
	// MsgForget says that no graph has what the client registered as number aux any more; flags say what that is: Forget….
	MsgForget MessageType = 8

	MsgRun    MessageType = 16
	MsgRan    MessageType = 17
	MsgPull   MessageType = 18
	MsgPulled MessageType = 19
	MsgPing   MessageType = 20
	MsgPong   MessageType = 21
	MsgPush   MessageType = 22
	MsgPushed MessageType = 23
	MsgFlush  MessageType = 24

	MsgChunk MessageType = 32 // of the bulk connections

	// Of the control connection of RDMA; docs/protocol.md.
	MsgPathOffer  MessageType = 48
	MsgPathAnswer MessageType = 49
	MsgPathReady  MessageType = 50
	MsgPathCredit MessageType = 51
	MsgPathEnd    MessageType = 52
	MsgWindowWant MessageType = 53
	MsgWindow     MessageType = 54
)

// Hello kinds.
const (
	KindCUDA = "cuda"
	KindSide = "side"
	KindBulk = "bulk"
	KindRDMA = "rdma" // the control connection of RDMA
	KindNVML = "nvml"
	KindInfo = "info"
)

// What MsgForget is about.
const (
	ForgetTransfer uint16 = 1 // the destination of a captured download
	ForgetSource   uint16 = 2 // the source of a captured upload
	ForgetFunction uint16 = 3 // a host function
)
