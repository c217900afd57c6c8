package main

import (
	"context"
	"crypto/tls"
	"io"
	"testing"

	"scuda.dev/scuda/shim/connect"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"

	"golang.org/x/sys/unix"
)

// TestRelay: on a connection with TLS the front gets a socket without, and the bytes pass until it closes.
func TestRelay(t *testing.T) {
	own, err := certificate.Keep(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l, err := transport.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		defer l.Close()
		tcp, err := l.AcceptTCP()
		if err != nil {
			got <- err.Error()
			return
		}
		defer tcp.Close()
		c, err := transport.ServeTLS(context.Background(), tcp, &tls.Config{Certificates: []tls.Certificate{own}}, nil)
		if err == nil {
			_, err = transport.ReadPreface(c, nil)
		}
		if err != nil {
			got <- err.Error()
			return
		}
		b, _ := transport.AppendWelcome(nil, &transport.Welcome{DriverVersion: 13000})
		_, _ = c.Write(append(b, "answer"...))
		rest, _ := io.ReadAll(c)
		got <- string(rest)
	}()
	settings(t, l.Addr().String())
	t.Setenv("SCUDA_FINGERPRINT", certificate.Fingerprint(own.Leaf))

	front, ours := pair(t)
	if err := unix.Send(front, request(1, "first,"), 0); err != nil {
		t.Fatal(err)
	}
	done, detached := make(chan error, 1), make(chan struct{})
	go func() { done <- serve(ours, func() { close(detached) }) }()
	a, c := take(t, front)
	unix.Close(front)
	if a.Code != connect.OK || a.Relay != 1 || c == nil {
		t.Fatalf("%+v, %v", a.Code, connect.Text(a.Error[:]))
	}
	b := make([]byte, len("answer"))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "answer" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := io.WriteString(c, "second"); err != nil {
		t.Error(err)
	}
	c.Close()
	if text := <-got; text != "first,second" {
		t.Errorf("the server has got %q", text)
	}
	<-detached
	if err := <-done; err != nil {
		t.Error(err)
	}
}
