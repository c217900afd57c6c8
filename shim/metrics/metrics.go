// Package metrics offers what a client counts of itself to Prometheus, over HTTP and in its text format
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
//
// It is written by hand because it lives in every program that uses scuda: net/http and client_golang together add 4
// MiB of resident memory (of 12) to each of them, asked for or not.
package metrics

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Kind is the type of a family of series.
type Kind string

// The kinds. A summary has no quantiles: it is a sum and a count.
const (
	Counter Kind = "counter"
	Gauge   Kind = "gauge"
	Summary Kind = "summary"
)

// Text is an exposition in the making.
type Text struct{ b bytes.Buffer }

// Family begins a family; its samples follow.
func (t *Text) Family(name, help string, kind Kind) {
	fmt.Fprintf(&t.b, "# HELP %s %s\n# TYPE %s %s\n", name, strings.NewReplacer("\\", `\\`, "\n", `\n`).Replace(help),
		name, kind)
}

// Sample adds a sample; labels are names and values in turns.
func (t *Text) Sample(name string, value float64, labels ...string) {
	t.b.WriteString(name)
	sep := byte('{')
	for i := 0; i+1 < len(labels); i += 2 {
		t.b.WriteByte(sep)
		fmt.Fprintf(&t.b, `%s="%s"`, labels[i], strings.NewReplacer("\\", `\\`, "\n", `\n`, `"`, `\"`).Replace(labels[i+1]))
		sep = ','
	}
	if sep == ',' {
		t.b.WriteByte('}')
	}
	t.b.WriteByte(' ')
	t.b.WriteString(strconv.FormatFloat(value, 'g', -1, 64))
	t.b.WriteByte('\n')
}

// Bytes is the exposition.
func (t *Text) Bytes() []byte { return t.b.Bytes() }

const (
	patience    = 5 * time.Second // of a scrape
	mostRequest = 16 << 10
	mostAtOnce  = 8
)

// Server answers scrapes.
type Server struct {
	l      net.Listener
	gather func(*Text)
	slots  chan struct{}
	done   sync.WaitGroup
}

// Serve answers GET /metrics on l with what gather writes, until Close.
func Serve(l net.Listener, gather func(*Text)) *Server {
	s := &Server{l: l, gather: gather, slots: make(chan struct{}, mostAtOnce)}
	s.done.Go(s.accept)
	return s
}

// Close stops and waits for scrapes that are under way.
func (s *Server) Close() error {
	err := s.l.Close()
	s.done.Wait()
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.slots <- struct{}{}
		s.done.Go(func() {
			defer func() { <-s.slots }()
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			s.answer(c)
		})
	}
}

// answer answers one request; what is wrong with it is the peer's to know.
func (s *Server) answer(c io.ReadWriter) {
	status, kind := "200 OK", "text/plain; version=0.0.4; charset=utf-8"
	var body []byte
	method, path, err := request(c)
	path, _, _ = strings.Cut(path, "?")
	switch {
	case err != nil:
		status, body = "400 Bad Request", []byte(err.Error()+"\n")
	case method != "GET" && method != "HEAD":
		status, body = "405 Method Not Allowed", []byte("only GET\n")
	case path != "/metrics":
		status, body = "404 Not Found", []byte("scuda's client answers /metrics\n")
	default:
		var t Text
		s.gather(&t)
		body = t.Bytes()
	}
	head := fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", status, kind,
		len(body))
	if method == "HEAD" {
		body = nil
	}
	_, _ = c.Write(append([]byte(head), body...))
}

// request reads a request to the end of its header.
func request(r io.Reader) (method, path string, err error) {
	in := bufio.NewReader(io.LimitReader(r, mostRequest))
	line, err := in.ReadString('\n')
	if err != nil {
		return "", "", fmt.Errorf("no request: %w", err)
	}
	words := strings.Fields(line)
	if len(words) != 3 || !strings.HasPrefix(words[2], "HTTP/1.") {
		return "", "", fmt.Errorf("%.60q is no request of HTTP/1", line)
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return "", "", fmt.Errorf("a request without an end: %w", err)
		}
		if strings.TrimRight(line, "\r\n") == "" {
			return words[0], words[1], nil
		}
	}
}
