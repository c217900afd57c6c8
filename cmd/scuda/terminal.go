package main

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Colours of what is printed, as ECMA-48 numbers them.
const (
	green  = "32"
	yellow = "33"
	red    = "31"
	bold   = "1"
)

// paint gives a text in a colour where w shows it: on a terminal, unless NO_COLOR is set or the terminal is dumb.
func paint(w io.Writer, colour, text string) string {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// columns is how wide a terminal is, 0 for what is none.
func columns(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	return 0
}

// fitHelp makes the help text of cmd and of all commands below it as wide as the terminal.
func fitHelp(cmd *cobra.Command) {
	cobra.AddTemplateFunc("columns", func() int { return columns(os.Stdout) })
	cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), "Flags.FlagUsages ", "Flags.FlagUsagesWrapped columns "))
}
