package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/examples"
	"scuda.dev/scuda/internal/curve"
	"scuda.dev/scuda/transport"
)

// What trains in `scuda demo`.
const (
	withAuto    = "auto"
	withKernels = "kernels"
	withPyTorch = "pytorch"
)

// demoGPU is newer than NVIDIA's libraries know, which then use the PTX that they carry.
const demoGPU = "sim:cc=12.0"

// errLoss is a training that taught nothing.
var errLoss = errors.New("the loss did not fall")

type demoOptions struct {
	address, tokenFile, gpu, with string
	steps                         int

	source  string // where the address comes from
	out     io.Writer
	env     []string
	folder  string // for what is gone in the end
	serving time.Duration
}

func newDemo() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Train a small GPT and watch its loss fall, with or without a GPU",
		Long: `Train a small GPT, letter by letter, on a short story, show its loss, and say where the time went. The program
that trains knows nothing of scuda: its calls go to a server, as those of any program. Without a configured server one
with a simulated GPU is started for it, and ends with it. Where Python has PyTorch with CUDA, PyTorch trains, else a
program with kernels of its own. The losses are the same in each run. It takes less than a minute on two processors.

` + exitHelp,
		Example:    "  scuda demo\n  scuda demo --server gpu1.example.org --with pytorch",
		SuggestFor: []string{"example", "try", "tutorial"},
		Args:       noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("with", o.with); err != nil {
				return err
			}
			switch {
			case o.steps < 0 || o.steps > 100000 || o.steps == 1:
				return usage(fmt.Errorf("--steps %d: 2 to 100000", o.steps))
			case o.gpu != "" && o.address != "":
				return usage(errors.New("--gpu is that of a server of its own: leave --server out"))
			}
			o.out = cmd.OutOrStdout()
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.with, "with", withAuto,
		"`WHAT` trains: pytorch, kernels (a program with its own), or auto (PyTorch if it is there)")
	f.IntVar(&o.steps, "steps", 0, "train for `N` steps (default: 250, by PyTorch on a simulated GPU 24)")
	f.StringVar(&o.gpu, "gpu", "",
		"start a server of its own with this `KIND` of GPU, although one is configured (default where none is: "+demoGPU+")")
	f.StringVar(&o.address, "server", "", "use this server (`HOST:PORT` or name) instead of the configured one")
	f.StringVar(&o.tokenFile, "token-file", "", "`FILE` with the token [$SCUDA_TOKEN_FILE]")
	return cmd
}

func (o *demoOptions) run(ctx context.Context) (err error) {
	if o.folder, err = os.MkdirTemp("", "scuda-demo-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.folder)
	stop, err := o.meet(ctx)
	if err != nil {
		return err
	}
	defer stop()
	sim, err := o.greet(ctx)
	if err != nil {
		return err
	}
	t, err := o.training(ctx, sim)
	if err != nil {
		return err
	}
	fmt.Fprintln(o.out)
	if err := t.run(ctx, o); err != nil {
		if ctx.Err() != nil {
			return interrupted(fmt.Errorf("%d of %d steps were trained", len(t.losses), t.steps))
		}
		return err
	}
	return o.sum(t)
}

// meet finds the server, or starts one.
func (o *demoOptions) meet(ctx context.Context) (stop func(), err error) {
	stop, o.source = func() {}, "--server"
	if o.gpu == "" && o.address == "" {
		if o.address, o.source, err = config.Server(); err != nil {
			return nil, err
		}
	}
	if o.address != "" {
		o.env, err = clientEnv(os.Environ(), o.address, o.tokenFile)
		return stop, err
	}
	began := time.Now()
	env := os.Environ()
	for _, e := range env { // settings are of servers that the user starts
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "SCUDA_") && name != "SCUDA_LIB" &&
			name != "SCUDA_WORKER_FOLDER" {
			env = setEnv(env, name, "")
		}
	}
	o.address, stop, err = ownServer(ctx, env, "--gpu", cmp.Or(o.gpu, demoGPU), "--log", "error", "--drain", "0",
		"--cache-dir", filepath.Join(o.folder, "cache"), "--state-dir", filepath.Join(o.folder, "state"))
	if err != nil {
		return nil, err
	}
	o.serving, o.source = time.Since(began), "started for this demonstration: another process"
	if o.env, err = clientEnv(env, o.address, ""); err != nil {
		stop()
	}
	return stop, err
}

// greet says what is used, and whether the GPU is simulated.
func (o *demoOptions) greet(ctx context.Context) (sim bool, err error) {
	var c io.Closer
	var w *transport.Welcome
	if o.serving > 0 {
		c, w, err = askOf(ctx, transport.Target{Address: o.address}, transport.KindInfo)
	} else {
		c, w, err = ask(ctx, o.address, o.tokenFile, transport.KindInfo)
	}
	if err != nil {
		return false, err
	}
	defer c.Close()
	if len(w.Devices) == 0 {
		return false, fmt.Errorf("%w: %s has none", errNoGPU, o.address)
	}
	fmt.Fprintf(o.out, "server   %s (%s)\n", o.address, o.source)
	fmt.Fprintf(o.out, "GPU      %s, %s\n", w.Devices[0].Name, config.Size(w.Devices[0].TotalMem))
	return w.GPU == "sim", nil
}

// errNoGPU is a server without a GPU.
var errNoGPU = errors.New("a GPU is needed")

// training is a program that trains, and what it said.
type training struct {
	steps   int
	argv    []string
	stdin   string
	losses  []float64
	writes  string
	took    time.Duration
	stalls  []stall
	calls   int64
	warning bytes.Buffer
}

// training chooses the program.
func (o *demoOptions) training(ctx context.Context, sim bool) (*training, error) {
	if o.with != withKernels {
		python, err := o.torch(ctx)
		if err == nil {
			steps := 250
			if sim {
				steps = 24
			}
			t := &training{steps: cmp.Or(o.steps, steps), stdin: examples.Story}
			t.argv = []string{python, "-c", examples.GPT, strconv.Itoa(t.steps)}
			fmt.Fprintf(o.out, "program  %s with PyTorch, which knows nothing of scuda\n", python)
			return t, nil
		}
		if o.with == withPyTorch || ctx.Err() != nil {
			return nil, fmt.Errorf("PyTorch cannot train: %w", err)
		}
	}
	program, err := measuring("scuda-demo")
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(o.out, "program  scuda-demo, a CUDA program that knows nothing of scuda")
	t := &training{steps: cmp.Or(o.steps, 250)}
	t.argv = []string{program, strconv.Itoa(t.steps)}
	return t, nil
}

// torch finds a Python whose PyTorch sees the server's GPU.
func (o *demoOptions) torch(ctx context.Context) (python string, err error) {
	if python, err = exec.LookPath("python3"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p := o.child(ctx, python, "-c", "import torch; torch.zeros(1).cuda()")
	out, err := p.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return python, nil
}

// child is a program that uses the server and ends with us, as ownServer's does.
func (o *demoOptions) child(ctx context.Context, name string, args ...string) *exec.Cmd {
	p := exec.CommandContext(ctx, name, args...)
	p.Env, p.SysProcAttr = o.env, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.Cancel = func() error { return p.Process.Signal(os.Interrupt) }
	p.WaitDelay = 5 * time.Second
	return p
}

// run lets the program train, and draws its losses.
func (t *training) run(ctx context.Context, o *demoOptions) error {
	width := columns(o.out)
	if os.Getenv("TERM") == "dumb" {
		width = 0
	}
	colour := ""
	if paint(o.out, green, "") != "" {
		colour = "\x1b[" + green + "m"
	}
	p := o.child(ctx, t.argv[0], t.argv[1:]...)
	p.Stdin, p.Stderr = strings.NewReader(t.stdin), &t.warning
	p.Env = setEnv(p.Env, "SCUDA_TRACE", filepath.Join(o.folder, "t"))
	out, err := p.StdoutPipe()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := p.Start(); err != nil {
		return err
	}
	c := curve.New(o.out, t.steps, width, colour)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var step int
		var loss float64
		line := lines.Text()
		if n, _ := fmt.Sscanf(line, "step %d loss %g", &step, &loss); n == 2 && step == len(t.losses)+1 {
			t.losses = append(t.losses, loss)
			c.Add(loss)
		} else if text, ok := strings.CutPrefix(line, "writes "); ok {
			t.writes = text
		} else {
			fmt.Fprintln(o.out, line)
		}
	}
	c.End()
	err = p.Wait()
	t.took = time.Since(began)
	if err != nil || len(t.losses) != t.steps {
		text := strings.TrimSpace(t.warning.String())
		return fmt.Errorf("%s ended after %d of %d steps: %w\n%s", filepath.Base(t.argv[0]), len(t.losses), t.steps,
			cmp.Or(err, errors.New("too early")), text)
	}
	traces, err := readTraces(o.folder)
	for i := range traces {
		lines, sent := traces[i].stalls()
		t.stalls, t.calls = append(t.stalls, lines...), t.calls+sent
	}
	return err
}

// sum says what came out, and where the time went.
func (o *demoOptions) sum(t *training) error {
	first, last := t.losses[0], t.losses[len(t.losses)-1]
	fmt.Fprintf(o.out, "\nIt writes: %s\n", t.writes)
	all := o.serving + t.took
	fmt.Fprintf(o.out, "\nWhere %.1f s went:\n", all.Seconds())
	var waited, trips, module time.Duration
	for _, s := range t.stalls {
		switch s.Why {
		case "synchronisation":
			waited += s.Time
		case "module upload":
			module += s.Time
		default:
			trips += s.Time
		}
	}
	for _, row := range []struct {
		time time.Duration
		what string
	}{
		{waited, "waiting for the GPU's results"},
		{trips, "other round trips, and copies"},
		{module, "sending the kernels"},
		{max(t.took-waited-trips-module, 0), fmt.Sprintf("the program itself, which sent %d calls", t.calls)},
		{o.serving, "starting the server"},
	} {
		fmt.Fprintf(o.out, "%6.2f s  %3.0f %%  %s\n", row.time.Seconds(), 100*row.time.Seconds()/all.Seconds(), row.what)
	}
	if last >= first {
		return fmt.Errorf("%w: it was %.4f and is %.4f", errLoss, first, last)
	}
	fmt.Fprintf(o.out, "\nThe loss fell from %.4f to %.4f. Next: scuda run -- PROGRAM\n", first, last)
	return nil
}
