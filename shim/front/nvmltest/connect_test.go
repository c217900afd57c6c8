package nvmltest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/config/configtest"
	"scuda.dev/scuda/shim/connect"
	"scuda.dev/scuda/transport"
)

// connector is the name of the program that the front starts, and that of this test binary where it stands in for it.
const connector = "scuda-connect"

// beside gives a folder with the library and, as scuda-connect, this test binary, which then does what standIn says.
func beside(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{library: "libnvidia-ml.so.1", self: connector} {
		if err := os.Link(from, filepath.Join(dir, to)); err != nil {
			copyFile(t, from, filepath.Join(dir, to))
		}
	}
	return dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// standIn is scuda-connect for tests: it refuses, and says what SCUDA_TEST_CONNECT asks for.
func standIn() int {
	packet := make([]byte, 8<<10)
	n, err := unix.Read(0, packet)
	if err != nil {
		return 1
	}
	a := connect.Answer{ABI: connect.ABI, Code: connect.Failed}
	r, first, err := connect.ParseRequest(packet[:n])
	if err != nil {
		return 1
	}
	var text string
	switch os.Getenv("SCUDA_TEST_CONNECT") {
	case "surroundings":
		text = surroundings()
	case "request":
		text = fmt.Sprintf("%s of %s: %d bytes first, keep %d", connect.Text(r.Kind[:]), connect.Text(r.Program[:]),
			len(first), r.Keep)
	case "other build":
		a.ABI++
	case "silent":
		return 0
	case "half":
		_ = unix.Sendmsg(0, a.Append(nil)[:20], nil, nil, 0)
		return 0
	default:
		servers, _, err := config.Configured()
		text = fmt.Sprintf("server %q, %v", config.Join(servers), err)
	}
	connect.SetText(a.Error[:], text)
	_ = unix.Sendmsg(0, a.Append(nil), nil, nil, 0)
	return 0
}

// surroundings are the descriptors and variables that the process was given.
func surroundings() string {
	var files, names []string
	for fd := range 64 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			link, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
			if !strings.HasPrefix(link, "anon_inode:") && !strings.HasPrefix(link, "/sys/fs/cgroup/") { // the Go runtime's own
				kind, _, _ := strings.Cut(link, ":")
				files = append(files, strconv.Itoa(fd)+" "+kind)
			}
		}
	}
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(files, ", ") + "; " + strings.Join(names, " ")
}

func circumstances(t *testing.T, folder, how string, env ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), connectUnder, filepath.Join(folder, "libnvidia-ml.so.1"), how)
	cmd.Env = environment(t, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", how, err, &out, &errs)
	}
	return out.String(), errs.String()
}

// TestConnectUnnoticed: the program finds no child, gets no SIGCHLD, and its signal mask is as it was.
func TestConnectUnnoticed(t *testing.T) {
	srv := startServer(t, "")
	folder := filepath.Dir(library)
	for how, want := range map[string]string{
		"usual":   "0 0, no child, no signal, the same mask\n",
		"ignored": "0 0, no child, no signal, the same mask\n", // SIGCHLD, so that the kernel reaps by itself
		"adopts":  "0 0, no child, a signal, the same mask\n",  // what a program has that adopts orphans
		"closed":  "0 0, no child, no signal, the same mask\n", // standard input, output and error
		"signals": "0 0, no child, no signal, the same mask\n", // each millisecond
		"full":    "9 -1, no child, no signal, the same mask\n",
	} {
		out, errs := circumstances(t, folder, how, "SCUDA_SERVER="+srv.addr)
		if out != want || (how == "full") != strings.Contains(errs, "Too many open files") || how != "full" && errs != "" {
			t.Errorf("%s: %q, want %q; stderr %q", how, out, want, errs)
		}
	}
}

// TestConnectSurroundings: the program that connects has no descriptors of ours, and of the environment only our
// settings.
func TestConnectSurroundings(t *testing.T) {
	const want = "scuda: error: 0 socket, 1 /dev/null, 2 pipe; HOME SCUDA_SERVER SCUDA_TEST_CONNECT XDG_CONFIG_HOME\n"
	preload := filepath.Join(t.TempDir(), "preload.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", preload,
		"testdata/standin.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, errs := circumstances(t, beside(t), "usual", "SCUDA_SERVER=gpu:1", "XDG_CONFIG_HOME=/x",
		"SCUDA_TEST_CONNECT=surroundings",
		"LD_PRELOAD="+preload, "GODEBUG=inittrace=1", "OTHER=1")
	if errs != want {
		t.Errorf("%q, want %q", errs, want)
	}
}

func TestConnectRequest(t *testing.T) {
	_, errs := circumstances(t, beside(t), "usual", "SCUDA_SERVER=gpu:1", "SCUDA_TEST_CONNECT=request")
	if want := "scuda: error: nvml of connect: 88 bytes first, keep 1\n"; errs != want {
		t.Errorf("%q, want %q", errs, want)
	}
}

// TestConnectMissing: what is wrong with the installation is said by name.
func TestConnectMissing(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(program string) error
		env     string
		want    string
	}{
		"missing":        {os.Remove, "", "cannot be started: No such file or directory"},
		"not executable": {plainFile, "", "cannot be started: Permission denied"},
		"another build":  {nil, "other build", "gave no answer that this library understands"},
		"half an answer": {nil, "half", "gave no answer that this library understands"},
		"no answer":      {nil, "silent", "gave no answer that this library understands: Connection reset by peer"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := beside(t)
			program := filepath.Join(folder, connector)
			if c.prepare != nil {
				if err := c.prepare(program); err != nil {
					t.Fatal(err)
				}
			}
			out, errs := circumstances(t, folder, "usual", "SCUDA_SERVER=gpu:1", "SCUDA_TEST_CONNECT="+c.env)
			if out != "9 -1, no child, no signal, the same mask\n" || strings.Count(errs, "\n") != 1 ||
				!strings.Contains(errs, program+" "+c.want) ||
				!strings.Contains(errs, "install scuda anew") {
				t.Errorf("%q, %q", out, errs)
			}
		})
	}
}

// plainFile puts a file that nobody may execute in a program's place.
func plainFile(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o644)
}

// TestSettings: the front finds a server configured where package config does, and what it starts reads the same
// settings in the same place.
func TestSettings(t *testing.T) {
	folder := beside(t)
	for _, c := range configtest.Servers(t) {
		t.Run(c.Name, func(t *testing.T) {
			var errs bytes.Buffer
			cmd := exec.CommandContext(t.Context(), connectUnder, filepath.Join(folder, "libnvidia-ml.so.1"), "usual")
			cmd.Dir, cmd.Env = c.Prepare(t)
			cmd.Env = append(cmd.Env, "SCUDA_REAL_LIBNVML=/nonexistent")
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil || !strings.HasPrefix(string(out), "9 -1,") {
				t.Errorf("%v, %q", err, out)
			}
			got := errs.String()
			if !c.Configured() && got != "" || c.Configured() &&
				(!strings.HasPrefix(got, fmt.Sprintf("scuda: error: server %q, ", c.Address)) || !strings.Contains(got, c.Error)) {
				t.Errorf("it says %q", got)
			}
		})
	}
}

// TestLog: the front and package config understand SCUDA_LOG alike.
func TestLog(t *testing.T) {
	program := filepath.Join(t.TempDir(), "log")
	cc := exec.Command("cc", "-o", program, "testdata/log.c", "../base/common.c", "-I", "..", "-I", "../base", "-ldl")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range configtest.Values(t, "log") {
		dir := t.TempDir()
		place := func(s string) string { return strings.ReplaceAll(s, "$T", dir) }
		var errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Env = environment(t, "SCUDA_LOG="+place(c.Text))
		cmd.Stderr = &errs
		out, err := cmd.Output()
		want, path, _ := strings.Cut(place(c.Client), " ")
		if c.Error != "" {
			want = "WARN"
		}
		if err != nil || string(out) != want+"\n" {
			t.Errorf("%q: %q, %v, want %s", c.Text, out, err, want)
		}
		const line = "scuda: error: a line\n"
		if path == "" && errs.String() != line {
			t.Errorf("%q: standard error has %q", c.Text, &errs)
		}
		if files, _ := filepath.Glob(dir + "/*"); path != "" && !slices.Equal(files, []string{path}) ||
			path == "" && files != nil {
			t.Errorf("%q: files %q", c.Text, files)
		} else if path != "" {
			if text, _ := os.ReadFile(path); string(text) != line || errs.Len() > 0 {
				t.Errorf("%q: %s has %q, standard error %q", c.Text, path, text, &errs)
			}
		}
	}
}

// TestConnectEndsWithProgram: a program that is killed while a server does not answer leaves nothing behind.
func TestConnectEndsWithProgram(t *testing.T) {
	l, err := transport.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command(connectUnder, library, "usual")
	cmd.Env = environment(t, "SCUDA_SERVER="+l.Addr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	if _, err := in.Peek(1); err != nil { // the greeting: scuda-connect waits for the answer now
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, in); err != nil && !isReset(err) {
		t.Errorf("the connection is still open: %v", err)
	}
}

func isReset(err error) bool {
	var e net.Error
	ok := errors.As(err, &e)
	return ok && !e.Timeout()
}
