package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
	"time"
)

const (
	cellX, cellY = 8.4, 18.
	margin, bar  = 16., 34. // around the text, and of the window's title
	frame        = 120 * time.Millisecond
)

// span is a line of the screen that does not change for a while.
type span struct {
	row      int
	line     []rune
	from, to time.Duration
}

// Animate makes the picture: commands are typed, what they wrote is played in length, and the end stands for a while.
func Animate(takes []take, length time.Duration) string {
	var took time.Duration
	var commands []string
	for _, t := range takes {
		took += t.took()
		commands = append(commands, t.command)
	}
	command := strings.Join(commands, "; ")
	faster := max(float64(took)/float64(length), 1)
	spans, end := play(takes, faster)
	total := end + holding
	for i := range spans {
		if spans[i].to == 0 {
			spans[i].to = total
		}
	}
	width, height := 2*margin+columns*cellX, bar+2*margin+rows*cellY
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img">
<title>%s: a recording, %s</title>
<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
fill:#d6deeb;white-space:pre}.c{fill:#7ddc8a}.t{fill:#8a97a8;text-anchor:middle}</style>
<rect width="100%%" height="100%%" rx="10" fill="#10151c"/>
`, width, height, width, height, html.EscapeString(command), pace(took, faster))
	for i, colour := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="17" r="6" fill="%s"/>`+"\n", 20+20*i, colour)
	}
	fmt.Fprintf(&b, `<text class="t" x="%.0f" y="22">%s</text>`+"\n", width/2, pace(took, faster))
	for _, s := range spans {
		s.write(&b, total)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (t take) took() time.Duration {
	if len(t.parts) == 0 {
		return 0
	}
	return t.parts[len(t.parts)-1].at
}

func pace(took time.Duration, faster float64) string {
	if faster == 1 {
		return fmt.Sprintf("%.1f seconds", took.Seconds())
	}
	return fmt.Sprintf("%.0f seconds, played %.1f times as fast", took.Seconds(), faster)
}

// play gives the lines of the screen by time.
func play(takes []take, faster float64) (spans []span, end time.Duration) {
	var s screen
	open := map[int]int{} // the span of a row that is shown
	show := func(at time.Duration) {
		lines := s.shown()
		for row := range max(len(lines), len(open)) {
			var line []rune
			if row < len(lines) {
				line = lines[row]
			}
			i, ok := open[row]
			if ok && string(spans[i].line) == string(line) {
				continue
			}
			if ok {
				spans[i].to = at
			}
			open[row] = len(spans)
			spans = append(spans, span{row: row, line: slices.Clone(line), from: at})
		}
	}
	var last time.Duration
	for _, t := range takes {
		began := last
		s.write("$ ")
		show(began)
		letters := []rune(t.command)
		for i, r := range letters {
			s.write(string(r))
			show(began + typing/2*time.Duration(i+1)/time.Duration(len(letters)))
		}
		s.write("\r\n")
		began += typing
		last = began
		for i, p := range t.parts {
			s.write(p.text)
			at := began + time.Duration(float64(p.at)/faster)
			if at-last >= frame || i == len(t.parts)-1 {
				last = max(at, last)
				show(last)
			}
		}
	}
	return spans, last
}

// write writes one line of the screen, and when it is to be seen. What does not play it shows the end.
func (s *span) write(b *strings.Builder, total time.Duration) {
	if strings.TrimSpace(string(s.line)) == "" {
		return
	}
	display := "none"
	if s.to == total {
		display = "inline"
	}
	fmt.Fprintf(b, `<g display="%s">`, display)
	if s.from > 0 || s.to < total {
		fmt.Fprintf(b, `<animate attributeName="display" calcMode="discrete" dur="%.2fs" repeatCount="indefinite" `+
			`values="%s" keyTimes="%s"/>`, total.Seconds(), s.values(total), s.times(total))
	}
	y := bar + margin + cellY*float64(s.row)
	var words, path strings.Builder
	begin := 0
	flush := func(end int) {
		if t := strings.TrimRight(words.String(), " "); t != "" {
			n := len([]rune(t))
			fmt.Fprintf(b, `<text x="%.1f" y="%.1f" textLength="%.1f" lengthAdjust="spacingAndGlyphs">%s</text>`,
				margin+cellX*float64(begin), y+cellY-4, cellX*float64(n), html.EscapeString(t))
		}
		words.Reset()
		begin = end
	}
	for x, r := range s.line {
		if n := eighths(r); n > 0 {
			h := cellY * float64(n) / 8
			fmt.Fprintf(&path, "M%.1f %.1fv-%.2fh%.1fv%.2fz", margin+cellX*float64(x), y+cellY, h, cellX, h)
			flush(x + 1)
			continue
		}
		if r == ' ' && strings.TrimSpace(words.String()) == "" {
			begin = x + 1
			continue
		}
		words.WriteRune(r)
	}
	flush(len(s.line))
	if path.Len() > 0 {
		fmt.Fprintf(b, `<path class="c" d="%s"/>`, path.String())
	}
	b.WriteString("</g>\n")
}

func (s *span) values(total time.Duration) string {
	v := "inline"
	if s.from > 0 {
		v = "none;inline"
	}
	if s.to < total {
		v += ";none"
	}
	return v
}

func (s *span) times(total time.Duration) string {
	v := "0"
	if s.from > 0 {
		v += fmt.Sprintf(";%.4f", s.from.Seconds()/total.Seconds())
	}
	if s.to < total {
		v += fmt.Sprintf(";%.4f", s.to.Seconds()/total.Seconds())
	}
	return v
}
