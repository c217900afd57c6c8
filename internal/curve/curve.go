// Package curve shows a loss that falls while a program trains: on a terminal a chart that is drawn anew as values
// come, elsewhere some plain lines. `scuda demo` is its caller. It owns nothing, and one goroutine uses it.
package curve

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const (
	rows  = 8
	left  = 7 // columns of the scale
	most  = 60
	often = time.Second / 10
)

// Curve is a training under way.
type Curve struct {
	out     io.Writer
	steps   int
	columns int // of the chart, 0: plain lines
	colour  string
	losses  []float64
	began   time.Time // when the first step was over: before it, kernels are loaded
	drawn   time.Time
	lines   int // on the screen
}

// New begins the curve of so many steps. A terminal is width columns wide; 0 is none. Colour is the escape sequence
// that begins it, or empty.
func New(out io.Writer, steps, width int, colour string) *Curve {
	c := &Curve{out: out, steps: steps, colour: colour}
	if width > left+10 {
		c.columns = min(width-left-1, most)
	}
	return c
}

// Add is the loss of the next step.
func (c *Curve) Add(loss float64) {
	now := time.Now()
	if len(c.losses) == 0 {
		c.began = now
	}
	c.losses = append(c.losses, loss)
	n := len(c.losses)
	switch {
	case c.columns > 0:
		if n == 1 || now.Sub(c.drawn) >= often {
			c.drawn = now
			c.draw()
		}
	case n == 1 || n == c.steps || n*10/c.steps != (n-1)*10/c.steps:
		fmt.Fprintln(c.out, c.status())
	}
}

// End draws what has come since the last time. What is on the screen stays there.
func (c *Curve) End() {
	if c.columns > 0 && len(c.losses) > 0 {
		c.draw()
	}
}

func (c *Curve) status() string {
	n := len(c.losses)
	text := fmt.Sprintf("step %*d of %d  loss %.3f", len(fmt.Sprint(c.steps)), n, c.steps, c.losses[n-1])
	if n > 1 && n < c.steps {
		each := time.Since(c.began) / time.Duration(n-1)
		text += fmt.Sprintf("  %.0f s left", (each * time.Duration(c.steps-n)).Seconds())
	}
	return text
}

func (c *Curve) draw() {
	lines := Chart(c.losses, c.steps, c.columns)
	var b strings.Builder
	if c.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", c.lines)
	}
	for _, line := range lines {
		if scale, chart := line[:left], line[left:]; c.colour != "" {
			line = scale + c.colour + chart + "\x1b[0m"
		}
		b.WriteString("\r\x1b[K" + line + "\n")
	}
	status := strings.Repeat(" ", left) + c.status()
	if r := []rune(status); len(r) > left+c.columns {
		status = string(r[:left+c.columns])
	}
	b.WriteString("\r\x1b[K" + status + "\n")
	c.lines = len(lines) + 1
	_, _ = io.WriteString(c.out, b.String())
}

// Chart draws losses over all steps, 0 at the bottom: lines of a scale and of as many columns as asked for.
func Chart(losses []float64, steps, columns int) []string {
	columns = min(columns, steps)
	top := slices.Max(losses)
	lines := make([]string, rows)
	for row := range rows {
		var b strings.Builder
		switch row {
		case 0:
			fmt.Fprintf(&b, "%*.2f  ", left-2, top)
		case rows - 1:
			fmt.Fprintf(&b, "%*.2f  ", left-2, 0.)
		default:
			b.WriteString(strings.Repeat(" ", left))
		}
		for column := range columns {
			from, to := column*steps/columns, min((column+1)*steps/columns, len(losses))
			if from >= to {
				break
			}
			var sum float64
			for _, v := range losses[from:to] {
				sum += v
			}
			// in eighths of a cell, those of the rows below left out
			height := int(sum/float64(to-from)/top*rows*8+0.5) - 8*(rows-1-row)
			b.WriteRune([]rune(" ▁▂▃▄▅▆▇█")[min(max(height, 0), 8)])
		}
		lines[row] = strings.TrimRight(b.String(), " ")
		if n := left - len(lines[row]); n > 0 {
			lines[row] += strings.Repeat(" ", n)
		}
	}
	return lines
}
