package bulk_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// tcpPair is a connection for each of two sides.
func tcpPair(t *testing.T) (near, far *bulk.TCP) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends []*bulk.TCP
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		line, err := transport.NewLine(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { line.Close() })
		ends = append(ends, &bulk.TCP{Line: line})
	}
	return ends[0], ends[1]
}

// one takes the chunks of one transfer.
type one struct {
	mem       []byte
	refuse    error
	arrived   []bulk.Chunk
	abandoned int
}

func (o *one) Room(c bulk.Chunk) (bulk.Buffer, error) { return place(c.In(o.mem)), o.refuse }
func (o *one) Arrived(c bulk.Chunk, _ bulk.Buffer)    { o.arrived = append(o.arrived, c) }
func (o *one) Abandoned(bulk.Buffer)                  { o.abandoned++ }

func TestTCP(t *testing.T) {
	near, far := tcpPair(t)
	var payload, all int
	far.Received = func(n, k int) { payload, all = payload+n, all+k }
	data, to := some(1001, 1), &one{mem: make([]byte, 1001+5)}
	for _, part := range []struct{ off, n int }{{0, 500}, {500, 501}} {
		tr := &bulk.Transfer{Seq: 7, ID: 9, Offset: 5, Data: data, Bytes: len(data)}
		if err := near.Send(bulk.Piece{Transfer: tr, Off: part.off, N: part.n}, nil); err != nil {
			t.Fatal(err)
		}
	}
	near.Line.Shutdown()
	if err := far.Receive(to); !errors.Is(err, io.EOF) || errors.As(err, new(*bulk.BrokenError)) {
		t.Errorf("the end of a connection between chunks is %v", err)
	}
	if !bytes.Equal(to.mem[5:], data) || len(to.arrived) != 2 ||
		to.arrived[1] != (bulk.Chunk{Seq: 7, ID: 9, Offset: 505, Bytes: 501}) || to.abandoned != 0 {
		t.Errorf("%+v arrived, or other bytes", to.arrived)
	}
	if want := 2*transport.MessageHeaderSize + 504 + 504; payload != 1001 || all != want {
		t.Errorf("%d bytes and %d with all that belongs to them, expected %d", payload, all, want)
	}
}

func TestTCPBroken(t *testing.T) {
	head := func(kind transport.MessageType, n uint32) []byte {
		return transport.MessageHeader{Type: kind, Len: n, Seq: 1}.Append(nil)
	}
	refused := errors.New("no room")
	for _, c := range []struct {
		name      string
		sent      []byte
		refuse    error
		want      error
		abandoned int
	}{
		{"within a chunk", append(head(transport.MsgChunk, 100), 1, 2, 3), nil, io.ErrUnexpectedEOF, 1},
		{"no chunk", head(transport.MsgPing, 0), nil, bulk.ErrProtocol, 0},
		{"an empty chunk", head(transport.MsgChunk, 0), nil, bulk.ErrProtocol, 0},
		{"too large a chunk", head(transport.MsgChunk, transport.MaxChunk+1), nil, bulk.ErrProtocol, 0},
		{"no message", make([]byte, transport.MessageHeaderSize), nil, transport.ErrMalformed, 0},
		{"no room", head(transport.MsgChunk, 100), refused, refused, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := tcpPair(t)
			to := &one{mem: make([]byte, 100), refuse: c.refuse}
			new(transport.Chain).Number(c.sent)
			if _, err := unix.Write(near.Line.FD(), c.sent); err != nil {
				t.Fatal(err)
			}
			near.Line.Shutdown()
			err := far.Receive(to)
			if !errors.As(err, new(*bulk.BrokenError)) || !errors.Is(err, c.want) {
				t.Errorf("%v, expected %v", err, c.want)
			}
			if len(to.arrived) > 0 || to.abandoned != c.abandoned {
				t.Errorf("%d chunks arrived, %d were abandoned", len(to.arrived), to.abandoned)
			}
		})
	}
}

// Chunks that something on the way drops, doubles, exchanges or changes end the connection, and those behind them do
// not arrive.
func TestTCPChunksOutOfOrder(t *testing.T) {
	const n = 8
	chunk := func(i int) []byte {
		h := transport.MessageHeader{Type: transport.MsgChunk, Len: 8, Seq: 1, Aux: uint64(8 * i)}
		return append(h.Append(nil), byte(i), 0, 0, 0, 0, 0, 0, 0)
	}
	for name, c := range map[string]struct {
		change  func([][]byte) [][]byte
		arrived int
	}{
		"as they are":          {func(l [][]byte) [][]byte { return l }, n},
		"dropped":              {func(l [][]byte) [][]byte { return slices.Delete(l, 3, 4) }, 3},
		"doubled":              {func(l [][]byte) [][]byte { return slices.Insert(l, 4, l[3]) }, 4},
		"exchanged":            {func(l [][]byte) [][]byte { l[3], l[4] = l[4], l[3]; return l }, 3},
		"moved":                {func(l [][]byte) [][]byte { l[3][24] += 8; return l }, 3},
		"of another":           {func(l [][]byte) [][]byte { l[3][16]++; return l }, 3},
		"the last one doubled": {func(l [][]byte) [][]byte { return append(l, l[n-1]) }, n},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := tcpPair(t)
			to := &one{mem: make([]byte, 8*(n+1))}
			var chain transport.Chain
			var list [][]byte
			for i := range n {
				k := chunk(i)
				chain.Number(k)
				list = append(list, k)
			}
			if _, err := unix.Write(near.Line.FD(), slices.Concat(c.change(list)...)); err != nil {
				t.Fatal(err)
			}
			near.Line.Shutdown()
			err := far.Receive(to)
			if broken := errors.As(err, new(*bulk.BrokenError)); broken != (name != "as they are") {
				t.Errorf("it ended with %v", err)
			}
			if len(to.arrived) != c.arrived {
				t.Errorf("%d chunks arrived, expected %d", len(to.arrived), c.arrived)
			}
		})
	}
}
