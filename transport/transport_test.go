package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHeadersOnTheWire(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"frame", FrameHeader{Len: 0x20}.Append(nil), "SUCF\x20\x00\x00\x00"},
		{"command", CommandHeader{
			Size: 0x28, Op: 0xf001, Flags: FlagAnswer | FlagBulk, Seq: 3, Context: 0x0102030405060708, Thread: 9,
		}.Append(nil),
			"\x28\x00\x00\x00\x01\xf0\x05\x00" + "\x03\x00\x00\x00\x00\x00\x00\x00" + "\x08\x07\x06\x05\x04\x03\x02\x01" +
				"\x09\x00\x00\x00\x00\x00\x00\x00"},
		{"message", MessageHeader{Len: 4, Type: MsgData, Flags: 1, ID: 7, Result: -1, Seq: 5, Aux: 6}.Append(nil),
			"\x04\x00\x00\x00\x02\x00\x01\x00" + "\x07\x00\x00\x00\xff\xff\xff\xff" + "\x05\x00\x00\x00\x00\x00\x00\x00" +
				"\x06\x00\x00\x00\x00\x00\x00\x00"},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s: %q, expected %q", c.name, c.got, c.want)
		}
	}
}

func TestParseFrame(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"good", FrameHeader{Len: 64}.Append(nil), nil},
		{"longest", FrameHeader{Len: MaxFrame}.Append(nil), nil},
		{"short", FrameHeader{Len: 64}.Append(nil)[:7], ErrShort},
		{"empty", FrameHeader{}.Append(nil), ErrMalformed},
		{"odd", FrameHeader{Len: 12}.Append(nil), ErrMalformed},
		{"too long", FrameHeader{Len: MaxFrame + 8}.Append(nil), ErrMalformed},
		{"magic", []byte("GET / HTTP/1.1\r\n"), ErrMalformed},
	} {
		if _, _, err := ParseFrame(c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, expected %v", c.name, err, c.want)
		}
	}
}

func TestParseCommand(t *testing.T) {
	good := CommandHeader{Size: 48, Op: 5, Flags: FlagBulk | FlagPTDS, Seq: 99, Context: 1 << 40, Thread: MaxThreads - 1}
	whole := append(good.Append(nil), 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0)
	h, payload, err := ParseCommand(append(whole, 0xff))
	if err != nil || h != good || len(payload) != 16 || cap(payload) != 16 {
		t.Fatalf("%+v, %v, %v", h, payload, err)
	}
	if n := h.BulkBytes(payload); n != 0x102 {
		t.Errorf("bulk of %d bytes", n)
	}
	if n := (CommandHeader{}).BulkBytes(payload); n != 0 {
		t.Errorf("bulk of %d bytes without the flag", n)
	}
	for n := range whole {
		if _, _, err := ParseCommand(whole[:n]); !errors.Is(err, ErrShort) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for name, change := range map[string]func(*CommandHeader){
		"small":           func(h *CommandHeader) { h.Size = 24 },
		"odd":             func(h *CommandHeader) { h.Size = 44 },
		"large":           func(h *CommandHeader) { h.Size = MaxCommand + 8 },
		"thread":          func(h *CommandHeader) { h.Thread = MaxThreads },
		"flags":           func(h *CommandHeader) { h.Flags = 64 },
		"transfer only":   func(h *CommandHeader) { h.Flags = FlagTransfer },
		"bulk, no size":   func(h *CommandHeader) { h.Size = 32 },
		"negative thread": func(h *CommandHeader) { h.Thread = ^uint32(0) },
	} {
		h := good
		change(&h)
		if _, _, err := ParseCommand(append(h.Append(nil), make([]byte, 64)...)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	correlated := bytes.Clone(whole)
	correlated[28] = 1
	if h, _, err := ParseCommand(correlated); err != nil || h.Correlation != 1 {
		t.Errorf("correlation: %+v, %v", h, err)
	}
}

func TestParseMessage(t *testing.T) {
	good := MessageHeader{Len: 9, Type: MsgPulled, Flags: 2, ID: 3, Result: -4, Seq: 5, Aux: 6}
	if h, n, err := ParseMessage(good.Append(nil)); h != good || n != MessageHeaderSize || err != nil {
		t.Errorf("%+v, %d, %v", h, n, err)
	}
	for _, c := range []struct {
		h    MessageHeader
		want error
	}{
		{MessageHeader{Type: MsgReply, Len: MaxMessage}, nil},
		{MessageHeader{Type: MsgReply, Len: MaxMessage + 1}, ErrMalformed},
		{MessageHeader{Type: 0}, ErrMalformed},
		{MessageHeader{Type: 8}, nil},
		{MessageHeader{Type: 9}, ErrMalformed},
		{MessageHeader{Type: 26}, ErrMalformed},
	} {
		if _, _, err := ParseMessage(c.h.Append(nil)); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c.h, err)
		}
	}
	if _, _, err := ParseMessage(good.Append(nil)[:31]); !errors.Is(err, ErrShort) {
		t.Errorf("short: %v", err)
	}
}

// parsePreface reads a preface with any token and says how many bytes it has.
func parsePreface(b []byte) (*Preface, int, error) {
	r := bytes.NewReader(b)
	p, err := readPreface(r, nil)
	return p, len(b) - r.Len(), err
}

func TestPreface(t *testing.T) {
	want := Hello{
		Kind: KindCUDA, Version: "1.2", Digest: "ab", Host: "h", Program: "p", PID: 7, ClientBase: 1 << 47, ClientSlots: 2,
		ServerBase: 3, ServerSlots: 4,
		MaxVersion: 9, MinVersion: 1, Capabilities: []string{CapCorrelation, "later"}, Requires: []string{"x"},
		Line: 1, Epoch: 2, Acknowledged: 3, Ticket: "t", Purpose: "bulk",
	}
	b, err := AppendPreface(nil, []byte("secret"), &want)
	if err != nil {
		t.Fatal(err)
	}
	p, n, err := parsePreface(append(b, "rest"...))
	if err != nil || n != len(b) || string(p.Token) != "secret" {
		t.Fatalf("%+v, %d of %d, %v", p, n, len(b), err)
	}
	if d := cmp.Diff(want, p.Hello); d != "" {
		t.Error(d)
	}
	for n := range b {
		if _, _, err := parsePreface(b[:n]); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	if _, err := AppendPreface(nil, make([]byte, MaxToken+1), &want); err == nil {
		t.Error("too long a token was accepted")
	}
	want.Program = strings.Repeat("x", MaxHello)
	if _, err := AppendPreface(nil, nil, &want); err == nil {
		t.Error("too long a hello was accepted")
	}
}

func TestReadPrefaceRefuses(t *testing.T) {
	good, err := AppendPreface(nil, []byte("secret"), &Hello{Kind: KindInfo})
	if err != nil {
		t.Fatal(err)
	}
	edit := func(at int, s string) []byte { b := bytes.Clone(good); copy(b[at:], s); return b }
	tokenEnd := len(Magic) + 8 + len("secret")
	for _, c := range []struct {
		name   string
		b      []byte
		token  string
		want   error
		status Status
	}{
		{"good", good, "secret", nil, StatusOK},
		{"wrong token", good, "Secret", ErrToken, StatusToken},
		{"longer token", good, "secrets", ErrToken, StatusToken},
		{"wrong token before a broken hello", edit(tokenEnd, "\xff\xff\xff\xff"), "x", ErrToken, StatusToken},
		{"magic", edit(0, "HELO"), "secret", ErrMalformed, StatusMalformed},
		{"version", edit(len(Magic), "\x63"), "secret", ErrVersion, StatusVersion},
		{"no version", edit(len(Magic), "\x00"), "secret", ErrVersion, StatusVersion},
		{"token length", edit(len(Magic)+4, "\x01\x02"), "secret", ErrMalformed, StatusMalformed},
		{"hello length", edit(tokenEnd, "\x01\x00\x01"), "secret", ErrMalformed, StatusMalformed},
		{"hello", edit(tokenEnd+4, "["), "secret", ErrMalformed, StatusMalformed},
		{"half", good[:len(good)-1], "secret", io.ErrUnexpectedEOF, StatusFailed},
	} {
		h, err := ReadPreface(bytes.NewReader(c.b), []byte(c.token))
		if !errors.Is(err, c.want) || StatusOf(err) != c.status || c.want == nil && h.Kind != KindInfo {
			t.Errorf("%s: %v, status %d", c.name, err, StatusOf(err))
		}
	}
	if _, err := ReadPreface(bytes.NewReader(edit(len(Magic), "\x63")), nil); !strings.Contains(err.Error(),
		"version 99") || !strings.Contains(err.Error(), "version 1;") {
		t.Errorf("%q does not name both versions", err)
	}
}

func TestWelcome(t *testing.T) {
	want := Welcome{Protocol: Version, MinVersion: 1, MaxVersion: 7, Capabilities: []string{"a"}, Line: 1, Epoch: 2,
		Acknowledged: 3,
		Tickets:      map[string]string{"bulk": "t"}, Session: "s", Secret: "x", Version: "1", Driver: "580",
		DriverVersion: 13000,
		GPU:           "sim", Devices: make([]Device, 2)}
	d := &want.Devices[1]
	d.Name, d.UUID, d.TotalMem, d.Attributes[75], d.AttributeResult[255], d.Limits[3], d.TPCInGPC[9] = "H200",
		[16]byte{1, 2, 3}, 141<<30, 9, -1, 1<<40, 7
	b, err := AppendWelcome(nil, &want)
	if err != nil {
		t.Fatal(err)
	}
	r := bytes.NewReader(append(b, "rest"...))
	got, err := ReadWelcome(r)
	if err != nil || r.Len() != len("rest") {
		t.Fatalf("%d bytes left, %v", r.Len(), err)
	}
	if d := cmp.Diff(&want, got); d != "" {
		t.Error(d)
	}
	if most, err := AppendWelcome(nil, &Welcome{Devices: make([]Device, 64)}); err != nil || len(most) > MaxWelcome {
		t.Errorf("a machine with 64 GPUs: %d bytes, %v", len(most), err)
	}
	refusal, err := AppendWelcome(nil, &Welcome{Status: StatusBusy, Error: "all 4 sessions are taken"})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(refusal, []byte(`{"error":"all 4 sessions are taken"}`)) {
		t.Errorf("refusal: %q", refusal)
	}
	if w, err := ReadWelcome(bytes.NewReader(refusal)); err != nil || w.Status != StatusBusy || w.Error == "" {
		t.Errorf("%+v, %v", w, err)
	}
}

// TestPrintable: what a server writes stays one line of ordinary characters, whoever shows it.
func TestPrintable(t *testing.T) {
	const bad = "a\x1b[31m\nok TLS\r\u202e\u0085\x7f\xffé"
	const good = "a?[31m ok TLS ? ?\ufffdé"
	for in, want := range map[string]string{
		"": "", bad: good, "NVIDIA H200 — 141 GiB": "NVIDIA H200 — 141 GiB",
		strings.Repeat("é", MostPrinted):       strings.Repeat("é", MostPrinted),
		strings.Repeat("é", MostPrinted) + "x": strings.Repeat("é", MostPrinted) + "…",
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	w := Welcome{Error: bad, Version: bad, Digest: bad, Driver: bad, NoRDMA: bad, GPU: bad, Tenant: bad,
		Devices: []Device{{Name: bad, PCIBusID: bad}}}
	b, err := AppendWelcome(nil, &w)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadWelcome(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	d := got.Devices[0]
	for i, s := range []string{got.Error, got.Version, got.Digest, got.Driver, got.NoRDMA, got.GPU, got.Tenant, d.Name,
		d.PCIBusID} {
		if s != good {
			t.Errorf("text %d: %q", i, s)
		}
	}
	b[len(Magic)] = 9 // another version: its release is in the error
	if _, err := ReadWelcome(bytes.NewReader(b)); err == nil || strings.ContainsAny(err.Error(), "\x1b\n\r\u202e") {
		t.Errorf("%q", err)
	}
}

// The two sides of the hello that are not written in Go spell the keys themselves.
func TestJSONKeys(t *testing.T) {
	b, err := json.Marshal(Hello{Kind: "k", Version: "v", Digest: "d", Host: "h", Program: "p", PID: 1})
	if want := `{"Kind":"k","Version":"v","Digest":"d","Host":"h","Program":"p","PID":1}`; err != nil ||
		string(b) != want {
		t.Errorf("%s, expected %s", b, want)
	}
}

func FuzzPreface(f *testing.F) {
	good, err := AppendPreface(nil, []byte("secret"),
		&Hello{Kind: KindCallback, Session: "a", Secret: "b", MaxVersion: 3, MinVersion: 1, Capabilities: []string{"x"},
			Window: 1, Windows: 2})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(Magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, _, err := parsePreface(b)
		if err != nil {
			return
		}
		again, err := AppendPreface(nil, p.Token, &p.Hello)
		if err != nil {
			return // JSON may grow beyond the limit when it is written anew
		}
		q, _, err := parsePreface(again)
		if err != nil || cmp.Diff(p, q) != "" {
			t.Errorf("%v\n%s", err, cmp.Diff(p, q))
		}
	})
}

func FuzzWelcome(f *testing.F) {
	good, err := AppendWelcome(nil, &Welcome{Session: "s", Devices: make([]Device, 1)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	refused, err := AppendWelcome(nil, &Welcome{Status: StatusToken, Error: "no"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(refused)
	f.Fuzz(func(t *testing.T, b []byte) {
		if w, err := ReadWelcome(bytes.NewReader(b)); err == nil && len(w.Devices) > MaxDevices {
			t.Errorf("%d devices", len(w.Devices))
		} else if err == nil {
			for _, s := range []string{w.Error, w.Version, w.Tenant, w.GPU, w.Driver, w.NoRDMA} {
				if s != Printable(s) && len([]rune(s)) <= MostPrinted {
					t.Errorf("%q", s)
				}
			}
		}
	})
}

// FuzzStream reads frames and commands, or messages, the way both sides do; a parsed header must give its bytes back.
func FuzzStream(f *testing.F) {
	command := append(CommandHeader{Size: 40, Op: 1, Flags: FlagBulk}.Append(nil), 8, 0, 0, 0, 0, 0, 0, 0)
	f.Add(append(FrameHeader{Len: 40}.Append(nil), command...))
	f.Add(append(MessageHeader{Len: 3, Type: MsgReply}.Append(nil), 1, 2, 3, 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, n, err := ParseFrame(b); err == nil {
			if !bytes.Equal(h.Append(nil), b[:n]) {
				t.Errorf("frame %+v", h)
			}
			for rest := b[n:]; len(rest) > 0; {
				c, payload, err := ParseCommand(rest)
				if err != nil {
					break
				}
				if !bytes.Equal(c.Append(nil), rest[:CommandHeaderSize]) || len(payload) != int(c.Size)-CommandHeaderSize {
					t.Errorf("command %+v", c)
				}
				_ = c.BulkBytes(payload)
				rest = rest[c.Size:]
			}
		}
		if h, n, err := ParseMessage(b); err == nil && !bytes.Equal(h.Append(nil), b[:n]) {
			t.Errorf("message %+v", h)
		}
	})
}

// A client may break its connection off before the process that is to serve it looks at it: the kernel does not say any
// more who that was.
func TestConnOfBrokenOff(t *testing.T) {
	near, far := tcpPair(t)
	f, err := far.(*net.TCPConn).File()
	if err := errors.Join(err, far.Close(), near.(*net.TCPConn).SetLinger(0), near.Close()); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	reset := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	if _, err := unix.Poll(reset, -1); err != nil {
		t.Fatal(err)
	}
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	if c.RemoteAddr() != nil {
		t.Fatal("the kernel says more than is told here")
	}
	conn, err := ConnOf(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Recv([][]byte{{0}}); err == nil {
		t.Error("it can be read from")
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}
