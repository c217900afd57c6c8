package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"scuda.dev/scuda/tunnel"
)

// onOptions are those of `scuda run --on`.
type onOptions struct {
	word, folder, serve string
	direct              bool
}

func (o *onOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.word, "on", "", "use the GPUs of `USER@HOST` by ssh, or of docker://CONTAINER, podman://CONTAINER or "+
		"kube://NAMESPACE/POD; nothing has to be installed there")
	f.StringVar(&o.folder, "on-folder", "",
		"with --on: keep scuda's copy in this `FOLDER` there (default: ~/.cache/scuda/on)")
	f.BoolVar(&o.direct, "direct", false, "with --on: connect directly to the machine, under TLS, where it is reached; "+
		"else through ssh, as without")
	f.StringVar(&o.serve, "serve-flags", "", "with --on: `FLAGS` of scuda serve for the server there, such as '--gpu sim'")
}

// wish is what the options say.
func (o *onOptions) wish() (w tunnel.Wish, err error) {
	if w.Way, err = tunnel.ParseWay(o.word); err != nil {
		return w, fmt.Errorf("--on: %w", err)
	}
	if strings.ContainsAny(o.folder, "\n\r") || o.folder != "" && o.folder[0] != '/' {
		return w, fmt.Errorf("--on-folder %.80q: write a path that begins with /", o.folder)
	}
	w.Folder, w.Serve, w.Direct = o.folder, strings.Fields(o.serve), o.direct
	return w, checkServing(w.Serve)
}

// environment has a server started on the other machine, and gives the settings with which a program uses it. The
// process that carries its connections ends with this one, and with the program that takes its place.
func (o *onOptions) environment(ctx context.Context, env []string) ([]string, error) {
	w, err := o.wish()
	if err != nil {
		return nil, usage(err)
	}
	lib, err := libFolder()
	if err != nil {
		return nil, err
	}
	if env, err = preloaded(env, lib); err != nil {
		return nil, err
	}
	whole, err := wholeProgram()
	if err != nil {
		return nil, err
	}
	w.Copies = tunnel.Copies(whole, lib)
	if state, err := term.GetState(0); err == nil { // ssh may be interrupted while it reads a password
		defer func() { _ = term.Restore(0, state) }()
	}
	r, err := startNear(ctx, w)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"TOKEN_FILE", "FINGERPRINT", "CA", "CERT", "KEY", "INSECURE"} {
		env = setEnv(env, "SCUDA_"+name, "")
	}
	if r.Direct {
		env = setEnv(env, "SCUDA_FINGERPRINT", r.Ready.Fingerprint)
	}
	env = setEnv(env, "SCUDA_TRANSPORT", "tcp")
	env = setEnv(env, "SCUDA_RESUME", "0") // the far side ends with the one connection that there is
	return setEnv(setEnv(env, "SCUDA_SERVER", r.Address), "SCUDA_TOKEN", r.Token), nil
}

// startNear starts the process that carries the connections, and waits for its report.
func startNear(ctx context.Context, w tunnel.Wish) (r tunnel.Report, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	us, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return r, fmt.Errorf("--on needs Linux 5.3 or newer on this machine (pidfd_open): %w", err)
	}
	program := os.NewFile(uintptr(us), "pidfd")
	defer program.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return r, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "program")
	defer theirs.Close()
	talk, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return r, err
	}
	defer talk.Close()
	cmd := exec.Command(self)
	cmd.Args = []string{"scuda", near, "2"}
	cmd.ExtraFiles = []*os.File{theirs, program}
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("cannot start %s %s: %w", self, near, err)
	}
	theirs.Close()
	defer context.AfterFunc(ctx, func() { talk.Close() })()
	if err := json.NewEncoder(talk).Encode(w); err == nil {
		err = json.NewDecoder(talk).Decode(&r)
		if err != nil && ctx.Err() == nil {
			return r, fmt.Errorf("the process that carries the connections has ended: %w", err)
		}
	}
	if ctx.Err() != nil {
		return r, interrupted(errors.New("no server on " + w.Way.Word + " yet"))
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

var errStartedByOn = errors.New("scuda run --on starts this")

// near is the command of the process that carries connections for a program.
const near = "near"

// newNear is that process. The first generation starts the second and ends, so that the program never has a child
// that it does not know of.
func newNear() *cobra.Command {
	return &cobra.Command{
		Use:    near,
		Short:  "Carry the connections of a program (started by scuda run --on)",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(errStartedByOn)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			talk, program := os.NewFile(3, "program"), os.NewFile(4, "pidfd")
			if generations, _ := strconv.Atoi(args[0]); generations > 1 {
				cmd := exec.Command("/proc/self/exe")
				cmd.Args = []string{"scuda", near, strconv.Itoa(generations - 1)}
				cmd.ExtraFiles = []*os.File{talk, program}
				cmd.Stderr = os.Stderr
				return cmd.Start()
			}
			for _, fd := range []int{3, 4} {
				unix.CloseOnExec(fd)
			}
			return tunnel.Carry(context.Background(), talk, program)
		},
	}
}
