package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"scuda.dev/scuda/timeline"
)

// timelineOptions are those of scuda trace --kernels.
type timelineOptions struct {
	on         bool
	file, html string
	folder     string // of the parts, while the program runs
}

func (o *timelineOptions) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.on, "kernels", false, "record what the GPU did as well, and say why it was idle")
	cmd.Flags().StringVarP(&o.file, "output", "o", "", "with --kernels: write the timeline, for Perfetto, to this `FILE`")
	cmd.Flags().StringVar(&o.html, "html", "", "with --kernels: write a page that says the same to this `FILE`")
}

func (o *timelineOptions) check(probes bool) error {
	switch {
	case o.on && probes:
		return usage(errors.New("either --kernels or --ebpf"))
	case !o.on && (o.file != "" || o.html != ""):
		return usage(errors.New("-o and --html go with --kernels"))
	case o.on && o.file == "" && o.html == "":
		return usage(errors.New("where should the timeline go? scuda trace --kernels -o trace.json -- PROGRAM [ARG...]"))
	}
	return nil
}

// begin makes the place for what the program's processes write, beside the result: it may be more than a folder for
// temporary files has room for. It gives the environment that has them write it.
func (o *timelineOptions) begin(env []string) ([]string, error) {
	result := o.file
	if result == "" {
		result = o.html
	}
	beside, err := filepath.Abs(filepath.Dir(result))
	if err != nil {
		return nil, err
	}
	if o.folder, err = os.MkdirTemp(beside, ".scuda-timeline-"); err != nil {
		return nil, fmt.Errorf("cannot write beside %s: %w", result, err)
	}
	lib, err := libFolder()
	if err != nil {
		return nil, err
	}
	env = setEnv(env, "SCUDA_TIMELINE", filepath.Join(o.folder, "t"))
	return setEnv(env, "NVTX_INJECTION64_PATH", filepath.Join(lib, "libscuda-nvtx.so")), nil
}

// end writes what the program's processes have left.
func (o *timelineOptions) end(w io.Writer) error {
	files, err := filepath.Glob(filepath.Join(o.folder, "t.*"))
	if err != nil {
		return err
	}
	var parts []*timeline.Part
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		part, err := timeline.Read(b)
		if err != nil {
			fmt.Fprintf(w, "scuda trace: a part of the timeline is left out: %v\n", err)
			continue
		}
		parts = append(parts, part)
	}
	t := timeline.Build(parts)
	for _, out := range []struct {
		name  string
		write func(io.Writer) error
	}{{o.file, t.Chrome}, {o.html, t.HTML}} {
		if out.name == "" {
			continue
		}
		if err := writeFile(out.name, out.write); err != nil {
			return err
		}
	}
	if err := t.Table(w); err != nil {
		return err
	}
	if o.file != "" {
		fmt.Fprintf(w, "%s: open it on https://ui.perfetto.dev\n", o.file)
	}
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
