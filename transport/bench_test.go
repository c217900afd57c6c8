package transport

import (
	"errors"
	"net"
	"runtime"
	"testing"
)

// A round trip of messages over TCP between two spinning ends: what the main connection costs without what it carries.
func BenchmarkRoundTrip(b *testing.B) {
	near, far := connPair(b)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		buf, back := [][]byte{make([]byte, MessageHeaderSize)}, make([][]byte, 1)
		for {
			n, err := far.Recv(buf)
			if errors.Is(err, ErrAgain) {
				runtime.Gosched()
				continue
			}
			if err != nil {
				return
			}
			back[0] = buf[0][:n]
			if _, err := far.Send(back); err != nil {
				return
			}
		}
	}()
	message := MessageHeader{Type: MsgReply}.Append(nil)
	out, in := [][]byte{message}, [][]byte{make([]byte, MessageHeaderSize)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := near.Send(out); err != nil {
			b.Fatal(err)
		}
		for got := 0; got < MessageHeaderSize; {
			n, err := near.Recv(in)
			if errors.Is(err, ErrAgain) {
				runtime.Gosched()
				continue
			}
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
	}
	near.Shutdown()
	<-done
}

func BenchmarkBulk(b *testing.B) {
	near, far := connPair(b)
	const n = 1 << 20
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := [][]byte{make([]byte, n)}
		for {
			if _, err := far.Recv(buf); errors.Is(err, ErrAgain) {
				if _, err := far.Wait(Readable, -1); err != nil {
					return
				}
			} else if err != nil {
				return
			}
		}
	}()
	data := make([]byte, n)
	b.SetBytes(n)
	b.ReportAllocs()
	for b.Loop() {
		for left := data; len(left) > 0; {
			k, err := near.Send([][]byte{left})
			if errors.Is(err, ErrAgain) {
				_, err = near.Wait(Writable, -1)
			}
			if err != nil {
				b.Fatal(err)
			}
			left = left[k:]
		}
	}
	near.Shutdown()
	<-done
}

func BenchmarkHeaders(b *testing.B) {
	buf := make([]byte, 0, CommandHeaderSize)
	b.ReportAllocs()
	for b.Loop() {
		c := CommandHeader{Size: CommandHeaderSize, Op: 3}.Append(buf)
		if _, _, err := ParseCommand(c); err != nil {
			b.Fatal(err)
		}
		m := MessageHeader{Type: MsgReply}.Append(buf)
		if _, _, err := ParseMessage(m); err != nil {
			b.Fatal(err)
		}
	}
}

// connPair gives two ends of a TCP connection on the loopback interface.
func connPair(b *testing.B) (near, far Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	var ends [2]Conn
	for i, c := range []net.Conn{dialled, accepted} {
		t := c.(*net.TCPConn)
		if err := Tune(t); err != nil {
			b.Fatal(err)
		}
		fd, err := Detach(t)
		if err != nil {
			b.Fatal(err)
		}
		if ends[i], err = NewConn(fd, "bench"); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = ends[i].Close() })
	}
	return ends[0], ends[1]
}
