package ebpf

import (
	"errors"
	"fmt"
	"os"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// ErrKernel is a kernel, or the rights that it gives this process, without what the probes need; the error is a
// *FeatureError.
var ErrKernel = errors.New("the kernel lacks what the probes need")

// ErrNoLibrary is a machine or process without a driver library.
var ErrNoLibrary = errors.New("no driver library (libcuda.so.1, libnvidia-ml.so.1) found; name its file")

// Feature is something that a kernel may lack.
type Feature struct {
	Name   string
	Needed string // the first Linux that has it; "": all do
	Remedy string
	probe  func() error
}

// The features, in the order in which they are asked about.
var (
	Permission = Feature{"permission to load programs", "",
		"run as root, or with the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN (a container needs them too, and " +
			"its seccomp profile has to let bpf and perf_event_open through)", permission}
	Types = Feature{
		"its type information (/sys/kernel/btf/vmlinux)", "5.4, built with CONFIG_DEBUG_INFO_BTF",
		"use a distribution's kernel", typesThere,
	}
	Cookies = Feature{"probes with cookies", "5.15", "use a newer kernel", func() error {
		return features.HaveProgramHelper(bpf.Kprobe, asm.FnGetAttachCookie)
	}}
	MultiLinks = Feature{
		"links of many probes (uprobe_multi)", "6.6", "use a newer kernel", features.HaveBPFLinkUprobeMulti,
	}
	Reading = Feature{
		"reading of probes without rights", "5.19", "keep the rights (--keep-capabilities)", func() error { return nil },
	}
	SessionLinks = Feature{"links of entry and return in one (uprobe_session)", "6.13", "use a newer kernel", haveSession}
)

// FeatureError names what is missing.
type FeatureError struct {
	Feature Feature
	Err     error // what the kernel answered
}

func (e *FeatureError) Error() string {
	if e.Feature.Needed == "" {
		return fmt.Sprintf("this kernel refuses %s: %s: %v", e.Feature.Name, e.Feature.Remedy, e.Err)
	}
	return fmt.Sprintf("this kernel lacks %s (Linux %s): %s: %v", e.Feature.Name, e.Feature.Needed, e.Feature.Remedy,
		e.Err)
}

func (e *FeatureError) Unwrap() []error { return []error{ErrKernel, e.Err} }

// running asks the running kernel.
func running(f Feature) error { return f.probe() }

// method finds the best way of attaching, or says what is missing.
func method(has func(Feature) error) (Method, error) {
	for _, f := range []Feature{Permission, Types, Cookies} {
		if err := has(f); err != nil {
			return "", &FeatureError{f, err}
		}
	}
	if has(SessionLinks) == nil {
		return Session, nil
	}
	err := has(MultiLinks)
	if err == nil {
		return Multi, nil
	}
	if !errors.Is(err, bpf.ErrNotSupported) {
		return "", &FeatureError{MultiLinks, err}
	}
	return Single, nil
}

// Able says whether probes can be attached here; if not, why.
func Able() error {
	_, err := method(running)
	return err
}

func permission() error {
	p, err := bpf.NewProgram(&bpf.ProgramSpec{
		Type: bpf.Kprobe, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return err
	}
	return p.Close()
}

func typesThere() error {
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	return err
}

// haveSession loads a program with the attach type of sessions, which older kernels refuse.
func haveSession() error {
	p, err := bpf.NewProgram(&bpf.ProgramSpec{
		Type: bpf.Kprobe, AttachType: bpf.AttachType(attachSession), License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("%w: %w", bpf.ErrNotSupported, err)
	}
	defer p.Close()
	// Kernels that do not know the type load it all the same; the link tells.
	fd, err := linkMulti("/dev/null", p, attachSession, 0, 0, []uint64{0}, nil)
	if err == nil {
		fd.Close()
		return nil
	}
	return sessionAnswer(err)
}
