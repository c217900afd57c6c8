package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
)

// load is what NVML says a GPU is doing. What a GPU does not tell is nil.
type load struct {
	Percent *uint32  `json:"percent"` // of the last moments in which a kernel ran
	Used    *uint64  `json:"memory_used_bytes"`
	Celsius *uint32  `json:"celsius"`
	Watts   *float64 `json:"watts"`
}

func (l *load) String() string {
	var parts []string
	if l.Percent != nil {
		parts = append(parts, fmt.Sprintf("%d %% busy", *l.Percent))
	}
	if l.Used != nil {
		parts = append(parts, fmt.Sprintf("%s in use", config.Size(*l.Used)))
	}
	if l.Celsius != nil {
		parts = append(parts, fmt.Sprintf("%d °C", *l.Celsius))
	}
	if l.Watts != nil {
		parts = append(parts, fmt.Sprintf("%.0f W", *l.Watts))
	}
	return strings.Join(parts, ", ")
}

// askLoad asks the server's NVML about the GPUs with these UUIDs. A GPU that NVML does not know gets nil.
func askLoad(ctx context.Context, to transport.Target, uuids []string) ([]*load, error) {
	c, _, err := askOf(ctx, to, transport.KindNVML)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	n := &nvmlSession{conn: c}
	defer n.leave()
	if _, err := n.call(nvml.OpNvmlInitWithFlags, 0); err != nil {
		return nil, err
	}
	loads := make([]*load, len(uuids))
	type question struct {
		op   uint16
		args []any
		size int
		take func(value []byte)
	}
	for i, uuid := range uuids {
		handle, err := n.call(nvml.OpNvmlDeviceGetHandleByUUID, uint64(len(uuid)+1), uuid+"\x00", 1)
		if err != nil {
			return nil, err
		}
		if len(handle) < 16 {
			continue
		}
		device := binary.LittleEndian.Uint64(handle[8:])
		var l load
		for _, q := range []question{
			{nvml.OpNvmlDeviceGetUtilizationRates, []any{device, 1}, 8, func(b []byte) {
				l.Percent = new(binary.LittleEndian.Uint32(b))
			}},
			{nvml.OpNvmlDeviceGetMemoryInfo, []any{device, 1}, 24, func(b []byte) {
				l.Used = new(binary.LittleEndian.Uint64(b[16:]))
			}},
			{nvml.OpNvmlDeviceGetTemperature, []any{device, int(nvml.NVML_TEMPERATURE_GPU), 1}, 4, func(b []byte) {
				l.Celsius = new(binary.LittleEndian.Uint32(b))
			}},
			{nvml.OpNvmlDeviceGetPowerUsage, []any{device, 1}, 4, func(b []byte) {
				l.Watts = new(float64(binary.LittleEndian.Uint32(b)) / 1000)
			}},
		} {
			b, err := n.call(q.op, q.args...)
			if err != nil {
				return nil, err
			}
			if len(b) >= 8+q.size { // how many values, 1, and the value
				q.take(b[8:])
			}
		}
		loads[i] = &l
	}
	return loads, nil
}

// nvmlSession is a session of kind nvml: one call at a time (docs/protocol.md).
type nvmlSession struct {
	conn  net.Conn
	sent  uint64
	chain transport.Chain
}

const mostOfNVML = 1 << 20 // bytes of an answer

// call gives the answer's bytes, none where the function failed. Arguments are numbers and texts.
func (n *nvmlSession) call(op uint16, args ...any) ([]byte, error) {
	var payload []byte
	for _, a := range args {
		switch a := a.(type) {
		case uint64:
			payload = binary.LittleEndian.AppendUint64(payload, a)
		case int:
			payload = binary.LittleEndian.AppendUint64(payload, uint64(a))
		case string:
			payload = append(payload, a...)
			payload = append(payload, make([]byte, transport.Pad(len(a))-len(a))...)
		}
	}
	seq := n.sent
	if err := n.send(op, transport.FlagAnswer, payload); err != nil {
		return nil, err
	}
	head := make([]byte, transport.MessageHeaderSize)
	if _, err := io.ReadFull(n.conn, head); err != nil {
		return nil, err
	}
	m, _, err := transport.ParseMessage(head)
	if err == nil && (n.chain.Next(&m) != m.Flags || m.Seq != seq) {
		err = errors.New("it is the answer to another call, or one before it is missing")
	}
	if err != nil || m.Type != transport.MsgReply || m.Len > mostOfNVML {
		return nil, fmt.Errorf("the server answered NVML's call %d with a message of type %d and %d bytes: %w", op, m.Type,
			m.Len, err)
	}
	answer := make([]byte, transport.Pad(int(m.Len)))
	if _, err := io.ReadFull(n.conn, answer); err != nil || m.Result != int32(nvml.NVML_SUCCESS) {
		return nil, err
	}
	return answer[:m.Len], nil
}

// send sends a command.
func (n *nvmlSession) send(op uint16, flags transport.CommandFlags, payload []byte) error {
	size := transport.CommandHeaderSize + len(payload)
	b := transport.FrameHeader{Len: uint32(size)}.Append(nil)
	b = transport.CommandHeader{Size: uint32(size), Op: op, Flags: flags, Seq: n.sent}.Append(b)
	n.sent += uint64(size)
	_ = n.conn.SetDeadline(time.Now().Add(transport.HandshakeTimeout))
	_, err := n.conn.Write(append(b, payload...))
	return err
}

// leave is the session's last command.
func (n *nvmlSession) leave() { _ = n.send(wire.OpBye, 0, make([]byte, 8)) }
