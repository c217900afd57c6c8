package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// sshHost is this machine as one that ssh reaches: with a server of ssh, and a home in which nothing is installed.
type sshHost struct {
	t    *testing.T
	home string   // there
	env  []string // with which `ssh there` works, also over the jump host: `ssh behind`
	mark string   // in the environment of what is started here
}

// newSSHHost starts sshd with a configuration and keys of its own.
func newSSHHost(t *testing.T) *sshHost {
	t.Helper()
	folder := t.TempDir()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	h := &sshHost{t: t, home: filepath.Join(folder, "home"), mark: "SCUDA_TEST_MARK=" + folder}
	if os.Geteuid() == 0 { // where sshd's other half lives
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"hostkey", "userkey"} {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(folder, name)).
			CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.Mkdir(h.home, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.2:0") // sshd cannot pick a port; no other test takes one at this address
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	config := write("sshd_config", fmt.Sprintf(`ListenAddress 127.0.0.2:%s
HostKey %s/hostkey
AuthorizedKeysFile %[2]s/userkey.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxStartups 100
AllowTcpForwarding yes
SetEnv HOME=%[3]s SCUDA_SIM=contents=process PATH=%[3]s/bin:/usr/bin:/bin
`, port, folder, h.home), 0o600)
	sshd := start(t, nil, "/usr/sbin/sshd", "-D", "-e", "-f", config)
	sshd.await(sshd.err, `^Server listening on`)

	client := write("ssh_config", fmt.Sprintf(`Host there jump behind
  HostName 127.0.0.2
  Port %s
  User %s
  IdentityFile %s/userkey
  IdentitiesOnly yes
  UserKnownHostsFile %[3]s/known
  StrictHostKeyChecking accept-new
  LocalForward 127.0.0.2:%[1]s 127.0.0.1:1
  RemoteCommand false
Host behind
  ProxyJump jump
`, port, me.Username, folder), 0o600)
	// ssh takes ~/.ssh/config of the user's home in the password file, whatever HOME is
	write("bin/ssh", fmt.Sprintf("#!/bin/sh\nexec /usr/bin/ssh -F %s \"$@\"\n", client), 0o755)
	h.env = []string{"PATH=" + folder + "/bin:" + os.Getenv("PATH"), h.mark, "LD_LIBRARY_PATH="}
	t.Cleanup(h.left)
	return h
}

// run starts a program with the GPUs of the host.
func (h *sshHost) run(on string, program ...string) *process {
	h.t.Helper()
	return start(h.t, h.env, scuda, append([]string{"run", "--on", on, "--serve-flags", "--gpu " + gpu + " --log warn",
		"--"}, program...)...)
}

// ends waits for a program's end.
func (h *sshHost) ends(p *process, code int, texts ...string) {
	h.t.Helper()
	p.stdin.Close()
	if got := p.wait(patience); got != code {
		h.t.Errorf("exit status %d, not %d\n%s%s", got, code, p.out, p.err)
	}
	for _, text := range texts {
		if !strings.Contains(p.out.String()+p.err.String(), text) {
			h.t.Errorf("it does not say %q:\n%s%s", text, p.out, p.err)
		}
	}
}

// processes are those that were started for runs: with the mark here, or of the copy there.
func (h *sshHost) processes(name string) (pids []int) {
	h.t.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, folder := range folders {
		exe, _ := os.Readlink(folder + "/exe") // of one that has ended: ""
		env, _ := os.ReadFile(folder + "/environ")
		args, _ := os.ReadFile(folder + "/cmdline")
		ours := strings.HasPrefix(exe, h.home+"/") || strings.Contains(string(env), h.mark)
		if ours && exe != "" && strings.Contains(exe+" "+strings.ReplaceAll(string(args), "\x00", " "), name) {
			pid, err := strconv.Atoi(filepath.Base(folder))
			if err != nil {
				h.t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// left waits until nothing is left running, on either side.
func (h *sshHost) left() {
	h.t.Helper()
	var left []int
	defer func() {
		for _, pid := range left {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			h.t.Logf("left: %d %.100q", pid, line)
		}
	}()
	eventually(h.t, patience, "nothing is left running", func() bool {
		left = h.processes("")
		return len(left) == 0
	})
}

func (h *sshHost) kill(name string, signal syscall.Signal) {
	h.t.Helper()
	pids := h.processes(name)
	if len(pids) == 0 {
		h.t.Fatalf("no process %s", name)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil {
			h.t.Fatal(err)
		}
	}
}

// A machine with ssh and nothing else serves a program: scuda goes there once, and nothing stays but its copy.
func TestOn(t *testing.T) {
	h := newSSHHost(t)
	const copying = "copying itself to"
	p := h.run("there", program("compute"), kernels)
	h.ends(p, 0, copying)
	h.left()
	for _, host := range []string{"there", "behind"} {
		p = h.run(host, program("init"))
		h.ends(p, 0, "cuInit = 0", "cuMemAlloc = ")
		if strings.Contains(p.err.String(), copying) {
			t.Errorf("%s: copied again:\n%s", host, p.err)
		}
	}
	h.ends(h.run("there", program("nvml")), 0)
	h.ends(h.run("there", "sh", "-c", "echo $PPID; exit 7"), 7)
	p = h.run("there", "sh", "-c", "kill -TERM $$")
	h.ends(p, -1)
	p = h.run("there", "sh", "-c", `wait; ps -o pid= --ppid $$ | wc -l`)
	h.ends(p, 0, "2\n") // ps and wc: the program has no child that it did not start
	for _, pid := range h.processes("") {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(line), "token") {
			t.Errorf("a command line with a token: %q", line)
		}
	}
	list, err := filepath.Glob(h.home + "/.cache/scuda/on/*")
	if err != nil || len(list) != 1 {
		t.Errorf("there is %q, %v", list, err)
	}
	if list, err = filepath.Glob(h.home + "/.local/state/scuda/*"); err != nil || len(list) > 0 {
		t.Errorf("it leaves %q, %v", list, err)
	}
}

// Where the machine is reached, the program connects to it directly, under TLS, and everything ends as without; where
// it is not, one line says so, and the connections go through ssh.
func TestOnDirect(t *testing.T) {
	h := newSSHHost(t)
	direct := func(on string, args ...string) *process {
		return start(t, h.env, scuda, append([]string{"run", "--on", on, "--direct", "--serve-flags", "--gpu " + gpu +
			" --log info", "--"}, args...)...)
	}
	const through = "scuda: connections to there go through ssh: the server there is not reached directly: "
	p := direct("there", "sh", "-c", `echo "at $SCUDA_SERVER by $SCUDA_FINGERPRINT"; exec "$0" "$1"`, program("compute"),
		kernels)
	h.ends(p, 0, "at 127.0.0.2:", "by sha256:")
	if strings.Contains(p.err.String(), through) {
		t.Errorf("it goes through ssh:\n%s", p.err)
	}
	h.left()
	h.ends(direct("there", program("nvml")), 0)
	held := direct("there", program("hold"), kernels, "8", "loop")
	held.await(held.out, "^ready$")
	h.kill("/usr/bin/ssh ", syscall.SIGKILL)
	held.wait(patience)
	if !strings.Contains(held.err.String(), "the connection to there is gone") {
		t.Errorf("it does not say what happened:\n%s", held.err)
	}
	h.left()
	ask(t, nil, 2, "run", "--direct", "--", "true")

	// A machine whose ports others do not reach: its server has a network of its own there, but for ssh's.
	bin, _, _ := strings.Cut(strings.TrimPrefix(h.env[0], "PATH="), ":")
	text := "#!/bin/sh\ntest \"$1 $2 $3\" = 'exec -i box' || exit 1\nshift 3\nunset SCUDA_TEST_MARK\nexport HOME=" +
		h.home + " XDG_CACHE_HOME= SSH_CONNECTION=\n" +
		"exec unshare --map-root-user --net sh -c 'ip link set lo up; exec \"$@\"' sh \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	p = direct("docker://box", program("init"))
	h.ends(p, 0, "cuInit = 0",
		"scuda: connections to docker://box go through docker: the server there is not reached directly: ")
	if n := strings.Count(p.err.String(), "go through"); n != 1 {
		t.Errorf("it says so %d times", n)
	}
}

// Several programs at once, the first time.
func TestOnAtOnce(t *testing.T) {
	h := newSSHHost(t)
	var all sync.WaitGroup
	for range 3 {
		p := h.run("there", program("init"))
		all.Go(func() { h.ends(p, 0, "cuInit = 0") })
	}
	all.Wait()
	list, err := filepath.Glob(h.home + "/.cache/scuda/on/*")
	if err != nil || len(list) != 1 {
		t.Errorf("there is %q, %v", list, err)
	}
}

// Whichever part is killed, everything ends; a program that loses its server is told so.
func TestOnKilled(t *testing.T) {
	t.Parallel() // it waits most of the time
	h := newSSHHost(t)
	for _, c := range []struct {
		kill string
		says []string
	}{
		{"hold", nil},
		{"scuda near", []string{"scuda"}},
		{"/usr/bin/ssh ", []string{"the connection to there is gone"}},
		{h.home, []string{"the connection to there is gone"}},
	} {
		t.Run(strings.TrimSpace(strings.ReplaceAll(filepath.Base(c.kill), "home", "far")), func(t *testing.T) {
			h := *h
			h.t = t
			p := h.run("there", program("hold"), kernels, "8", "loop")
			p.await(p.out, "^ready$")
			h.kill(c.kill, syscall.SIGKILL)
			p.wait(patience)
			for _, text := range c.says {
				if !strings.Contains(p.err.String(), text) {
					t.Errorf("it does not say %q:\n%s", text, p.err)
				}
			}
			h.left()
		})
	}
	// Of a machine that is gone nothing comes, not even an end: the far side notices by itself.
	gone := h.run("there", program("hold"), kernels, "8", "loop")
	gone.await(gone.out, "^ready$")
	near := []string{"hold", "scuda near", "/usr/bin/ssh "}
	for _, name := range near {
		h.kill(name, syscall.SIGSTOP)
	}
	eventually(t, patience, "the far side ends", func() bool { return len(h.processes(h.home)) == 0 })
	for _, name := range near {
		h.kill(name, syscall.SIGKILL)
	}
	h.left()

	// The terminal's keys are for the program.
	p := h.run("there", "sh", "-c", `trap "" INT; echo ready; read x; exec "$0"`, program("init"))
	p.await(p.out, "^ready$")
	h.kill("scuda near", syscall.SIGINT)
	h.kill("/usr/bin/ssh ", syscall.SIGINT)
	h.ends(p, 0, "cuInit = 0")
}

// What is wrong there, or on the way, is named.
func TestOnFails(t *testing.T) {
	h := newSSHHost(t)
	h.ends(h.run("nobody@there", "true"), 125, "Permission denied", "ssh-copy-id",
		"this has to work first: ssh nobody@there true")
	h.ends(h.run("no-such-host.invalid", "true"), 125, "Could not resolve hostname", "ssh ended with",
		"no host has this name; check how it is written")
	h.ends(h.run("ssh://127.0.0.1:1", "true"), 125, "no ssh server listens there", "ssh://USER@HOST:PORT")
	p := start(t, h.env, scuda, "run", "--on", "there", "--", "true")
	h.ends(p, 125, "no server there", "that machine has no NVIDIA driver", "libcuda.so.1 cannot be opened",
		"--serve-flags '--gpu sim'")
	p = start(t, append(h.env, "PATH=/nowhere"), scuda, "run", "--on", "there", "--", "/bin/true")
	h.ends(p, 125, "cannot be started", "apt install openssh-client")
	p = start(t, h.env, scuda, "run", "--on", "there", "--on-folder", "/proc/scuda", "--", "true")
	h.ends(p, 125, "finds no place there", "--on-folder FOLDER")
}

// A machine on which the copy cannot run says why, and what helps. Programs of the test stand in for what is there.
func TestOnCannotRun(t *testing.T) {
	h := newSSHHost(t)
	for name, c := range map[string]struct {
		program, text string
		says          []string
	}{
		"architecture": {"uname", `case $1 in -s) echo Linux;; *) echo riscv64;; esac`,
			[]string{"it is Linux-riscv64", "release builds have the others"}},
		"system": {"uname", `case $1 in -s) echo Darwin;; *) echo arm64;; esac`,
			[]string{"it is Darwin-arm64", "on Linux alone"}},
		"full": {"mktemp", `ln -sf /dev/full "$1"; echo "$1"`,
			[]string{"No space left on device", "the disk there is full; make room", "--on-folder FOLDER"}},
		"no glibc": {"chmod", `echo "#!/no/such/loader" >"$2"; exec /bin/chmod "$@"`,
			[]string{"lacks the C library glibc (2.27 or newer)", "container"}},
		"old glibc": {"chmod", "cat >\"$2\" <<'END'\n#!/bin/sh\necho 'version `GLIBC_2.27 not found' >&2\nexit 1\nEND\n" +
			`exec /bin/chmod "$@"`,
			[]string{"the C library there is too old", "container"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := *h
			h.t = t
			path := filepath.Join(h.home, "bin", c.program)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.text+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(path)
			h.ends(h.run("there", "true"), 125, c.says...)
			if list, err := filepath.Glob(h.home + "/.cache/scuda/on/*"); err != nil || len(list) > 0 {
				t.Errorf("there is %q, %v", list, err)
			}
		})
	}
}

// Containers are reached in the same way, by the programs that start others in them.
func TestOnContainer(t *testing.T) {
	h := newSSHHost(t)
	bin, _, _ := strings.Cut(strings.TrimPrefix(h.env[0], "PATH="), ":")
	text := "#!/bin/sh\ntest \"$1 $2 $3\" = 'exec -i box' || exit 1\nshift 3\nunset SCUDA_TEST_MARK\nexport HOME=" +
		h.home + " XDG_CACHE_HOME=\nexec \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	h.ends(h.run("docker://box", program("init")), 0, "cuInit = 0")
	h.ends(h.run("docker://other", program("init")), 125, "docker ended with exit status 1",
		"this has to work first: docker exec -i other true")
}
