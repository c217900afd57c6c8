package transport

import (
	"strings"
	"testing"
)

func TestTicket(t *testing.T) {
	of := func(secret, session, purpose string, n int) string {
		s, err := Ticket(secret, session, purpose, n, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one := of("secret", "s1", KindCallback, 0)
	if !SameTicket(one, of("secret", "s1", KindCallback, 0)) || strings.Contains(one, "secret") {
		t.Error(one)
	}
	for _, other := range []string{of("secret2", "s1", KindCallback, 0), of("secret", "s2", KindCallback, 0),
		of("secret", "s1", KindBulk, 0), of("secret", "s1", KindCallback, 1), ""} {
		if SameTicket(one, other) {
			t.Errorf("%s is %s", other, one)
		}
	}
	if n, ok := TicketNumber(of("secret", "s1", KindBulk, 12)); n != 12 || !ok {
		t.Error(n, ok)
	}
	for _, bad := range []string{"", "1", "x.00", "-1.00", "+1.00", "01.00", ".00", "99999999999999999999.00"} {
		if n, ok := TicketNumber(bad); ok {
			t.Errorf("%q is number %d", bad, n)
		}
	}
}
