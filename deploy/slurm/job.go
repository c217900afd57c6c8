package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrJob is wrapped by complaints about a job that cannot have what it asks for.
var ErrJob = errors.New("the job cannot have its GPUs")

// Job is what Slurm says of one. Nothing in it is a text that users choose: their names of jobs could look like
// anything.
type Job struct {
	ID       uint32
	State    string
	Nodes    int
	Licences string        // such as scuda:2,matlab:1
	Lasts    time.Duration // its limit of time; 0: it has none
}

// jobFormat is what squeue is asked to print: the fields of [Job], in their order.
const jobFormat = "%A|%T|%D|%W|%l"

// maxAnswer bounds what squeue may say.
const maxAnswer = 64 << 20

// parseJob reads a line that squeue prints by jobFormat.
func parseJob(line string) (Job, error) {
	f := strings.Split(strings.TrimSpace(line), "|")
	if len(f) != 5 {
		return Job{}, fmt.Errorf("squeue said %.100q", line)
	}
	id, err := strconv.ParseUint(f[0], 10, 32)
	nodes, err2 := strconv.ParseUint(f[2], 10, 24)
	lasts, err3 := parseLimit(f[4])
	if err := errors.Join(err, err2, err3); err != nil {
		return Job{}, fmt.Errorf("squeue said %.100q: %w", line, err)
	}
	return Job{uint32(id), f[1], int(nodes), f[3], lasts}, nil
}

// parseLimit reads a limit of time as squeue prints it: DAYS-HOURS:MINUTES:SECONDS, of which the first parts may be
// left out.
func parseLimit(s string) (time.Duration, error) {
	switch s {
	case "UNLIMITED", "NOT_SET", "INVALID", "":
		return 0, nil
	}
	days, clock, two := strings.Cut(s, "-")
	if !two {
		days, clock = "0", s
	}
	parts := strings.Split(clock, ":")
	if len(parts) > 3 || len(parts) < 2 {
		return 0, fmt.Errorf("%.20q is no time", s)
	}
	var seconds uint64
	for _, p := range parts {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("%.20q is no time", s)
		}
		seconds = seconds*60 + n
	}
	d, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%.20q is no time", s)
	}
	return time.Duration(d)*24*time.Hour + time.Duration(seconds)*time.Second, nil
}

// licences is how many of a licence a list such as scuda:2,matlab:1 names.
func licences(list, name string) int {
	for word := range strings.SplitSeq(list, ",") {
		of, count, two := strings.Cut(strings.TrimSpace(word), ":")
		of, _, _ = strings.Cut(of, "@") // of a database
		if of != name {
			continue
		}
		n := 1
		if two {
			n, _ = strconv.Atoi(count)
		}
		return max(0, n)
	}
	return 0
}

// gpus is how many GPUs each of the job's nodes has; 0: it asks for none.
func (s *Site) gpus(j *Job) (int, error) {
	n := licences(j.Licences, s.Licence)
	if j.Nodes > 0 && n%j.Nodes != 0 {
		return 0, fmt.Errorf("%w: it has %d licences %s for %d nodes; ask for --gres=%[3]s:N, which is for each node, or "+
			"say --nodes", ErrJob, n, s.Licence, j.Nodes)
	}
	if j.Nodes > 0 {
		n /= j.Nodes
	}
	if n > maxGPUs {
		return 0, fmt.Errorf("%w: %d on a node; %d are the most", ErrJob, n, maxGPUs)
	}
	return n, nil
}

// maxGPUs is how many GPUs a lease can have.
const maxGPUs = 64

// lasts is how long a lease of the job lasts.
func (s *Site) lasts(j *Job) time.Duration {
	d := j.Lasts
	if longest := time.Duration(s.Longest); d <= 0 || d > longest {
		d = longest
	}
	return d + time.Duration(s.Grace)
}

// jobs asks Slurm for its jobs, or for one. While the controller is being restarted squeue waits for it by itself.
func (s *Site) jobs(ctx context.Context, id uint32) (list []Job, err error) {
	args := []string{"--noheader", "--states=all", "--format=" + jobFormat}
	if id != 0 {
		args = append(args, "--jobs="+strconv.FormatUint(uint64(id), 10))
	}
	out, err := output(ctx, nil, s.Squeue, args...)
	if err != nil {
		return nil, fmt.Errorf("asking Slurm's controller: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		j, err := parseJob(line)
		if err != nil {
			return nil, err
		}
		list = append(list, j)
	}
	return list, nil
}

// job asks Slurm for one.
func (s *Site) job(ctx context.Context, id uint32) (*Job, error) {
	list, err := s.jobs(ctx, id)
	if err != nil {
		return nil, err
	}
	// a question for the first of an array is answered with all of it
	i := slices.IndexFunc(list, func(j Job) bool { return j.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("no job %d is known to Slurm's controller", id)
	}
	return &list[i], nil
}

// output runs a program that ends with the context, and gives what it prints. An error has what it complained of.
func output(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second // for those that it may have started
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool {
		// what a job's user may have said is not for us, but Slurm's programs have to find their file
		return !strings.HasPrefix(e, "PATH=") && !strings.HasPrefix(e, "SLURM_CONF=")
	}), env...)
	out, complaint := &limited{most: maxAnswer}, &limited{most: maxComplaint}
	cmd.Stdout, cmd.Stderr = out, complaint
	err := cmd.Run()
	switch text := strings.TrimSpace(complaint.String()); {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s did not answer in time", nameOf(program))
	case err != nil && text != "":
		return nil, errors.New(oneLine(strings.TrimPrefix(text, "scuda: ")))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", nameOf(program), err)
	}
	return out.Bytes(), nil
}

func nameOf(program string) string { return program[strings.LastIndex(program, "/")+1:] }

// oneLine makes one line of a text, without what a terminal would take for more than text.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

const maxComplaint = 400

// limited keeps the first bytes of what is written.
type limited struct {
	bytes.Buffer
	most int
}

func (l *limited) Write(b []byte) (int, error) {
	l.Buffer.Write(b[:min(len(b), max(0, l.most-l.Len()))])
	return len(b), nil
}
