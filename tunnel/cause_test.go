package tunnel

import (
	"bytes"
	"strings"
	"testing"
)

func TestCause(t *testing.T) {
	for text, want := range map[string]string{
		"ssh: Could not resolve hostname gpu1: Name or service not known":                      "~/.ssh/config",
		"me@gpu1: Permission denied (publickey,password).":                                     "ssh-copy-id",
		"mkdir: cannot create directory '/x': Permission denied":                               "",
		"ssh: connect to host gpu1 port 22: Connection refused":                                "ssh://USER@HOST:PORT",
		"ssh: connect to host gpu1 port 22: Connection timed out":                              "firewall",
		"gzip: stdout: No space left on device":                                                "make room",
		"scuda: /lib/libc.so.6: version `GLIBC_2.34' not found (required by scuda)":            "too old",
		"libcuda.so.1 cannot be opened: no such file; install NVIDIA's driver on this machine": "until nvidia-smi works",
		"anything else": "",
	} {
		if got := cause(text); got == "" != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func TestTail(t *testing.T) {
	var out bytes.Buffer
	said := &tail{to: &out}
	for range 3 {
		if n, err := said.Write(bytes.Repeat([]byte("x"), maxTail)); n != maxTail || err != nil {
			t.Fatal(n, err)
		}
	}
	_, _ = said.Write([]byte("end"))
	if got := said.String(); out.Len() != 3*maxTail+3 || len(got) != maxTail || !strings.HasSuffix(got, "xend") {
		t.Errorf("%d bytes passed, %d kept", out.Len(), len(got))
	}
}
