package e2e

import (
	"bufio"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api"
)

// TestNothingIsClaimed: a function that never sends a command, whatever its arguments, either answers an error always
// (missing, unsupported, refused), or stands in testdata/answers/local with the reason why nothing had to be done
// elsewhere. The code itself says which they are: no path of calls leads from them to the one function that begins
// every command.
func TestNothingIsClaimed(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	senders := callersOf(t, lib+"/libcuda.so.1", "scuda_begin",
		"scuda_divert",       // to the machine's own driver, or none
		"scuda_thread_new",   // whose end is told to the server
		"scuda_answer_error") // an error's line in the log
	if len(senders) < 400 {
		t.Fatalf("%d functions send commands: the calls were not read rightly", len(senders))
	}
	reasons := readReasons(t, "local", 1)
	for name, f := range spec.CUDA.ByName {
		if f.Class == api.Missing || f.Class == api.Unsupported || f.Class == api.Refused {
			if senders[name] {
				t.Errorf("%s sends something, though it is %v", name, f.Class)
			}
			continue
		}
		if f.PTSZ {
			name = f.Base
		}
		var e *exception
		if i := slices.IndexFunc(reasons, func(e *exception) bool { return match(e.function, name) }); i >= 0 {
			e = reasons[i]
		}
		switch {
		case senders[f.Name]:
		case e == nil:
			t.Errorf("%s succeeds without a command, and testdata/answers/local does not say why", name)
		default:
			e.used = true
		}
	}
	asking := callersOf(t, lib+"/libnvidia-ml.so.1", "nvml_exchange")
	if len(asking) < 350 {
		t.Fatalf("%d functions of NVML ask the server: the calls were not read rightly", len(asking))
	}
	for name := range spec.NVML.ByName {
		if asking[name] {
			continue
		}
		if e := find(reasons, answerCase{name, ""}); e != nil {
			e.used = true
		} else {
			t.Errorf("%s answers without the server, and testdata/answers/local does not say why", name)
		}
	}
	for _, e := range reasons {
		if !e.used {
			t.Errorf("testdata/answers/local:%d: such a function sends commands or is none: remove the line", e.line)
		}
	}
}

// callersOf gives the functions of a library from which calls, jumps and addresses taken lead to target, other than
// through one of cut.
func callersOf(t *testing.T, library, target string, cut ...string) map[string]bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "objdump", "-d", "--no-show-raw-insn", library).Output()
	if err != nil {
		t.Fatal(err)
	}
	head, mention := regexp.MustCompile(`^[0-9a-f]+ <([^>]+)>:$`),
		regexp.MustCompile(`<([A-Za-z_][\w.]*)(\+0x[0-9a-f]+)?>`)
	callers := map[string][]string{}
	from := ""
	for s := bufio.NewScanner(strings.NewReader(string(out))); s.Scan(); {
		if m := head.FindStringSubmatch(s.Text()); m != nil {
			from = m[1]
		} else if m := mention.FindStringSubmatch(s.Text()); m != nil && m[1] != from && !slices.Contains(cut, from) {
			callers[m[1]] = append(callers[m[1]], from)
		}
	}
	seen := map[string]bool{target: true}
	for next := []string{target}; len(next) > 0; next = next[1:] {
		for _, c := range callers[next[0]] {
			if !seen[c] {
				seen[c] = true
				next = append(next, c)
			}
		}
	}
	return seen
}

// symbol gives the address of a variable of a library, in hexadecimal.
func symbol(t *testing.T, library, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nm", library).Output()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^([0-9a-f]+) [bBdD] `+name+`$`).FindAllStringSubmatch(string(out), -1)
	if len(m) != 1 {
		t.Fatalf("%s has %d variables named %s", library, len(m), name)
	}
	return m[0][1]
}

// TestRefusals: what functions do not support in part is refused and logged once, by a function that stands with it in
// docs/compatibility.md, in the words there.
func TestRefusals(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t)
	p := start(t, s.env("SCUDA_LOG=warn"), program("refused"), kernels)
	if code := p.wait(patience); code != 0 {
		t.Fatalf("exit status %d\n%s%s", code, p.out, p.err)
	}
	// The server's own, which are in its log, and what the simulated GPU has nothing for.
	left := map[string]bool{"kernel_node": true, "private_slot": true, "io_memory": true, "engines": true}
	text := p.err.String()
	for _, part := range spec.CUDA.Parts {
		said := 0
		for _, f := range part.Funcs {
			n := strings.Count(text, f+": "+part.Text+"; answered CUDA_ERROR_NOT_SUPPORTED")
			if n > 1 {
				t.Errorf("%s is told %d times of %s", f, n, part.Key)
			}
			said += n
		}
		if said == 0 == !left[part.Key] {
			t.Errorf("part %s was logged %d times", part.Key, said)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
