package spawner

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/isolation"
)

// Config says how workers are started. It comes from whoever starts the spawner, never from the supervisor.
type Config struct {
	UIDs   Range  // of tenants; empty: workers have the user of the process that starts them
	Folder string // holds the folders of tenants; "": they have none
	Cgroup string // control group with those of the workers: [CgroupAuto], [CgroupNone] or a folder
	Limits Limits // of each worker

	Write []string // folders that all workers write, where tenants have none of their own
	Read  []string // more folders that workers read, such as the driver's

	// Program is a worker's program and its arguments; default: the calling process's own with "worker". Tests give their
	// own, with more environment.
	Program []string
	Env     []string

	// what a spawner that [Launch] starts logs, and how
	LogLevel slog.Level
	LogJSON  bool
}

// logger makes the logger of a spawner that [Launch] started.
func (c *Config) logger() *slog.Logger {
	options := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogJSON {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}

// Local starts workers from the calling process.
type Local struct {
	cfg    Config
	exe    *os.File // held open, so that another file under its name is not started while a server runs
	null   *os.File
	groups *cgroups
	facts  Facts
	log    *slog.Logger

	making sync.Mutex // held while a tenant's folder is made; a leaf
}

// NewLocal prepares to start workers. The log gets what an operator should know.
func NewLocal(cfg Config, log *slog.Logger) (*Local, error) {
	if err := cfg.UIDs.check(); err != nil {
		return nil, err
	}
	if err := closeInherited(); err != nil {
		return nil, err
	}
	cfg.Cgroup = cmp.Or(cfg.Cgroup, CgroupAuto)
	if cfg.Program == nil {
		cfg.Program = []string{"/proc/self/exe", "worker"}
	}
	if !cfg.UIDs.Empty() && os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: other users' processes are started by root alone", ErrRange)
	}
	l := &Local{cfg: cfg, log: log, facts: Facts{UIDs: cfg.UIDs, Folders: cfg.Folder != ""}}
	l.warnOfClaims("/etc")
	if cfg.Folder != "" {
		if err := l.openFolder(); err != nil {
			return nil, err
		}
	}
	var err error
	if l.exe, err = openProgram(cfg.Program[0]); err == nil {
		l.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the program of workers: %w", err), l.Close())
	}
	if err := isolation.Landlock(); err != nil {
		l.facts.Files = err.Error()
	}
	if l.groups, err = openCgroups(cfg.Cgroup, cfg.Limits); err != nil {
		if cfg.Limits != (Limits{}) || cfg.Cgroup != CgroupAuto && cfg.Cgroup != CgroupNone {
			return nil, errors.Join(fmt.Errorf("workers cannot be limited: %w", err), l.Close()) // it was asked for by name
		}
		l.facts.Limits = err.Error()
	}
	return l, nil
}

// openProgram opens the program of workers under a number that none of their own descriptors has: those are put in
// their places before the program is started.
func openProgram(path string) (*os.File, error) {
	const least = 100
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, least)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.NewFile(uintptr(high), path), nil
}

// renew opens the program of workers again, which may be another by now.
func (l *Local) renew() {
	path := l.cfg.Program[0]
	if path == "/proc/self/exe" {
		path = strings.TrimSuffix(programName(), " (deleted)")
	}
	exe, err := openProgram(path)
	if err != nil {
		l.log.Warn("the program of workers cannot be opened again; they are of the one before", "error", err)
		return
	}
	l.exe.Close()
	l.exe = exe
}

// Close gives up what is held open. Workers go on.
func (l *Local) Close() error {
	var errs []error
	for _, f := range []*os.File{l.exe, l.null} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Facts says what workers are given.
func (l *Local) Facts() (Facts, error) { return l.facts, nil }

// Start starts a worker.
func (l *Local) Start(o Order, line, errs *os.File) (*Worker, error) {
	switch {
	case l.cfg.UIDs.Empty() && o.UID != 0:
		return nil, fmt.Errorf("%w: workers have no users of their own here", ErrRefused)
	case !l.cfg.UIDs.Empty() && !l.cfg.UIDs.Has(o.UID):
		return nil, fmt.Errorf("%w: user %d is none of %v", ErrRefused, o.UID, l.cfg.UIDs)
	}
	var cmd *exec.Cmd
	var err error
	isolation.OnThread(func() { cmd, err = l.start(o, line, errs) })
	if err != nil {
		return nil, err
	}
	release, err := l.groups.place(cmd.Process.Pid)
	if err != nil {
		err = errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		release()
		return nil, err
	}
	w := &Worker{PID: cmd.Process.Pid, exited: make(chan struct{}), kill: cmd.Process.Kill}
	go func() {
		w.err = cmd.Wait()
		if why := release(); why != "" && w.err != nil {
			w.err = &ExitError{w.err.Error() + ": " + why}
		}
		close(w.exited)
	}()
	return w, nil
}

// start makes the calling thread what the worker is to be, and starts it.
func (l *Local) start(o Order, line, errs *os.File) (*exec.Cmd, error) {
	own := ""
	if l.cfg.Folder != "" {
		own = l.folderFor(o)
	}
	if o.UID != 0 {
		if err := becomeUser(o.UID, deviceGroups()); err != nil {
			return nil, fmt.Errorf("become user %d: %w", o.UID, err)
		}
	}
	files := []isolation.FileRule{{Path: fmt.Sprintf("/proc/self/fd/%d", l.exe.Fd()), Access: isolation.Run}}
	if own != "" {
		files = append(files, isolation.FileRule{Path: own, Access: isolation.Write})
	}
	for _, folder := range l.cfg.Write {
		files = append(files, isolation.FileRule{Path: folder, Access: isolation.Write})
	}
	for _, folder := range append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), l.cfg.Read...) {
		if filepath.IsAbs(folder) && filepath.Clean(folder) != "/" {
			files = append(files, isolation.FileRule{Path: folder, Access: isolation.Run})
		}
	}
	if folder := os.Getenv("CUDA_MPS_PIPE_DIRECTORY"); filepath.IsAbs(folder) && filepath.Clean(folder) != "/" {
		files = append(files, isolation.FileRule{Path: folder, Access: isolation.Write})
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("no_new_privs: %w", err)
	}
	if o.Enclosed {
		if err := isolation.Enclose(o.Profile, files); err != nil {
			return nil, err
		}
	}
	cmd := &exec.Cmd{
		Path:       fmt.Sprintf("/proc/self/fd/%d", l.exe.Fd()),
		Args:       append([]string{"scuda"}, l.cfg.Program[1:]...),
		Env:        append(environment(os.Environ(), own), l.cfg.Env...),
		Dir:        "/",
		Stdin:      l.null,
		Stdout:     errs,
		Stderr:     errs,
		ExtraFiles: []*os.File{line}, // descriptor 3
		// an interrupt at the terminal is for the supervisor alone
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w; its users must be allowed to run it (chmod 755 %s)", err, programName())
		}
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return cmd, nil
}

func programName() string {
	name, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "scuda"
	}
	return name
}

// passed are the beginnings of the names of variables that workers get: what the driver, its libraries and the Go
// runtime read. Everything else, such as a token, is the server's own.
var passed = []string{
	"CUDA_", "NVIDIA_", "NCCL_", "UCX_", "IBV_", "RDMAV_", "MLX", "SCUDA_SIM=", "LD_LIBRARY_PATH=", "LANG=", "LC_", "TZ=",
	"GOMAXPROCS=", "GODEBUG=", "GOTRACEBACK=", "GORACE=", "GOCOVERDIR=", "GOGC=", "GOMEMLIMIT=",
}

// kept gives the variables that are passed on.
func kept(have []string) (env []string) {
	for _, v := range have {
		if slices.ContainsFunc(passed, func(prefix string) bool { return strings.HasPrefix(v, prefix) }) {
			env = append(env, v)
		}
	}
	return env
}

// environment makes a worker's from the spawner's own.
func environment(have []string, folder string) []string {
	env := slices.DeleteFunc(kept(have), func(v string) bool { return strings.HasPrefix(v, "CUDA_CACHE_PATH=") })
	if folder == "" {
		return append(env, "HOME=/", "CUDA_CACHE_DISABLE=1")
	}
	return append(env, "HOME="+folder, "CUDA_CACHE_PATH="+filepath.Join(folder, "cuda"))
}

// deviceGroups are the groups that may use a device file of the GPUs' or network cards' which not everybody may use.
func deviceGroups() (groups []int) {
	seen := map[int]bool{}
	for _, pattern := range []string{"/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/infiniband/uverbs*"} {
		paths, _ := filepath.Glob(pattern) // a constant pattern
		for _, path := range paths {
			var st unix.Stat_t
			const all, group = 0o006, 0o060
			if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Mode&all == all ||
				st.Mode&group != group || st.Gid == 0 || seen[int(st.Gid)] {
				continue
			}
			seen[int(st.Gid)] = true
			groups = append(groups, int(st.Gid))
		}
	}
	return groups
}
