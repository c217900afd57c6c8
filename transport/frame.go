package transport

import (
	"encoding/binary"
	"fmt"

	"scuda.dev/scuda/api/wire"
)

// Sizes of the fixed headers.
const (
	FrameHeaderSize   = 8
	CommandHeaderSize = wire.Header
	MessageHeaderSize = wire.Header
)

var le = binary.LittleEndian

// Pad rounds n up to the protocol's alignment of 8 bytes.
func Pad[T ~int | ~uint32 | ~uint64](n T) T { return (n + 7) &^ 7 }

// FrameHeader stands before a batch of whole commands.
type FrameHeader struct {
	Len uint32 // bytes that follow
}

// Append appends the header's bytes.
func (h FrameHeader) Append(b []byte) []byte {
	b = le.AppendUint32(b, FrameMagic)
	return le.AppendUint32(b, h.Len)
}

// ParseFrame reads a frame header. It returns [ErrShort] when b holds less than one.
func ParseFrame(b []byte) (FrameHeader, int, error) {
	if len(b) < FrameHeaderSize {
		return FrameHeader{}, 0, ErrShort
	}
	if m := le.Uint32(b); m != FrameMagic {
		return FrameHeader{}, 0, malformed("frame magic %#x, expected %#x", m, uint32(FrameMagic))
	}
	h := FrameHeader{Len: le.Uint32(b[4:])}
	if h.Len == 0 || h.Len > MaxFrame || h.Len%8 != 0 {
		return FrameHeader{}, 0, malformed("frame of %d bytes, allowed are multiples of 8 up to %d", h.Len, MaxFrame)
	}
	return h, FrameHeaderSize, nil
}

// CommandHeader opens a command.
type CommandHeader struct {
	Size    uint32 // of header and payload, a multiple of 8
	Op      uint16
	Flags   CommandFlags
	Seq     uint64 // offset in the client's command stream
	Context uint64 // the calling thread's current context or 0
	Thread  uint32
	// Correlation is the client's, for its own records and the server's ([CapCorrelation]); 0: none.
	Correlation uint32
}

// Append appends the header's bytes.
func (h CommandHeader) Append(b []byte) []byte {
	b = le.AppendUint32(b, h.Size)
	b = le.AppendUint16(b, h.Op)
	b = le.AppendUint16(b, uint16(h.Flags))
	b = le.AppendUint64(b, h.Seq)
	b = le.AppendUint64(b, h.Context)
	b = le.AppendUint32(b, h.Thread)
	return le.AppendUint32(b, h.Correlation)
}

// ParseCommand reads one command from the front of b, which must hold it whole ([ErrShort] otherwise). The payload is
// part of b; the number of bytes used is h.Size.
func ParseCommand(b []byte) (h CommandHeader, payload []byte, err error) {
	if payload, err = h.Parse(b); err != nil {
		h = CommandHeader{}
	}
	return h, payload, err
}

// Parse is [ParseCommand] into h, whose value means nothing after an error.
func (h *CommandHeader) Parse(b []byte) (payload []byte, err error) {
	if len(b) < CommandHeaderSize {
		return nil, ErrShort
	}
	h.Size, h.Op, h.Flags = le.Uint32(b), le.Uint16(b[4:]), CommandFlags(le.Uint16(b[6:]))
	h.Seq, h.Context, h.Thread = le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint32(b[24:])
	h.Correlation = le.Uint32(b[28:])
	switch {
	case h.Size < CommandHeaderSize || h.Size > MaxCommand || h.Size%8 != 0:
		return nil, malformed("command of %d bytes, allowed are multiples of 8 from %d to %d", h.Size, CommandHeaderSize,
			MaxCommand)
	case h.Thread >= MaxThreads:
		return nil, malformed("command of thread %d, the limit is %d", h.Thread, MaxThreads)
	case h.Flags&^(FlagAnswer|FlagPTDS|FlagBulk|FlagWatch|FlagTransfer|FlagOwn) != 0:
		return nil, malformed("command with unknown flags %#x", uint16(h.Flags))
	case h.Flags&(FlagBulk|FlagTransfer) == FlagTransfer:
		return nil, malformed("a bulk transfer without bulk data")
	case h.Flags&FlagBulk != 0 && h.Size < CommandHeaderSize+8:
		return nil, malformed("bulk command without a size")
	case uint64(len(b)) < uint64(h.Size):
		return nil, ErrShort
	}
	return b[CommandHeaderSize:h.Size:h.Size], nil
}

// BulkBytes is the number of bulk bytes that follow a command with [FlagBulk] (before padding); 0 for any other.
func (h CommandHeader) BulkBytes(payload []byte) uint64 {
	if h.Flags&FlagBulk == 0 || len(payload) < 8 {
		return 0
	}
	return le.Uint64(payload[len(payload)-8:])
}

// MessageHeader opens a message.
type MessageHeader struct {
	Len    uint32 // payload bytes; the payload is padded to 8
	Type   MessageType
	Flags  uint16
	ID     uint32
	Result int32
	Seq    uint64
	Aux    uint64
}

// Append appends the header's bytes.
func (h MessageHeader) Append(b []byte) []byte {
	b = le.AppendUint32(b, h.Len)
	b = le.AppendUint16(b, uint16(h.Type))
	b = le.AppendUint16(b, h.Flags)
	b = le.AppendUint32(b, h.ID)
	b = le.AppendUint32(b, uint32(h.Result))
	b = le.AppendUint64(b, h.Seq)
	return le.AppendUint64(b, h.Aux)
}

// ParseMessage reads a message header. It returns [ErrShort] when b holds less than one.
func ParseMessage(b []byte) (MessageHeader, int, error) {
	if len(b) < MessageHeaderSize {
		return MessageHeader{}, 0, ErrShort
	}
	h := MessageHeader{
		Len: le.Uint32(b), Type: MessageType(le.Uint16(b[4:])), Flags: le.Uint16(b[6:]), ID: le.Uint32(b[8:]),
		Result: int32(le.Uint32(b[12:])), Seq: le.Uint64(b[16:]), Aux: le.Uint64(b[24:]),
	}
	if h.Len > MaxMessage {
		return MessageHeader{}, 0, malformed("message of %d bytes, the limit is %d", h.Len, MaxMessage)
	}
	if !h.Type.known() {
		return MessageHeader{}, 0, malformed("message of unknown type %d", uint16(h.Type))
	}
	return h, MessageHeaderSize, nil
}

func (t MessageType) known() bool { return wire.MessageName(uint16(t)) != "" }

func (t MessageType) String() string {
	if name := wire.MessageName(uint16(t)); name != "" {
		return name
	}
	return fmt.Sprintf("message %d", uint16(t))
}
