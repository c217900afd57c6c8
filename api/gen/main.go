// Command gen writes everything that follows from the description in package api: Go types, the server's dispatch, the
// C front's stubs, headers and tables, and the compatibility page. Run it from the top folder: go run ./api/gen. With
// -check it writes nothing and fails when a generated file is not what it would write. With -build it writes only what
// only the build reads, C of the front and of the stand-alone simulation, which is not in the repository: the build
// scripts do that first.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"

	"scuda.dev/scuda/api"
)

// emitters write one group of files each.
var emitters = []struct {
	name string
	emit func(*api.Spec, *Output) error
}{
	{"numbers of operations", emitOperations},
	{"Go types", emitGo},
	{"wire structures", emitWire},
	{"test of wire structures", emitWireTest},
	{"protocol page", emitProtocol},
	{"server dispatch", emitDispatch},
	{"classes of calls", emitClasses},
	{"traits of operations", emitTraits},
	{"driver on the real libraries", emitReal},
	{"C header", emitHeader},
	{"compatibility page", emitCompat},
	{"CUDA front", emitCFront},
	{"NVML front and dispatch", emitNVML},
	{"connector", emitConnect},
	{"stand-alone simulation", emitSimLib},
	{"table of calls", emitCalls},
	{"probes", emitProbes},
	{"CUPTI", emitCUPTI},
	{"NCCL", emitNCCL},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("gen: ")
	check := flag.Bool("check", false, "compare with the files that are there instead of writing them")
	build := flag.Bool("build", false, "write only the files that only the build reads")
	root := flag.String("root", ".", "top folder of the source tree")
	flag.Parse()
	mode := WriteAll
	switch {
	case *check:
		mode = Check
	case *build:
		mode = WriteBuilt
	}
	if err := run(*root, mode); err != nil {
		log.Print(err)
		os.Exit(1)
	}
}

func run(root string, mode Mode) error {
	spec, err := api.Load()
	if err != nil {
		return err
	}
	out := NewOutput(root, mode)
	for _, e := range emitters {
		if err := e.emit(spec, out); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return out.Close()
}
