package ebpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Attach types of bpf_link_create (include/uapi/linux/bpf.h). cilium/ebpf attaches multi-links but not sessions; both
// are the same call.
const (
	attachMulti   = 48 // BPF_TRACE_UPROBE_MULTI
	attachSession = 57 // BPF_TRACE_UPROBE_SESSION
	returnProbes  = 1  // BPF_F_UPROBE_MULTI_RETURN
)

// multiAttr is union bpf_attr for a link of many probes.
type multiAttr struct {
	program, target, attach, flags          uint32
	path, offsets, counters, cookies        uint64
	count, multiFlags, process, unusedField uint32
}

// linkMulti attaches a program to places in a file. The link lasts as long as the file descriptor.
func linkMulti(
	path string, program *bpf.Program, attach, flags uint32, process int, offsets, cookies []uint64,
) (*os.File, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return nil, err
	}
	a := multiAttr{
		program: uint32(program.FD()), attach: attach, multiFlags: flags, process: uint32(process),
		count: uint32(len(offsets)),
		path:  uint64(uintptr(unsafe.Pointer(name))), offsets: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(offsets)))),
		cookies: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(cookies)))),
	}
	fd, _, e := unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_CREATE, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	runtime.KeepAlive(name)
	runtime.KeepAlive(offsets)
	runtime.KeepAlive(cookies)
	runtime.KeepAlive(program)
	if e != 0 {
		return nil, e
	}
	return os.NewFile(fd, "probes"), nil
}

// sessionAnswer judges what a kernel says to a session on a file that cannot be probed: EBADF when it knows sessions.
func sessionAnswer(err error) error {
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	return fmt.Errorf("%w: %w", bpf.ErrNotSupported, err)
}

// attach attaches to all functions.
func (p *Probes) attach() error {
	for _, lib := range p.libraries {
		var offsets, cookies []uint64
		for i, probe := range p.probes {
			if probe.library == lib {
				offsets = append(offsets, lib.offsets[probe.entry.name])
				cookies = append(cookies, uint64(i))
			}
		}
		if len(offsets) == 0 {
			continue
		}
		links, err := p.attachFile(lib.path, p.options.PID, offsets, cookies)
		p.links = append(p.links, links...)
		if err != nil {
			return fmt.Errorf("probes on %s: %w", lib.path, err)
		}
	}
	return nil
}

// attachFile attaches to places in one file by the method.
func (p *Probes) attachFile(
	path string, process int, offsets, cookies []uint64,
) (links []interface{ Close() error }, err error) {
	o := &p.objects
	add := func(program *bpf.Program, attach, flags uint32) {
		if err != nil {
			return
		}
		var l *os.File
		if l, err = linkMulti(path, program, attach, flags, process, offsets, cookies); err == nil {
			links = append(links, l)
		}
	}
	switch p.method {
	case Session:
		add(o.Session, attachSession, 0)
	case Multi:
		add(o.MultiLeave, attachMulti, returnProbes)
		add(o.MultiEnter, attachMulti, 0)
	case Single:
		x, err := link.OpenExecutable(path)
		if err != nil {
			return nil, err
		}
		for i, at := range offsets {
			how := &link.UprobeOptions{Address: at, Cookie: cookies[i], PID: process}
			leave, err := x.Uretprobe("", o.SingleLeave, how)
			if err != nil {
				return links, err
			}
			enter, err := x.Uprobe("", o.SingleEnter, how)
			links = append(links, leave)
			if err != nil {
				return links, err
			}
			links = append(links, enter)
		}
	}
	return links, err
}
