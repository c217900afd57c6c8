package baseline

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"scuda.dev/scuda/ebpf"
)

// program makes known system calls on a file, a pipe, a device and, with a port, a TCP connection; half of them in a
// child.
const program = `
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
static void work(int port) {
  char b[8] = {0};
  int file = open("/proc/self/stat", O_RDONLY), device = open("/dev/zero", O_RDWR), ends[2];
  if (pipe(ends)) exit(1);
  for (int i = 0; i < 5; i++)
    if (pread(file, b, 1, 0) != 1 || read(device, b, 8) != 8 || write(device, b, 8) != 8) exit(2);
  for (int i = 0; i < 3; i++) if (write(ends[1], b, 1) != 1 || read(ends[0], b, 1) != 1) exit(3);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int s = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(s, (void *)&to, sizeof to)) exit(4);
  for (int i = 0; i < 4; i++)
    if (send(s, b, 2, 0) != 2 || write(s, b, 2) != 2 || recv(s, b, 4, MSG_WAITALL) != 4) exit(5);
  close(s);
  close(file);
}
int main(int argc, char **argv) {
  int status;
  work(atoi(argv[1]));
  if (fork() == 0) {
    work(atoi(argv[1]));
    _exit(0);
  }
  wait(&status);
  return status != 0;
}
`

// echo answers on loopback.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 64)
			for {
				n, err := c.Read(b)
				if err != nil {
					break
				}
				if _, err := c.Write(b[:n]); err != nil {
					break
				}
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestCounters: strace and the probes count the same, and what the program did.
func TestCounters(t *testing.T) {
	folder := t.TempDir()
	source, binary := filepath.Join(folder, "p.c"), filepath.Join(folder, "p")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O1", "-static", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	port := echo(t)
	counters := []Counter{Strace, Probes}
	if os.Getenv("SCUDA_TEST_NO_BPF") == "1" {
		counters = counters[:1]
	} else if err := ebpf.Able(); err != nil {
		t.Fatalf("the probes cannot be tested here: %v (SCUDA_TEST_NO_BPF=1 leaves these tests out)", err)
	}
	for _, counter := range counters {
		t.Run(string(counter), func(t *testing.T) {
			r, err := Config{Command: []string{binary, port}, Counter: counter}.Count(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := []Count{
				{"close", "file", 2}, {"close", "network", 2}, {"openat", "", 4}, {"pread64", "file", 10}, {"read", "device", 10},
				{"read", "other", 6},
				{"recvfrom", "network", 8}, {"sendto", "network", 8}, {"write", "device", 10}, {"write", "network", 8},
				{"write", "other", 6},
			}
			if diff := cmp.Diff(want, r.Calls); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if n := r.Sum(reads, "network"); n != 8 {
				t.Errorf("%d reads of the network", n)
			}
		})
	}
}

func TestParseStrace(t *testing.T) {
	got, err := parseStrace(strings.NewReader(`12 read(3</etc/x>, ""..., 832) = 832
12 read(5<TCP:[127.0.0.1:1->127.0.0.1:2]>,  <unfinished ...>
13 read(6<TCPv6:[[::1]:1->[::1]:2]>, ""..., 4) = 4
12 <... read resumed>""..., 4) = 4
12 openat(AT_FDCWD</tmp>, "a", O_RDONLY) = 3</tmp/a>
12 open("/b", O_RDONLY) = -1 ENOENT (No such file or directory)
12 read(7</dev/zero<char 1:5>>, ""..., 4) = 4
12 close(7<pipe:[123]>) = 0
12 close(9) = -1 EBADF (Bad file descriptor)
12 sendmsg(5<UNIX:[1->2]>, {}, 0) = 1
`))
	if err != nil {
		t.Fatal(err)
	}
	r := &Run{Calls: got}
	for _, c := range []struct {
		call, class string
		want        uint64
	}{{"read", "", 4}, {"read", "network", 2}, {"read", "file", 1}, {"read", "device", 1}, {"openat", "", 1},
		{"open", "", 1}, {"close", "other", 2}, {"sendmsg", "other", 1}} {
		if n := r.Sum([]string{c.call}, c.class); n != c.want {
			t.Errorf("%s %s: %d, want %d", c.call, c.class, n, c.want)
		}
	}
}

func FuzzParseStrace(f *testing.F) {
	f.Add("12 read(3</etc/x>, \"\", 832) = 832\n")
	f.Fuzz(func(t *testing.T, text string) {
		counts, err := parseStrace(strings.NewReader(text))
		for _, c := range counts {
			if err == nil && (c.Calls == 0 || c.Call == "") {
				t.Errorf("%+v", c)
			}
		}
	})
}

func TestTable(t *testing.T) {
	base := &Run{Calls: []Count{{"read", "file", 100}, {"close", "file", 9}}}
	r := &Run{
		Calls: []Count{{"read", "file", 103}, {"read", "network", 2}, {"sendmsg", "network", 1}, {"close", "file", 9}},
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b, base); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{{"105", "103", "2", "5", "2", "read"}, {"9", "9", "0", "0", "0", "close"},
		{"1", "0", "1", "1", "1", "everything that writes"}} {
		found := false
		for line := range strings.SplitSeq(b.String(), "\n") {
			found = found || strings.Join(strings.Fields(line), " ") == strings.Join(want, " ")
		}
		if !found {
			t.Errorf("no line %v in\n%s", want, b.String())
		}
	}
}

func TestFailingProgram(t *testing.T) {
	r, err := Config{Command: []string{"false"}, Counter: Strace}.Count(t.Context())
	var ended *exec.ExitError
	if !errors.As(err, &ended) || r == nil {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := (Config{}).Count(t.Context()); err == nil {
		t.Error("counted no program")
	}
}
