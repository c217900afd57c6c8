package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Program is NVIDIA's program by which daemons are started and told.
const Program = "nvidia-cuda-mps-control"

// Contexts is how many contexts a server has room for on a GPU.
const Contexts = 60

// askTime is how long a daemon may take to answer.
const askTime = 5 * time.Second

// mostSocket is how long the path of a Unix socket may be.
const mostSocket = 107

// Errors of this package.
var (
	ErrFolder = errors.New("no folder for an MPS daemon")
	ErrAnswer = errors.New("an MPS daemon does not answer as expected")
)

// Control tells a daemon what to do, by NVIDIA's program.
type Control struct {
	Program string // its path
	Folder  string // of the daemon
}

// FolderIn is the folder of a tenant's daemon in the tenant's own.
func FolderIn(home string) (string, error) {
	if !filepath.IsAbs(home) || filepath.Clean(home) == "/" {
		return "", fmt.Errorf("%w: the tenant has none of its own; give the server --worker-folder", ErrFolder)
	}
	folder := filepath.Join(home, "mps")
	if n := len(filepath.Join(folder, "control_privileged")); n > mostSocket { // the longest that it makes there
		return "", fmt.Errorf("%w: %s is too long for a socket; give the server another --worker-folder", ErrFolder, folder)
	}
	return folder, nil
}

// Env are the variables by which a program finds the daemon.
func (c *Control) Env() []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + c.Folder, "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(c.Folder, "log")}
}

// Ask gives the daemon a command, and its answer back.
func (c *Control) Ask(ctx context.Context, command string) (string, error) {
	if strings.ContainsFunc(command, func(r rune) bool { return r < ' ' }) {
		return "", fmt.Errorf("%w: a command of several lines", ErrAnswer)
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	p := exec.CommandContext(ctx, c.Program)
	p.Env = append(os.Environ(), c.Env()...)
	p.Stdin = strings.NewReader(command + "\n")
	p.WaitDelay = time.Second
	var out, said bytes.Buffer
	p.Stdout, p.Stderr = &out, &said
	if err := p.Run(); err != nil {
		return "", fmt.Errorf("%s: %w %s", command, err, strings.TrimSpace(said.String()+out.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// Numbers reads an answer that is a list of process ids.
func Numbers(answer string) (list []int, err error) {
	for word := range strings.FieldsSeq(answer) {
		n, err := strconv.Atoi(word)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("%w: %.80q instead of process ids", ErrAnswer, answer)
		}
		list = append(list, n)
	}
	return list, nil
}

// Asker gives commands to a daemon: a [Control], or who passes them on to one.
type Asker interface {
	Ask(ctx context.Context, command string) (answer string, err error)
}

// Servers are the process ids of the daemon's servers.
func Servers(ctx context.Context, a Asker) ([]int, error) {
	text, err := a.Ask(ctx, "get_server_list")
	if err != nil {
		return nil, err
	}
	return Numbers(text)
}

// Terminate has the servers take leave of a client, before its process is ended: the kernels of a client that is killed
// without that may end with an error of the server, for all its clients. It says whether some server had the client.
func Terminate(ctx context.Context, a Asker, client int) (had bool, err error) {
	servers, err := Servers(ctx, a)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, s := range servers {
		text, err := a.Ask(ctx, fmt.Sprintf("get_client_list %d", s))
		var clients []int
		if err == nil {
			clients, err = Numbers(text)
		}
		if err == nil && slices.Contains(clients, client) {
			had = true
			_, err = a.Ask(ctx, fmt.Sprintf("terminate_client %d %d", s, client))
		}
		errs = append(errs, err)
	}
	return had, errors.Join(errs...)
}

// Limits are what a client may have of its server.
type Limits struct {
	Percent int    // of the threads of a GPU, 1 to 99; 0: all
	Memory  uint64 // bytes of each GPU; 0: no limit
}

// usualShare is a share that is no smaller than others usually have.
const usualShare = 100

// driverNeeds is what a client's context and modules may take beside what its quota counts. The quota is kept by who
// counts it; the server's limit is for what that misses.
const driverNeeds = 1 << 30

// LimitsOf gives the limits of a session with a share (a weight, 0: nothing is said) and a quota of GPU memory (0:
// none). A share below the usual one is that percentage of the threads.
func LimitsOf(share uint32, quota uint64) Limits {
	l := Limits{}
	if share < usualShare {
		l.Percent = int(share)
	}
	if quota > 0 {
		l.Memory = quota + driverNeeds
	}
	return l
}

// maxGPUs is how many GPUs a limit names.
const maxGPUs = 64

// Env are the variables that say the limits, for so many GPUs (0: nobody knows how many, and memory has none).
func (l Limits) Env(gpus int) (env []string) {
	if l.Percent > 0 {
		env = append(env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+strconv.Itoa(l.Percent))
	}
	if l.Memory > 0 && gpus > 0 {
		var list []string
		for i := range min(gpus, maxGPUs) {
			list = append(list, fmt.Sprintf("%d=%dM", i, (l.Memory+1<<20-1)>>20))
		}
		env = append(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+strings.Join(list, ","))
	}
	return env
}
