package transport

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
)

func TestCommonVersion(t *testing.T) {
	for _, c := range []struct {
		own, peer Versions
		want      uint32 // 0: none
	}{
		{Versions{1, 1}, Versions{1, 1}, 1},
		{Versions{1, 1}, Versions{2, 2}, 0},
		{Versions{2, 2}, Versions{1, 1}, 0},
		{Versions{1, 3}, Versions{2, 5}, 3},
		{Versions{2, 5}, Versions{1, 3}, 3},
		{Versions{1, 2}, Versions{2, 2}, 2},
		{Versions{3, 4}, Versions{1, 2}, 0},
		{Versions{1, 9}, Versions{4, 5}, 5},
		{Versions{1, 1}, Versions{5, 1}, 0}, // says nonsense
		{Versions{1, 1}, Versions{0, 0}, 0},
		{Versions{1, 1}, Versions{1, ^uint32(0)}, 1},
	} {
		got, ok := c.own.Common(c.peer)
		if ok != (c.want != 0) || ok && got != c.want {
			t.Errorf("%v and %v: %d, %v; want %d", c.own, c.peer, got, ok, c.want)
		}
	}
	if !Spoken.Has(Version) || !Spoken.Has(MinVersion) || Spoken.Has(Version+1) || Spoken.Has(MinVersion-1) {
		t.Errorf("speaks %v", Spoken)
	}
}

func TestVersionText(t *testing.T) {
	for _, c := range []struct {
		e    VersionError
		want string
	}{
		{VersionError{Client: Versions{9, 9}, Server: Versions{1, 1}},
			"the client speaks protocol version 9, this server version 1; install the same"},
		{VersionError{Client: Versions{2, 3}, Server: Versions{4, 6}, ClientRelease: "0.3.0", ServerRelease: "0.5.1"},
			"the client (scuda 0.3.0) speaks protocol versions 2 to 3, this server (scuda 0.5.1) versions 4 to 6; install " +
				"the same"},
		{VersionError{ClientRelease: strings.Repeat("x", 99)}, "(scuda " + strings.Repeat("x", 40) + ")"},
	} {
		if text := c.e.Error(); !strings.Contains(text, c.want) {
			t.Errorf("%q, want %q", text, c.want)
		}
	}
}

func TestAgree(t *testing.T) {
	for _, c := range []struct {
		name                string
		own, required, peer []string
		both, missing       []string
	}{
		{"nothing", nil, nil, nil, nil, nil},
		{"the same", []string{"b", "a"}, nil, []string{"a", "b"}, []string{"a", "b"}, nil},
		{"of an older peer", []string{"a"}, nil, nil, nil, nil},
		{"of a newer peer", []string{"a"}, []string{"a"}, []string{"a", "z"}, []string{"a"}, nil},
		{"required of an older peer", []string{"a"}, []string{"b", "a", "b"}, []string{"a"}, []string{"a"}, []string{"b"}},
		{"said twice", []string{"a", "a"}, nil, []string{"a", "a"}, []string{"a"}, nil},
	} {
		both, missing := Agree(c.own, c.required, c.peer)
		if !slices.Equal(both, c.both) || !slices.Equal(missing, c.missing) {
			t.Errorf("%s: %q, missing %q", c.name, both, missing)
		}
	}
}

// TestNeeds: whoever makes use of something says that it needs it.
func TestNeeds(t *testing.T) {
	for _, c := range []struct {
		h    Hello
		want string
	}{
		{Hello{}, ""},
		{Hello{Requires: []string{"a"}}, "a"},
		{Hello{Line: 1}, CapResume}, {Hello{Epoch: 1}, CapResume}, {Hello{Acknowledged: 1}, CapResume},
		{Hello{Windows: 2}, CapWindows}, {Hello{Window: 1, Windows: 2}, CapWindows}, {Hello{Window: 1}, CapWindows},
		{Hello{Windows: 1}, ""}, {Hello{Windows: -1}, CapWindows},
		{Hello{Ticket: "t"}, CapTickets}, {Hello{Purpose: "p", Line: 2}, CapResume + " " + CapTickets},
	} {
		if got := strings.Join(c.h.Needs(), " "); got != c.want {
			t.Errorf("%+v needs %q, want %q", c.h, got, c.want)
		}
	}
}

// TestVersionRanges: a peer that speaks more versions than this release is served in the one that both have.
func TestVersionRanges(t *testing.T) {
	for _, c := range []struct {
		name       string
		least, top uint32
		ok         bool
	}{
		{"this release", 0, 0, true}, {"a newer one that knows this", MinVersion, Version + 5, true},
		{"a newer one that does not", Version + 1, Version + 5, false},
		{"a newer one that names no range", 0, Version + 5, false},
	} {
		b, err := AppendPreface(nil, nil, &Hello{Kind: KindInfo, Version: "9.9", MaxVersion: c.top, MinVersion: c.least})
		if err != nil {
			t.Fatal(err)
		}
		p, _, err := parsePreface(b)
		var e *VersionError
		switch {
		case (err == nil) != c.ok, err != nil &&
			(!errors.As(err, &e) || e.ClientRelease != "9.9" || e.Server != Spoken || e.Client.Max != c.top):
			t.Errorf("client %s: %v", c.name, err)
		case err == nil && p.Hello.Versions().Max != max(c.top, Version):
			t.Errorf("client %s: speaks %v", c.name, p.Hello.Versions())
		}
	}
	b, err := AppendWelcome(nil, &Welcome{
		Version: "9.9", Protocol: Version + 5, MinVersion: Version + 2, MaxVersion: Version + 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ReadWelcome(bytes.NewReader(b))
	if !errors.Is(err, ErrVersion) ||
		!strings.Contains(err.Error(), "server (scuda 9.9) speaks versions 3 to 8, this client version 1") {
		t.Errorf("a newer server: %v", err)
	}
}

// TestServerLacks: a client goes on only where the server has what the client needs, also with a server that does not
// look.
func TestServerLacks(t *testing.T) {
	old := answer(t, &Welcome{Version: "0.1"})
	able := answer(t, &Welcome{Version: "0.9", Capabilities: []string{CapResume, "tea"}})
	for _, c := range []struct {
		name  string
		serve func(*net.TCPConn)
		hello Hello
		says  string // "": it goes on
	}{
		{"an old server", old, Hello{Kind: KindInfo}, ""},
		{"an old server", old, Hello{Kind: KindInfo, Requires: []string{"tea"}},
			`the server (scuda 0.1) does not have "tea"; install`},
		{"an old server", old, Hello{Kind: KindInfo, Line: 1}, `"resume" (lines that outlive their sockets)`},
		{"an old server", old, Hello{Kind: KindCUDA, Windows: 2}, `"windows" (windows of addresses for each of several`},
		{"an old server", old, Hello{Kind: KindCUDA, Windows: 1}, ""},
		{"an able server", able, Hello{Kind: KindInfo, Line: 1, Requires: []string{"tea"}}, ""},
		{"one that refuses", answer(t, &Welcome{Status: StatusCapability, Error: "no tea"}), Hello{Kind: KindInfo},
			"no tea; install the same"},
	} {
		conn, _, err := DialNet(t.Context(), Target{Address: serve(t, c.serve)}, &c.hello)
		if (err == nil) != (c.says == "") ||
			err != nil && (!errors.Is(err, ErrCapability) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s, %+v: %v", c.name, c.hello, err)
		}
		if conn != nil {
			conn.Close()
		}
	}
}

// FuzzVersions: whatever two sides say, what they choose is in both ranges, and both choose the same.
func FuzzVersions(f *testing.F) {
	f.Add(uint32(1), uint32(2), uint32(2), uint32(3))
	f.Fuzz(func(t *testing.T, a, b, c, d uint32) {
		one, other := rangeOf(a, b), rangeOf(c, d)
		v, ok := one.Common(other)
		w, ok2 := other.Common(one)
		if v != w || ok != ok2 || ok && (!one.Has(v) || !other.Has(v)) {
			t.Errorf("%v and %v: %d %v, %d %v", one, other, v, ok, w, ok2)
		}
	})
}
