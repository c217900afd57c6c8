package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"scuda.dev/scuda/transport/certificate"
)

// ErrDirect is a server that is not reached but through the command.
var ErrDirect = errors.New("the server there is not reached directly")

const (
	directTime    = 3 * time.Second        // for a server to be reached
	firstTime     = 250 * time.Millisecond // for one at an address that stands before the first that answers
	mostAddresses = 16
)

// Addresses are where other machines may reach a port of this one: first by the address by which ssh was reached
// ($SSH_CONNECTION), then by those of its interfaces.
func Addresses(port int, sshConnection string, interfaces []net.Addr) (list []string) {
	add := func(ip net.IP) {
		at := net.JoinHostPort(ip.String(), strconv.Itoa(port))
		if len(list) < mostAddresses && !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	if words := strings.Fields(sshConnection); len(words) == 4 { // of the client, and of the server
		if ip := net.ParseIP(words[2]); ip != nil {
			add(ip)
		}
	}
	for _, a := range interfaces {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			add(n.IP)
		}
	}
	return list
}

// reach finds an address at which the server with a key answers. Of several it takes the one that stands first, if that
// answers soon after the others. The key came by the command, so whoever else answers is not taken for the server.
func reach(ctx context.Context, addresses []string, fingerprint string) (string, error) {
	if len(addresses) == 0 || fingerprint == "" {
		return "", fmt.Errorf("%w: it names no address", ErrDirect)
	}
	addresses = addresses[:min(len(addresses), mostAddresses)]
	ctx, cancel := context.WithTimeout(ctx, directTime)
	defer cancel() // the others give up
	type answer struct {
		number int
		err    error
	}
	answers := make(chan answer, len(addresses))
	for i, at := range addresses {
		go func() { answers <- answer{i, greets(ctx, at, fingerprint)} }()
	}
	best, errs := len(addresses), []error{}
	var soon <-chan time.Time // nil: nobody has answered
	silent := map[int]bool{}  // who may stand before the best
	for i := range addresses {
		silent[i] = true
	}
	before := func() bool {
		for i := range silent {
			if i < best {
				return true
			}
		}
		return false
	}
	for before() {
		select {
		case a := <-answers:
			delete(silent, a.number)
			if a.err != nil {
				errs = append(errs, a.err)
				continue
			}
			best = min(best, a.number)
			if soon == nil {
				soon = time.After(firstTime)
			}
		case <-soon:
			clear(silent)
		}
	}
	if best < len(addresses) {
		return addresses[best], nil
	}
	return "", fmt.Errorf("%w: %w", ErrDirect, shortest(errs))
}

// greets shakes hands with the server at an address.
func greets(ctx context.Context, at, fingerprint string) error {
	d := tls.Dialer{Config: certificate.Pinned(fingerprint)}
	c, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	return c.Close()
}

// shortest is one of several errors, of which people need not read all.
func shortest(errs []error) error {
	return slices.MinFunc(errs, func(a, b error) int { return len(a.Error()) - len(b.Error()) })
}
