package nvmltest

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/nvmldispatch"
	"scuda.dev/scuda/server/nvmldispatch/fakenvml"
	"scuda.dev/scuda/sim/smi"
	"scuda.dev/scuda/transport"
)

// server serves NVML sessions as a worker does, one goroutine a connection.
type server struct {
	addr     string
	sessions atomic.Int32 // opened so far
	byes     atomic.Int32 // taken leave of

	mu    sync.Mutex                         // guards what follows
	forge func(op uint16, req, reply []byte) // changes answers; may be nil
	own   func(machine) nvml.Driver          // the machine as a test wants it; may be nil
	hold  chan struct{}                      // told of each connection that is taken and not served; nil: they are served
	conns []net.Conn
	log   strings.Builder
}

// Write takes the sessions' log.
func (s *server) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

func (s *server) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// hangUp closes all connections.
func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

// machine is the fake, but nothing happens on it.
type machine struct{ *fakenvml.Driver }

func (m machine) NvmlEventSetWait_v2(set nvml.NvmlEventSet, data *nvml.NvmlEventData, ms uint32) nvml.NvmlReturn {
	return m.Driver.Driver.NvmlEventSetWait_v2(set, data, ms)
}

// clients are the processes of this machine that the fake's two processes work for.
func clients() []nvmldispatch.Process {
	return []nvmldispatch.Process{
		{Server: 100, Client: 4242, Program: "python3"}, {Server: 200, Client: 200, Program: "x"},
	}
}

func startServer(t *testing.T, token string) *server {
	t.Helper()
	l, err := transport.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			hold := s.hold
			s.mu.Unlock()
			if hold != nil {
				hold <- struct{}{}
				continue
			}
			wg.Go(func() { s.serve(t, c, []byte(token)) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.hangUp()
		wg.Wait()
	})
	return s
}

func (s *server) serve(t *testing.T, c net.Conn, token []byte) {
	defer c.Close()
	hello, err := transport.ReadPreface(c, token)
	w := &transport.Welcome{Status: transport.StatusOf(err), Devices: make([]transport.Device, 3)}
	if err != nil {
		w.Error = "the token is wrong; set SCUDA_TOKEN"
		w.Devices = nil
	} else if hello.Kind != transport.KindNVML || hello.Digest != nvml.Digest || hello.PID == 0 || hello.Program == "" {
		t.Errorf("hello %+v", hello)
	}
	b, _ := transport.AppendWelcome(nil, w)
	if _, werr := c.Write(b); werr != nil || err != nil {
		return
	}
	s.sessions.Add(1)
	drv, err := smi.Open(smi.Config{DriverVersion: "580.00", CUDAVersion: 13000, Devices: []smi.Device{
		{Name: "scuda simulated GPU", UUID: [16]byte{0xab, 1}, Bus: 0x1b, Memory: 8 << 30, Major: 9},
		{Name: "another", UUID: [16]byte{0xab, 2}, Bus: 0x1c, Memory: 4 << 30, Major: 9, IdlePower: 75_000,
			PowerLimit: 700_000}}})
	if err != nil {
		t.Error(err)
		return
	}
	var driver nvml.Driver = machine{&fakenvml.Driver{Driver: drv}}
	s.mu.Lock()
	if s.own != nil {
		driver = s.own(machine{&fakenvml.Driver{Driver: drv}})
	}
	s.mu.Unlock()
	d := nvmldispatch.New(driver,
		nvmldispatch.Options{Processes: clients, Log: slog.New(slog.NewTextHandler(s, nil))})
	defer d.Close()
	reply := make([]byte, 1<<20)
	var chain transport.Chain
	for {
		var head [8]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		frame, _, err := transport.ParseFrame(head[:])
		if err != nil {
			t.Error(err)
			return
		}
		body := make([]byte, frame.Len)
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		var out []byte
		for len(body) > 0 {
			cmd, payload, err := transport.ParseCommand(body)
			if err == nil && cmd.Op == wire.OpBye {
				s.byes.Add(1)
				return
			}
			if err != nil || cmd.Flags != transport.FlagAnswer {
				t.Errorf("command %+v, %v", cmd, err)
				return
			}
			body = body[cmd.Size:]
			result, n, err := d.Call(cmd.Op, payload, reply)
			if err != nil {
				t.Error(err)
				return
			}
			s.mu.Lock()
			forge := s.forge
			s.mu.Unlock()
			if forge != nil {
				forge(cmd.Op, payload, reply[:n])
			}
			h := transport.MessageHeader{Len: uint32(n), Type: transport.MsgReply, Result: result, Seq: cmd.Seq}
			h.Flags = chain.Next(&h)
			out = h.Append(out)
			out = append(out, reply[:n]...)
			out = append(out, make([]byte, transport.Pad(n)-n)...)
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}
