// Command table writes the tables of docs/performance.md and README.md, and the README's chart (docs/why.svg), from
// perf/results/…-speed.json, from perf/results/…-syscalls.json, a result of perf/gpu/baseline.py, and from a result of
// `scuda perf run`. With -check it only says whether they are up to date.
//
//	table -merge -scuda VERSION -date YYYY-MM-DD calls.json programs.json...
//
// makes the first of a result of `scuda bench --json` and of results of perf/gpu/bench.py; of rows with the same name
// the last counts.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"scuda.dev/scuda/perf"
)

const speed = "perf/results/2026-11-22-h200-speed.json"

// tables are the results, and the pages and names of their places there; without a place it is all of the file.
var tables = []struct {
	page, place, file string
	write             func(json []byte) (string, error)
}{
	{"docs/performance.md", "table", speed, calls},
	{"docs/performance.md", "models", speed, models},
	{"docs/performance.md", "suite", "perf/results/2026-11-21-h200.json", suite},
	{"README.md", "costs", speed, costs},
	{"docs/why.svg", "", speed, picture},
	{"docs/performance.md", "system calls", "perf/results/2026-11-21-h200-syscalls.json", systemCalls},
}

func main() {
	check := flag.Bool("check", false, "only check that the tables are up to date")
	join := flag.Bool("merge", false, "make "+speed+" of the results given")
	scuda := flag.String("scuda", "", "with -merge: the version that was measured")
	date := flag.String("date", "", "with -merge: the day")
	flag.Parse()
	err := error(nil)
	if *join {
		err = merge(*scuda, *date, flag.Args())
	}
	if err == nil {
		err = run(*check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	for _, t := range tables {
		b, err := os.ReadFile(t.file)
		if err != nil {
			return err
		}
		table, err := t.write(b)
		if err != nil {
			return fmt.Errorf("%s: %w", t.file, err)
		}
		old, err := os.ReadFile(t.page)
		if err != nil && !(t.place == "" && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
		if t.place == "" {
			if err := replace(t.page, t.file, string(old), table, check); err != nil {
				return err
			}
			continue
		}
		begin, end := "<!-- "+t.place+": begin -->\n", "<!-- "+t.place+": end -->\n"
		head, rest, ok := strings.Cut(string(old), begin)
		_, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			return fmt.Errorf("%s has no place for the table %q", t.page, t.place)
		}
		if err := replace(t.page, t.file, string(old), head+begin+table+end+tail, check); err != nil {
			return err
		}
	}
	return nil
}

// replace writes a page anew, or only says that it is not up to date.
func replace(page, file, old, text string, check bool) error {
	switch {
	case old == text:
		return nil
	case check:
		return fmt.Errorf("%s does not show %s; run go run ./perf/bench/table", page, file)
	}
	return os.WriteFile(page, []byte(text), 0o644)
}

const machine = "NVIDIA H200, driver 580.159.04, CUDA 13.0, PyTorch 2.11; client and server in one " +
	"virtual machine with 16 " +
	"processors, TCP over loopback"

func merge(scuda, date string, files []string) error {
	r := perf.Speed{Scuda: scuda, Date: date, Machine: machine}
	for i, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if i == 0 {
			err = json.Unmarshal(b, &r.Calls)
		} else {
			var p perf.Programs
			err = json.Unmarshal(b, &p)
			for k := range r.Programs {
				r.Programs[k].Rows = slices.DeleteFunc(r.Programs[k].Rows, func(old perf.Row) bool {
					return slices.ContainsFunc(p.Rows, func(next perf.Row) bool { return next.Name == old.Name })
				})
			}
			r.Programs = append(r.Programs, p)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	b, err := json.MarshalIndent(&r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(speed, append(b, '\n'), 0o644)
}

func calls(b []byte) (string, error) {
	var all perf.Speed
	if err := json.Unmarshal(b, &all); err != nil {
		return "", err
	}
	m := all.Calls
	var t strings.Builder
	fmt.Fprintf(&t,
		"Medians of %d rounds.\n\n| measure | native | over scuda | ratio | of plain TCP, %d connections | asked | |\n"+
			"|---|---|---|---|---|---|---|\n", m.Rounds, m.Connections)
	for _, name := range m.Measures {
		native, ratio, tcp := "", "", ""
		if v := m.Native[name]; v > 0 {
			native, ratio = quantity(name, v), fmt.Sprintf("%.2f", m.Remote[name]/v)
		}
		if v := m.Plain(name); v > 0 {
			tcp = fmt.Sprintf("%.2f", v/m.Remote[name])
		}
		asked, most := m.Goal(name)
		fmt.Fprintf(&t, "| %s | %s | %s | %s | %s | %s | %s |\n", name, native, quantity(name, m.Remote[name]), ratio, tcp,
			asked, verdict(m.Remote[name], most))
	}
	fmt.Fprintf(&t, "\nA round trip over plain TCP there: %s.\n", quantity(perf.RoundTrip, m.TCP[perf.RoundTrip]))
	return t.String(), nil
}

func models(b []byte) (string, error) {
	var all perf.Speed
	if err := json.Unmarshal(b, &all); err != nil {
		return "", err
	}
	var t strings.Builder
	t.WriteString("Medians of the rounds; each of a round's figures is itself the median of 3 to 21 repetitions.\n\n" +
		"| measure | native | over scuda | ratio | rounds | asked | |\n|---|---|---|---|---|---|---|\n")
	for _, r := range all.Programs {
		for _, row := range r.Rows {
			show := func(v *float64) string {
				if v == nil {
					return ""
				}
				return quantity(row.Name, *v)
			}
			ratio, met := "", ""
			if row.Ratio != nil {
				ratio = fmt.Sprintf("%.2f", *row.Ratio)
			}
			if row.Met != nil {
				met = words[*row.Met]
			}
			fmt.Fprintf(&t, "| %s | %s | %s | %s | %d | %s | %s |\n", row.Name, show(row.Native), show(row.Remote), ratio,
				len(row.Values["remote"]), row.Asked, met)
		}
	}
	return t.String(), nil
}

// inShort are the measures of the README's table.
var inShort = []struct{ text, name string }{
	{"ResNet-50 training, batch 64, 10 steps", "ResNet-50 training b64, 10 steps"},
	{"GPT-2 small training in bf16, 10 steps", "GPT-2 training bf16, 10 steps"},
	{"GPT-2 small generating 64 tokens", "GPT-2 generating 64 tokens"},
	{"1000 small PyTorch operations", "1000 small operations"},
	{"first tensor of a process", "first tensor, from torch.cuda.is_available() on"},
	{"`cuLaunchKernel`, time in the call", "launch call"},
	{"launch and synchronise", "launch and synchronise"},
	{"256 MiB from pinned memory to the device", "256 MiB pinned to the device"},
}

// costs is the README's table.
func costs(b []byte) (string, error) {
	var all perf.Speed
	if err := json.Unmarshal(b, &all); err != nil {
		return "", err
	}
	var t strings.Builder
	t.WriteString("| | native | over scuda | ratio |\n|---|---|---|---|\n")
	for _, short := range inShort {
		name := short.name
		native, remote := all.Times(name)
		if native == 0 || remote == 0 {
			return "", fmt.Errorf("no measure %q, natively and over scuda", name)
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %.2f |\n", short.text, quantity(name, native), quantity(name, remote),
			remote/native)
	}
	return t.String(), nil
}

var words = map[bool]string{true: "met", false: "**missed**"}

func verdict(value, most float64) string {
	if most == 0 {
		return ""
	}
	return words[value <= most]
}

// quantity is a value with its unit: what the name says in brackets at its end, else seconds.
func quantity(name string, v float64) string {
	if i := strings.LastIndexByte(name, '('); i >= 0 && strings.HasSuffix(name, ")") {
		unit := name[i+1 : len(name)-1]
		number := strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".")
		if unit == "count" {
			return number
		}
		return number + " " + unit
	}
	return perf.Quantity(v, "s")
}

// suite writes a result of scuda perf run.
func suite(b []byte) (string, error) {
	r, err := perf.ParseResult(bytes.NewReader(b))
	if err != nil {
		return "", err
	}
	var t strings.Builder
	err = perf.Markdown(&t, r)
	return t.String(), err
}
