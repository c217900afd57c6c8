package tunnel

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of what [Hosts] reads. A shell waits for it.
const (
	maxHosts  = 500
	maxConfig = 256 << 10 // bytes of one file
	maxFiles  = 64
	maxDepth  = 16 // of Include in Include, as in ssh
)

// Hosts are the hosts that the user's configuration of ssh names, without patterns: what --on can be told. Only
// regular files are read, and what cannot be is left out.
func Hosts(home string) []string {
	r := hostReader{home: home, seen: map[string]bool{}}
	r.read(filepath.Join(home, ".ssh", "config"), 0)
	return r.hosts
}

type hostReader struct {
	home  string
	hosts []string
	seen  map[string]bool // files
}

func (r *hostReader) read(path string, depth int) {
	if depth > maxDepth || len(r.seen) >= maxFiles || r.seen[path] {
		return
	}
	r.seen[path] = true
	hosts, includes := ParseHosts(smallFile(path))
	for _, host := range hosts {
		if len(r.hosts) < maxHosts && !slices.Contains(r.hosts, host) {
			r.hosts = append(r.hosts, host)
		}
	}
	for _, pattern := range includes {
		if rest, ok := strings.CutPrefix(pattern, "~/"); ok {
			pattern = filepath.Join(r.home, rest)
		} else if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(r.home, ".ssh", pattern)
		}
		files, _ := filepath.Glob(pattern) // of a bad pattern there are none
		for _, file := range files[:min(len(files), maxFiles)] {
			r.read(file, depth+1)
		}
	}
}

// smallFile gives the beginning of a regular file, and nothing of any other: a pipe would keep the shell waiting.
func smallFile(path string) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, fs.FileMode(0))
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	b, _ := io.ReadAll(io.LimitReader(f, maxConfig)) // what came before an error counts
	return string(b)
}

// ParseHosts gives the hosts of a configuration of ssh, without patterns, and what it includes. Conditions do not
// count: whatever has a name may be meant.
func ParseHosts(text string) (hosts, includes []string) {
	for line := range strings.Lines(text) {
		words := configWords(line)
		if len(words) < 2 {
			continue
		}
		switch strings.ToLower(words[0]) {
		case "host":
			for _, word := range words[1:] {
				if !strings.ContainsAny(word, "*?!") && plain(word) && len(hosts) < maxHosts {
					hosts = append(hosts, word)
				}
			}
		case "include":
			includes = append(includes, words[1:min(len(words), maxFiles)]...)
		}
	}
	return hosts, includes[:min(len(includes), maxFiles)]
}

// configWords are the words of a line: KEYWORD VALUE... or KEYWORD=VALUE, in which '"' keeps blanks, and '#' begins a
// comment where a word could begin.
func configWords(line string) (words []string) {
	for {
		line = strings.TrimLeft(line, " \t\r\n\f")
		if len(words) == 1 {
			line = strings.TrimLeft(strings.TrimPrefix(line, "="), " \t")
		}
		if line == "" || line[0] == '#' {
			return words
		}
		end, skip := " \t\r\n\f", 0
		if line[0] == '"' {
			end, skip = "\"", 1
		} else if len(words) == 0 {
			end += "="
		}
		i := strings.IndexAny(line[skip:], end)
		if i < 0 {
			return append(words, line[skip:])
		}
		words = append(words, line[skip:skip+i])
		line = line[2*skip+i:]
	}
}
