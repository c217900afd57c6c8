//go:build !client

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"scuda.dev/scuda/perf"
	"scuda.dev/scuda/perf/delay"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/mps"
)

// openSite prepares where a suite's entries run.
func openSite(ctx context.Context, s perf.Site) (*perf.Where, error) {
	if s.Place == perf.Bare {
		return &perf.Where{Close: func() {}}, nil
	}
	o := &site{stop: func() {}}
	w, err := o.open(ctx, s)
	if err != nil {
		o.stop()
		return nil, err
	}
	w.Close = o.stop
	return w, nil
}

// site is what serves a place; stop ends it, the latest first.
type site struct{ stop func() }

// then has f done when the site ends, before what was to be done already.
func (o *site) then(f func()) {
	before := o.stop
	o.stop = func() { f(); before() }
}

func (o *site) open(ctx context.Context, s perf.Site) (*perf.Where, error) {
	env := os.Environ()
	if s.Place == perf.Native {
		load, err := measuring("scuda-load")
		if err != nil {
			return nil, err
		}
		env = setEnv(env, "SCUDA_SERVER", "")
		if s.Mode == perf.MPS {
			if env, err = o.daemon(ctx, env); err != nil {
				return nil, err
			}
		}
		probe := exec.CommandContext(ctx, load, "allocate", "4", "1")
		probe.Env = env
		if err := probe.Run(); err != nil {
			return nil, errors.New("no usable driver on this machine")
		}
		return &perf.Where{Env: env}, nil
	}
	folder, err := os.MkdirTemp("", "scuda-perf-")
	if err != nil {
		return nil, err
	}
	o.then(func() { _ = os.RemoveAll(folder) })
	args := []string{"serve", onLoopback + ":0", "--log", "error", "--admin", filepath.Join(folder, "admin"),
		"--state-dir", filepath.Join(folder, "state")}
	switch s.Mode {
	case perf.Turns:
		args = append(args, "--turns")
	case perf.MPS:
		args = append(args, "--mps", "on")
	}
	switch s.Place {
	case perf.Sim:
		args = append(args, "--gpu", cmp.Or(s.GPU, "sim"), "--transport", "tcp")
	case perf.RDMA:
		args = append(args, "--gpu", "real", "--transport", "rdma")
	default:
		args = append(args, "--gpu", "real", "--transport", "tcp")
	}
	ctx, cancel := context.WithCancel(ctx)
	o.then(cancel)
	address, wait, err := startServer(ctx, args)
	if err != nil {
		return nil, err
	}
	o.then(func() { cancel(); wait() })
	if s.Delay > 0 {
		p, err := delay.Listen(onLoopback+":0", address, s.Delay/2)
		if err != nil {
			return nil, err
		}
		address = p.Address()
		done := make(chan struct{})
		go func() { defer close(done); _ = p.Serve(ctx) }()
		o.then(func() { cancel(); <-done })
	}
	if env, err = clientEnv(env, address, ""); err != nil {
		return nil, err
	}
	lease := func(ctx context.Context, p *perf.Party) ([]string, error) { return leased(ctx, folder, env, p) }
	return &perf.Where{Env: env, Lease: lease}, nil
}

// leaseLasts is longer than a repetition of anything.
const leaseLasts = time.Hour

// leased gives the environment of a party's clients on the server whose admin socket lies in a folder.
func leased(ctx context.Context, folder string, env []string, p *perf.Party) ([]string, error) {
	c, err := admin.Dial(ctx, filepath.Join(folder, "admin"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	g, err := c.Grant(ctx, &admin.LeaseRequest{Label: p.Name, Share: p.Share, Class: p.Class,
		Seconds: leaseLasts.Seconds()})
	if err != nil {
		return nil, err
	}
	return setEnv(setEnv(env, "SCUDA_TOKEN", g.Credential), "SCUDA_TOKEN_FILE", ""), nil
}

// daemon starts an MPS daemon of this user, which ends with the site, and gives the environment of its clients.
func (o *site) daemon(ctx context.Context, env []string) ([]string, error) {
	folder, err := os.MkdirTemp("", "scuda-mps-")
	if err != nil {
		return nil, err
	}
	o.then(func() { _ = os.RemoveAll(folder) })
	env = setEnv(setEnv(env, "CUDA_MPS_PIPE_DIRECTORY", folder), "CUDA_MPS_LOG_DIRECTORY", folder)
	p := exec.CommandContext(ctx, mps.Program, "-d")
	p.Env = env
	if out, err := p.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("no MPS: %s -d: %w: %s", mps.Program, err, strings.TrimSpace(string(out)))
	}
	o.then(func() {
		p := exec.Command(mps.Program)
		p.Env, p.Stdin = env, strings.NewReader("quit -t 10\n")
		_ = p.Run() // what does not end by it was ended by others
	})
	return env, nil
}

// startServer starts a server and gives its address; wait waits for its end, which comes when ctx is done.
func startServer(ctx context.Context, args []string) (address string, wait func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	p := exec.CommandContext(ctx, self, args...)
	p.Cancel = func() error { return p.Process.Signal(os.Interrupt) }
	var text strings.Builder
	p.Stderr = &text
	out, err := p.StdoutPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		return "", nil, err
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !ok {
		_ = p.Wait()
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		return "", nil, fmt.Errorf("no server: %s", lines[len(lines)-1])
	}
	return address, func() { _ = p.Wait() }, nil
}
