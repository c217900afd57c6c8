package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"
)

// people are those at the terminal.
type people struct {
	in       io.Reader
	out, err io.Writer
}

// remember makes a server the one that programs use from now on, once it has answered.
func remember(ctx context.Context, who people, addr, tokenFile string, insecure bool) error {
	addr, err := transport.ParseAddress(addr)
	if err != nil {
		return usage(err)
	}
	token, err := clientToken(tokenFile)
	if err != nil {
		return err
	}
	w, err := meet(ctx, who, addr, token, insecure)
	if err != nil {
		return err
	}
	if err := config.SetServer(addr); err != nil {
		return fmt.Errorf("%s answers, but cannot be remembered: %w", addr, err)
	}
	file, err := config.HostFile()
	if err != nil {
		return err
	}
	fmt.Fprintf(who.out, "%s answers, %s; remembered in %s\n", addr, devices(w), file)
	if now, source, err := config.Server(); err == nil && now != addr {
		fmt.Fprintf(who.out, "note: %s says %s, and goes before the file\n", source, now)
	}
	return nil
}

// meet asks a server, and notes its fingerprint where it is new and somebody says that it is the right one.
func meet(ctx context.Context, who people, addr string, token []byte, insecure bool) (*transport.Welcome, error) {
	if insecure {
		if err := config.Remember(addr, ""); err != nil {
			return nil, err
		}
	}
	to, err := config.To(addr, token)
	if err != nil {
		return nil, err
	}
	c, w, err := askOf(ctx, to, transport.KindInfo)
	if errors.Is(err, transport.ErrTLS) && to.TLS == nil && !insecure { // a server on this machine that has TLS
		to.TLS = certificate.Pinned("")
		c, w, err = askOf(ctx, to, transport.KindInfo)
	}
	var pin *certificate.PinError
	if errors.As(err, &pin) && pin.Want == "" {
		if !agree(who, addr, pin.Got) {
			return nil, err
		}
		own := to.TLS.Certificates
		to.TLS = certificate.Pinned(pin.Got)
		to.TLS.Certificates = own
		c, w, err = askOf(ctx, to, transport.KindInfo)
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if t, ok := c.(*transport.TLSConn); ok && to.TLS.RootCAs == nil {
		if err := config.Remember(addr, certificate.Fingerprint(t.State().PeerCertificates[0])); err != nil {
			return nil, fmt.Errorf("%s answers, but its fingerprint cannot be remembered: %w", addr, err)
		}
	}
	return w, nil
}

// agree asks whether a fingerprint is the server's. Without a terminal nobody can say so.
func agree(who people, addr, fingerprint string) bool {
	f, ok := who.in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return false
	}
	fmt.Fprintf(who.err, "The server %s is unknown. Its fingerprint is\n  %s\n"+
		"The server prints its own when it starts. Are they the same? (yes/no) ", addr, fingerprint)
	answer, _ := bufio.NewReader(f).ReadString('\n')
	return strings.EqualFold(strings.TrimSpace(answer), "yes")
}

func devices(w *transport.Welcome) string {
	switch len(w.Devices) {
	case 0:
		return "no GPUs"
	case 1:
		return "1 GPU (" + w.Devices[0].Name + ")"
	}
	return fmt.Sprintf("%d GPUs (%s, …)", len(w.Devices), w.Devices[0].Name)
}
