package config

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
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

// LogFormat is how lines of a log are written.
type LogFormat string

// Formats of logs.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json" // an object a line
)

// ParseLogFormat reads the name of a format; none means text.
func ParseLogFormat(s string) (LogFormat, error) {
	switch f := LogFormat(strings.Trim(s, blanks)); f {
	case "":
		return LogText, nil
	case LogText, LogJSON:
		return f, nil
	}
	return "", fmt.Errorf("%w: %q is none of text or json", ErrLog, s)
}

// Handler writes lines of a format.
func (f LogFormat) Handler(w io.Writer, level slog.Level) slog.Handler {
	if f == LogJSON {
		return slog.NewJSONHandler(escaper{w}, &slog.HandlerOptions{Level: level})
	}
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
}

// escaper escapes what is not printable in lines of JSON, as text has it: package json lets control characters beyond
// ASCII and those that turn the direction of a line pass, and a peer's texts are among the lines.
type escaper struct{ w io.Writer }

func (e escaper) Write(line []byte) (int, error) {
	hidden := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if bytes.IndexFunc(line, hidden) < 0 {
		return e.w.Write(line)
	}
	var b []byte
	for _, r := range string(line) {
		if !hidden(r) {
			b = utf8.AppendRune(b, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			b = fmt.Appendf(b, `\u%04x`, unit)
		}
	}
	if _, err := e.w.Write(b); err != nil {
		return 0, err
	}
	return len(line), nil
}

// OpenLog makes the logger that a setting asks for; without a file it writes to w. With an error comes one that
// writes warnings to w.
func OpenLog(setting string, format LogFormat, w io.Writer) (*slog.Logger, error) {
	level, path, err := ParseLog(setting)
	if err == nil && path != "" {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644); err == nil {
			w = f // open as long as the process
		} else {
			err = &FileError{path, err}
		}
	}
	return slog.New(format.Handler(w, level)), err
}

// Logger makes the logger of a program's core, which SCUDA_LOG asks for. A setting that cannot be used is reported on
// standard error and stops nothing.
func Logger() *slog.Logger {
	format, bad := ParseLogFormat(os.Getenv("SCUDA_LOG_FORMAT"))
	log, err := OpenLog(os.Getenv("SCUDA_LOG"), format, os.Stderr)
	log = log.With("app", "scuda")
	if bad != nil {
		log.Warn("SCUDA_LOG_FORMAT: " + bad.Error())
	}
	if err != nil {
		log.Warn("SCUDA_LOG: " + err.Error() + "; logging to standard error")
	}
	return log
}
