package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// seenFolder has what correctness runs on real GPUs gave: a file DATE-MACHINE.json each, which perf/gpu/results.py
// writes.
const seenFolder = "api/facts/seen"

// seen is such a file.
type seen struct {
	Date, Machine string
	Cases         []struct {
		Suite, Case, Verdict, Why, Scuda string
		Native, Remote                   *float64 // seconds; nil where it was not run
	}
}

// loadSeen reads the newest file.
func loadSeen(root string) (*seen, string, error) {
	files, err := filepath.Glob(filepath.Join(root, seenFolder, "*.json"))
	if err != nil || len(files) == 0 {
		return nil, "", fmt.Errorf("no %s/*.json: write one with perf/gpu/results.py (%w)", seenFolder, os.ErrNotExist)
	}
	name := slices.Max(files)
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, "", err
	}
	s := &seen{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	return s, filepath.Base(name), nil
}

// emitSeen writes what programs were seen to do natively and over scuda.
func emitSeen(b *buffer, s *seen, name string) {
	b.text("seen", struct{ Machine, Date, File string }{s.Machine, s.Date, seenFolder + "/" + name})
	counts := map[string]map[string]int{}
	for _, c := range s.Cases {
		if counts[c.Suite] == nil {
			counts[c.Suite] = map[string]int{}
		}
		kind := c.Verdict
		switch kind {
		case "equal", "absent":
		case "varies", "ran":
			kind = "varies"
		default:
			kind = "not"
		}
		counts[c.Suite][kind]++
		counts[c.Suite]["all"]++
	}
	for _, suite := range slices.Sorted(maps.Keys(counts)) {
		n := counts[suite]
		b.f("| %s | %d | %d | %d | %d | %d |\n", suite, n["all"], n["equal"], n["varies"], n["absent"], n["not"])
	}
	seconds := func(v *float64) string {
		if v == nil {
			return ""
		}
		return fmt.Sprintf("%.1f", *v)
	}
	for _, suite := range slices.Sorted(maps.Keys(counts)) {
		b.f("\n### Seen: %s\n\n| case | native, s | remote, s | verdict | at |\n|---|---|---|---|---|\n", suite)
		for _, c := range s.Cases {
			if c.Suite == suite {
				verdict := c.Verdict
				if c.Why != "" {
					verdict += ": " + strings.ReplaceAll(c.Why, "|", "\\|")
				}
				b.f("| `%s` | %s | %s | %s | %s |\n", c.Case, seconds(c.Native), seconds(c.Remote), verdict, c.Scuda)
			}
		}
	}
}
