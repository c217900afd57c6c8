package session

import (
	"encoding/binary"
	"errors"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// outlet is the main connection of a session as the [sender] writes to it. The sender's lock guards it.
type outlet struct {
	at     uint64 // the position in the ring up to which the server knows it: what it got, and what was not for it
	own    uint64 // how many commands of the core itself there were
	broken bool   // nothing is written to it any more
	header [transport.FrameHeaderSize + transport.CommandHeaderSize + wire.SizeCopyH2D]byte
	bufs   [3][]byte
	copy   wire.CopyH2D

	conn    transport.Conn
	shared  shared
	reader  *reader
	bulk    *transfers
	traffic *traffic
	heart   *heart
	owner   owner
}

const skipBytes = transport.CommandHeaderSize + 8

// lost is the result of every call once the session has ended, else 0.
func (o *outlet) lost() int32 { return o.shared.lost() }

// over says whether nothing can be sent any more. The sender's lock is held.
func (o *outlet) over() bool { return o.broken || o.lost() != 0 }

// sendCommands sends commands that stand at a position of the ring as one frame. A server that does not know what lies
// before them, as it was for others, is told how much that is.
func (o *outlet) sendCommands(commands []byte, at uint64) error {
	o.heart.stir()
	skipped := at - o.at
	o.at = at + uint64(len(commands))
	if skipped == 0 {
		return o.sendFrame(commands)
	}
	b := transport.FrameHeader{Len: skipBytes + uint32(len(commands))}.Append(o.header[:0])
	b = transport.CommandHeader{Size: skipBytes, Op: wire.OpSkip, Thread: transport.CoreThread}.Append(b)
	b = binary.LittleEndian.AppendUint64(b, skipped)
	o.number(b[transport.FrameHeaderSize:])
	o.bufs[0], o.bufs[1] = b, commands
	return o.write(o.bufs[:2])
}

// sendFrame sends commands as one frame.
func (o *outlet) sendFrame(commands []byte) error {
	o.bufs[0], o.bufs[1] = transport.FrameHeader{Len: uint32(len(commands))}.Append(o.header[:0]), commands
	return o.write(o.bufs[:2])
}

// sendMapped sends an upload of pinned memory that kernels use, as a command of the core itself.
func (o *outlet) sendMapped(u *MappedUpload) error {
	data := u.data()
	pad := transport.Pad(len(data)) - len(data)
	size := uint32(transport.CommandHeaderSize + wire.SizeCopyH2D + len(data) + pad)
	b := transport.FrameHeader{Len: size}.Append(o.header[:0])
	b = transport.CommandHeader{
		Size: size, Op: wire.OpCopyH2D, Flags: transport.FlagOwn, Context: u.Context, Thread: transport.CoreThread,
	}.Append(b)
	o.copy = wire.CopyH2D{Dst: u.Dst, Bytes: u.Bytes, Stream: u.Stream, Flags: u.Flags}
	b = append(b, wire.Bytes(&o.copy)...)
	o.number(b[transport.FrameHeaderSize:])
	o.bufs = [3][]byte{b, data, padding[:pad]}
	return o.write(o.bufs[:])
}

// write sends all of bufs, which it uses up.
func (o *outlet) write(bufs [][]byte) error {
	for len(bufs) > 0 {
		if len(bufs[0]) == 0 {
			bufs = bufs[1:]
			continue
		}
		n, err := o.send(bufs)
		if err != nil {
			return err
		}
		for i := range bufs {
			k := min(n, len(bufs[i]))
			bufs[i] = bufs[i][k:]
			n -= k
		}
	}
	return nil
}

var padding [8]byte

// writeBulk sends data straight from the program's memory, padded.
func (o *outlet) writeBulk(data []byte) error {
	pad := transport.Pad(len(data)) - len(data)
	for len(data) > 0 {
		o.bufs[0] = data
		n, err := o.send(o.bufs[:1])
		if err != nil {
			return err
		}
		data = data[n:]
	}
	o.bufs[0] = padding[:pad]
	return o.write(o.bufs[:1])
}

// send sends some bytes of bufs, and waits for room where there is none.
func (o *outlet) send(bufs [][]byte) (int, error) {
	for {
		n, err := o.conn.Send(bufs)
		if errors.Is(err, transport.ErrAgain) {
			if err = o.awaitRoom(); err == nil {
				continue
			}
		}
		o.broken = err != nil
		o.traffic.sent.Add(uint64(n))
		return n, err
	}
}

// awaitRoom waits until the connection takes more bytes. As the server may be unable to read on before it has got rid
// of an answer, answers are read meanwhile, unless somebody else does.
func (o *outlet) awaitRoom() error {
	if o.lost() != 0 {
		return errEnded
	}
	o.heart.writers.Add(1)
	defer o.heart.writers.Add(-1)
	if !o.reader.tryRead() {
		_, err := o.conn.Wait(transport.Writable, otherReaderPause)
		return err
	}
	defer o.reader.endRead()
	ev, err := o.conn.Wait(transport.Readable|transport.Writable, -1)
	if err == nil && ev&transport.Readable != 0 {
		err = o.reader.readAvailable()
	}
	return err
}

// own builds a command of the core itself.
func own(op uint16, flags transport.CommandFlags, payload []byte) []byte {
	size := transport.CommandHeaderSize + transport.Pad(len(payload))
	b := make([]byte, 0, size)
	b = transport.CommandHeader{Size: uint32(size), Op: op, Flags: flags, Thread: transport.CoreThread}.Append(b)
	return append(b, payload...)[:size]
}

// number gives a command of the core itself its number.
func (o *outlet) number(command []byte) uint64 {
	o.own++
	binary.LittleEndian.PutUint64(command[8:], o.own)
	return o.own
}
