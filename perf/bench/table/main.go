// Command table writes the table of docs/performance.md from docs/performance.json, a result of `scuda bench --json`. With -check it only says
// whether the table is up to date.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
)

const (
	page   = "docs/performance.md"
	result = "docs/performance.json"
	begin  = "<!-- table: begin -->\n"
	end    = "<!-- table: end -->\n"
)

type measured struct {
	Rounds, Connections int
	Native, Remote, TCP map[string]float64
	Measures            []string
}

func main() {
	check := flag.Bool("check", false, "only check that the table is up to date")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	b, err := os.ReadFile(result)
	if err != nil {
		return err
	}
	var m measured
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("%s: %w", result, err)
	}
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the table", page)
	}
	text := []byte(head + begin + m.table() + end + tail)
	switch {
	case bytes.Equal(old, text):
		return nil
	case check:
		return fmt.Errorf("the table in %s is not that of %s; run go run ./perf/bench/table", page, result)
	}
	return os.WriteFile(page, text, 0o644)
}

func (m *measured) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Medians of %d rounds.\n\n| measure | native | over scuda | ratio | of plain TCP, %d connections |\n|---|---|---|---|---|\n", m.Rounds, m.Connections)
	for _, name := range m.Measures {
		native, ratio, tcp := "", "", ""
		if v := m.Native[name]; v > 0 {
			native, ratio = seconds(v), fmt.Sprintf("%.2f", m.Remote[name]/v)
		}
		size, rest, _ := strings.Cut(name, " MiB ")
		if v := m.TCP[size+" MiB over plain TCP"]; v > 0 && rest != "" {
			tcp = fmt.Sprintf("%.2f", v/m.Remote[name])
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, native, seconds(m.Remote[name]), ratio, tcp)
	}
	fmt.Fprintf(&b, "\nA round trip over plain TCP there: %s.\n", seconds(m.TCP["a round trip over plain TCP"]))
	return b.String()
}

func seconds(v float64) string {
	switch {
	case v < 1e-6:
		return fmt.Sprintf("%.0f ns", v*1e9)
	case v < 1e-3:
		return fmt.Sprintf("%.1f µs", v*1e6)
	}
	return fmt.Sprintf("%.1f ms", v*1e3)
}
