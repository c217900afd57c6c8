package baseline

import (
	"bufio"
	"io"
	"regexp"
	"strings"
)

// call is the beginning of a call in strace's output: the process, the name and, for calls on descriptors, the
// beginning of what strace -yy says of the first one, up to a space. A call that another process interrupts has two
// lines; only the first has the parenthesis.
var call = regexp.MustCompile(`^(?:\d+ +)?(\w+)\((?:AT_FDCWD|-?\d+)?(?:<(\S*))?`)

// parseStrace counts the calls in strace's output.
func parseStrace(r io.Reader) ([]Count, error) {
	counts := map[Count]uint64{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := call.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		c := Count{Call: m[1]}
		if m[1] != "open" && m[1] != "openat" {
			c.Class = classOf(m[2])
		}
		counts[c]++
	}
	out := make([]Count, 0, len(counts))
	for c, n := range counts {
		c.Calls = n
		out = append(out, c)
	}
	return out, lines.Err()
}

// classOf sorts descriptors as package ebpf does, by what strace -yy writes behind their numbers.
func classOf(what string) string {
	switch {
	case strings.HasPrefix(what, "TCP"), strings.HasPrefix(what, "UDP"):
		return "network"
	case strings.HasSuffix(what, "<char"), strings.HasSuffix(what, "<block"):
		return "device"
	case strings.HasPrefix(what, "/"):
		return "file"
	}
	return "other"
}
