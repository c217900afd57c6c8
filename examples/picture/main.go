// Command picture records a program in a terminal of its own and writes what it showed as an animated picture (SVG),
// which is played faster than it was. With -shell each argument is a line that a shell carries out, one after the other
// on the same terminal. `make pictures` calls it; no service is needed.
//
//	go run ./examples/picture -o docs/demo.svg build/scuda demo
//	go run ./examples/picture -o docs/install.svg -shell "sh install.sh --from release" "scuda login gpu1"
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	columns, rows = 76, 30
	typing        = 1200 * time.Millisecond // until the command is entered
	holding       = 4 * time.Second         // of what is shown last
)

func main() {
	out := flag.String("o", "", "`FILE` to write")
	length := flag.Duration("length", 9*time.Second, "play the recording in this `TIME`")
	shell := flag.Bool("shell", false, "each argument is a line for sh")
	flag.Parse()
	if err := run(*out, *length, *shell, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// take is a command and what it wrote.
type take struct {
	command string
	parts   []part
}

func run(out string, length time.Duration, shell bool, argv []string) error {
	if out == "" || len(argv) == 0 {
		return errors.New("usage: picture -o FILE PROGRAM [ARG...] | picture -o FILE -shell LINE [LINE...]")
	}
	var takes []take
	if !shell {
		parts, err := record(argv)
		if err != nil {
			return err
		}
		takes = []take{{strings.Join(append([]string{filepath.Base(argv[0])}, argv[1:]...), " "), parts}}
	} else {
		for _, line := range argv {
			parts, err := record([]string{"sh", "-c", line})
			if err != nil {
				return fmt.Errorf("%s: %w: %v", line, err, parts)
			}
			takes = append(takes, take{line, parts})
		}
	}
	return os.WriteFile(out, []byte(Animate(takes, length)), 0o644)
}

// part is something that the program wrote, and when.
type part struct {
	at   time.Duration
	text string
}

// record runs a program to its end.
func record(argv []string) (parts []part, err error) {
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	size := &unix.Winsize{Row: rows, Col: columns}
	if err := unix.IoctlSetWinsize(int(theirs.Fd()), unix.TIOCSWINSZ, size); err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	theirs.Close()
	for buffer := make([]byte, 1<<16); ; {
		n, err := ours.Read(buffer)
		if n > 0 {
			parts = append(parts, part{time.Since(began), string(buffer[:n])})
		}
		if err != nil { // EIO: nobody has the terminal any more
			break
		}
	}
	return parts, cmd.Wait()
}
