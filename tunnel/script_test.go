package tunnel

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fake is a copy of scuda as far as the script is concerned.
const fake = `#!/bin/sh
case "$*" in
far) echo; echo scuda-here; cat ;;
"far --check "*) exit 0 ;;
*) exit 99 ;;
esac
`

// machine is another machine, with a home of its own.
type machine struct {
	t     *testing.T
	home  string
	path  string // of its programs; "": ours
	shell string // what its user sees first
	noise string
	said  bytes.Buffer
	asked int // for the copy
}

// meet runs the dialog, and gives what the copy there answers to a line.
func (m *machine) meet(folder string, copies ...Copy) (string, error) {
	m.t.Helper()
	way := Way{Command: []string{m.shell, "-c"}, Joined: true}
	cmd := exec.Command(way.Command[0], way.arguments(m.noise+script)...)
	cmd.Env = []string{"HOME=" + m.home, "PATH=" + os.Getenv("PATH")}
	if m.path != "" {
		cmd.Env[1] = "PATH=" + m.path
	}
	cmd.Stderr = &m.said
	in, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer in.Close()
	d := dialog{in: bufio.NewReader(out), out: in, copies: copies, folder: folder, progress: func(_, all int64) {
		if all == 0 {
			m.asked++
		}
	}}
	if err := d.run(); err != nil {
		return "", err
	}
	if _, err := in.Write([]byte("hello\n")); err != nil {
		return "", err
	}
	return readLine(d.in)
}

// here is a copy for this machine.
func here(t *testing.T, text string) Copy {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scuda")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("sh", "-c", "echo $(uname -s)-$(uname -m)").Output()
	if err != nil {
		t.Fatal(err)
	}
	return Copy{strings.TrimSpace(string(out)), path}
}

// The copy is sent once, whatever the shells there are and print; what lies there afterwards is its own.
func TestScript(t *testing.T) {
	bare := t.TempDir() // a machine without gzip
	for _, name := range []string{"uname", "mkdir", "ls", "head", "mktemp", "chmod", "mv", "rm", "cat", "sh"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bare, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, m := range map[string]*machine{
		"sh":           {shell: "sh"},
		"bash":         {shell: "bash"},
		"noise":        {shell: "sh", noise: `echo welcome; echo "scuda: not yet"; printf dangling; `},
		"without gzip": {shell: "/bin/sh", path: bare},
	} {
		t.Run(name, func(t *testing.T) {
			m.t, m.home = t, t.TempDir()
			c := here(t, fake+strings.Repeat("# long\n", 100000))
			for range 2 {
				if got, err := m.meet("", c); got != "hello" || err != nil {
					t.Fatalf("got %q, %v\n%s", got, err, &m.said)
				}
			}
			if m.asked != 1 {
				t.Errorf("it was copied %d times", m.asked)
			}
			hash, err := c.hash()
			if err != nil {
				t.Fatal(err)
			}
			list, err := filepath.Glob(m.home + "/.cache/scuda/on/*")
			if err != nil || len(list) != 1 || filepath.Base(list[0]) != hash {
				t.Errorf("there is %q, %v", list, err)
			}
			for path, mode := range map[string]os.FileMode{m.home + "/.cache/scuda/on": 0o700, list[0]: 0o700} {
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
					t.Errorf("%s: %v, %v", path, info, err)
				}
			}
			folder := filepath.Join(t.TempDir(), "a folder")
			if got, err := m.meet(folder, c); got != "hello" || err != nil || m.asked != 2 {
				t.Errorf("in a folder: got %q, %v, copied %d times\n%s", got, err, m.asked, &m.said)
			}
		})
	}
}

// What goes wrong there has a name and a remedy, and leaves nothing behind.
func TestScriptFails(t *testing.T) {
	good := here(t, fake)
	file := filepath.Join(t.TempDir(), "file")
	open := t.TempDir()
	for path, mode := range map[string]os.FileMode{file: 0o600, open: 0o777} {
		if mode == 0o777 {
			if err := os.Chmod(open, mode); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		folder string
		copies []Copy
		want   error
		says   string
	}{
		"another system":  {"", []Copy{{"Plan9-mips", good.Path}}, ErrSystem, "release builds have"},
		"no folder":       {file + "/below", []Copy{good}, ErrFolder, "--on-folder"},
		"others' folder":  {open, []Copy{good}, ErrFolder, "others may write"},
		"no room":         {"", []Copy{here(t, fake+"# to be cut\n")}, ErrCopy, "make room"},
		"no C library":    {"", []Copy{here(t, "#!/no/such/loader\n")}, ErrRun, "glibc"},
		"damaged":         {"", []Copy{here(t, "#!/bin/sh\nexit 1\n")}, ErrRun, "status 1"},
		"noexec":          {"", []Copy{here(t, "#!/bin/sh\nexit 126\n")}, ErrRun, "noexec"},
		"nothing for it":  {"", nil, ErrSystem, "own architecture"},
		"no such program": {"", []Copy{{good.System, "/no/such/file"}}, os.ErrNotExist, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := &machine{t: t, home: t.TempDir(), shell: "sh"}
			if name == "no room" {
				m.noise = "ulimit -f 0; " // in blocks
			}
			got, err := m.meet(c.folder, c.copies...)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %q, %v\n%s", got, err, &m.said)
			}
			if list, _ := filepath.Glob(m.home + "/.cache/scuda/on/.new-*"); len(list) > 0 && name != "no room" {
				t.Errorf("there is %q", list)
			}
		})
	}
}

// The user's own shell reads the script first: csh, fish and others understand less than sh, and differently.
func TestScriptIsPlain(t *testing.T) {
	if i := strings.IndexAny(script, "'!\\\n`"); i >= 0 {
		t.Errorf("it has %q at %d", script[i], i)
	}
	if len(script) > 1500 {
		t.Errorf("it has %d characters", len(script))
	}
}

// A copy that has not run for a month goes, unless it runs; what is left of copies that were not finished goes sooner.
func TestTend(t *testing.T) {
	folder := t.TempDir()
	long := time.Now().Add(-40 * 24 * time.Hour)
	file := func(name string, at time.Time) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, nil, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		return path
	}
	self, old, used := strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64)
	paths := map[string]bool{
		file(self, time.Now()): true, file(old, long): false, file(used, long): true,
		file(strings.Repeat("d", 64), time.Now().Add(-20*24*time.Hour)): true,
		file("notes", long): true, file(".new-1", time.Now().Add(-2*24*time.Hour)): false,
		file(".new-2", time.Now()): true,
	}
	running, err := Tend(filepath.Join(folder, used))
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	if err := os.Chtimes(filepath.Join(folder, used), long, long); err != nil {
		t.Fatal(err)
	}
	ours, err := Tend(filepath.Join(folder, self))
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	for path, stays := range paths {
		if _, err := os.Stat(path); (err == nil) != stays {
			t.Errorf("%s: %v", path, err)
		}
	}
}
