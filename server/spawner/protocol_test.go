package spawner

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/isolation"
)

var packets = []packet{
	{Kind: kindHello, Facts: Facts{UIDs: DefaultRange, Limits: "none", Files: "old kernel", Folders: true}},
	{Kind: kindHello},
	{Kind: kindStart, ID: 1, Order: Order{KeyOf("x"), 5000, isolation.RDMA | isolation.NCCL, true}},
	{Kind: kindKill, ID: 1<<64 - 1}, {Kind: kindStarted, ID: 2, PID: 77}, {Kind: kindFailed, ID: 3, Text: "why"},
	{Kind: kindExited, ID: 4, Text: "exit status 1"}, {Kind: kindExited, ID: 5},
	{Kind: kindKeep, ID: 6}, {Kind: kindKept, ID: 7, PID: 78}, {Kind: kindHouse}, {Kind: kindAll}, {Kind: kindBye},
	{Kind: kindHello, Facts: Facts{Keeps: true}},
}

func TestPackets(t *testing.T) {
	for _, p := range packets {
		b := p.append(nil)
		got, err := parsePacket(b)
		if err != nil || got != p {
			t.Errorf("%+v: %+v, %v", p, got, err)
		}
		for n := range len(b) - len(p.Text) - len(p.Facts.Files) {
			if _, err := parsePacket(b[:n]); err == nil {
				t.Errorf("%d of %d bytes of kind %d are read", n, len(b), p.Kind)
			}
		}
	}
	long := packet{Kind: kindFailed, Text: strings.Repeat("x", 1000)}
	if got, err := parsePacket(long.append(nil)); err != nil || len(got.Text) != maxText {
		t.Errorf("%d bytes of text, %v", len(got.Text), err)
	}
}

func TestBadPackets(t *testing.T) {
	start := packets[2]
	start.Order.Profile = 1 << 20
	system := packets[0]
	system.Facts.UIDs = Range{0, 5}
	old := packets[0].append(nil)
	old[1]++
	flags := packets[2].append(nil)
	flags[len(flags)-1] |= 0x80
	first := packet{Kind: kindStarted, PID: 1}
	for name, b := range map[string][]byte{
		"nothing": nil, "no kind": {0}, "unknown": {99, 0, 0, 0, 0, 0, 0, 0, 0}, "too long": make([]byte, maxPacket+1),
		"a start with more": append(packets[2].append(nil), 0), "a profile": start.append(nil), "flags": flags,
		"root": system.append(nil), "another version": old, "process 1": first.append(nil),
		"text": append(packets[5].append(nil), bytes.Repeat([]byte{'x'}, maxText)...),
	} {
		if p, err := parsePacket(b); err == nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

func FuzzPacket(f *testing.F) {
	for _, p := range packets {
		f.Add(p.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePacket(b)
		if err != nil {
			return
		}
		if again, err := parsePacket(p.append(nil)); err != nil || again != p {
			t.Errorf("%+v becomes %+v, %v", p, again, err)
		}
	})
}

// ends are the two of a line; the first is closed with the test.
func ends(t *testing.T) (ours, theirs line) {
	t.Helper()
	ours, f, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.sock.Close() })
	if theirs, err = lineOf(f); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

// Descriptors come with a start, two of them, and with nothing else.
func TestDescriptors(t *testing.T) {
	ours, other := ends(t)
	defer other.sock.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		p     packet
		files []*os.File
		ok    bool
	}{
		{packets[2], []*os.File{null, null}, true}, {packets[2], []*os.File{null}, false}, {packets[2], nil, false},
		{packets[2], []*os.File{null, null, null}, false}, {packets[3], nil, true}, {packets[3], []*os.File{null}, false},
	} {
		if err := ours.send(&c.p, c.files...); err != nil {
			t.Fatal(err)
		}
		p, files, err := other.receive()
		if (err == nil) != c.ok || err == nil && (p != c.p || len(files) != len(c.files)) {
			t.Errorf("kind %d with %d: %+v, %d, %v", c.p.Kind, len(c.files), p, len(files), err)
		}
		closeAll(files)
	}
	if _, err := unix.Write(fd(t, ours), make([]byte, maxPacket+100)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.receive(); !errors.Is(err, errPacket) {
		t.Errorf("a packet that is too long: %v", err)
	}
}

// What a peer sent before it was killed is read, also when it had not read everything itself.
func TestLastWords(t *testing.T) {
	ours, other := ends(t)
	last := packet{Kind: kindBye}
	if err := errors.Join(ours.send(&packet{Kind: kindAll}), other.send(&last), other.sock.Close()); err != nil {
		t.Fatal(err)
	}
	if p, _, err := ours.receive(); err != nil || p != last {
		t.Errorf("%+v, %v", p, err)
	}
	if _, _, err := ours.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("then %v", err)
	}
}

func fd(t *testing.T, l line) (n int) {
	t.Helper()
	raw, err := l.sock.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n = int(fd) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Whatever a peer sends, the spawner hangs up and ends what it has started.
func TestHostileSupervisor(t *testing.T) {
	l, err := NewLocal(Config{Cgroup: CgroupNone}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, b := range map[string][]byte{
		"noise": []byte("hello"), "the spawner's own word": packets[0].append(nil), "started": packets[4].append(nil),
		"a start without files": packets[2].append(nil),
	} {
		t.Run(name, func(t *testing.T) {
			ours, other := ends(t)
			done := make(chan error)
			go func() { done <- serve(t.Context(), other, l, newKeeper(false, quiet)) }()
			c, err := newClient(ours)
			if err != nil {
				t.Fatal(err)
			}
			w := start(t, c, Order{})
			w.said()
			if _, err := unix.Write(fd(t, ours), b); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, errPacket) {
				t.Errorf("%v", err)
			}
			if n, _ := w.says.Read(make([]byte, 1)); n != 0 {
				t.Error("its worker goes on")
			}
			<-c.gone
		})
	}
}
