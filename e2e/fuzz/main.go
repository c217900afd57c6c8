package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	var o options
	only := ""
	flag.DurationVar(&o.limit, "for", 10*time.Minute, "how long")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "from which the cases are made")
	flag.StringVar(&only, "only", "", "kinds, with commas between; all where nothing is said")
	flag.Int64Var(&o.number, "case", -1, "the only case that is made, of each kind")
	flag.IntVar(&o.jobs, "jobs", 3, "cases at once")
	flag.BoolVar(&o.quick, "quick", false, "record those programs only that take little time")
	flag.DurationVar(&o.patience, "patience", 20*time.Second,
		"how long programs may wait for a server that says strange things")
	flag.StringVar(&o.gpu, "gpu", "sim", "of the servers; see scuda --help")
	flag.StringVar(&o.keep, "keep", filepath.Join("build", "fuzz"), "folder for what led to findings")
	flag.StringVar(&o.corpus, "corpus", "", "file with recordings of an earlier run")
	flag.DurationVar(&o.every, "every", time.Minute, "how often leaks are looked for, and the totals written")
	flag.Parse()
	if flag.NArg() > 0 || o.jobs < 1 {
		flag.Usage()
		os.Exit(2)
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	o.out = os.Stdout
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, o)
	stop()
	os.Exit(code)
}

// options say what a run does.
type options struct {
	limit, every time.Duration
	counts       map[string]int64 // cases of each kind, in the place of limit
	seed         uint64
	only         []string
	number       int64 // of the only case; -1: all
	jobs         int
	quick        bool
	patience     time.Duration
	gpu          string
	root         string // of the repository; "": the working directory
	keep, corpus string
	out          io.Writer
}

func (o *options) wants(kind string) bool { return len(o.only) == 0 || slices.Contains(o.only, kind) }

// run gives the exit status.
func run(ctx context.Context, o options) int {
	f, err := newFuzzer(ctx, o)
	if err == nil {
		defer f.close()
		err = f.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(o.out, "fuzz:", err)
		return 1
	}
	if n := f.findings(); n > 0 {
		fmt.Fprintf(o.out, "%d findings, kept in %s\n", n, f.keep)
		return 1
	}
	return 0
}
