package spawner

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Values of Config.Cgroup.
const (
	CgroupAuto = "auto" // the calling process's own, where it is delegated
	CgroupNone = "none"
)

// ByWish is the reason why there is no control group where the operator wants none.
const ByWish = "switched off"

// Limits are those of one worker's control group; 0 is none.
type Limits struct {
	Memory    uint64 // bytes
	Processes int    // and threads
	CPUWeight int    // 1 to 10000, 100 is everybody's
}

// Errors of control groups.
var (
	errNoCgroup   = errors.New("no control group (version 2) is delegated to this process")
	errCgroupNone = errors.New(ByWish)
)

// cgroups are the control groups of the workers: folders of cgroup v2 below one that is delegated. nil gives none.
type cgroups struct {
	folder string
	limits Limits
	last   atomic.Uint64
}

// openCgroups prepares the folder with the workers' groups.
func openCgroups(where string, limits Limits) (*cgroups, error) {
	switch where {
	case CgroupNone:
		return nil, errCgroupNone
	case CgroupAuto:
		var err error
		if where, err = delegated(); err != nil {
			return nil, err
		}
	}
	g := &cgroups{folder: where, limits: limits}
	if err := g.prepare(); err != nil {
		return nil, fmt.Errorf("control group %s: %w", where, err)
	}
	return g, nil
}

// delegated is the calling process's own control group, if it was told that it may do there as it likes.
func delegated() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoCgroup, err)
	}
	own, ok := ownCgroup(string(text))
	mount, err := cgroupMount()
	if !ok || err != nil {
		return "", errors.Join(errNoCgroup, err)
	}
	folder := filepath.Join(mount, own)
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		var mark [4]byte
		if n, err := unix.Getxattr(folder, name, mark[:]); err == nil && string(mark[:n]) == "1" {
			return folder, nil
		}
	}
	return "", errNoCgroup
}

// ownCgroup reads /proc/self/cgroup.
func ownCgroup(text string) (string, bool) {
	for l := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(l, "\n"), "0::"); ok {
			return path, true
		}
	}
	return "", false
}

func cgroupMount() (string, error) {
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(path, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return path, nil
		}
	}
	return "", errors.New("cgroup v2 is not mounted at /sys/fs/cgroup")
}

// prepare lets the groups below the folder have limits. A group with processes cannot, so the calling process goes into
// one of its own.
func (g *cgroups) prepare() error {
	var controllers []string
	for _, c := range []struct {
		name  string
		limit bool
	}{{"memory", g.limits.Memory > 0}, {"pids", g.limits.Processes > 0}, {"cpu", g.limits.CPUWeight > 0}} {
		if c.limit {
			controllers = append(controllers, "+"+c.name)
		}
	}
	own := filepath.Join(g.folder, "spawner")
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	inside, err := g.holds(os.Getpid())
	if err == nil && inside {
		err = write(own, "cgroup.procs", strconv.Itoa(os.Getpid()))
	}
	if err == nil && len(controllers) > 0 {
		err = write(g.folder, "cgroup.subtree_control", strings.Join(controllers, " "))
	}
	return err
}

// holds says whether a process is in the folder's own group.
func (g *cgroups) holds(pid int) (bool, error) {
	f, err := os.Open(filepath.Join(g.folder, "cgroup.procs"))
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if lines.Text() == strconv.Itoa(pid) {
			return true, nil
		}
	}
	return false, lines.Err()
}

func write(folder, name, value string) error {
	f, err := os.OpenFile(filepath.Join(folder, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s to %s: %w", value, name, err)
	}
	return nil
}

// place puts a process that has just been started into a new group. The function that it gives removes the group once
// the process is gone, and says what the group has to say of its end.
func (g *cgroups) place(pid int) (release func() string, err error) {
	if g == nil {
		return func() string { return "" }, nil
	}
	folder := filepath.Join(g.folder, fmt.Sprintf("worker-%d", g.last.Add(1)))
	release = func() string {
		why := g.verdict(folder)
		_ = os.Remove(folder) // a group that cannot be removed costs a few kilobytes
		return why
	}
	if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return release, fmt.Errorf("control group of a worker: %w", err)
	}
	for _, l := range g.settings() {
		if err := write(folder, l.name, l.value); err != nil {
			return release, fmt.Errorf("control group of a worker: %w", err)
		}
	}
	if err := write(folder, "cgroup.procs", strconv.Itoa(pid)); err != nil {
		return release, fmt.Errorf("control group of a worker: %w", err)
	}
	return release, nil
}

type setting struct{ name, value string }

// settings are the files of a worker's group and what is written there.
func (g *cgroups) settings() (all []setting) {
	if n := g.limits.Memory; n > 0 {
		all = append(all, setting{"memory.max", strconv.FormatUint(n, 10)}, setting{"memory.oom.group", "1"})
	}
	if n := g.limits.Processes; n > 0 {
		all = append(all, setting{"pids.max", strconv.Itoa(n)})
	}
	if n := g.limits.CPUWeight; n > 0 {
		all = append(all, setting{"cpu.weight", strconv.Itoa(n)})
	}
	return all
}

// verdict says whether the kernel ended the group for its memory.
func (g *cgroups) verdict(folder string) string {
	text, err := os.ReadFile(filepath.Join(folder, "memory.events"))
	if err != nil {
		return ""
	}
	for l := range strings.Lines(string(text)) {
		name, n, _ := strings.Cut(strings.TrimSpace(l), " ")
		if name == "oom_kill" && n != "0" {
			return fmt.Sprintf("it took more than its %d bytes of memory (--worker-memory)", g.limits.Memory)
		}
	}
	return ""
}
