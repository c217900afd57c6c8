package main

import (
	"bufio"
	"io"
	"strings"
	"unicode/utf8"
)

// column is one of a table.
type column struct {
	name  string
	right bool // numbers
	soft  bool // may be cut where the table is too wide
	spare int  // left out where that does not help: those with the highest number first; 0: never
}

// cutTo is how narrow a column gets at most by cutting.
const cutTo = 8

// writeTable writes a table that is at most as wide as the terminal; width 0: as wide as it is.
func writeTable(w io.Writer, width int, columns []column, rows [][]string) error {
	shown := make([]bool, len(columns))
	widths := make([]int, len(columns))
	for i, c := range columns {
		shown[i], widths[i] = true, utf8.RuneCountInString(c.name)
		for _, r := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	if width > 0 {
		fit(width, columns, shown, widths)
	}
	out := bufio.NewWriter(w)
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	for _, r := range append([][]string{names}, rows...) {
		var line strings.Builder
		for i, c := range columns {
			if !shown[i] {
				continue
			}
			if line.Len() > 0 {
				line.WriteString("  ")
			}
			text := cut(r[i], widths[i])
			blank := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if c.right {
				text, blank = blank, text
			}
			line.WriteString(text + blank)
		}
		text := strings.TrimRight(line.String(), " ")
		if width > 0 {
			text = cut(text, width)
		}
		_, _ = out.WriteString(text + "\n")
	}
	return out.Flush()
}

// fit cuts columns, the widest first, and leaves some out, until the table is as wide as it may be.
func fit(width int, columns []column, shown []bool, widths []int) {
	for {
		total, widest, spare := -2, -1, -1
		for i, c := range columns {
			if !shown[i] {
				continue
			}
			total += widths[i] + 2
			if c.soft && widths[i] > cutTo && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
			if c.spare > 0 && (spare < 0 || c.spare > columns[spare].spare) {
				spare = i
			}
		}
		switch {
		case total <= width:
			return
		case widest >= 0:
			widths[widest]--
		case spare >= 0:
			shown[spare] = false
		default:
			return
		}
	}
}

// cut shortens a text to so many characters; where some are missing, it ends with dots.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n < 1 {
		return ""
	}
	return string([]rune(s)[:n-1]) + "…"
}
