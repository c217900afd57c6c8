package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"scuda.dev/scuda/server/admin"
)

// refreshed is how often a table is written anew.
const refreshed = time.Second

func newTop() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the sessions of a server",
		Long: `Watch the sessions of a server, in a table that is written anew each second. Where standard
output is no terminal it is printed once, as it is after a second of looking.
` + adminHelp + `
CALLS/S is how many calls a session made in the last second; the other columns are those of scuda ps. These keys do
something:

  q  end         a  sort by age (the oldest first)
  m  sort by memory                  c  sort by calls in the last second
  g  sort by GPU%                    w  sort by the time that they waited for turns

` + exitHelp,
		SuggestFor: []string{"watch", "monitor"},
		Args:       noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := administer(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			v := &viewer{ask: func(ctx context.Context) (*admin.Status, []admin.Session, error) {
				st, err := c.Status(ctx)
				if err != nil {
					return nil, nil, err
				}
				list, err := c.Sessions(ctx)
				return st, list, err
			}, out: cmd.OutOrStdout()}
			tick := time.NewTicker(refreshed)
			defer tick.Stop()
			if !isTerminal(v.out) || !term.IsTerminal(0) {
				return adminError(v.once(cmd.Context(), tick.C))
			}
			before, err := term.MakeRaw(0)
			if err != nil {
				return err
			}
			defer func() { _ = term.Restore(0, before) }()
			v.size = func() (int, int) { return terminalSize(v.out) }
			return adminError(v.watch(cmd.Context(), tick.C, keys(os.Stdin)))
		},
	}
	adminFlag(cmd)
	return cmd
}

// terminalSize is how many columns and lines a terminal has.
func terminalSize(w io.Writer) (width, height int) {
	if f, ok := w.(*os.File); ok {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil {
			return width, height
		}
	}
	return 80, 24
}

// keys are those that somebody presses. The goroutine that reads them ends with the program.
func keys(from io.Reader) <-chan byte {
	pressed := make(chan byte)
	go func() {
		defer close(pressed)
		var b [1]byte
		for {
			if n, err := from.Read(b[:]); n != 1 || err != nil {
				return
			}
			pressed <- b[0]
		}
	}()
	return pressed
}

// viewer shows the sessions of a server.
type viewer struct {
	ask  func(context.Context) (*admin.Status, []admin.Session, error)
	out  io.Writer
	size func() (width, height int)

	by     byte              // the key that chose the order
	calls  map[string]uint64 // as of the last look, by session
	looked time.Time
}

// Keys that the terminal sends where it is raw.
const (
	interrupt = 3
	endOfText = 4
)

// once shows what a second brings.
func (v *viewer) once(ctx context.Context, tick <-chan time.Time) error {
	if _, err := v.look(ctx, 0); err != nil {
		return err
	}
	select {
	case <-tick:
	case <-ctx.Done():
		return ctx.Err()
	}
	text, err := v.look(ctx, 0)
	if err == nil {
		_, err = v.out.Write(text)
	}
	return err
}

// watch shows the table until somebody presses q.
func (v *viewer) watch(ctx context.Context, tick <-chan time.Time, pressed <-chan byte) error {
	const enter, leave = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l" // a screen of its own, without a cursor
	if _, err := io.WriteString(v.out, enter); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(v.out, leave) }()
	for {
		if err := v.draw(ctx); err != nil {
			return err
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return nil
		case key, ok := <-pressed:
			switch {
			case !ok, key == 'q', key == 'Q', key == interrupt, key == endOfText:
				return nil
			case strings.IndexByte("amcgw", key) >= 0:
				v.by = key
			}
		}
	}
}

// draw writes the table anew: over what was there, so that nothing flickers.
func (v *viewer) draw(ctx context.Context) error {
	width, height := v.size()
	text, err := v.look(ctx, width)
	if err != nil {
		return err
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	if height = max(height-1, 2); len(lines) > height {
		more := len(lines) - height
		lines = append(lines[:height-1], fmt.Appendf(nil, "… and %d more", more))
	}
	screen := []byte("\x1b[H")
	for _, line := range lines {
		screen = append(append(screen, bytes.TrimRight(line, "\n")...), "\x1b[K\r\n"...)
	}
	_, err = v.out.Write(append(screen, "\x1b[J"...))
	return err
}

// topColumns are those of sessionColumns with calls a second, which always have room, in the place of all calls.
var topColumns = func() []column {
	c := slices.Clone(sessionColumns)
	c[callsColumn].name, c[callsColumn].spare = "CALLS/S", 0
	return c
}()

// look asks the server and gives the table.
func (v *viewer) look(ctx context.Context, width int) ([]byte, error) {
	st, list, err := v.ask(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	passed := now.Sub(v.looked).Seconds()
	rates, calls := map[string]float64{}, map[string]uint64{}
	for _, s := range list {
		if s.Calls == nil {
			continue
		}
		calls[s.ID] = *s.Calls
		if before, ok := v.calls[s.ID]; ok && passed > 0 && *s.Calls >= before {
			rates[s.ID] = float64(*s.Calls-before) / passed
		}
	}
	v.calls, v.looked = calls, now
	v.sort(list, rates)
	rows := sessionRows(list)
	for i, s := range list {
		rows[i][callsColumn] = "-"
		if rate, ok := rates[s.ID]; ok {
			rows[i][callsColumn] = strconv.FormatFloat(rate, 'f', 0, 64)
		}
	}
	var text bytes.Buffer
	head := summary(st)
	if width > 0 {
		head = cut(head, width)
	}
	fmt.Fprintf(&text, "%s\n\n", head)
	columns, rows := withTurns(topColumns, rows, list)
	columns, rows = withAway(columns, rows, list)
	if err := writeTable(&text, width, columns, rows); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// sort puts the sessions in the order that was chosen; the server gives the oldest first.
func (v *viewer) sort(list []admin.Session, rates map[string]float64) {
	slices.SortStableFunc(list, func(a, b admin.Session) int {
		switch v.by {
		case 'm':
			left, _ := a.Memory()
			right, _ := b.Memory()
			return cmp.Compare(right, left)
		case 'c':
			return cmp.Compare(rates[b.ID], rates[a.ID])
		case 'g':
			return cmp.Compare(b.GPUShare, a.GPUShare)
		case 'w':
			return cmp.Compare(b.TurnWait, a.TurnWait)
		}
		return 0
	})
}

// summary says in one line how a server is.
func summary(st *admin.Status) string {
	text := fmt.Sprintf("scuda %s on %s, up %s: %s of CUDA, %d of NVML", st.Version, st.Address, age(st.Uptime),
		taken(st.CUDA.Taken, st.CUDA.Limit), st.NVML.Taken)
	text += withoutClient(st.Away)
	if st.Waiting > 0 {
		text += "; " + inQueue(st.Waiting)
	}
	if st.Draining {
		text += "; takes no new ones"
	}
	return text
}

// withoutClient says how many sessions wait for their clients.
func withoutClient(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %s without a client", sessions(n))
}

// inQueue says how many programs wait.
func inQueue(n int) string {
	if n == 1 {
		return "1 program waits for a place"
	}
	return fmt.Sprintf("%d programs wait for a place", n)
}

// taken says how many of so many there may be.
func taken(n, limit int) string {
	if limit == 0 {
		return sessions(n)
	}
	return fmt.Sprintf("%d of %s", n, sessions(limit))
}
