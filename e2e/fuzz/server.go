package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"scuda.dev/scuda/server/modcache"
)

// server is a running `scuda -l`.
type server struct {
	cmd         *exec.Cmd
	addr        string
	metrics     string
	fingerprint string
	token       string
	base        state         // what it holds without sessions
	done        chan struct{} // closed when it has ended

	mu      sync.Mutex
	tail    []string // of its log
	crashed func(line string)
}

const (
	tailLines   = 200
	warmWorkers = 3
	maxWarming  = 200 // looks until workers that are not ready are not waited for any more
)

// crashes says what in a server's log is a finding.
var crashes = regexp.MustCompile(`worker crashed|panic:|fatal error:|WARNING: DATA RACE|unexpected fault|SIGSEGV`)

// serve starts a server, and has crashed called with the line of its log that tells of a crash.
func serve(binary, folder, gpu string, crashed func(line string), args ...string) (*server, error) {
	all := append([]string{"-l", "127.0.0.1:0", "--gpu", gpu, "--sim-memory", "1GiB",
		"--warm", strconv.Itoa(warmWorkers), "--metrics", "127.0.0.1:0", "--max-sessions-per-client", "0",
		"--cache-dir", filepath.Join(folder, "cache"), "--state-dir", filepath.Join(folder, "state")}, args...)
	s := &server{cmd: exec.Command(binary, all...), done: make(chan struct{}), crashed: crashed}
	s.cmd.Env = programEnv()
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	log, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	lines := make(chan string, 16)
	var followed sync.WaitGroup
	followed.Go(func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			select {
			case lines <- in.Text():
			default:
			}
		}
	})
	followed.Go(func() { s.follow(log) })
	go func() {
		followed.Wait()
		err := s.cmd.Wait()
		s.note(fmt.Sprintf("the server has ended: %v", err))
		close(s.done)
	}()
	limit := time.After(3 * time.Minute)
	for up := false; !up; {
		select {
		case line := <-lines:
			name, value, _ := strings.Cut(line, " ")
			switch name {
			case "listening":
				s.addr = strings.TrimPrefix(value, "on ")
			case "fingerprint":
				s.fingerprint = value
			case "metrics":
				s.metrics = strings.TrimPrefix(value, "on ")
			case "GPU":
				up = true
			}
		case <-s.done:
			return nil, fmt.Errorf("the server did not start:\n%s", s.log())
		case <-limit:
			s.stop()
			return nil, fmt.Errorf("the server does not start:\n%s", s.log())
		}
	}
	return s, nil
}

func (s *server) follow(log io.Reader) {
	in := bufio.NewScanner(log)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		s.note(in.Text())
	}
}

func (s *server) note(line string) {
	s.mu.Lock()
	if s.tail = append(s.tail, line); len(s.tail) > 2*tailLines {
		s.tail = append(s.tail[:0], s.tail[tailLines:]...)
	}
	s.mu.Unlock()
	if crashes.MatchString(line) {
		s.crashed(line)
	}
}

// log is the end of what the server said.
func (s *server) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.tail, "\n")
}

func (s *server) gone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(45 * time.Second): // longer than it lets sessions go on
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// state is what a server holds.
type state struct {
	sessions, busy, warm int
	goroutines           int
	descriptors, memfds  int // without images
	images               int
	threads, children    int
	resident             int // KiB
	gpuMemory            int
	kinds                map[string]int // of descriptors
}

func (s state) String() string {
	return fmt.Sprintf("%d sessions, %d workers busy and %d warm, %d goroutines, %d descriptors, %d memory files, "+
		"%d images, %d threads, %d children, %d KiB resident, %d bytes of the GPU", s.sessions, s.busy, s.warm, s.goroutines,
		s.descriptors, s.memfds, s.images, s.threads, s.children, s.resident, s.gpuMemory)
}

// look asks the server and the kernel.
func (s *server) look(ctx context.Context) (state, error) {
	var v state
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.metrics, nil)
	if err != nil {
		return v, err
	}
	r.Close = true // a connection that is kept is a goroutine
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return v, err
	}
	text, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil {
		return v, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		series, labels, _ := strings.Cut(name, "{")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch series {
		case "go_goroutines":
			v.goroutines = int(n)
		case "scuda_sessions":
			v.sessions += int(n)
		case "scuda_gpu_memory_used_bytes":
			v.gpuMemory += int(n)
		case "scuda_workers":
			if strings.Contains(labels, "busy") {
				v.busy = int(n)
			} else if strings.Contains(labels, "warm") {
				v.warm = int(n)
			}
		}
	}
	return v, s.count(&v)
}

// count asks the kernel alone.
func (s *server) count(v *state) error {
	proc := fmt.Sprintf("/proc/%d", s.cmd.Process.Pid)
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return err
	}
	v.kinds = map[string]int{}
	for _, fd := range fds {
		to, err := os.Readlink(proc + "/fd/" + fd.Name())
		if err != nil {
			continue // it was closed meanwhile
		}
		if strings.HasPrefix(to, "/memfd:scuda-image") { // some stay for later sessions
			v.images++
			continue
		}
		if strings.HasPrefix(to, "/memfd:") {
			v.memfds++
		}
		kind, _, _ := strings.Cut(to, ":[") // socket:[NUMBER]
		v.kinds[kind]++
		v.descriptors++
	}
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		switch f := strings.Fields(line); f[0] {
		case "VmRSS:":
			v.resident, _ = strconv.Atoi(f[1])
		case "Threads:":
			v.threads, _ = strconv.Atoi(f[1])
		}
	}
	tasks, _ := filepath.Glob(proc + "/task/*/children")
	for _, t := range tasks {
		b, _ := os.ReadFile(t) // a thread may have ended
		v.children += len(bytes.Fields(b))
	}
	return nil
}

// more says what there is more of than there was. Threads and memory come and go with the runtime; they have a bound.
func (s state) more(base state) string {
	const room, threads = 48 << 10, 40
	var list []string
	add := func(what string, is, was int) {
		if is > was {
			list = append(list, fmt.Sprintf("%s: %d, were %d", what, is, was))
		}
	}
	add("sessions", s.sessions, 0)
	add("busy workers", s.busy, 0)
	add("goroutines", s.goroutines, base.goroutines)
	add("descriptors", s.descriptors, base.descriptors)
	for kind, n := range s.kinds {
		if s.descriptors > base.descriptors {
			add(kind, n, base.kinds[kind])
		}
	}
	add("memory files", s.memfds, base.memfds)
	add("images", s.images, modcache.IdleImages)
	add("children", s.children, base.children)
	add("bytes of the GPU", s.gpuMemory, base.gpuMemory)
	add("threads", s.threads, base.threads+threads)
	add("KiB resident", s.resident, base.resident+room)
	return strings.Join(list, "; ")
}

// settle waits until the server holds no more than it did without sessions, and says what it still has more of. Pings
// of callback connections and half-open ones take their time.
func (s *server) settle(ctx context.Context) (state, string, error) {
	limit := time.Now().Add(3 * time.Minute)
	for {
		v, err := s.look(ctx)
		if err != nil {
			return v, "", err
		}
		more := v.more(s.base)
		if more == "" || time.Now().After(limit) {
			return v, more, nil
		}
		select {
		case <-ctx.Done():
			return v, "", ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// settled is what the server holds when nothing comes and goes any more.
func (s *server) settled(ctx context.Context) (state, error) {
	last, same := state{}, 0
	for i := range 900 {
		v, err := s.look(ctx)
		if err != nil {
			return v, err
		}
		v.resident = last.resident
		ready := v.warm == warmWorkers || i >= maxWarming
		if ready && v.sessions == 0 && v.busy == 0 && v.String() == last.String() {
			if same++; same == 5 {
				return v, s.count(&v)
			}
		} else {
			last, same = v, 0
		}
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return last, errors.New("the server does not come to rest")
}

// noFolder is nowhere, and cannot be made.
const noFolder = "/proc/none"

// programEnv is what programs get, which find no settings of the user's either.
func programEnv() []string {
	return append(cleanEnv(), "XDG_CONFIG_HOME="+noFolder, "XDG_CACHE_HOME="+noFolder)
}

// cleanEnv is the environment without settings of scuda's.
func cleanEnv() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SCUDA_") && !strings.HasPrefix(v, "CUDA_") && !strings.HasPrefix(v, "LD_PRELOAD=") {
			env = append(env, v)
		}
	}
	return env
}
