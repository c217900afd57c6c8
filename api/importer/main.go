package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
)

// defaultPasses are the definitions of each pass.
const defaultPasses = ";__CUDA_API_VERSION_INTERNAL;CUDA_API_PER_THREAD_DEFAULT_STREAM;NVML_NO_UNVERSIONED_FUNC_DEFS"

func main() {
	log.SetFlags(0)
	log.SetPrefix("importer: ")
	header := flag.String("header", "", "the header to read")
	out := flag.String("out", "", "the file to write; standard output when empty")
	passes := flag.String("passes", defaultPasses,
		"macros defined in each pass: passes are separated by ';', macros by ','")
	prefix := flag.String("prefix", "", "only functions whose names begin so")
	flag.Parse()
	if *header == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*header, *out, *passes, *prefix); err != nil {
		log.Print(err)
		os.Exit(1)
	}
}

func run(header, out, passes, prefix string) error {
	facts, err := Import(header, split(passes), prefix)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(facts, "", " ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if out == "" {
		_, err = os.Stdout.Write(text)
	} else {
		err = os.WriteFile(out, text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("facts of %s: %w", header, err)
	}
	return nil
}

func split(passes string) (out [][]string) {
	for p := range strings.SplitSeq(passes, ";") {
		out = append(out, strings.FieldsFunc(p, func(r rune) bool { return r == ',' }))
	}
	return out
}
