package door

import "net"

// Listen gives a listener whose connections all have places of a door of their own until they are closed: a new one is
// always accepted, at the cost of the oldest of whoever has the most.
func Listen(l net.Listener, places int) net.Listener { return &listener{l, New(places)} }

type listener struct {
	net.Listener
	door *Door
}

type conn struct {
	net.Conn
	visit *Visit
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{c, l.door.Enter(c, c.RemoteAddr())}, nil
}

func (c *conn) Close() error {
	c.visit.Leave()
	return c.Conn.Close()
}
