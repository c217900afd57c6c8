package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"scuda.dev/scuda/transport"
)

// enough findings end a run: one cause makes many, and each keeps files.
const enough = 100

// fuzzer is a run.
type fuzzer struct {
	options
	folder     string // of what the run needs, removed at its end
	binary     string
	lib        string
	plain, tls *server // one without TLS and token, one with both
	all        []*recording
	kinds      []*kind
	began      time.Time

	mu     sync.Mutex
	found  []string
	recent []*trial // the latest cases, by which crashes are found in the log
	saved  bool
}

// kind is a kind of cases.
type kind struct {
	name  string
	share int // of the time
	try   func(ctx context.Context, c *trial)
	next  atomic.Int64
	made  atomic.Int64
	told  [outcomes]atomic.Int64
	spent atomic.Int64 // time, for the shares

	answers atomic.Int64 // messages that came in sessions: how far they got
}

// outcome is what came of a case that is no finding.
type outcome int

const (
	refused outcome = iota // the connection was refused, or the program said that a call failed
	carried                // the session went to its end, or the program succeeded
	waited                 // the program waited until it was ended
	outcomes
)

// trial is one case.
type trial struct {
	*fuzzer
	kind   *kind
	number int64
	rnd    *rand.Rand
	input  []byte // what was sent, as far as it is known; guarded by mu, as the next
	note   string // what was done
}

// says notes what the case does, before it does it.
func (c *trial) says(input []byte, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.input, c.note = input, fmt.Sprintf(format, args...)
}

// name says in hellos, and so in the log, from which case something comes.
func (c *trial) name() string { return fmt.Sprintf("fuzz-%s-%d", c.kind.name, c.number) }

func (c *trial) told(o outcome) { c.kind.told[o].Add(1) }

// fault is a finding.
func (c *trial) fault(format string, args ...any) {
	c.finding(c, fmt.Sprintf(format, args...))
}

func newFuzzer(ctx context.Context, o options) (*fuzzer, error) {
	f := &fuzzer{options: o}
	root, err := filepath.Abs(o.root)
	if err != nil {
		return nil, err
	}
	if f.keep, err = filepath.Abs(o.keep); err != nil {
		return nil, err
	}
	f.root, f.binary, f.lib = root, filepath.Join(root, "build/scuda"), filepath.Join(root, "build/lib")
	for _, name := range []string{f.binary, f.lib + "/libcuda.so.1", f.lib + "/libnvidia-ml.so.1"} {
		if _, err := os.Stat(name); err != nil {
			return nil, fmt.Errorf("%w: run make build first, and start this at the top of the repository", err)
		}
	}
	if f.folder, err = os.MkdirTemp("", "scuda-fuzz-"); err != nil {
		return nil, err
	}
	f.kinds = []*kind{
		{name: "cuda", share: 4, try: f.trySession}, {name: "nvml", share: 1, try: f.trySession},
		{name: "door", share: 1, try: f.tryDoor}, {name: "answers", share: 3, try: f.tryAnswers},
		{name: "tls", share: 1, try: f.tryTLS}, {name: "native", share: 2, try: f.tryNative},
	}
	f.kinds = slices.DeleteFunc(f.kinds, func(k *kind) bool { return !o.wants(k.name) })
	if len(f.kinds) == 0 {
		f.close()
		return nil, fmt.Errorf("there is no kind %s", strings.Join(o.only, ", "))
	}
	if f.wants("native") {
		if _, err := exec.LookPath("go"); err != nil {
			f.close()
			return nil, fmt.Errorf("kind native: %w; name the other kinds with -only where there is no Go", err)
		}
	}
	if err := f.prepare(ctx); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// prepare compiles the programs, starts the servers and records.
func (f *fuzzer) prepare(ctx context.Context) error {
	if len(f.kinds) == 1 && f.kinds[0].name == "native" {
		return nil
	}
	for _, name := range f.programs() {
		cc := exec.CommandContext(ctx, "gcc", "-std=gnu11", "-O1", "-g", "-w", "-o", filepath.Join(f.folder, name),
			filepath.Join(f.root, "e2e/programs", name+".c"), "-I", filepath.Join(f.root, "shim/include"), "-L", f.lib,
			"-l:libcuda.so.1", "-Wl,--allow-shlib-undefined", "-lm", "-lpthread", "-ldl")
		if out, err := cc.CombinedOutput(); err != nil {
			return fmt.Errorf("compiling %s: %w\n%s", name, err, out)
		}
	}
	const token = "a-token-of-the-fuzzer"
	tokenFile := filepath.Join(f.folder, "token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		return err
	}
	var err error
	if f.plain, err = serve(f.binary, filepath.Join(f.folder, "plain"), f.gpu, f.crashed); err != nil {
		return err
	}
	f.tls, err = serve(f.binary, filepath.Join(f.folder, "tls"), f.gpu, f.crashed, "--tls", "always", "--token-file",
		tokenFile)
	if err != nil {
		return err
	}
	f.tls.token = token
	if f.corpus == "" {
		err = f.record()
	} else {
		err = f.load(f.corpus, f.digest(ctx))
	}
	if err != nil {
		return err
	}
	if err := f.sound(ctx); err != nil {
		return err
	}
	for _, s := range f.servers() {
		if s.base, err = s.settled(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (f *fuzzer) servers() []*server {
	return slices.DeleteFunc([]*server{f.plain, f.tls}, func(s *server) bool { return s == nil })
}

// digest is that of what travels, as the server says.
func (f *fuzzer) digest(ctx context.Context) string {
	c, w, err := transport.DialNet(ctx, transport.Target{Address: f.plain.addr},
		&transport.Hello{Kind: transport.KindInfo})
	if err != nil {
		return ""
	}
	c.Close()
	return w.Digest
}

func (f *fuzzer) close() {
	for _, s := range f.servers() {
		s.stop()
	}
	os.RemoveAll(f.folder)
}

// run makes cases until the time is over, and looks for leaks now and then.
func (f *fuzzer) run(ctx context.Context) error {
	f.began = time.Now()
	fmt.Fprintf(f.out, "seed %d\n", f.seed)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, f.limit)
		defer cancel()
	}
	for more := true; more; {
		round, stop := context.WithTimeout(ctx, f.every)
		more = f.round(round) && ctx.Err() == nil
		stop()
		if err := f.settle(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		f.totals()
	}
	return nil
}

// round makes cases; false when all that were wanted are made.
func (f *fuzzer) round(ctx context.Context) bool {
	var group sync.WaitGroup
	var left atomic.Bool
	for range f.jobs {
		group.Go(func() {
			for ctx.Err() == nil {
				c := f.pick()
				if c == nil {
					return
				}
				began := time.Now()
				c.kind.try(ctx, c)
				c.kind.spent.Add(int64(time.Since(began)))
				c.kind.made.Add(1)
				for _, s := range f.servers() {
					if s.gone() {
						c.fault("the supervisor has ended:\n%s", s.log())
						return
					}
				}
			}
			left.Store(true)
		})
	}
	group.Wait()
	return left.Load() && !slices.ContainsFunc(f.servers(), (*server).gone)
}

// pick makes the next case, of the kind that is furthest behind its share; nil when there are no more, or enough
// findings.
func (f *fuzzer) pick() *trial {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.found) >= enough {
		return nil
	}
	var k *kind
	behind := func(k *kind) float64 { return float64(k.spent.Load()) / float64(k.share) }
	for _, x := range f.kinds {
		if n := x.next.Load(); f.counts != nil && n >= f.counts[x.name] || f.number >= 0 && n > 0 {
			continue
		}
		if k == nil || behind(x) < behind(k) {
			k = x
		}
	}
	if k == nil {
		return nil
	}
	c := &trial{fuzzer: f, kind: k, number: k.next.Add(1) - 1}
	if f.number >= 0 {
		c.number = f.number
	}
	h := fnv.New64a()
	fmt.Fprint(h, k.name, c.number)
	c.rnd = rand.New(rand.NewPCG(f.seed, h.Sum64()))
	if f.recent = append(f.recent, c); len(f.recent) > 64 {
		f.recent = slices.Delete(f.recent, 0, 32)
	}
	return c
}

// settle looks for leaks, and whether the servers still serve.
func (f *fuzzer) settle(ctx context.Context) error {
	for _, s := range f.servers() {
		v, more, err := s.settle(ctx)
		switch {
		case s.gone():
			return fmt.Errorf("the supervisor has ended:\n%s", s.log())
		case err != nil:
			return err
		case more != "":
			f.finding(nil, fmt.Sprintf("a leak: %s\nnow: %s\nthe server's log:\n%s", more, v, s.log()))
			s.base = v // once is enough
		}
	}
	if f.plain == nil {
		return nil
	}
	if r := f.program(quickPrograms[0], f.plain.addr); r.code != 0 {
		f.finding(nil, fmt.Sprintf("a program does not run any more: exit status %d, %v\n%s%s", r.code, r.err, r.out, r.text))
	}
	return nil
}

// totals writes what has been done.
func (f *fuzzer) totals() {
	fmt.Fprintf(f.out, "%s after %v:", time.Now().Format("15:04:05"), time.Since(f.began).Round(time.Second))
	for _, k := range f.kinds {
		fmt.Fprintf(f.out, " %s %d", k.name, k.made.Load())
		if k.name != "native" {
			fmt.Fprintf(f.out, " (%d refused, %d carried out, %d waited", k.told[refused].Load(), k.told[carried].Load(),
				k.told[waited].Load())
			if n := k.answers.Load(); n > 0 {
				fmt.Fprintf(f.out, ", %d answers", n)
			}
			fmt.Fprint(f.out, ")")
		}
		fmt.Fprint(f.out, ";")
	}
	fmt.Fprintf(f.out, " findings %d\n", f.findings())
}

func (f *fuzzer) findings() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.found)
}

var programName = regexp.MustCompile(`fuzz-(\w+)-(\d+)`)

// crashed is told of a line in a server's log.
func (f *fuzzer) crashed(line string) {
	var c *trial
	if m := programName.FindStringSubmatch(line); m != nil {
		n, _ := strconv.ParseInt(m[2], 10, 64)
		f.mu.Lock()
		for _, x := range f.recent {
			if x.kind.name == m[1] && x.number == n {
				c = x
			}
		}
		f.mu.Unlock()
	}
	f.finding(c, line)
}

// finding notes what must not happen; c is nil where nobody knows by which case.
func (f *fuzzer) finding(c *trial, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what := fmt.Sprintf("finding-%d", len(f.found)+1)
	head := fmt.Sprintf("seed %d", f.seed)
	if c != nil {
		what += fmt.Sprintf("-%s-%d", c.kind.name, c.number)
		head += fmt.Sprintf(", kind %s, case %d: %s", c.kind.name, c.number, c.note)
	}
	f.found = append(f.found, what)
	fmt.Fprintf(f.out, "FINDING %s: %s\n", what, text)
	folder := filepath.Join(f.keep, fmt.Sprint(f.seed), what)
	err := os.MkdirAll(folder, 0o755)
	log := ""
	for _, s := range f.servers() {
		log += s.log() + "\n"
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(folder, "text"), []byte(head+"\n"+text+"\n"), 0o644),
		os.WriteFile(filepath.Join(folder, "log"), []byte(log), 0o644))
	if c != nil && c.input != nil {
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, "input"), c.input, 0o644))
	}
	if !f.saved && len(f.all) == len(f.programs()) {
		err, f.saved = errors.Join(err, f.save(filepath.Join(f.keep, fmt.Sprint(f.seed), "corpus"))), true
	}
	if err != nil {
		fmt.Fprintln(f.out, "fuzz: cannot keep it:", err)
	}
}

// ran is what came of a program.
type ran struct {
	code      int // -1: ended by a signal
	signal    syscall.Signal
	out, text string
	err       error
	late      bool // it did not end by itself
}

// program runs one against a server. Its memory lies at the same addresses each time, as far as the kernel has it so.
func (f *fuzzer) program(name, addr string, env ...string) (r ran) {
	return f.programWithin(context.Background(), 5*time.Minute, name, addr, env...)
}

func (f *fuzzer) programWithin(ctx context.Context, limit time.Duration, name, addr string, env ...string) (r ran) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p := exec.CommandContext(ctx, "setarch", "-R", filepath.Join(f.folder, name),
		filepath.Join(f.root, "testdata/kernels"))
	var out, text strings.Builder
	p.Stdout, p.Stderr, p.WaitDelay = &out, &text, 5*time.Second
	p.Env = append(programEnv(), "SCUDA_SERVER="+addr, "LD_LIBRARY_PATH="+f.lib, "GOTRACEBACK=all")
	p.Env = append(p.Env, env...)
	err := p.Run()
	r.late = ctx.Err() != nil
	r.out, r.text = out.String(), text.String()
	if p.ProcessState == nil {
		r.err = err
		return r
	}
	r.code = p.ProcessState.ExitCode()
	if w, ok := p.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		r.signal = w.Signal()
	}
	return r
}
