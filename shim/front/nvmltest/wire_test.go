package nvmltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
)

// TestAnswersOutOfOrder: an answer that something on the way doubles, drops, exchanges or changes, and one that the
// server gives to another call, is not taken for an answer.
func TestAnswersOutOfOrder(t *testing.T) {
	w, err := transport.AppendWelcome(nil, &transport.Welcome{Status: transport.StatusOK})
	if err != nil {
		t.Fatal(err)
	}
	// to nvmlInitWithFlags and nvmlDeviceGetCount_v2, with which a session begins
	heads := func(seqs ...uint64) (list []string) {
		var chain transport.Chain
		for i, seq := range seqs {
			h := transport.MessageHeader{Type: transport.MsgReply, Len: uint32(16 * i), Seq: seq}
			h.Flags = chain.Next(&h)
			list = append(list, string(h.Append(nil))+strings.Repeat("\x01\x00\x00\x00\x00\x00\x00\x00", 2*i))
		}
		return list
	}
	const init, count = 0, transport.CommandHeaderSize + 8
	right := heads(init, count)
	for name, c := range map[string]struct{ answers, want string }{
		"right":             {right[0] + right[1], "SUCCESS"},
		"doubled":           {right[0] + right[0] + right[1], "ERROR_GPU_IS_LOST"},
		"dropped":           {right[1], "ERROR_GPU_IS_LOST"},
		"exchanged":         {right[1] + right[0], "ERROR_GPU_IS_LOST"},
		"changed":           {right[0][:12] + "\x07" + right[0][13:] + right[1], "ERROR_GPU_IS_LOST"},
		"to another call":   {strings.Join(heads(init, count+8), ""), "ERROR_GPU_IS_LOST"},
		"to the same twice": {strings.Join(heads(init, init), ""), "ERROR_GPU_IS_LOST"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs := as(t, "init", "SCUDA_SERVER="+peer(t, string(w)+c.answers))
			if out != c.want+"\n" || strings.Contains(errs, "lost the server") != (c.want != "SUCCESS") {
				t.Errorf("%q %q", out, errs)
			}
		})
	}
}

// TestLeave: a program takes its leave with nvmlShutdown, and where it ends without. The first program is one in C,
// which ends without. The second one is this one, which calls nvmlShutdown: a program in Go runs no destructors when it
// ends (but with the race detector it does), so of a session that it leaves open the server only sees the connection's
// end.
func TestLeave(t *testing.T) {
	srv := startServer(t, "")
	names := filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(names, []byte("nvmlSystemGetCudaDriverVersion_v2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), callAll, library, names, "init")
	cmd.Env = environment(t, "SCUDA_SERVER="+srv.addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	leaves := func(sessions int32) {
		t.Helper()
		for began := time.Now(); srv.byes.Load() < sessions; time.Sleep(time.Millisecond) {
			if time.Since(began) > 2*time.Minute {
				t.Fatalf("%d of %d sessions were taken leave of", srv.byes.Load(), srv.sessions.Load())
			}
		}
	}
	leaves(1)
	as(t, "ask", "SCUDA_SERVER="+srv.addr)
	leaves(2)
}
