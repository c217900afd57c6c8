// Package mpstest stands in for nvidia-cuda-mps-control where there is no GPU: a program that speaks its commands. A
// test binary becomes it when it is started under that name; tests of the MPS daemons and of the server do so.
package mpstest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"scuda.dev/scuda/server/mps"
)

// Server is the process id of the one server that a stand-in says it has.
const Server = 4242

// Files in the folder of a daemon by which a test sees and says something: the commands that it got, each with whether
// the process that it names was alive; the process ids of clients; and, while they are there, that the daemon cannot
// start, and that it has no server.
const (
	Commands = "commands"
	Clients  = "clients"
	Broken   = "broken"
	Lost     = "lost"
)

// Main is to be called first in TestMain. In a process that was started as NVIDIA's program it does not return.
func Main() {
	if filepath.Base(os.Args[0]) != mps.Program {
		return
	}
	err := run(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Install puts the program into a folder, and gives its path.
func Install(t *testing.T) (path string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), mps.Program)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(folder string, args []string) error {
	if len(args) == 1 && args[0] == "-f" {
		return serve(folder)
	}
	c, err := net.Dial("unix", filepath.Join(folder, "control"))
	if err != nil {
		return fmt.Errorf("Cannot find MPS control daemon process: %w", err) //nolint:staticcheck // NVIDIA's words
	}
	defer c.Close()
	if _, err := io.Copy(c, os.Stdin); err != nil {
		return err
	}
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, c)
	return err
}

func serve(folder string) error {
	if _, err := os.Stat(filepath.Join(folder, Broken)); err == nil {
		return errors.New("it is broken")
	}
	socket := filepath.Join(folder, "control")
	if c, err := net.Dial("unix", socket); err == nil {
		c.Close()
		return errors.New("An instance of this daemon is already running") //nolint:staticcheck // NVIDIA's words
	}
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	d := &daemon{folder: folder, listener: l}
	for {
		c, err := l.Accept()
		if err != nil {
			return nil //nolint:nilerr // it was told to quit
		}
		go d.answer(c)
	}
}

type daemon struct {
	folder   string
	listener net.Listener
	mu       sync.Mutex // held while a command is carried out
}

func (d *daemon) answer(c net.Conn) {
	defer c.Close()
	for s := bufio.NewScanner(c); s.Scan(); {
		d.mu.Lock()
		fmt.Fprint(c, d.carryOut(strings.Fields(s.Text())))
		d.mu.Unlock()
	}
}

// carryOut gives the answer to a command.
func (d *daemon) carryOut(words []string) string {
	d.note(words)
	switch {
	case len(words) == 1 && words[0] == "get_server_list":
		if _, err := os.Stat(filepath.Join(d.folder, Lost)); err == nil {
			return ""
		}
		return fmt.Sprintln(Server)
	case len(words) == 2 && words[0] == "get_client_list":
		b, _ := os.ReadFile(filepath.Join(d.folder, Clients)) // without it there are none
		return string(b)
	case len(words) == 3 && words[0] == "terminate_client":
		return ""
	case len(words) > 0 && words[0] == "quit":
		d.listener.Close()
		return ""
	}
	return "Unknown command\n"
}

func (d *daemon) note(words []string) {
	f, err := os.OpenFile(filepath.Join(d.folder, Commands), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	text := strings.Join(words, " ")
	if len(words) == 3 {
		var pid int
		if _, err := fmt.Sscan(words[2], &pid); err == nil && syscall.Kill(pid, 0) == nil {
			text += " alive"
		}
	}
	fmt.Fprintln(f, text)
}
