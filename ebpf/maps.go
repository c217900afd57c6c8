package ebpf

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// mapping is an executable part of a file in a process's memory.
type mapping struct {
	from, to, offset uint64
	path             string
}

// readMaps gives a process's executable mappings of files, in the order of addresses.
func readMaps(pid int) ([]mapping, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	return parseMaps(text), nil
}

func parseMaps(text []byte) (out []mapping) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		f := strings.SplitN(lines.Text(), " ", 6)
		if len(f) < 6 || len(f[1]) < 3 || f[1][2] != 'x' {
			continue
		}
		from, to, ok := strings.Cut(f[0], "-")
		m := mapping{path: strings.TrimSpace(f[5])}
		var errs [3]error
		m.from, errs[0] = strconv.ParseUint(from, 16, 64)
		m.to, errs[1] = strconv.ParseUint(to, 16, 64)
		m.offset, errs[2] = strconv.ParseUint(f[2], 16, 64)
		if !ok || errs != [3]error{} || !strings.HasPrefix(m.path, "/") {
			continue
		}
		out = append(out, m)
	}
	return out
}
