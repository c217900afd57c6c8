// Package bar shows people how far long work has come: one line on a terminal, which is written anew every second and
// is gone at the end. The commands of scuda that take long are its callers. It owns one goroutine for as long as the
// work lasts. Where nobody watches, or plain output was asked for, it shows nothing.
package bar

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// Bar is how far some work has come.
type Bar struct {
	out   io.Writer
	width func() int // of the terminal; nil: there is none
	stop  chan struct{}
	over  sync.WaitGroup

	mu        sync.Mutex // guards what is below, and the order of what is written
	began     time.Time
	at        time.Time // when the last step began
	done, all int64
	what      string
	shown     bool
}

// New begins to show work on out: if it is a terminal, NO_COLOR is not set, and TERM does not say that it is dumb.
func New(out io.Writer) *Bar {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return &Bar{out: out}
	}
	return begin(out, func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 {
			return 80
		}
		return width
	})
}

func begin(out io.Writer, width func() int) *Bar {
	b := &Bar{out: out, width: width, stop: make(chan struct{}), began: time.Now()}
	b.over.Go(func() {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				b.mu.Lock()
				b.draw()
				b.mu.Unlock()
			case <-b.stop:
				return
			}
		}
	})
	return b
}

// Step says what begins now, and how much of all is done.
func (b *Bar) Step(done, all int64, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	seldom := b.shown && what == b.what && now.Sub(b.at) < time.Second/10 // many small steps
	b.done, b.all, b.what = done, all, what
	if !seldom {
		b.at = now
		b.draw()
	}
}

// Write lets other lines pass, which stay.
func (b *Bar) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	return b.out.Write(text)
}

// End takes the line away.
func (b *Bar) End() {
	if b.width == nil {
		return
	}
	close(b.stop)
	b.over.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
}

func (b *Bar) clear() {
	if b.shown {
		_, _ = io.WriteString(b.out, "\r\x1b[K")
		b.shown = false
	}
}

func (b *Bar) draw() {
	if b.width == nil || b.all <= 0 {
		return
	}
	b.clear()
	b.shown = true
	_, _ = io.WriteString(b.out, b.line(b.width()-1))
}

const cells = 20

// line is at most as wide as it may be: what goes beyond would begin a line that is never taken away.
func (b *Bar) line(width int) string {
	took := time.Since(b.began)
	ends := took.Round(time.Second).String()
	if b.done > 0 { // as fast as until the step that is under way
		all := time.Duration(float64(b.at.Sub(b.began)) / float64(b.done) * float64(b.all))
		if left := (all - took).Round(time.Second); left > 0 {
			ends = fmt.Sprintf("about %v left", left)
		}
	}
	share := min(float64(b.done)/float64(b.all), 1)
	full := int(share * cells)
	text := fmt.Sprintf("[%s%s] %3.0f %%  %s  %s", strings.Repeat("#", full), strings.Repeat(".", cells-full), share*100,
		ends, b.what)
	for utf8.RuneCountInString(text) > max(width, 0) {
		_, last := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-last]
	}
	return text
}
