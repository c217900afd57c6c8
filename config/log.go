package config

import (
	"io"
	"log/slog"
	"os"
)

// Logger makes the logger that SCUDA_LOG asks for. A setting that cannot be used is reported on standard error and stops nothing.
func Logger() *slog.Logger {
	level, path, err := ParseLog(os.Getenv("SCUDA_LOG"))
	var out io.Writer = os.Stderr
	if path != "" {
		f, ferr := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		if ferr == nil {
			out = f // open as long as the process
		} else {
			err = &FileError{path, ferr}
		}
	}
	log := NewLogger(out, level)
	if err != nil {
		log.Warn("SCUDA_LOG: " + err.Error() + "; logging to standard error")
	}
	return log
}

// NewLogger makes a logger with the form that scuda's libraries use inside programs.
func NewLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})).With("app", "scuda")
}
