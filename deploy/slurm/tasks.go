package slurm

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
)

// Variables of a job beside the client's settings.
const (
	variableJob  = "SCUDA_SLURM_JOB"  // whose lease the settings name
	variableGPUs = "SCUDA_SLURM_GPUS" // how many the job has on this node
	variableBind = "SCUDA_SLURM_BIND" // the user's wish: rank or none
)

// ErrTask is a task that must not run.
var ErrTask = errors.New("the job has no GPU")

// TaskProlog writes for Slurm what each task has in its environment. It runs as the job's user. The error is [ErrTask]
// where the prolog got no lease, after it wrote why for the task's own output: Slurm does not start the task then.
func (h *Hook) TaskProlog(out io.Writer, getenv func(string) string, libraries string) error {
	folder := h.Site.folder(h.Node, h.Job)
	r, err := readRecord(folder)
	if err != nil {
		r = &record{Error: oneLine(err.Error())}
	}
	w := tasks{out: out}
	switch {
	case r != nil && r.Error != "":
		w.line("print scuda: this job has no GPU: %s", oneLine(r.Error))
		return ErrTask
	case r != nil:
		w.set(r.variables()...)
		w.set("SCUDA_TOKEN_FILE=" + filepath.Join(folder, tokenName))
		w.line("unset SCUDA_TOKEN") // one that the user happened to have where the job was submitted
	case getenv(variableJob) == strconv.FormatUint(uint64(h.Job), 10): // the controller has taken the lease
		r = new(record)
		r.GPUs, _ = strconv.Atoi(getenv(variableGPUs))
	default:
		if getenv(variableJob) != "" { // submitted from a job that had one
			for _, name := range []string{variableJob, variableGPUs, "SCUDA_SERVER", "SCUDA_TOKEN_FILE", "SCUDA_FINGERPRINT",
				"SCUDA_CA", "SCUDA_TOKEN"} {
				w.line("unset %s", name)
			}
		}
		return w.err
	}
	w.set("LD_PRELOAD="+first(filepath.Join(libraries, "libscuda.so"), getenv("LD_PRELOAD")),
		"LD_LIBRARY_PATH="+first(libraries, getenv("LD_LIBRARY_PATH")))
	if own := h.bound(r.GPUs, getenv); own != "" {
		w.set("CUDA_VISIBLE_DEVICES=" + own)
	}
	return w.err
}

// tasks writes what Slurm reads of a task prolog.
type tasks struct {
	out io.Writer
	err error
}

func (w *tasks) line(format string, args ...any) {
	_, err := fmt.Fprintf(w.out, format+"\n", args...)
	w.err = errors.Join(w.err, err)
}

func (w *tasks) set(vars ...string) {
	for _, v := range vars {
		w.line("export %s", oneLine(v))
	}
}

// first puts a word first in a list with colons.
func first(word, list string) string {
	if list == "" || list == word || strings.HasPrefix(list, word+":") {
		return word + strings.TrimPrefix(list, word)
	}
	return word + ":" + list
}

// bound are the numbers of the GPUs that a task has for itself, "": all of the job's on this node.
func (h *Hook) bound(gpus int, getenv func(string) string) string {
	bind := h.Site.Bind
	if wish := getenv(variableBind); wish == BindRank || wish == BindNone {
		bind = wish
	}
	node, err := strconv.Atoi(getenv("SLURM_NODEID"))
	rank, err2 := strconv.Atoi(getenv("SLURM_LOCALID"))
	tasks := tasksOn(getenv("SLURM_STEP_TASKS_PER_NODE"), node) // a batch script has none
	if bind != BindRank || err != nil || err2 != nil || gpus < 2 || tasks < 2 || rank < 0 {
		return ""
	}
	if tasks > gpus {
		return strconv.Itoa(rank % gpus)
	}
	each := gpus / tasks
	var own []string
	for i := range each {
		own = append(own, strconv.Itoa(rank*each+i))
	}
	return strings.Join(own, ",")
}

// tasksOn is how many tasks a node has by a list such as 2(x3),1; 0: it does not say.
func tasksOn(list string, node int) int {
	for word := range strings.SplitSeq(list, ",") {
		count, times, repeated := strings.Cut(strings.TrimSuffix(word, ")"), "(x")
		n, err := strconv.Atoi(count)
		k := 1
		if repeated {
			var err2 error
			k, err2 = strconv.Atoi(times)
			err = errors.Join(err, err2)
		}
		if err != nil || n < 0 || k < 1 {
			return 0
		}
		if node < k {
			return n
		}
		node -= k
	}
	return 0
}
