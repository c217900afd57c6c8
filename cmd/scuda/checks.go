package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/rdma"
)

// server finds out which ones are meant. Here says that none is, and that this machine has a server of its own, which
// then was looked at.
func (c *checks) server(ctx context.Context, wish, socket string) (servers []string, here bool) {
	servers, source, err := serversAsked(wish)
	switch {
	case errors.Is(err, config.ErrNoServer):
		if c.serving(ctx, socket) {
			return nil, true
		}
		c.add(failed, "server", "none is configured", "run scuda login HOST:PORT")
		return nil, false
	case err != nil:
		c.add(failed, "server", err.Error(), "correct it, or run scuda login HOST:PORT")
		return nil, false
	}
	c.add(good, "server", fmt.Sprintf("%s (from %s)", servers[0], source), "")
	c.of(len(*c)-1, servers[0], len(servers))
	return servers, false
}

// steps are what has to be right for a server to answer, in the order in which it is found out.
var steps = []struct {
	what string
	errs []error
}{
	{"reachable", []error{transport.ErrUnknownHost, transport.ErrRefused, transport.ErrTimeout, transport.ErrUnreachable,
		transport.ErrAddress, transport.ErrNotScuda, transport.ErrClosed}},
	{"TLS", []error{transport.ErrTLS, transport.ErrUntrusted}},
	{"token", []error{transport.ErrToken}},
	{"versions", []error{transport.ErrVersion, transport.ErrDigest, transport.ErrCapability}},
	{"GPUs", nil},
}

func (c *checks) connection(ctx context.Context, address, tokenFile string) {
	if address == "" {
		for _, s := range steps {
			c.add(unseen, s.what, "no server", "")
		}
		return
	}
	to, err := target(address, tokenFile)
	if err != nil {
		c.add(failed, "credential", err.Error(), "correct the settings, or run scuda login "+address)
		return
	}
	conn, w, err := askOf(ctx, to, transport.KindInfo)
	if err != nil {
		c.refused(err)
		return
	}
	defer conn.Close()
	trip, err := ping(conn, 1)
	c.judge(err == nil, failed, "reachable", "it answers, round trip "+seconds(trip.Seconds()),
		"look into the server's log")
	if t, ok := conn.(*transport.TLSConn); ok {
		leaf := t.State().PeerCertificates[0]
		now := time.Now()
		c.judge(now.After(leaf.NotBefore) && now.Before(leaf.NotAfter), noted, "TLS", fmt.Sprintf(
			"TLS 1.3, certificate valid until %s", leaf.NotAfter.Format(time.DateOnly)),
			"the certificate is not valid now: give the server another one, or set this machine's clock")
	} else {
		c.add(good, "TLS", "none, as the server is on this machine or --insecure was written", "")
	}
	c.add(good, "token", fmt.Sprintf("we are the tenant %s, by %s", cmp.Or(w.Tenant, "(the server does not say)"),
		cmp.Or(to.TokenOf, "nothing that was shown")), "")
	switch found := fmt.Sprintf("server %s, client %s", w.Version, release.Version()); {
	case w.Digest != cuda.Digest && w.Version == "":
		c.add(noted, "versions", found, "install the same release on both machines")
	case w.Version != release.Version():
		c.add(noted, "versions", found, "they understand each other; scuda upgrade says how to make them the same")
	default:
		c.add(good, "versions", found, "")
	}
	c.judge(len(w.Devices) > 0, failed, "GPUs", devices(w), "the server has none to give: look at nvidia-smi there")
}

// refused adds what a failed connection says: what came before the failure was right.
func (c *checks) refused(err error) {
	found, remedy := err.Error(), ""
	if e := (*transport.Error)(nil); errors.As(err, &e) {
		found, remedy = cmp.Or(e.Detail, e.Kind.Error()), e.Remedy
	}
	at := len(steps) - 1
	for i, s := range steps {
		for _, kind := range s.errs {
			if errors.Is(err, kind) {
				at = min(at, i)
			}
		}
	}
	for i, s := range steps {
		switch {
		case i < at:
			c.add(good, s.what, "as it should be", "")
		case i == at:
			c.add(failed, s.what, found, remedy)
		default:
			c.add(unseen, s.what, steps[at].what+" comes first", "")
		}
	}
}

// parts are what the client's libraries consist of.
var parts = []string{"libscuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libcupti.so.12", "libcupti.so.13",
	"libnccl.so.2", "libscuda-nvtx.so", "libscuda-core.so", "scuda-connect"}

const oldestLibc = "2.27"

func (c *checks) libraries() {
	folder, err := libFolder()
	if err != nil {
		c.add(failed, "libraries", err.Error(), "")
	} else {
		missing := []string{}
		for _, name := range parts {
			if !exists(filepath.Join(folder, name)) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			c.add(failed, "libraries", fmt.Sprintf("%s lacks %s", folder, strings.Join(missing, ", ")), "install scuda anew")
		} else {
			c.add(good, "libraries", folder, "")
		}
	}
	v := libcVersion()
	c.judge(!olderThan(v, oldestLibc), failed, "C library", "glibc "+v, "scuda's libraries need glibc "+oldestLibc+
		" or newer: a container with a newer system has one")
}

// olderThan compares versions of numbers with dots.
func olderThan(v, than string) bool {
	a, b := strings.Split(v, "."), strings.Split(than, ".")
	for i := range b {
		var x, y int
		if i < len(a) {
			x, _ = strconv.Atoi(a[i])
		}
		if y, _ = strconv.Atoi(b[i]); x != y {
			return x < y
		}
	}
	return false
}

// systemPreload is what the loader loads into every program.
const systemPreload = "/etc/ld.so.preload"

// preload looks at what else would stand in front of the driver.
func (c *checks) preload(env []string) {
	value := func(name string) string {
		for _, e := range env {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return ""
	}
	split := func(r rune) bool { return r == ':' || r == ' ' }
	var others []string
	for _, name := range strings.FieldsFunc(value("LD_PRELOAD"), split) {
		if filepath.Base(name) == "libscuda.so" {
			break
		}
		others = append(others, name)
	}
	if text, err := os.ReadFile(systemPreload); err == nil {
		others = append(others, strings.Fields(string(text))...)
	}
	if len(others) > 0 {
		c.add(noted, "preload", "loaded before scuda: "+strings.Join(others, ", "),
			"if programs misbehave, try without (LD_PRELOAD, "+systemPreload+"); scuda run puts libscuda.so first")
	} else {
		c.add(good, "preload", "nothing stands before libscuda.so", "")
	}
	for _, folder := range filepath.SplitList(value("LD_LIBRARY_PATH")) {
		if lib := filepath.Join(folder, "libcuda.so.1"); exists(lib) && !exists(filepath.Join(folder, "libscuda-core.so")) {
			c.add(noted, "library path", lib+" is another driver",
				"scuda run goes before it; with LD_LIBRARY_PATH alone put scuda's folder first")
		}
	}
}

// memlockEnough is what copies by RDMA need to be registered.
const memlockEnough = 256 << 20

// machine looks at what the kernel gives.
func (c *checks) machine() {
	how := pager()
	c.judge(strings.Contains(how, "(uffd)"), noted, "userfaultfd", "faults of unified memory are "+how,
		"sysctl vm.unprivileged_userfaultfd=1 (or access to /dev/userfaultfd), and Linux 6.4 or newer; "+
			"only programs with unified memory notice")
	var limit unix.Rlimit
	switch err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); {
	case err != nil:
		c.add(noted, "memlock", err.Error(), "")
	case limit.Cur == unix.RLIM_INFINITY:
		c.add(good, "memlock", "unlimited", "")
	default:
		c.judge(limit.Cur >= memlockEnough, noted, "memlock", config.Size(limit.Cur).String(),
			"ulimit -l unlimited (or memlock in /etc/security/limits.conf); only RDMA needs it")
	}
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		c.add(noted, "clock", err.Error(), "")
		return
	}
	kept := t.Status&unix.STA_UNSYNC == 0
	c.judge(kept, noted, "clock", time.Now().UTC().Format(time.RFC3339)+
		map[bool]string{false: ", not kept by a time service", true: ", kept by a time service"}[kept],
		"timedatectl set-ntp true; certificates and logs need the right time")
}

func (c *checks) rdma(ctx context.Context, address string) {
	if host, _, err := net.SplitHostPort(address); err != nil || host == "" {
		address = ""
	}
	local, peer := ends(ctx, address)
	r := rdma.Examine(config.RDMADevice(), local, peer)
	c.judge(r.Why == "", noted, "RDMA", cmp.Or(r.Path, "none, big copies use TCP: "+r.Why), "scuda rdma doctor says more")
}
