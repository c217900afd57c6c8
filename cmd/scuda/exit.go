package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// Exit codes. `scuda run` gives the program's own; 125, 126 and 127 mean what they mean in a shell and in env(1).
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitUnreachable = 3   // the server cannot be reached, or no scuda server answers there
	exitRefused     = 4   // the server refused: token, version, no room, draining
	exitRun         = 125 // scuda run failed before it started the program
	exitNotRunnable = 126 // scuda run: the program is there but cannot be run
	exitNotFound    = 127 // scuda run: no such program
	exitInterrupted = 130
)

const exitHelp = `Exit codes:
  0    done
  1    failure
  2    wrong usage
  3    the server cannot be reached, or no scuda server answers there
  4    the server refused: token, version, no room, shutting down
  125  scuda run failed before it started the program
  126  scuda run: the program cannot be run; 127: there is no such program
  130  interrupted`

// exitError carries an exit code beside the error that is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// interrupted is the error of work that a signal ended, and that was kept as far as it had come.
func interrupted(err error) error {
	return &exitError{exitInterrupted, fmt.Errorf("interrupted: %w", err)}
}

// writeJSON prints what --json asks for.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func usage(err error) error { return &exitError{exitUsage, err} }
