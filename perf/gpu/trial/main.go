// Command trial tries the driver in a process that is started and isolated as workers are. It does natively what no
// client can have a worker do: a checkpoint of the process, by itself and by who has started it, and CUPTI's records of
// kernels.
// PTX and unified memory are there to compare. isolation.sh runs it.
//
//	trial [-cupti LIBRARY]
//
// As root it gives the processes a user of a tenant's, else they have its own. It prints a line for each trial: without
// isolation, with the profile base, and with all profiles. The exit status is 1 if something works without isolation
// and not with base (CUPTI: with all).
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/spawner"
)

// patience is how long one process may take.
const patience = 40 * time.Second

// How strictly a process is isolated.
type strictness struct {
	name    string
	mode    isolation.Mode
	profile isolation.Profile
}

var strictnesses = []strictness{
	{"off", isolation.Off, isolation.Base},
	{"base", isolation.Require, isolation.Base},
	{"all", isolation.Require, isolation.AllProfiles},
}

// trials are the names of what is tried, and of the strictness with which it has to work.
var trials = []struct{ name, with string }{
	{"ptx", "base"}, {"managed", "base"}, {"checkpoint-own", "base"}, {"checkpoint-parent", "base"}, {"cupti", "all"},
}

func main() {
	library := flag.String("cupti", "libcupti.so", "CUPTI's `LIBRARY`")
	flag.Parse()
	if a := flag.Args(); len(a) == 5 && a[0] == "worker" {
		if err := work(a[1], a[2], a[3], a[4]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	bad, err := tryAll(*library)
	if err != nil {
		fmt.Fprintln(os.Stderr, "trial:", err)
	}
	if bad || err != nil {
		os.Exit(1)
	}
}

// tryAll prints what came of each trial, and says whether something is lost by isolation.
func tryAll(library string) (bad bool, err error) {
	folder, err := os.MkdirTemp("", "scuda-trial-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(folder)
	if err := os.Chmod(folder, 0o755); err != nil {
		return false, err
	}
	for _, t := range trials {
		results := map[string]error{}
		fmt.Printf("%-18s", t.name)
		for _, s := range strictnesses {
			results[s.name] = try(t.name, s, library, filepath.Join(folder, s.name))
			text := "works"
			if err := results[s.name]; err != nil {
				text = err.Error()
			}
			fmt.Printf("  %s: %s", s.name, text)
		}
		fmt.Println()
		bad = bad || results["off"] == nil && results[t.with] != nil
	}
	return bad, nil
}

// try starts a process as a worker is started, and says what came of its trial.
func try(name string, s strictness, library, folder string) error {
	cfg := spawner.Config{
		Folder: folder, Cgroup: spawner.CgroupNone,
		Program: []string{"/proc/self/exe", "worker", name, string(s.mode), strconv.Itoa(int(s.profile)), library},
	}
	order := spawner.Order{Profile: s.profile, Enclosed: s.mode != isolation.Off && isolation.Landlock() == nil}
	if os.Geteuid() == 0 {
		cfg.UIDs = spawner.DefaultRange
		order.UID = cfg.UIDs.First + 7
	}
	local, err := spawner.NewLocal(cfg, slog.Default())
	if err != nil {
		return err
	}
	defer local.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs, mine := os.NewFile(uintptr(fds[0]), "line"), os.NewFile(uintptr(fds[1]), "line")
	line, err := net.FileConn(mine)
	mine.Close()
	if err != nil {
		return err
	}
	defer line.Close()
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	w, err := local.Start(order, theirs, to)
	theirs.Close()
	to.Close()
	if err != nil {
		return errors.Join(err, from.Close())
	}
	end := time.AfterFunc(patience, func() { _ = w.Kill() })
	defer end.Stop()
	said := make(chan []byte)
	go func() {
		text, _ := io.ReadAll(io.LimitReader(from, 4096))
		from.Close()
		said <- text
	}()
	var ready [1]byte
	if n, _ := line.Read(ready[:]); n == 1 && name == "checkpoint-parent" {
		err = checkpoint(w.PID)
	}
	_, _ = line.Write(ready[:])
	text, ended := bytes.TrimSpace(<-said), w.Wait()
	switch {
	case err != nil:
		return err
	case ended != nil && len(text) > 0:
		return fmt.Errorf("%s (%w)", text, ended)
	}
	return ended
}

// work is the process of a trial.
func work(name, mode, profile, library string) error {
	runtime.LockOSThread()
	bits, err := strconv.Atoi(profile)
	if err != nil {
		return err
	}
	if err := open(); err != nil {
		return err
	}
	m := isolation.Mode(mode)
	if err := isolation.Apply(m, isolation.Profile(bits)).Check(m); err != nil {
		return err
	}
	if err := ptx(); err != nil {
		return err
	}
	line := os.NewFile(3, "line")
	if _, err := line.Write([]byte{1}); err != nil {
		return err
	}
	if _, err := line.Read(make([]byte, 1)); err != nil {
		return err
	}
	switch name {
	case "managed":
		return managed()
	case "cupti":
		return cupti(library)
	case "checkpoint-own":
		if err := own(); err != nil {
			return err
		}
	}
	return ptx()
}

// own has another thread take the checkpoint: the driver holds up those that call it meanwhile.
func own() error {
	done := make(chan error)
	go func() { done <- checkpoint(os.Getpid()) }()
	return <-done
}
