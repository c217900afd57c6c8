package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// screen is a terminal that knows what scuda's commands write: lines, a way back to the line's begin or some lines up,
// and colours, which it leaves out.
type screen struct {
	lines  [][]rune
	row, x int
	rest   string // of a sequence that is not whole yet
}

var sequence = regexp.MustCompile(`^\x1b\[([0-9;]*)([A-Za-z])`)

func (s *screen) write(text string) {
	text = s.rest + text
	s.rest = ""
	for text != "" {
		if !utf8.FullRuneInString(text) || text[0] == '\x1b' && !sequence.MatchString(text) && len(text) < 16 {
			s.rest = text
			return
		}
		if m := sequence.FindStringSubmatch(text); m != nil {
			text = text[len(m[0]):]
			switch m[2] {
			case "A":
				n, _ := strconv.Atoi(m[1])
				s.row = max(s.row-max(n, 1), 0)
			case "K":
				if s.row < len(s.lines) {
					s.lines[s.row] = s.lines[s.row][:min(s.x, len(s.lines[s.row]))]
				}
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		switch r {
		case '\r':
			s.x = 0
		case '\n':
			s.row, s.x = s.row+1, 0
		default:
			s.put(r)
		}
	}
}

func (s *screen) put(r rune) {
	if s.x == columns {
		s.row, s.x = s.row+1, 0
	}
	for len(s.lines) <= s.row {
		s.lines = append(s.lines, nil)
	}
	line := &s.lines[s.row]
	for len(*line) <= s.x {
		*line = append(*line, ' ')
	}
	(*line)[s.x] = r
	s.x++
}

// shown are the lines that the screen has room for.
func (s *screen) shown() [][]rune {
	lines := slices.Clone(s.lines)
	if s.row >= rows {
		lines = lines[min(s.row+1-rows, len(lines)):]
	}
	return lines
}

// blocks are the characters of which charts are made.
const blocks = "▁▂▃▄▅▆▇█"

// eighths is how high such a character is; 0: it is none.
func eighths(r rune) int {
	if i := strings.IndexRune(blocks, r); i >= 0 {
		return i/utf8.RuneLen(r) + 1
	}
	return 0
}
