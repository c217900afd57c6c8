// Package isolation takes from a worker process what its session has no use for, once its driver is open. A client that
// takes a worker over, by a hole of ours or of the driver, then reaches no other process: it starts none, traces none,
// signals none, opens no socket.
//
// The worker calls [Apply] from the thread that has opened the driver, before it has a session. What a profile forbids
// stands in one table ([Forbidden]). There is no lock and no state: what is applied cannot be taken back.
//
// PR_SET_PDEATHSIG is not among the means: the signal comes when the *thread* ends that started the worker, and threads
// of the supervisor come and go. A worker ends with its line to the supervisor.
package isolation

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Profile is what a session may do beside using its GPU and its connections. Profiles are sets of bits over [Base].
type Profile uint

// Profiles.
const (
	Base Profile = 0
	RDMA Profile = 1 << (iota - 1) // opens RDMA devices, which takes a netlink socket
)

func (p Profile) String() string {
	if p&RDMA != 0 {
		return "base+rdma"
	}
	return "base"
}

// Mode is how strictly a profile is applied.
type Mode string

// Modes.
const (
	// Auto applies what the machine can give to workers with the simulated GPU. With the real driver it leaves the
	// system calls as they are, until they have been tried there.
	Auto    Mode = "auto"
	Require Mode = "require" // applies everything, and fails where the machine cannot
	Log     Mode = "log"     // as auto, but forbidden system calls are done and logged by the kernel (audit); for trials
	Off     Mode = "off"
)

// ParseMode reads a mode; "" is [Auto].
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case "":
		return Auto, nil
	case Auto, Require, Log, Off:
		return m, nil
	}
	return "", fmt.Errorf("%q is no mode of isolation; it is auto, require, log or off", s)
}

// Means of isolation, as they are named to the operator.
const (
	NoNewPrivileges = "no_new_privs" // no program that it could start gives it rights
	NotDumpable     = "dumpable"     // its memory is no business of processes of the same user
	SystemCalls     = "seccomp"      // the table of forbidden system calls
)

// ErrMissing says that the machine cannot give what [Require] asks for.
var ErrMissing = errors.New("this machine cannot isolate workers")

// Report says what a worker was given, and what not, and why.
type Report struct {
	Given   []string `json:",omitempty"`
	Missing []string `json:",omitempty"`
}

func (r Report) String() string {
	return fmt.Sprintf("given: %s; missing: %s", list(r.Given), list(r.Missing))
}

func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// note adds the result of one means.
func (r *Report) note(name string, err error) {
	if err != nil {
		r.Missing = append(r.Missing, fmt.Sprintf("%s (%v)", name, err))
		return
	}
	r.Given = append(r.Given, name)
}

// errUntried is why the real driver's system calls are left alone.
var errUntried = errors.New("not tried with the real driver yet; --isolation require or log does")

// Apply isolates the calling process. Its caller is bound to its thread. realDriver says that NVIDIA's driver runs in
// the process. The error is [ErrMissing], in mode [Require] only.
func Apply(m Mode, p Profile, realDriver bool) (Report, error) {
	var r Report
	if m == Off {
		r.Missing = []string{NoNewPrivileges, NotDumpable, SystemCalls}
		for i := range r.Missing {
			r.Missing[i] += " (switched off)"
		}
		return r, nil
	}
	r.note(NoNewPrivileges, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	switch {
	case realDriver && m == Auto:
		r.note(NotDumpable, errUntried)
		r.note(SystemCalls, errUntried)
	default:
		name := SystemCalls
		if m == Log {
			name += " in the log only"
		}
		r.note(NotDumpable, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
		r.note(name, install(program(Forbidden(p), unix.Getpid(), m == Log)))
	}
	if m == Require && len(r.Missing) > 0 {
		return r, fmt.Errorf("%w: %s; serve with --isolation auto to do without", ErrMissing, list(r.Missing))
	}
	return r, nil
}
