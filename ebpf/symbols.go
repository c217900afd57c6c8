package ebpf

import (
	"cmp"
	"debug/elf"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// symbols names the addresses in stacks. A process's mappings are kept, because it may have ended when its stacks are
// read.
type symbols struct {
	maps  map[int][]mapping
	files map[string]*table
}

// table has a file's functions by their offsets in it.
type table struct{ functions []function }

type function struct {
	from, to uint64
	name     string
}

func newSymbols() *symbols { return &symbols{map[int][]mapping{}, map[string]*table{}} }

// refresh reads a process's mappings anew, if it is still there.
func (s *symbols) refresh(pid int) {
	if maps, err := readMaps(pid); err == nil && len(maps) > 0 {
		s.maps[pid] = maps
	}
}

// names gives the functions of a stack, innermost first in, outermost first out.
func (s *symbols) names(pid int, stack []uint64) []string {
	if s.maps[pid] == nil {
		s.refresh(pid)
	}
	var out []string
	for _, address := range stack {
		if address == 0 {
			break
		}
		out = append(out, s.name(pid, address))
	}
	slices.Reverse(out)
	return out
}

func (s *symbols) name(pid int, address uint64) string {
	for _, m := range s.maps[pid] {
		if address < m.from || address >= m.to {
			continue
		}
		t := s.files[m.path]
		if t == nil {
			t = readTable(fmt.Sprintf("/proc/%d/root%s", pid, m.path))
			if t == nil {
				if t = readTable(m.path); t == nil {
					t = &table{}
				}
			}
			s.files[m.path] = t
		}
		at := address - m.from + m.offset - 1 // a return address may already belong to the next function
		i, _ := slices.BinarySearchFunc(t.functions, at, func(f function, at uint64) int { return cmp.Compare(f.to, at+1) })
		if i < len(t.functions) && t.functions[i].from <= at {
			return t.functions[i].name
		}
		return filepath.Base(m.path)
	}
	return "unknown"
}

// readTable reads a file's symbols; nil when it cannot be read.
func readTable(path string) *table {
	f, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	t := &table{}
	static, _ := f.Symbols() // a stripped file has none
	dynamic, _ := f.DynamicSymbols()
	for _, s := range append(static, dynamic...) {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Value == 0 || s.Size == 0 {
			continue
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && p.Vaddr <= s.Value && s.Value < p.Vaddr+p.Filesz {
				at := s.Value - p.Vaddr + p.Off
				t.functions = append(t.functions, function{at, at + s.Size, s.Name})
			}
		}
	}
	slices.SortFunc(t.functions, func(a, b function) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	t.functions = slices.CompactFunc(t.functions, func(a, b function) bool { return a.from == b.from })
	return t
}

// WriteFolded writes stalls as folded stacks, one line a stack with its nanoseconds, as flame-graph programs read them:
// process, callers, function, and [off-CPU] for the part in which the caller had no CPU.
func WriteFolded(w io.Writer, stalls []Stall) error {
	sums := map[string]int64{}
	clean := strings.NewReplacer(";", ":", " ", "_", "\n", "_")
	for _, s := range stalls {
		frames := []string{clean.Replace(cmp.Or(s.Process, "process"))}
		for _, f := range s.Stack {
			frames = append(frames, clean.Replace(f))
		}
		line := strings.Join(append(frames, s.Function), ";")
		sums[line] += max(s.Sum-s.OffCPU, 0).Nanoseconds()
		sums[line+";[off-CPU]"] += s.OffCPU.Nanoseconds()
	}
	lines := make([]string, 0, len(sums))
	for line, ns := range sums {
		if ns > 0 {
			lines = append(lines, fmt.Sprintf("%s %d\n", line, ns))
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		if _, err := io.WriteString(w, line); err != nil {
			return err
		}
	}
	return nil
}

// Refresh reads the mappings of the processes that are measured, so that stacks can be named after they end.
func (p *Probes) Refresh() {
	var pid uint32
	var process kernelProcess
	for each := p.objects.Processes.Iterate(); each.Next(&pid, &process); {
		if process.Over == 0 {
			p.symbols.refresh(int(pid))
		}
	}
}
