package tlsrecord

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair connects two sockets.
func pair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// driver reads and writes a socket through a stream, as package transport does.
type driver struct {
	*Stream
	c net.Conn
}

func (d *driver) Write(b []byte) (n int, err error) {
	for n < len(b) {
		k, err := d.Out.Fill([][]byte{b[n : n+(len(b)-n)/3], b[n+(len(b)-n)/3:]})
		if err != nil {
			return n, err
		}
		n += k
		if err := d.flush(); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (d *driver) flush() error {
	n, err := d.c.Write(d.Out.Pending())
	d.Out.Sent(n)
	return err
}

func (d *driver) Read(b []byte) (int, error) {
	for {
		n, err := d.In.Read(b)
		if !errors.Is(err, ErrShort) {
			return n, err
		}
		k, err := d.c.Read(d.In.Room())
		if err != nil {
			return 0, err
		}
		d.In.Received(k)
	}
}

// ends are our end and crypto/tls's of one connection.
func ends(t testing.TB, weAreClient bool, first []byte) (*driver, *tls.Conn) {
	t.Helper()
	client, server := pair(t)
	forClient, forServer := configs(t)
	ours, theirs, ourConfig, their := server, client, forServer, tls.Client(client, forClient)
	if weAreClient {
		ours, theirs, ourConfig, their = client, server, forClient, tls.Server(server, forServer)
	}
	done := make(chan error, 1)
	go func() {
		err := their.HandshakeContext(t.Context())
		if err == nil && first != nil {
			_, err = their.Write(first)
		}
		done <- err
	}()
	s, state, err := Handshake(t.Context(), ours, ourConfig, weAreClient, nil)
	if err != nil {
		theirs.Close()
		t.Fatal(err, <-done)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !state.HandshakeComplete || state.Version != tls.VersionTLS13 {
		t.Errorf("state %+v", state)
	}
	return &driver{s, ours}, their
}

// talk sends data both ways at once and compares.
func talk(t *testing.T, a, b io.ReadWriter, bytesEachWay int) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	for i, way := range [][2]io.ReadWriter{{a, b}, {b, a}} {
		data := make([]byte, bytesEachWay)
		fill := rand.NewChaCha8([32]byte{byte(i)})
		_, _ = fill.Read(data)
		all.Go(func() {
			for at, n := 0, 1; at < len(data); at, n = at+n, n*3 {
				n = min(n, len(data)-at)
				if _, err := way[0].Write(data[at : at+n]); err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			got := make([]byte, len(data))
			if _, err := io.ReadFull(way[1], got); err != nil {
				t.Error(err)
			} else if !bytes.Equal(got, data) {
				t.Error("the data came changed")
			}
		})
	}
}

func TestWithTheStandardLibrary(t *testing.T) {
	for name, client := range map[string]bool{"as client": true, "as server": false} {
		t.Run(name, func(t *testing.T) {
			we, they := ends(t, client, nil)
			talk(t, we, they, 3<<20)

			we.Out.limit = 3 // so that keys are renewed all the time
			talk(t, we, they, 1<<20)

			before := bytes.Clone(we.In.secret)
			if err := we.Out.RenewKeys(); err != nil {
				t.Fatal(err)
			}
			if err := we.flush(); err != nil {
				t.Fatal(err)
			}
			for range 2 { // it may have sent all of the first before it read the wish
				talk(t, we, they, 1<<20)
			}
			if bytes.Equal(before, we.In.secret) {
				t.Error("the peer was asked to renew its keys and has not")
			}

			we.Out.Close()
			if err := we.flush(); err != nil {
				t.Fatal(err)
			}
			if n, err := they.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("the farewell is read as %d, %v", n, err)
			}
			if err := they.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if n, err := we.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
					t.Errorf("the peer's farewell is read as %d, %v", n, err)
				}
			}
		})
	}
}

// What the peer sends with the end of its handshake is not lost in crypto/tls.
func TestNothingIsReadTooFar(t *testing.T) {
	first := bytes.Repeat([]byte("first words "), 4000)
	we, they := ends(t, false, first)
	got := make([]byte, len(first))
	if _, err := io.ReadFull(we, got); err != nil || !bytes.Equal(got, first) {
		t.Fatalf("%v, %d bytes", err, len(got))
	}
	talk(t, we, they, 100)
}

// A connection goes on in other hands, with bytes that were received and not read.
func TestExport(t *testing.T) {
	we, they := ends(t, false, nil)
	we.Out.limit = 2
	talk(t, we, they, 200<<10)
	rest := bytes.Repeat([]byte("0123456789abcdef"), 2000)
	if _, err := they.Write(rest); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 10, len(rest))
	if _, err := io.ReadFull(we, got); err != nil {
		t.Fatal(err)
	}
	if !we.In.Ready() {
		t.Error("there are bytes to read, and nobody says so")
	}
	s, err := we.Export()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	s = new(State)
	if err := json.Unmarshal(text, s); err != nil {
		t.Fatal(err)
	}
	if we.Stream, err = Resume(s); err != nil {
		t.Fatal(err)
	}
	if !we.In.Ready() {
		t.Error("there are bytes to read after the hand-over, and nobody says so")
	}
	got = got[:len(rest)]
	if _, err := io.ReadFull(we, got[10:]); err != nil || !bytes.Equal(got, rest) {
		t.Fatalf("%v", err)
	}
	talk(t, we, they, 1<<20)

	if _, err := we.Out.Fill([][]byte{{1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := we.Export(); !errors.Is(err, ErrState) {
		t.Errorf("a connection with bytes to send is handed on: %v", err)
	}
}

func TestResumeRefuses(t *testing.T) {
	ok := State{Suite: tls.TLS_AES_128_GCM_SHA256, Send: make([]byte, 32), Receive: make([]byte, 32)}
	for name, change := range map[string]func(*State){
		"suite":  func(s *State) { s.Suite = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 },
		"send":   func(s *State) { s.Send = nil },
		"secret": func(s *State) { s.Receive = make([]byte, 48) },
		"plain":  func(s *State) { s.Plain = make([]byte, MaxPlaintext+1) },
		"sealed": func(s *State) { s.Sealed = make([]byte, inBytes+1) },
	} {
		s := ok
		change(&s)
		if _, err := Resume(&s); !errors.Is(err, ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// loop gives two streams that talk to each other in memory.
func loop(t testing.TB, id uint16, secret int) (a, b *Stream) {
	t.Helper()
	one, two := bytes.Repeat([]byte{1}, secret), bytes.Repeat([]byte{2}, secret)
	a, err := Resume(&State{Suite: id, Send: one, Receive: two})
	if err != nil {
		t.Fatal(err)
	}
	if b, err = Resume(&State{Suite: id, Send: two, Receive: one}); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// carry gives what a has pending to b, in pieces.
func carry(a, b *Stream, piece int) {
	for len(a.Out.Pending()) > 0 {
		n := copy(b.In.Room(), a.Out.Pending()[:min(piece, len(a.Out.Pending()))])
		a.Out.Sent(n)
		b.In.Received(n)
	}
}

func TestSuites(t *testing.T) {
	for id, secret := range map[uint16]int{
		tls.TLS_AES_128_GCM_SHA256: 32, tls.TLS_AES_256_GCM_SHA384: 48, tls.TLS_CHACHA20_POLY1305_SHA256: 32,
	} {
		a, b := loop(t, id, secret)
		a.Out.limit = 1
		for range 3 {
			if n, err := a.Out.Fill([][]byte{nil, []byte("he"), nil, []byte("llo")}); n != 5 || err != nil {
				t.Fatal(n, err)
			}
			carry(a, b, 7)
			got := make([]byte, 9)
			if n, err := b.In.Read(got); err != nil || string(got[:n]) != "hello" {
				t.Errorf("%s: %q, %v", tls.CipherSuiteName(id), got[:n], err)
			}
			if _, err := b.In.Read(got); !errors.Is(err, ErrShort) {
				t.Error(err)
			}
		}
	}
}

// The peer's wish for other keys is granted before the next data.
func TestRenewal(t *testing.T) {
	a, b := loop(t, tls.TLS_AES_128_GCM_SHA256, 32)
	if err := a.Out.RenewKeys(); err != nil {
		t.Fatal(err)
	}
	carry(a, b, 100)
	if n, err := b.In.Read(make([]byte, 1)); n != 0 || !errors.Is(err, ErrShort) {
		t.Fatal(n, err)
	}
	before := bytes.Clone(b.Out.secret)
	if _, err := b.Out.Fill([][]byte{[]byte("x")}); err != nil || bytes.Equal(before, b.Out.secret) {
		t.Fatalf("the keys are the same: %v", err)
	}
	carry(b, a, 100)
	if n, err := a.In.Read(make([]byte, 2)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

// Every bit of a record is protected, and its place among the records.
func TestChangedRecords(t *testing.T) {
	a, b := loop(t, tls.TLS_AES_128_GCM_SHA256, 32)
	sealed := a.Out.appendRecord(nil, TypeApplication, []byte("a record"))
	for bit := range len(sealed) * 8 {
		changed := bytes.Clone(sealed)
		changed[bit/8] ^= 1 << (bit % 8)
		b.In.seq = 0
		_, _, _, err := b.In.parse(changed, nil)
		if !errors.Is(err, ErrAuthenticity) && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrShort) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
	b.In.seq = 1
	if _, _, _, err := b.In.parse(bytes.Clone(sealed), nil); !errors.Is(err, ErrAuthenticity) {
		t.Errorf("in another place: %v", err)
	}
	b.In.seq = 0
	if _, data, _, err := b.In.parse(sealed, nil); err != nil || string(data) != "a record" {
		t.Errorf("unchanged: %q, %v", data, err)
	}
}

func TestWhatAPeerMayNotSend(t *testing.T) {
	one := func(kind ContentType, data ...byte) func(*sealer) []byte {
		return func(s *sealer) []byte { return s.appendRecord(nil, kind, data) }
	}
	for name, c := range map[string]struct {
		build func(*sealer) []byte
		want  error
	}{
		"ticket":  {one(TypeHandshake, 4, 0, 0, 1, 0), ErrMalformed},
		"request": {one(TypeHandshake, 24, 0, 0, 1, 2), ErrMalformed},
		"type":    {one(20, 1), ErrMalformed},
		"alert":   {one(TypeAlert, 2), ErrMalformed},
		"fatal":   {one(TypeAlert, 2, 40), AlertError(40)},
		"no type": {one(0, make([]byte, 8)...), ErrMalformed},
		"long":    {one(TypeApplication, make([]byte, MaxPlaintext+1)...), ErrMalformed},
		"longer":  {func(*sealer) []byte { return []byte{23, 3, 3, 0x41, 0x01} }, ErrMalformed},
		"plain":   {func(*sealer) []byte { return []byte{21, 3, 3, 0, 2, 2, 40} }, ErrMalformed},
		"unused": {func(s *sealer) (b []byte) {
			for range maxUnused + 1 {
				b = s.appendRecord(b, TypeApplication, nil)
			}
			return b
		}, errTooManyUnused},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := loop(t, tls.TLS_AES_128_GCM_SHA256, 32)
			b.In.Received(copy(b.In.Room(), c.build(&a.Out.sealer)))
			for range 2 { // it stays as it is
				if n, err := b.In.Read(make([]byte, MaxRecord)); n != 0 || !errors.Is(err, c.want) {
					t.Errorf("%d, %v", n, err)
				}
				if !b.In.Ready() {
					t.Error("nobody says that there is an error to be read")
				}
			}
		})
	}
}

func TestHandshakeIsRefused(t *testing.T) {
	client, server := pair(t)
	_, forServer := configs(t)
	go func() {
		_, _ = client.Write([]byte("SCUDA\r\n\x1a and no TLS at all"))
		client.Close()
	}()
	if _, _, err := Handshake(t.Context(), server, forServer, false, nil); !errors.As(err, new(tls.RecordHeaderError)) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other, _ := pair(t)
	if _, _, err := Handshake(ctx, other, &tls.Config{InsecureSkipVerify: true}, true, nil); err == nil {
		t.Error("a handshake that nobody waits for succeeds")
	}
}

// Nothing is allocated for a message.
func TestAllocations(t *testing.T) {
	a, b := loop(t, tls.TLS_AES_128_GCM_SHA256, 32)
	bufs, got := [][]byte{make([]byte, 40), make([]byte, 300)}, make([]byte, 1000)
	exchange := func() {
		if n, err := a.Out.Fill(bufs); n != 340 || err != nil {
			t.Fatal(n, err)
		}
		carry(a, b, 1<<20)
		if n, err := b.In.Read(got); n != 340 || err != nil {
			t.Fatal(n, err)
		}
	}
	exchange()
	if n := testing.AllocsPerRun(100, exchange); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzInbound(f *testing.F) {
	a, _ := loop(f, tls.TLS_AES_128_GCM_SHA256, 32)
	good := a.Out.appendRecord(nil, TypeApplication, []byte("data"))
	good, _ = a.Out.appendUpdate(good, 1)
	good = a.Out.appendRecord(good, TypeApplication, []byte("more"))
	f.Add(good, uint8(3))
	f.Add(good[:len(good)-3], uint8(1))
	f.Add([]byte{23, 3, 3, 0, 17}, uint8(5))
	f.Fuzz(func(t *testing.T, wire []byte, room uint8) {
		_, b := loop(t, tls.TLS_AES_128_GCM_SHA256, 32)
		var data []byte
		for len(wire) > 0 {
			n := copy(b.In.Room(), wire)
			wire = wire[n:]
			b.In.Received(n)
			for {
				got := make([]byte, int(room)+1)
				n, err := b.In.Read(got)
				data = append(data, got[:n]...)
				if errors.Is(err, ErrShort) {
					break
				}
				if err != nil {
					wire = nil
					break
				}
			}
		}
		if sent := []byte("datamore"); !bytes.HasPrefix(sent, data) {
			t.Errorf("%q was never sent", data)
		}
	})
}

// What is sealed comes out, however it is cut into pieces.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("some data"), uint16(3), uint16(4), uint8(2))
	f.Add(bytes.Repeat([]byte{7}, 40000), uint16(16384), uint16(1000), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, cut, piece uint16, limit uint8) {
		data = data[:min(len(data), 100<<10)]
		a, b := loop(t, tls.TLS_AES_128_GCM_SHA256, 32)
		a.Out.limit = max(1, uint64(limit))
		var out []byte
		for rest := data; len(rest) > 0; {
			k := min(int(cut), len(rest))
			n, err := a.Out.Fill([][]byte{rest[:k], rest[k:]})
			if err != nil || n == 0 {
				t.Fatal(n, err)
			}
			rest = rest[n:]
			for len(a.Out.Pending()) > 0 {
				k := copy(b.In.Room(), a.Out.Pending()[:min(100+int(piece), len(a.Out.Pending()))])
				a.Out.Sent(k)
				b.In.Received(k)
				got := make([]byte, 1+int(cut))
				for {
					n, err := b.In.Read(got)
					out = append(out, got[:n]...)
					if errors.Is(err, ErrShort) {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if !bytes.Equal(out, data) {
			t.Errorf("%d bytes became %d", len(data), len(out))
		}
	})
}
