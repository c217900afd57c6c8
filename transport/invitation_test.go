package transport

import (
	"bytes"
	"net"
	"strings"
	"testing"
)

// present gives the token of a connection, which has no TLS.
func present(t *testing.T, v Invitation, number int) []byte {
	t.Helper()
	token, err := v.Token(number, (net.Conn)(nil))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestInvitation(t *testing.T) {
	invite := Invite("secret", "session", 1, 2)
	for number := range PeerPath + 1 {
		v, ticket, ok := ParseInvited(present(t, invite, number))
		if !ok || v.Session != "session" || v.Server != 1 || v.Epoch != 2 || v.Key != "" {
			t.Fatalf("%+v %q %v", v, ticket, ok)
		}
		if n, ok := invite.Admits(ticket, nil); n != number || !ok {
			t.Errorf("connection %d: %d %v", number, n, ok)
		}
		for name, other := range map[string]Invitation{
			"of another secret": Invite("Secret", "session", 1, 2), "to another session": Invite("secret", "Session", 1, 2),
			"of another server": Invite("secret", "session", 2, 2), "of another epoch": Invite("secret", "session", 1, 3),
		} {
			if _, ok := other.Admits(ticket, nil); ok {
				t.Errorf("an invitation %s admits connection %d", name, number)
			}
		}
	}
	_, ticket, _ := ParseInvited(present(t, invite, PeerPath+1))
	if _, ok := invite.Admits(ticket, nil); ok {
		t.Error("more connections are admitted than there can be")
	}
	if bytes.Contains(present(t, invite, 0), []byte(invite.Key)) || len(present(t, invite, PeerPath)) > MaxToken {
		t.Error("the token says the key, or is too long")
	}
}

// What a client calls another server's session is said by its server to whoever listens at the address, and is no
// command for that: such services stand behind the networks of --peers, too.
func TestInvitationSaysOneWord(t *testing.T) {
	for _, session := range []string{"", "a b", "a\r\nFLUSHALL\r\n", "a\tb", "a\x00b", "ä", strings.Repeat("a", 65)} {
		v := Invite("secret", session, 1, 2)
		if token, err := v.Token(0, nil); err == nil {
			t.Errorf("%q is said: %q", session, token)
		}
	}
}

func FuzzInvited(f *testing.F) {
	invite := Invite("secret", "session", 15, 31)
	token, err := invite.Token(0, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add([]byte("peer 1 2 session 0.00"))
	f.Add([]byte("peer -1 2  0.00"))
	f.Fuzz(func(t *testing.T, token []byte) {
		v, ticket, ok := ParseInvited(token)
		if !ok {
			return
		}
		if n, ok := invite.Admits(ticket, nil); ok && (v.Session != "session" || v.Server != 15 || v.Epoch != 31) &&
			bytes.Equal(token, present(t, v, n)) {
			t.Errorf("%q is admitted", token)
		}
	})
}
