package ebpf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	bpf "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// legacy is what a program needs to read probes that another attached.
type legacy struct {
	Maps    map[string]int
	Links   []int
	Probes  []legacyProbe
	Floors  []Floor
	Worst   Floor
	Method  Method
	Began   time.Time
	Took    time.Duration
	Options legacyOptions
}

type legacyProbe struct{ Library, Function string }

type legacyOptions struct{ PerProcess, SystemCalls bool }

// Bequeath makes the probes outlive an exec of this process and gives the descriptor of what Inherit needs to read
// them. So a program can attach with all its rights and go on with none. The probes must be reachable until then: what
// nothing refers to is closed.
func (p *Probes) Bequeath() (int, error) {
	l := legacy{
		Maps: map[string]int{}, Floors: p.floors, Worst: p.Floor(), Method: p.method, Began: p.began, Took: p.took,
		Options: legacyOptions{p.options.PerProcess, p.options.SystemCalls},
	}
	for name, m := range p.maps() {
		l.Maps[name] = (*m).FD()
	}
	for _, x := range p.links {
		switch x := x.(type) {
		case *os.File:
			l.Links = append(l.Links, int(x.Fd()))
		case interface{ FD() int }:
			l.Links = append(l.Links, x.FD())
		default:
			return 0, fmt.Errorf("a link of type %T cannot be handed on", x)
		}
	}
	for _, x := range p.probes {
		l.Probes = append(l.Probes, legacyProbe{x.library.path, x.entry.name})
	}
	text, err := json.Marshal(l)
	if err != nil {
		return 0, err
	}
	fd, err := unix.MemfdCreate("probes", 0)
	if err != nil {
		return 0, fmt.Errorf("handing the probes on: %w", err)
	}
	if _, err := unix.Write(fd, text); err != nil {
		return 0, fmt.Errorf("handing the probes on: %w", err)
	}
	for _, x := range l.Links {
		if _, err := unix.FcntlInt(uintptr(x), unix.F_SETFD, 0); err != nil {
			return 0, fmt.Errorf("handing the probes on: %w", err)
		}
	}
	for _, x := range l.Maps {
		if _, err := unix.FcntlInt(uintptr(x), unix.F_SETFD, 0); err != nil {
			return 0, fmt.Errorf("handing the probes on: %w", err)
		}
	}
	return fd, nil
}

// Inherit gives the probes that this process attached before it executed itself. They can be read and closed; Follow
// and Refresh are over.
func Inherit(fd int) (*Probes, error) {
	f := os.NewFile(uintptr(fd), "probes")
	if f == nil {
		return nil, fmt.Errorf("no descriptor %d", fd)
	}
	defer f.Close()
	var l legacy
	if err := json.NewDecoder(io.NewSectionReader(f, 0, 1<<24)).Decode(&l); err != nil {
		return nil, fmt.Errorf("probes on descriptor %d: %w", fd, err)
	}
	p := &Probes{
		method: l.Method, floors: l.Floors, worst: &l.Worst, began: l.Began, took: l.Took, symbols: newSymbols(),
		options: Options{PerProcess: l.Options.PerProcess, SystemCalls: l.Options.SystemCalls},
	}
	for _, x := range l.Links {
		p.links = append(p.links, os.NewFile(uintptr(x), "link"))
	}
	for name, m := range p.maps() {
		at, there := l.Maps[name]
		var err error
		if *m, err = bpf.NewMapFromFD(at); err != nil || !there {
			return nil, errors.Join(fmt.Errorf("map %s: %w", name, &FeatureError{Reading, err}), p.Close())
		}
	}
	libraries := map[string]*library{}
	for _, x := range l.Probes {
		if libraries[x.Library] == nil {
			libraries[x.Library] = &library{path: x.Library}
			p.libraries = append(p.libraries, libraries[x.Library])
		}
		p.probes = append(p.probes, probe{libraries[x.Library], &entry{name: x.Function}})
	}
	if _, err := p.Read(); err != nil {
		return nil, errors.Join(&FeatureError{Reading, err}, p.Close())
	}
	return p, nil
}

// maps are the probes' maps by name.
func (p *Probes) maps() map[string]**bpf.Map {
	o := &p.objects
	return map[string]**bpf.Map{
		"functions": &o.Functions, "operands": &o.Operands, "by_process": &o.ByProcess, "threads": &o.Threads,
		"processes":    &o.Processes,
		"system_calls": &o.SystemCalls, "stalls": &o.Stalls, "stacks": &o.Stacks, "lost": &o.Lost,
	}
}
