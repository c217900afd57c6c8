package config

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// ParseLog reads a log setting, LEVEL or LEVEL,file=PATH. The empty one means warnings on standard error.
func ParseLog(s string) (level slog.Level, path string, err error) {
	level = slog.LevelWarn
	s = strings.Trim(s, blanks)
	for i, part := range strings.Split(s, ",") {
		name, value, ok := strings.Cut(part, "=")
		switch {
		case s == "":
		case ok && name == "file" && value != "":
			path = value
		case i == 0 && (part == "debug" || part == "info" || part == "warn" || part == "error"):
			if err := level.UnmarshalText([]byte(part)); err != nil {
				return level, "", fmt.Errorf("%w: %w", ErrLog, err)
			}
		default:
			return slog.LevelWarn, "", fmt.Errorf("%w: %q is none of debug, info, warn, error or file=PATH", ErrLog, part)
		}
	}
	return level, path, nil
}

// OpenLog makes the logger that a setting asks for; without a file it writes to w. With an error comes one that
// writes warnings to w.
func OpenLog(setting string, w io.Writer) (*slog.Logger, error) {
	level, path, err := ParseLog(setting)
	if err == nil && path != "" {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644); err == nil {
			w = f // open as long as the process
		} else {
			err = &FileError{path, err}
		}
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})), err
}

// Logger makes the logger of a program's core, which SCUDA_LOG asks for. A setting that cannot be used is reported on
// standard error and stops nothing.
func Logger() *slog.Logger {
	log, err := OpenLog(os.Getenv("SCUDA_LOG"), os.Stderr)
	log = log.With("app", "scuda")
	if err != nil {
		log.Warn("SCUDA_LOG: " + err.Error() + "; logging to standard error")
	}
	return log
}
