package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// bindingLabel is the label by which a ticket is bound to its TLS connection (RFC 8446, section 7.5).
const bindingLabel = "EXPORTER-scuda-ticket"

// Ticket is the permission for one further connection of a session: the number-th for the purpose. Whoever has the
// session's secret can make it; who sees it can make no other. With TLS it is good on the connection alone on which it
// is presented.
func Ticket(secret, session, purpose string, number int, c net.Conn) (string, error) {
	binding := []byte(nil)
	if t, ok := c.(*TLSConn); ok {
		var err error
		if binding, err = t.state.ExportKeyingMaterial(bindingLabel, nil, sha256.Size); err != nil {
			return "", err
		}
	}
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%d %q %q %x", number, session, purpose, binding)
	return strconv.Itoa(number) + "." + hex.EncodeToString(mac.Sum(nil)), nil
}

// TicketNumber says which of its purpose's tickets one is.
func TicketNumber(ticket string) (int, bool) {
	text, _, ok := strings.Cut(ticket, ".")
	n, err := strconv.Atoi(text)
	return n, ok && err == nil && strconv.Itoa(n) == text && n >= 0
}

// SameTicket compares tickets in constant time.
func SameTicket(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }
