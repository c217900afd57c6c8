package tlsrecord

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net"
	"sync"
)

// Handshake makes a TLS 1.3 handshake on c with crypto/tls, as client or server, and gives what goes on with the
// connection. first are bytes of the peer's that were read before. The configuration is not changed.
func Handshake(
	ctx context.Context, c net.Conn, cfg *tls.Config, client bool, first []byte,
) (*Stream, tls.ConnectionState, error) {
	cfg = cfg.Clone()
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS13, tls.VersionTLS13
	cfg.SessionTicketsDisabled, cfg.ClientSessionCache = true, nil
	log := new(keyLog)
	cfg.KeyLogWriter = log
	raw := &exact{Conn: c, ahead: first}
	conn := tls.Server(raw, cfg)
	if client {
		conn = tls.Client(raw, cfg)
	}
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, tls.ConnectionState{}, err
	}
	state := conn.ConnectionState()
	toServer, toClient, err := log.secrets()
	if err != nil {
		return nil, state, err
	}
	s := State{Suite: state.CipherSuite, Send: toClient, Receive: toServer, Sealed: raw.ahead}
	if client {
		s.Send, s.Receive = toServer, toClient
	}
	stream, err := Resume(&s)
	return stream, state, err
}

// keyLog takes the secrets that crypto/tls tells to nobody else.
type keyLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (k *keyLog) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text.Write(b)
}

func (k *keyLog) secrets() (toServer, toClient []byte, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for line := range bytes.Lines(k.text.Bytes()) {
		words := bytes.Fields(line)
		if len(words) != 3 {
			continue
		}
		var to *[]byte
		switch string(words[0]) {
		case "CLIENT_TRAFFIC_SECRET_0":
			to = &toServer
		case "SERVER_TRAFFIC_SECRET_0":
			to = &toClient
		default:
			continue
		}
		if *to, err = hex.DecodeString(string(words[2])); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrState, err)
		}
	}
	if toServer == nil || toClient == nil {
		return nil, nil, fmt.Errorf("%w: the handshake gave no keys", ErrState)
	}
	return toServer, toClient, nil
}

// exact gives crypto/tls no byte behind the record that it reads, because what it has read it keeps.
type exact struct {
	net.Conn
	ahead []byte           // received and not yet given
	head  [HeaderSize]byte // of the record at hand
	have  int              // bytes of head that were given
	left  int              // bytes of the record's body that were not
}

func (e *exact) Read(b []byte) (int, error) {
	if len(e.ahead) == 0 {
		more := make([]byte, 4<<10) // a handshake's records are small
		n, err := e.Conn.Read(more)
		if n == 0 {
			return 0, err
		}
		e.ahead = more[:n]
	}
	if e.left == 0 && e.have == HeaderSize {
		e.have = 0
	}
	if e.have < HeaderSize {
		n := copy(b, e.ahead[:min(len(e.ahead), HeaderSize-e.have)])
		copy(e.head[e.have:], e.ahead[:n])
		e.have += n
		e.ahead = e.ahead[n:]
		if e.have == HeaderSize {
			e.left = int(e.head[3])<<8 | int(e.head[4])
		}
		return n, nil
	}
	n := copy(b, e.ahead[:min(len(e.ahead), e.left)])
	e.left -= n
	e.ahead = e.ahead[n:]
	return n, nil
}
