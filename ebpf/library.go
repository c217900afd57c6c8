package ebpf

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// names are the files that programs open.
var sonames = []string{"libcuda.so.1", "libnvidia-ml.so.1"}

// Entry is what a probed function begins with, which decides what a probe costs (docs/ebpf.md).
type Entry int

// The kinds of entry.
const (
	Stepped  Entry = iota // an instruction that the kernel single-steps: about 2.6 µs for each call
	Emulated              // one that it emulates (push, nop): about 0.4 µs
)

func (e Entry) String() string { return [...]string{"single-stepped", "emulated"}[e] }

// nop5 is the five-byte nop, which Linux 6.18 replaces.
var nop5 = []byte{0x0f, 0x1f, 0x44, 0x00, 0x00}

// library is a driver library's file.
type library struct {
	path string
	info os.FileInfo
	// of exported functions, in the file; of several names of one place only the first in `entries`
	offsets map[string]uint64
	entry   Entry // what most of them begin with
}

func (l *library) same(other *library) bool { return os.SameFile(l.info, other.info) }

// readLibrary reads the exported functions of a file.
func readLibrary(path string) (*library, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	exported := map[string]uint64{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF && s.Value != 0 {
			exported[s.Name] = s.Value
		}
	}
	lib := &library{path: path, info: info, offsets: map[string]uint64{}}
	taken := map[uint64]bool{}
	kinds := map[Entry]int{}
	for i := range entries {
		name := entries[i].name
		address, there := exported[name]
		if !there || taken[address] {
			continue
		}
		segment := slices.IndexFunc(f.Progs, func(p *elf.Prog) bool {
			return p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && p.Vaddr <= address && address < p.Vaddr+p.Filesz
		})
		if segment < 0 {
			continue
		}
		taken[address] = true
		at := f.Progs[segment]
		lib.offsets[name] = address - at.Vaddr + at.Off
		var first [5]byte
		if _, err := at.ReadAt(first[:], int64(address-at.Vaddr)); err == nil {
			kinds[kindOf(first[:])]++
		}
	}
	if kinds[Emulated] > kinds[Stepped] {
		lib.entry = Emulated
	}
	return lib, nil
}

// kindOf judges by a function's first bytes: the kernel emulates push of a register, nop, jmp and call
// (arch/x86/kernel/uprobes.c).
func kindOf(first []byte) Entry {
	switch c := first[0]; {
	case bytes.HasPrefix(first, nop5), c >= 0x50 && c <= 0x57, c == 0x90, c == 0xe8, c == 0xe9, c == 0xeb:
		return Emulated
	case c == 0x41 && first[1] >= 0x50 && first[1] <= 0x57:
		return Emulated
	}
	return Stepped
}

// Find gives the driver libraries of a process, or with 0 those that lie where the dynamic linker finds them on this
// machine.
func Find(pid int) []string {
	if pid != 0 {
		return mapped(pid)
	}
	folders := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	folders = append(folders, "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
		"/run/opengl-driver/lib")
	var out []string
	for _, folder := range folders {
		for _, name := range sonames {
			file := filepath.Join(folder, name)
			if _, err := os.Stat(file); err == nil {
				out = append(out, file)
			}
		}
	}
	return out
}

// mapped finds the libraries that a process has in memory, as this process can open them.
func mapped(pid int) []string {
	maps, err := readMaps(pid)
	if err != nil {
		return nil
	}
	var out []string
	for _, m := range maps {
		base := filepath.Base(m.path)
		if !strings.HasPrefix(base, "libcuda.so") && !strings.HasPrefix(base, "libnvidia-ml.so") {
			continue
		}
		if file := fmt.Sprintf("/proc/%d/root%s", pid, m.path); !slices.Contains(out, file) {
			if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
				out = append(out, file)
			}
		}
	}
	return out
}
