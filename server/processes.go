package server

import (
	"net"

	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/nvmldispatch"
	"scuda.dev/scuda/transport"
)

// The driver knows the workers by their pids; a client that asks NVML which processes use a GPU is to find its own
// there. The worker of an NVML session asks the supervisor which workers do the work of processes of the client's
// machine.

// Messages about processes.
const (
	msgWho       = "who"       // NVML worker: which processes of my client's machine are there?
	msgProcesses = "processes" // the supervisor's answer: processList
)

type processList struct{ Processes []nvmldispatch.Process }

// client says whose a session is.
type client struct {
	host, address string // the same address may stand for several machines, the same name as well
	pid           int
	command       string
	user          string
}

func clientOf(c net.Addr, hello *transport.Hello) client {
	address, _, _ := net.SplitHostPort(c.String())
	command := hello.Command
	if command == "" {
		command = hello.Program
	}
	return client{hello.Host, address, hello.PID, command, hello.User}
}

// processes are those of a tenant that run on the machine of of. The host is only what a client says, and tenants may
// share an address: neither shows one tenant the programs of another.
func (s *sessions) processes(tenant string, of client) (list []nvmldispatch.Process) {
	s.each(func(x *session) {
		if !x.nvml && x.who.Name == tenant && x.client.host == of.host && x.client.address == of.address {
			list = append(list, nvmldispatch.Process{
				Server: uint32(x.proc.pid()), Client: uint32(x.client.pid), Program: x.client.command,
			})
		}
	})
	return list
}

// answerWho tells a worker what it asked. A worker that is gone needs no answer.
func (p *process) answerWho() {
	list := processList{}
	if who := p.who.Load(); who != nil {
		list.Processes = (*who)()
	}
	_ = p.line.Send(msgProcesses, list, -1)
}

// processes asks the supervisor; it answers at once, and a worker without a supervisor ends.
func (w *worker) processes() []nvmldispatch.Process {
	if w.line.Send(msgWho, struct{}{}, -1) != nil {
		return nil
	}
	return <-w.told
}

func (w *worker) toldProcesses(m *handoff.Message) error {
	var list processList
	err := m.Decode(&list)
	w.told <- list.Processes
	return err
}
