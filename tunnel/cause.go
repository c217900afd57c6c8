package tunnel

import (
	"io"
	"strings"
	"sync"
)

// causes are what ssh, the programs there and the server there say when something is missing, and what a user can do.
// Whatever else they say stands on the terminal as it is.
var causes = []struct{ says, means string }{
	{"Could not resolve hostname", "no host has this name; check how it is written, or give it a Host entry " +
		"with HostName in ~/.ssh/config"},
	{"Too many authentication failures", "ssh offers too many keys; name one in ~/.ssh/config, " +
		"with IdentityFile and IdentitiesOnly yes"},
	{"Permission denied (", "the login was refused; check the user's name, and give the machine your key: " +
		"ssh-copy-id USER@HOST"},
	{"Host key verification failed", "the machine's host key is unknown, or not the one that it had; log in by " +
		"hand, and compare the fingerprint"},
	{"Connection refused", "no ssh server listens there; start it (on Debian: apt install openssh-server), or name its " +
		"port: ssh://USER@HOST:PORT"},
	{"onnection timed out", unreachable},
	{"No route to host", unreachable},
	{"Network is unreachable", unreachable},
	{"This account is currently not available", "the user has no shell there; use another one"},
	{"No such container", "there is no such container; docker ps lists those that run"},
	{"permission denied while trying to connect to the Docker", "you may not use docker here; join the group docker"},
	{"No space left on device", "the disk there is full; make room, or name a folder on another one with --on-folder " +
		"FOLDER"},
	{"Disk quota exceeded", "your quota there is used up; make room, or name a folder elsewhere with --on-folder FOLDER"},
	{"version `GLIBC_", "the C library there is too old; scuda needs glibc 2.27 or newer: use a container with a " +
		"newer system"},
	{"libcuda.so.1 cannot be opened", "that machine has no NVIDIA driver; install it there until " +
		"nvidia-smi works there, or simulate a GPU with --serve-flags '--gpu sim'"},
}

const unreachable = "the machine does not answer; see that it is on, and whether a firewall or a jump host " +
	"(ProxyJump) stands before it"

// cause gives what a text means, "" for one that says nothing known.
func cause(text string) string {
	for _, c := range causes {
		if strings.Contains(text, c.says) {
			return c.means
		}
	}
	return ""
}

const maxTail = 8 << 10

// tail passes on what a command says, and keeps the end.
type tail struct {
	to io.Writer

	mu   sync.Mutex // guards kept
	kept []byte
}

// Write does not fail: the command goes on where nobody reads what it says.
func (t *tail) Write(b []byte) (int, error) {
	_, _ = t.to.Write(b)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	t.kept = t.kept[max(len(t.kept)-maxTail, 0):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
