package nvmltest

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"scuda.dev/scuda/transport"
)

// peer reads what a client says first, answers with text and hangs up.
func peer(t *testing.T, text string) string {
	t.Helper()
	return listen(t, func(c net.Conn) {
		c.Read(make([]byte, 4096))
		c.Write([]byte(text))
	})
}

// listen gives the address of a server that serves each connection by a function, and then hangs up.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := transport.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// TestGarbageAfterWelcome: what does not belong to the protocol ends the session with one line.
func TestGarbageAfterWelcome(t *testing.T) {
	w, err := transport.AppendWelcome(nil, &transport.Welcome{Status: transport.StatusOK})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"another type":  string(transport.MessageHeader{Type: transport.MsgRun}.Append(nil)),
		"a huge reply":  string(transport.MessageHeader{Type: transport.MsgReply, Len: 1 << 25}.Append(nil)),
		"half a header": "1234567",
		"letters":       strings.Repeat("garbage ", 100),
	} {
		t.Run(name, func(t *testing.T) {
			out, errs := as(t, "init", "SCUDA_SERVER="+peer(t, string(w)+text))
			if out != "ERROR_GPU_IS_LOST\n" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "lost the server") {
				t.Errorf("%q %q", out, errs)
			}
		})
	}
}

// TestSilentServer: a server that says nothing any more, though its connection stands, is given up; one that gives
// signs of life may take its time.
func TestSilentServer(t *testing.T) {
	w, err := transport.AppendWelcome(nil, &transport.Welcome{Status: transport.StatusOK})
	if err != nil {
		t.Fatal(err)
	}
	const beats = transport.SilentBeats + 1
	for name, c := range map[string]struct {
		signs     bool
		out, errs string
	}{
		"silent": {false, "ERROR_GPU_IS_LOST\n", "timed out"},
		"slow":   {true, "SUCCESS\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := listen(t, func(conn net.Conn) {
				_, _ = conn.Read(make([]byte, 4096))
				_, _ = conn.Write(w)
				var chain transport.Chain
				say := func(h transport.MessageHeader) {
					h.Flags = chain.Next(&h)
					_, _ = conn.Write(h.Append(nil))
				}
				if c.signs {
					beat := time.NewTicker(transport.Beat)
					defer beat.Stop()
					for range beats {
						<-beat.C
						say(transport.MessageHeader{Type: transport.MsgAlive})
					}
					say(transport.MessageHeader{Type: transport.MsgReply}) // to nvmlInit
					say(transport.MessageHeader{Type: transport.MsgReply, Seq: transport.CommandHeaderSize + 8,
						Result: int32(gonvml.ERROR_NOT_SUPPORTED)})
				}
				_, _ = io.Copy(io.Discard, conn) // until the client has gone
			})
			out, errs := as(t, "init", "SCUDA_SERVER="+address)
			if out != c.out || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
				t.Errorf("%q %q", out, errs)
			}
		})
	}
}

// TestTextsOfServer: what a server says stays within its line and moves no cursor, whatever is in it.
func TestTextsOfServer(t *testing.T) {
	const said = "\x1b]0;title\x07\nscuda: error: faked\r\u009b2J\x7f né"
	w, err := transport.AppendWelcome(nil, &transport.Welcome{Status: transport.StatusOK})
	if err != nil {
		t.Fatal(err)
	}
	var chain transport.Chain
	notice := transport.MessageHeader{Type: transport.MsgNotice, Len: uint32(len(said))}
	notice.Flags = chain.Next(&notice)
	text := notice.Append(w)
	text = append(append(text, said...), make([]byte, transport.Pad(len(said))-len(said))...)
	refused, err := transport.AppendWelcome(nil, &transport.Welcome{Status: transport.StatusBusy, Error: said})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer []byte
		lines  int
		want   string
	}{
		"message": {text, 2, "server: ?]0;title? scuda: error: faked???2J? né\n"}, // the second: the server is lost
		"refusal": {refused, 1, "?]0;title? scuda: error: faked ?2J? né"},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := as(t, "init", "SCUDA_SERVER="+peer(t, string(c.answer)))
			if strings.ContainsAny(errs, "\x1b\r\x07\x7f\u009b") || strings.Count(errs, "\n") != c.lines ||
				!strings.Contains(errs, c.want) {
				t.Errorf("%q", errs)
			}
		})
	}
}
