package server

import (
	"net"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/nvmldispatch"
	"scuda.dev/scuda/transport"
)

// The driver knows the workers by their pids; a client that asks NVML which processes use a GPU is to find its own
// there. The worker of an NVML session asks the supervisor which workers do the work of processes of the client's
// machine, and what they may have of the GPUs' memory.

// Messages about processes.
const (
	msgWho       = "who"       // NVML worker: which processes of my client's machine are there?
	msgProcesses = "processes" // the supervisor's answer: processList
)

type processList struct {
	Processes []nvmldispatch.Process
	Memory    nvmldispatch.Memory
}

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

// memorySeen is what limits leave of a GPU for the machine of of. What counts against the limit of a session is what
// the sessions of that machine have, as NVML's own session has nothing.
func (s *sessions) memorySeen(who bearer, of client, limits *config.Limits) nvmldispatch.Memory {
	m := nvmldispatch.Memory{Limit: uint64(limits.MostVRAM())}
	if m.Limit == 0 {
		return m
	}
	var ours, tenants, leases uint64
	s.each(func(x *session) {
		if x.nvml || x.who.Name != who.Name {
			return
		}
		has := x.visit.Memory()
		tenants += has
		if x.who.lease == who.lease {
			leases += has
		}
		if x.client.host == of.host && x.client.address == of.address {
			ours += has
		}
	})
	free := m.Limit
	for _, l := range []struct {
		limit config.Size
		used  uint64
	}{{limits.VRAM, ours}, {limits.TenantVRAM, tenants}, {limits.LeaseVRAM, leases}} {
		if most := uint64(l.limit); most > 0 {
			free = min(free, most-min(l.used, most))
		}
	}
	m.Used = m.Limit - free
	return m
}

// answerWho tells a worker what it asked. A worker that is gone needs no answer.
func (p *process) answerWho() {
	list := processList{}
	if who := p.who.Load(); who != nil {
		list = (*who)()
	}
	_ = p.line.Send(msgProcesses, list, -1)
}

// askWho asks the supervisor; it answers at once, and a worker without a supervisor ends.
func (w *worker) askWho() processList {
	if w.line.Send(msgWho, struct{}{}, -1) != nil {
		return processList{}
	}
	return <-w.told
}

func (w *worker) toldProcesses(m *handoff.Message) error {
	var list processList
	err := m.Decode(&list)
	w.told <- list
	return err
}
