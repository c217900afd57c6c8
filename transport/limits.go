package transport

import (
	"time"

	"scuda.dev/scuda/api/wire"
)

// Version is the newest version of the protocol that this release speaks.
const Version = 1

// DefaultPort is used where an address names none.
const DefaultPort = wire.DefaultPort

// Magic opens the preface and its answer. As in PNG, the line end and the ^Z betray connections that rewrite text.
const Magic = "SCUDA\r\n\x1a"

// FrameMagic opens every frame of commands ("SUCF" in memory).
const FrameMagic = wire.FrameMagic

// Limits. All of them are checked before anything is allocated.
const (
	MaxToken   = wire.MaxToken
	MaxHello   = wire.MaxHello
	MaxWelcome = wire.MaxWelcome
	MaxFrame   = wire.MaxFrame
	MaxCommand = wire.MaxCommand
	MaxMessage = wire.MaxMessage
	MaxThreads = wire.MaxThreads
	MaxDevices = wire.MaxDevices

	// CoreThread is the ordinal that the client's core uses for commands of its own (module upload, bye); programs'
	// threads stay below.
	CoreThread = MaxThreads - 1

	// FirstTransfer is the first identifier of asynchronous downloads; smaller ones are thread ordinals, for synchronous
	// downloads.
	FirstTransfer = MaxThreads

	// MaxText is the largest payload of MsgText.
	MaxText = wire.MaxText
	// MaxPush is the largest payload of MsgPush.
	MaxPush = wire.MaxPush

	// MaxChunk is the largest payload of MsgChunk, and MaxBulkConns how many connections may carry them.
	MaxChunk     = wire.MaxChunk
	MaxBulkConns = wire.MaxBulkConns
	// MaxServers is how many servers a program may have.
	MaxServers = wire.MaxServers

	// PullUnit is the unit in which MsgPull's result field counts the offset.
	PullUnit = wire.PullUnit
	// LastPull stands in MsgPull's aux, beside the number of bytes: the client may forget the source.
	LastPull = wire.LastPull
)

// Times. A dead peer is noticed within Unanswered, whether data are under way (user timeout) or not (keep-alive: it is
// looked for the user timeout when a probe is due, so that is a little less than the time of the last probe). For the
// connections of sessions see [Beat].
const (
	ConnectTimeout   = 5 * time.Second
	HandshakeTimeout = 40 * time.Second // longer than a server waits for a worker
	PrefaceTimeout   = 5 * time.Second
	Unanswered       = 15 * time.Second

	keepIdle     = 5 * time.Second
	keepInterval = 3 * time.Second
	keepCount    = 3
	userTimeout  = keepIdle + keepCount*keepInterval - time.Second
)

// CommandFlags of a command header.
type CommandFlags uint16

// A command's flags.
const (
	FlagAnswer CommandFlags = wire.CommandAnswer // a reply is expected
	FlagPTDS   CommandFlags = wire.CommandPtds   // the per-thread default-stream form was called
	FlagBulk   CommandFlags = wire.CommandBulk   // bulk data follow the frame; their size is the payload's last 8 bytes
	// of a command that records an event: PROGRESS is to tell when it is complete
	FlagWatch    CommandFlags = wire.CommandWatch
	FlagTransfer CommandFlags = wire.CommandTransfer // of a bulk command: its data come over the bulk connections
	// made by the client's library on its own behalf: no capture of the program's forbids it
	FlagOwn CommandFlags = wire.CommandOwn
)

// MessageType says what a message is.
type MessageType uint16

// Messages of the main connection (server to client) and of the callback connection (from MsgRun on).
const (
	MsgReply  MessageType = wire.MessageReply
	MsgData   MessageType = wire.MessageData
	MsgDone   MessageType = wire.MessageDone
	MsgNotice MessageType = wire.MessageNotice
	MsgText   MessageType = wire.MessageText
	// MsgProgress says that everything up to position seq is complete for the event or stream aux, or (result) that
	// nothing will be said.
	MsgProgress MessageType = wire.MessageProgress
	// MsgFlushed answers MsgFlush seq: every download that the GPU had finished by then has been sent.
	MsgFlushed MessageType = wire.MessageFlushed
	// MsgForget says that no graph has what the client registered as number aux any more; id says what that is: Forget….
	MsgForget MessageType = wire.MessageForget

	MsgRun    MessageType = wire.MessageRun
	MsgRan    MessageType = wire.MessageRan
	MsgPull   MessageType = wire.MessagePull
	MsgPulled MessageType = wire.MessagePulled
	MsgPing   MessageType = wire.MessagePing
	MsgPong   MessageType = wire.MessagePong
	// MsgAlive is the answer to the ping Seq on the main connection, or (0) a sign of life of a server that cannot answer.
	MsgAlive  MessageType = wire.MessageAlive
	MsgPush   MessageType = wire.MessagePush
	MsgPushed MessageType = wire.MessagePushed
	MsgFlush  MessageType = wire.MessageFlush

	MsgChunk MessageType = wire.MessageChunk // of the bulk connections

	// Of the control connection of RDMA; docs/protocol.md.
	MsgPathOffer  MessageType = wire.MessagePathOffer
	MsgPathAnswer MessageType = wire.MessagePathAnswer
	MsgPathReady  MessageType = wire.MessagePathReady
	MsgPathCredit MessageType = wire.MessagePathCredit
	MsgPathEnd    MessageType = wire.MessagePathEnd
	MsgWindowWant MessageType = wire.MessageWindowWant
	MsgWindow     MessageType = wire.MessageWindow
)

// Hello kinds.
const (
	KindCUDA     = "cuda"
	KindCallback = "side" // the name of the callback connection on the wire
	KindBulk     = "bulk"
	KindRDMA     = "rdma"   // the control connection of RDMA
	KindResume   = "resume" // another socket for one of a session's connections
	KindNVML     = "nvml"
	// KindIntroduce asks a session's server to connect to another one of its program ([Introduction]), and KindPeer is
	// such a connection.
	KindIntroduce = "introduce"
	KindPeer      = "peer"
	KindInfo      = "info"
	KindAdmin     = "admin" // HTTP, as package admin answers it
)

// What MsgForget is about.
const (
	ForgetTransfer uint32 = wire.ForgetTransfer // the destination of a captured download
	ForgetSource   uint32 = wire.ForgetSource   // the source of a captured upload
	ForgetFunction uint32 = wire.ForgetFunction // a host function
)
