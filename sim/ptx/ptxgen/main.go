// Command ptxgen writes random PTX programs, their inputs and what the interpreter makes of them into one file, to be
// compared with a GPU by perf/gpu/ptx_check.py.
//
//	ptxgen -n 2000 -seed 1 -o DIR              programs 0 … 1999 of seed 1, into DIR/programs.bundle
//	ptxgen -n 2000 -seed 1 -only 3,17 -trace   two of them, with the result of every instruction
//	ptxgen -edges -o DIR                       every instruction in every form on edge values, into DIR/edges.bundle
//	ptxgen -wmma -o DIR                        products of matrices by wmma in all its forms, into DIR/wmma.bundle
//	ptxgen -kernels testdata/kernels/kernels.ptx -o DIR   the kernels of the test data, into DIR/kernels.bundle
//
// A difference is first reported as a program and a word; a trace of that program then names the instruction.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"scuda.dev/scuda/sim/ptx"
	"scuda.dev/scuda/sim/ptx/ptxtest"
)

const perModule = 20

func main() {
	n := flag.Int("n", 2000, "number of programs")
	seed := flag.Uint64("seed", 1, "seed")
	only := flag.String("only", "", "numbers of programs, with commas")
	trace := flag.Bool("trace", false, "keep the result of every instruction")
	kernels := flag.String("kernels", "", "run the kernels of this PTX file instead")
	matrices := flag.Bool("wmma", false, "multiply matrices by wmma instead")
	atEdges := flag.Bool("edges", false, "run every form of every instruction on edge values instead")
	out := flag.String("o", ".", "folder")
	flag.Parse()
	name, bundle := "programs.bundle", func() (*ptxtest.Bundle, error) {
		numbers, err := choose(*n, *only)
		return programs(*seed, numbers, *trace), err
	}
	switch {
	case *atEdges:
		name, bundle = "edges.bundle", func() (*ptxtest.Bundle, error) { return edges(), nil }
	case *matrices:
		name, bundle = "wmma.bundle", func() (*ptxtest.Bundle, error) { return products(), nil }
	case *kernels != "":
		name, bundle = "kernels.bundle", func() (*ptxtest.Bundle, error) { return kernelBundle(*kernels) }
	}
	if err := run(bundle, filepath.Join(*out, name)); err != nil {
		fmt.Fprintln(os.Stderr, "ptxgen:", err)
		os.Exit(1)
	}
}

// run writes a bundle with its results.
func run(bundle func() (*ptxtest.Bundle, error), path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	b, err := bundle()
	if err != nil {
		return err
	}
	if err := results(b); err != nil {
		return err
	}
	if err := b.Write(path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d launches, %d modules, %d KiB\n", path, len(b.Launches), len(b.Modules), info.Size()>>10)
	return nil
}

func choose(n int, only string) ([]int, error) {
	var numbers []int
	if only == "" {
		for i := range n {
			numbers = append(numbers, i)
		}
		return numbers, nil
	}
	for s := range strings.SplitSeq(only, ",") {
		i, err := strconv.Atoi(s)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, i)
	}
	return numbers, nil
}

// programs generates the programs with these numbers, some to a module.
func programs(seed uint64, numbers []int, trace bool) *ptxtest.Bundle {
	b := &ptxtest.Bundle{Inputs: map[string][]byte{"values": inputs(seed)}}
	for i, number := range numbers {
		if i%perModule == 0 {
			b.Modules = append(b.Modules, ".version 8.0\n.target sm_90\n.address_size 64\n"+functions)
		}
		m := len(b.Modules) - 1
		p := generate(seed, number, trace)
		b.Modules[m] += p.text
		last := &ptxtest.Arg{Value: make([]byte, 8)}
		if trace {
			last = &ptxtest.Arg{Size: len(p.steps) * threads * 8}
		}
		b.Launches = append(b.Launches, &ptxtest.Launch{Name: fmt.Sprintf("seed %d program %d", seed, number), Module: m,
			Kernel: p.name,
			Grid:   [3]uint32{1, 1, 1}, Block: [3]uint32{threads, 1, 1}, Steps: p.steps,
			Args: []*ptxtest.Arg{{Size: len(b.Inputs["values"]), Input: "values"}, {Size: resultBytes, Fill: 0x5a}, last}})
	}
	return b
}

// results runs all launches and keeps what they left in their buffers.
func results(b *ptxtest.Bundle) error {
	m, err := ptxtest.NewMachine()
	if err != nil {
		return err
	}
	defer m.Close()
	mods := make([]*ptx.Module, len(b.Modules))
	for i, text := range b.Modules {
		if mods[i], err = ptx.Parse([]byte(text)); err != nil {
			return fmt.Errorf("module %d: %w", i, err)
		}
	}
	for _, l := range b.Launches {
		got, err := m.Run(context.Background(), b, mods[l.Module], l)
		if err != nil {
			return err
		}
		for i, a := range l.Args {
			if a.Size > 0 && a.Input == "" {
				if a.Want != nil && !bytes.Equal(a.Want, got[i]) {
					return fmt.Errorf("%s: argument %d is not what was expected", l.Name, i)
				}
				a.Want = got[i]
			}
		}
	}
	return nil
}
