// Package isolation takes from a worker process what its session has no use for. A client that takes a worker over, by
// a hole of ours or of the driver, then reaches no other process and no file: it starts none, traces none, signals
// none, opens no socket, and sees the driver's files and its tenant's own folder only.
//
// Two moments have their means. Before the process is there, whoever starts it (package spawner) calls [Enclose] on a
// thread that it throws away, because a thread's limits hold for what is started from it: files and signals by
// Landlock. Once the driver is open, and before there is a session, the worker calls [Apply] from the thread that has
// opened it: system calls by seccomp. What a profile may do stands in two tables, [Forbidden] and [Files]. There is no
// lock and no state: what is applied cannot be taken back.
//
// PR_SET_PDEATHSIG is not among the means: the signal comes when the *thread* ends that started the worker, and threads
// come and go. A worker ends with its line to the supervisor.
package isolation

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Profile is what a session may do beside using its GPU and its connections. Profiles are sets of bits over [Base].
type Profile uint

// Profiles.
const (
	Base        Profile = 0
	RDMA        Profile = 1 << (iota - 1) // opens RDMA devices, which takes a netlink socket
	Profiling                             // counts events of the processor and the GPU
	NCCL                                  // makes connections to the servers of its communicator
	AllProfiles = RDMA | Profiling | NCCL
)

// profileNames are the names of the bits.
var profileNames = []string{"rdma", "profile", "nccl"}

func (p Profile) String() string {
	name := "base"
	for i, more := range profileNames {
		if p&(1<<i) != 0 {
			name += "+" + more
		}
	}
	return name
}

// ParseProfiles reads what an operator lets sessions do: profile, nccl, both with a comma between, or base. RDMA is in
// none of them: whether the server offers it decides.
func ParseProfiles(s string) (p Profile, err error) {
	for word := range strings.SplitSeq(s, ",") {
		i := slices.Index(profileNames, word)
		switch {
		case i > 0:
			p |= 1 << i
		case i == 0:
			return 0, errors.New("rdma is no profile to choose: sessions have it where the server offers RDMA")
		case s != "base":
			return 0, fmt.Errorf("%q is no profile; write profile, nccl, or both with a comma between, or base", word)
		}
	}
	return p, nil
}

// Mode is how strictly a profile is applied.
type Mode string

// Modes.
const (
	Auto    Mode = "auto"    // applies what the machine can give
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
	Users           = "uid"          // a user id of the tenant's
	Limits          = "cgroup"       // a control group with limits
	FileAccess      = "landlock"     // the table of files that it may open
	NoNewPrivileges = "no_new_privs" // no program that it could start gives it rights
	NotDumpable     = "dumpable"     // its memory is no business of processes of the same user
	SystemCalls     = "seccomp"      // the table of forbidden system calls
)

// remedies say what an operator can do about a means that is missing.
var remedies = map[string]string{
	Users:       "start the server as root, or with scuda-spawner.service; or say --worker-uids none",
	Limits:      "start scuda-spawner.service, name a control group with --worker-cgroup, or say --worker-cgroup none",
	FileAccess:  "a kernel of 5.19 or later with Landlock",
	SystemCalls: "a kernel with seccomp filters",
}

// ErrMissing says that the machine cannot give what [Require] asks for.
var ErrMissing = errors.New("this machine cannot isolate workers")

// Missing is a means that a worker does not have.
type Missing struct{ Means, Reason string }

func (m Missing) String() string { return fmt.Sprintf("%s (%s)", m.Means, m.Reason) }

// Remedy is what can be done about it; "": nothing that is known.
func (m Missing) Remedy() string { return remedies[m.Means] }

// Report says what a worker was given, and what not, and why.
type Report struct {
	Given   []string  `json:",omitempty"`
	Missing []Missing `json:",omitempty"`
}

func (r Report) String() string {
	missing := make([]string, len(r.Missing))
	for i, m := range r.Missing {
		missing[i] = m.String()
	}
	return fmt.Sprintf("given: %s; missing: %s", list(r.Given), list(missing))
}

func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// Note adds the result of one means.
func (r *Report) Note(means string, err error) {
	if err != nil {
		r.Missing = append(r.Missing, Missing{means, err.Error()})
		return
	}
	r.Given = append(r.Given, means)
}

// Add adds what another part of the program says of the same worker.
func (r *Report) Add(more Report) {
	r.Given, r.Missing = append(r.Given, more.Given...), append(r.Missing, more.Missing...)
}

// Check refuses, in mode [Require] only, a report in which something is missing; the error is [ErrMissing].
func (r Report) Check(m Mode) error {
	if m != Require || len(r.Missing) == 0 {
		return nil
	}
	all := make([]string, len(r.Missing))
	for i, m := range r.Missing {
		if all[i] = m.String(); m.Remedy() != "" {
			all[i] += ": " + m.Remedy()
		}
	}
	return fmt.Errorf("%w: %s; or serve with --isolation auto to do without", ErrMissing, strings.Join(all, "; "))
}

var errOff = errors.New("switched off")

// Apply takes from the calling process what takes effect once its driver is open. Its caller is bound to its thread.
func Apply(m Mode, p Profile) Report {
	var r Report
	if m == Off {
		for _, name := range []string{NoNewPrivileges, NotDumpable, SystemCalls} {
			r.Note(name, errOff)
		}
		return r
	}
	r.Note(NoNewPrivileges, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	name := SystemCalls
	if m == Log {
		name += " in the log only"
	}
	r.Note(NotDumpable, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	r.Note(name, install(program(Forbidden(p), unix.Getpid(), m == Log)))
	return r
}
