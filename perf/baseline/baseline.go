// Package baseline counts the system calls of a program and its children that tell what a remote GPU costs a process:
// reads, writes, opens and closes, and which of them go to files and which to the network. It counts with strace where
// there is one and with the probes of package ebpf elsewhere; both see the same.
//
// What scuda adds is the difference between two runs: a program that uses the GPU, and the same program without that
// line.
package baseline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"scuda.dev/scuda/ebpf"
)

// Counter is how system calls are counted.
type Counter string

// The counters.
const (
	Strace Counter = "strace"
	Probes Counter = "ebpf"
)

// ErrNoCounter is a machine on which system calls cannot be counted.
var ErrNoCounter = errors.New("no way to count system calls: install strace, or run as root on a kernel with eBPF")

// reads, writes: the calls that bring bytes in and out; opens, closes: the others that are counted.
var (
	reads  = []string{"read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg", "recvmmsg"}
	writes = []string{"write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg", "sendmmsg"}
	opens  = []string{"open", "openat"}
	closes = []string{"close"}
)

// Count is how often a system call was made on descriptors of one class.
type Count struct {
	Call  string `json:"call"`
	Class string `json:"class,omitempty"` // file, network, device, other; "" for calls without a descriptor
	Calls uint64 `json:"calls"`
}

// Run is what one run of a program did.
type Run struct {
	Command []string `json:"command"`
	Counter Counter  `json:"counter"`
	Calls   []Count  `json:"calls"` // by name and class
}

// Sum adds up the calls with one of the names, on descriptors of a class ("" for all).
func (r *Run) Sum(names []string, class string) (n uint64) {
	for _, c := range r.Calls {
		if slices.Contains(names, c.Call) && (class == "" || c.Class == class) {
			n += c.Calls
		}
	}
	return n
}

// Config says what to run.
type Config struct {
	Command []string
	Env     []string // nil: this process's
	Counter Counter  // "": strace where there is one, else the probes
	Stdout  io.Writer
	Stderr  io.Writer
}

// Count runs a program and counts. The error is the program's own when it failed (an *exec.ExitError); the counts are
// there all the same.
func (c Config) Count(ctx context.Context) (*Run, error) {
	if len(c.Command) == 0 {
		return nil, errors.New("no program to count the system calls of")
	}
	counter := c.Counter
	if counter == "" {
		counter = Probes
		if _, err := exec.LookPath("strace"); err == nil {
			counter = Strace
		} else if err := ebpf.Able(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoCounter, err)
		}
	}
	count := c.probes
	if counter == Strace {
		count = c.strace
	}
	counts, err := count(ctx)
	if counts == nil {
		return nil, err
	}
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.Class, b.Class))
	})
	return &Run{c.Command, counter, counts}, err
}

func (c Config) command(ctx context.Context, args ...string) *exec.Cmd {
	p := exec.CommandContext(ctx, args[0], args[1:]...)
	p.Env, p.Stdin, p.Stdout, p.Stderr = c.Env, os.Stdin, c.Stdout, c.Stderr
	return p
}

// probes counts with the kernel's tracepoints.
func (c Config) probes(ctx context.Context) ([]Count, error) {
	p, err := ebpf.Attach(ebpf.Options{Libraries: []string{}, Follow: true, SystemCalls: true})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	program := c.command(ctx, c.Command...)
	if err := p.Start(program); err != nil {
		return nil, err
	}
	ended := program.Wait()
	s, err := p.Read()
	if err != nil {
		return nil, err
	}
	out := []Count{}
	for _, call := range s.SystemCalls {
		if slices.Contains(slices.Concat(reads, writes, opens, closes), call.Name) {
			out = append(out, Count{call.Name, call.Class, call.Calls})
		}
	}
	return out, ended
}

// strace counts with strace, which names the file or connection of each descriptor.
func (c Config) strace(ctx context.Context) ([]Count, error) {
	log, err := os.CreateTemp("", "strace-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	names := strings.Join(slices.Concat(reads, writes, opens, closes), ",")
	args := []string{
		"strace", "-f", "-yy", "-qqq", "-e", "signal=none", "-e", "trace=" + names, "-s", "0", "-o", log.Name(), "--",
	}
	ended := c.command(ctx, append(args, c.Command...)...).Run()
	counts, err := parseStrace(log)
	if err != nil {
		return nil, err
	}
	return counts, ended
}

// WriteTable writes the counts as strace -c does (whole numbers of read, write, open, close), and how many go to files
// and to the network. base, if there is one, is taken off in the last column.
func (r *Run) WriteTable(w io.Writer, base *Run) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "calls\tfiles\tnetwork\t")
	if base != nil {
		fmt.Fprint(t, "added\tadded, network\t")
	}
	fmt.Fprintln(t, "system call\t")
	for _, row := range Rows {
		fmt.Fprintf(t, "%d\t%d\t%d\t", r.Sum(row.Calls, ""), r.Sum(row.Calls, "file"), r.Sum(row.Calls, "network"))
		if base != nil {
			fmt.Fprintf(t, "%d\t%d\t", r.added(base, row.Calls, ""), r.added(base, row.Calls, "network"))
		}
		fmt.Fprintf(t, "%s\t\n", row.Name)
	}
	return t.Flush()
}

// added is how many more calls there were than in another run.
func (r *Run) added(base *Run, names []string, class string) int64 {
	return int64(r.Sum(names, class)) - int64(base.Sum(names, class))
}

// Rows are the lines of a table: the calls that the first SCUDA published, and all that brings bytes in or out.
var Rows = []struct {
	Name         string
	Calls        []string
	ByDescriptor bool // they work on a descriptor, whose class is known
}{
	{"read", []string{"read"}, true},
	{"write", []string{"write"}, true},
	{"open, openat", opens, false},
	{"close", closes, true},
	{"everything that reads", reads, true},
	{"everything that writes", writes, true},
}
