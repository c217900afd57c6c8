package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/sim"
	"scuda.dev/scuda/transport"
)

// ErrMIG are instances of MIG that cannot be served.
var ErrMIG = errors.New("these instances of MIG cannot be served")

// A process sees one instance of MIG, however many the machine has, and none of the GPUs that are split up. So each
// instance is opened by a worker of its own when the server starts, and a session gets one of those that it may use.

// instances are those of MIG that the server has. nil: its GPUs are not split up.
type instances struct {
	list []string // their UUIDs

	mu    sync.Mutex
	taken map[string]int // sessions on each
}

// openInstances finds the instances: those that the server's environment names, as a program's would, else those of the
// simulated GPUs.
func openInstances(cfg *Config) (*instances, error) {
	list := strings.FieldsFunc(os.Getenv(sim.VisibleDevices), func(r rune) bool { return r == ',' || r == ' ' })
	if !slices.ContainsFunc(list, isInstance) {
		if list = nil; cfg.GPU == "sim" {
			var err error
			if list, err = simInstances(cfg); err != nil {
				return nil, err
			}
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	if _, err := lease.ParseUUIDs(strings.Join(list, ",")); err != nil {
		return nil, fmt.Errorf("%w: %s: %w; nvidia-smi -L has them in full", ErrMIG, sim.VisibleDevices, err)
	}
	if slices.ContainsFunc(list, func(u string) bool { return !isInstance(u) }) {
		return nil, fmt.Errorf("%w: %s names GPUs and instances, and a driver shows either; start a server for each",
			ErrMIG, sim.VisibleDevices)
	}
	return &instances{list: list, taken: map[string]int{}}, nil
}

func isInstance(uuid string) bool { return strings.HasPrefix(uuid, transport.InstancePrefix) }

// simInstances are those of the simulated machine of which workers have a part.
func simInstances(cfg *Config) ([]string, error) {
	c, err := simOf(cfg.Sim, sim.Config{Devices: cfg.SimDevices, MemoryBytes: cfg.SimMemory, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	return c.Instances()
}

// look opens each instance by a worker, and gives what all of them see.
func (i *instances) look(ctx context.Context, start func(context.Context, whose) (*process, error)) (all *readyInfo,
	err error) {
	for _, uuid := range i.list {
		p, err := start(ctx, whose{gpus: uuid})
		if err != nil {
			return nil, fmt.Errorf("the instance %s: %w", uuid, err)
		}
		p.end()
		if all == nil {
			first := p.ready
			first.Devices = slices.Clone(first.Devices)
			all = &first
		} else {
			all.Devices = append(all.Devices, p.ready.Devices...)
		}
	}
	return all, nil
}

// take gives a session one instance of those that its terms name, of all where they name none: the one that has the
// fewest sessions. leave gives it back.
func (i *instances) take(terms lease.Terms) (with lease.Terms, leave func()) {
	if i == nil {
		return terms, func() {}
	}
	of := terms.GPUs
	if len(of) == 0 {
		of = i.list
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	least := of[0]
	for _, uuid := range of {
		if i.taken[uuid] < i.taken[least] {
			least = uuid
		}
	}
	i.taken[least]++
	terms.GPUs = []string{least}
	return terms, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.taken[least]--
	}
}

// cards are the GPUs that NVML shows to a session which sees these: of an instance the GPU that it is a part of.
func (i *instances) cards(all []transport.Device, uuids []string) (list []string) {
	if i == nil || len(uuids) == 0 {
		return uuids
	}
	for _, d := range seen(all, uuids) {
		if card := lease.UUID(d.UUIDv1); !slices.Contains(list, card) {
			list = append(list, card)
		}
	}
	return list
}

// uses says what a session has of GPUs by the instance that it has, of which NVML's lists of processes say nothing.
func (i *instances) uses(x *session, seen []admin.Use) []admin.Use {
	if i == nil || x.nvml {
		return seen
	}
	uuid := x.terms.GPUs[0]
	u := admin.Use{Index: slices.Index(i.list, uuid), UUID: uuid}
	for _, of := range seen {
		u.Memory += of.Memory
	}
	return []admin.Use{u}
}
