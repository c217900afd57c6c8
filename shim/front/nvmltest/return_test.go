package nvmltest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"scuda.dev/scuda/transport"
)

// TestReturn: where a connection breaks another session answers what is asked, with the handles of GPUs that the
// program has. What may have changed something is not said twice, and what only the first session knew is lost with it.
func TestReturn(t *testing.T) {
	const lost = "ERROR_GPU_IS_LOST \nERROR_GPU_IS_LOST \n"
	for name, c := range map[string]struct{ does, resume, want string }{
		"a question":                    {"ask", "", "SUCCESS another\nSUCCESS another\n"},
		"as it is by default":           {"ask", "1", "SUCCESS another\nSUCCESS another\n"},
		"switched off":                  {"ask", " 0", lost},
		"a command":                     {"set", "", lost},
		"a handle of the first session": {"hold", "", lost},
	} {
		t.Run(name, func(t *testing.T) {
			srv := startServer(t, "")
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = environment(t, roleVariable+"=return", "SCUDA_TEST_LIBRARY="+library, "SCUDA_SERVER="+srv.addr,
				"SCUDA_TEST_DOES="+c.does, "SCUDA_RESUME="+c.resume)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var errs strings.Builder
			cmd.Stderr = &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines, got := bufio.NewReader(out), ""
			for range 2 {
				if _, err := lines.ReadString('\n'); err != nil {
					t.Error(err)
				}
				srv.hangUp()
				fmt.Fprintln(in, "go on")
				line, _ := lines.ReadString('\n')
				got += line
			}
			if err := cmd.Wait(); err != nil || got != c.want {
				t.Errorf("%v, %q, want %q", err, got, c.want)
			}
			if n := strings.Count(errs.String(), "lost the server"); n != strings.Count(c.want, lost) {
				t.Errorf("stderr %q", errs.String())
			}
		})
	}
}

// TestEndedSession: who was told that the session ends does not open another one.
func TestEndedSession(t *testing.T) {
	const said = "an administrator ends this session"
	w, err := transport.AppendWelcome(nil, &transport.Welcome{Status: transport.StatusOK})
	if err != nil {
		t.Fatal(err)
	}
	var sessions atomic.Int32
	address := listen(t, func(conn net.Conn) {
		sessions.Add(1)
		_, _ = conn.Read(make([]byte, 4096))
		var chain transport.Chain
		text := slices.Clone(w)
		for _, h := range []transport.MessageHeader{
			{Type: transport.MsgReply}, // to nvmlInit
			{Type: transport.MsgReply, Seq: transport.CommandHeaderSize + 8, Result: int32(gonvml.ERROR_NOT_SUPPORTED)},
			{Type: transport.MsgNotice, Len: uint32(len(said))},
		} {
			h.Flags = chain.Next(&h)
			text = h.Append(text)
		}
		_, _ = conn.Write(append(append(text, said...), make([]byte, transport.Pad(len(said))-len(said))...))
	})
	out, errs := as(t, "return", "SCUDA_SERVER="+address, "SCUDA_TEST_DOES=ask")
	if n := sessions.Load(); n != 1 || strings.Count(out, "ERROR_GPU_IS_LOST \n") != 2 || !strings.Contains(errs, said) {
		t.Errorf("%d sessions, %q %q", n, out, errs)
	}
}

// askAgain is the program of these tests.
func askAgain(lib gonvml.Interface, r gonvml.Return) {
	does := os.Getenv("SCUDA_TEST_DOES")
	d, _ := lib.DeviceGetHandleByIndex(1)
	if does == "hold" {
		_, r = lib.EventSetCreate()
	}
	for range 2 {
		var wait, text string
		fmt.Println(name(r))
		fmt.Scanln(&wait, &wait)
		if does == "set" {
			r = d.SetPowerManagementLimit(600_000)
		} else {
			text, r = d.GetName()
		}
		fmt.Println(name(r), text)
	}
}
