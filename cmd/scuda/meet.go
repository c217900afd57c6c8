package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
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

func atTerminal(cmd *cobra.Command) people {
	return people{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()}
}

// terminal is what people type at, nil where nobody does.
func (p people) terminal() *os.File {
	if f, ok := p.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// answer prints a question and reads the answer, without showing it if it is secret. An interruption ends the wait and
// leaves the terminal as it was.
func (p people) answer(ctx context.Context, question string, secret bool) (string, error) {
	f := p.terminal()
	fmt.Fprint(p.err, question)
	before, err := term.GetState(int(f.Fd()))
	if err != nil {
		return "", err
	}
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() { // which the end of the process ends if nobody answers
		if !secret {
			text, err := bufio.NewReader(f).ReadString('\n')
			read <- line{text, err}
			return
		}
		b, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(p.err)
		read <- line{string(b), err}
	}()
	select {
	case l := <-read:
		return strings.TrimSpace(l.text), l.err
	case <-ctx.Done():
		return "", errors.Join(ctx.Err(), term.Restore(int(f.Fd()), before))
	}
}

const tokenTries = 3

// meeting is the first conversation with a server.
type meeting struct {
	who         people
	server      *config.Saved // gets the token that somebody types
	fingerprint string        // that it must have; "": nobody said one
	insecure    bool
	tokenOf     string // what said the token
	asks        bool   // people may be asked for another

	safety string // how the connection is protected
}

// hold asks the server, and notes its fingerprint where it is new and somebody says that it is the right one.
func (m *meeting) hold(ctx context.Context) (*transport.Welcome, error) {
	address := m.server.Address
	if m.insecure {
		if err := config.Remember(address, ""); err != nil {
			return nil, err
		}
	}
	to, err := config.Candidate(m.server)
	if err != nil {
		return nil, err
	}
	to.TokenOf = m.tokenOf
	trust := func(fingerprint string) {
		cfg := certificate.Pinned(fingerprint)
		if to.TLS != nil {
			cfg.Certificates = to.TLS.Certificates
		}
		to.TLS = cfg
	}
	if m.fingerprint != "" {
		trust(m.fingerprint)
	}
	c, w, err := askOf(ctx, to, transport.KindInfo)
	if errors.Is(err, transport.ErrTLS) && to.TLS == nil && !m.insecure { // a server on this machine that has TLS
		trust("")
		c, w, err = askOf(ctx, to, transport.KindInfo)
	}
	var pin *certificate.PinError
	if errors.As(err, &pin) && pin.Want == "" {
		if ok, e := m.agree(ctx, pin.Got); !ok || e != nil {
			return nil, errors.Join(e, err)
		}
		trust(pin.Got)
		c, w, err = askOf(ctx, to, transport.KindInfo)
	}
	for i := 0; i < tokenTries && errors.Is(err, transport.ErrToken) && m.asks && m.who.terminal() != nil; i++ {
		if to.Token != nil {
			fmt.Fprintln(m.who.err, "scuda:", err)
		}
		text, e := m.who.answer(ctx, fmt.Sprintf("Token for %s (it is not shown): ", address), true)
		if e == nil {
			to.Token, e = config.CheckToken(text, "the terminal")
		}
		if e != nil {
			return nil, e
		}
		m.server.Token, m.tokenOf, to.TokenOf = to.Token, "the terminal", "the terminal"
		c, w, err = askOf(ctx, to, transport.KindInfo)
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return w, m.note(c, to)
}

// note remembers the server's key.
func (m *meeting) note(c any, to transport.Target) error {
	t, ok := c.(*transport.TLSConn)
	if !ok {
		m.safety = "without TLS"
		return nil
	}
	leaf := t.State().PeerCertificates[0]
	if to.TLS.RootCAs != nil {
		m.safety = "TLS 1.3, certificate of " + transport.Printable(leaf.Issuer.CommonName)
		return nil
	}
	m.safety = "TLS 1.3, fingerprint " + certificate.Fingerprint(leaf)
	if err := config.Remember(m.server.Address, certificate.Fingerprint(leaf)); err != nil {
		return fmt.Errorf("%s answers, but its fingerprint cannot be remembered: %w", m.server.Address, err)
	}
	return nil
}

// agree asks whether a fingerprint is the server's. Without a terminal nobody can say so.
func (m *meeting) agree(ctx context.Context, fingerprint string) (bool, error) {
	if m.who.terminal() == nil {
		return false, nil
	}
	text, err := m.who.answer(ctx, fmt.Sprintf("The server %s is unknown. Its fingerprint is\n  %s\n"+
		"The server prints its own when it starts. Are they the same? (yes/no) ", m.server.Address, fingerprint), false)
	return strings.EqualFold(text, "yes"), err
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
