package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api"
)

// Every exported function is called rightly, with wrong arguments, before the library is initialised and in a forked
// child (e2e/programs/answers.c); the answers are those that the driver of an H200 gave to the same program
// (testdata/answers/*.tsv, recorded by perf/gpu/answers.sh). What may differ by rule says mayDiffer; what differs
// beside stands with its reason in testdata/answers/allowed.
func TestAnswers(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	exceptions, local, sometimes :=
		readReasons(t, "allowed", 2), readReasons(t, "local", 1), readReasons(t, "sometimes", 2)
	unsimulated := readReasons(t, "unsimulated", 1)
	for name, library := range map[string]*api.Library{"cuda": spec.CUDA, "nvml": spec.NVML} {
		t.Run(name, func(t *testing.T) {
			s := serve(t) // sessions of killed programs, which wait for their clients, are processes to NVML
			folder := filepath.Join(root, "testdata/answers")
			text, err := os.ReadFile(filepath.Join(folder, name+".tsv"))
			if err != nil {
				t.Fatal(err)
			}
			want := parseAnswers(t, string(text))
			env := []string{"SCUDA_LOG=error"}
			if name == "cuda" {
				env = append(env, "ANSWERS_SENT="+symbol(t, lib+"/libcuda.so.1", "tail"))
			}
			p := start(t, s.env(env...), program("answers"), filepath.Join(folder, name+".calls"), "-j",
				fmt.Sprint(min(6, runtime.NumCPU())))
			if code := p.wait(patience); code != 0 {
				t.Fatalf("exit status %d\n%s", code, p.err)
			}
			got := parseAnswers(t, p.out.String())
			answered := want.answered()
			if out := os.Getenv("ANSWERS_OUT"); out != "" {
				if err := os.WriteFile(filepath.Join(out, name+"."+gpu+".tsv"), []byte(p.out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range want.cases {
				f := library.ByName[c.function]
				if f == nil {
					t.Fatalf("%s is no function", c.function)
				}
				native, ours := want.texts[c], got.texts[c]
				if native == ours {
					continue
				}
				if gpu == "sim" && isUnsupported(c.function, ours) {
					if !answered[c.function] {
						continue
					}
					if e := find(unsimulated, answerCase{c.function, ""}); e != nil {
						e.used = e.used || strings.HasPrefix(native+" ", "0 ")
						continue
					}
				}
				if mayDiffer(f, c, native, ours) {
					continue
				}
				if e := find(exceptions, c); e != nil {
					e.used = true
					continue
				}
				t.Errorf("%s %s: natively %q, here %q", c.function, c.name, native, ours)
			}
			for _, c := range got.quiet {
				f, base := library.ByName[c.function], c
				if f.PTSZ {
					base.function = f.Base
				}
				if e := find(local, answerCase{base.function, ""}); e != nil {
					continue // always
				}
				if find(sometimes, base) != nil {
					continue
				}
				t.Errorf("%s %s: a success without a command, and testdata/answers/sometimes does not say why", c.function, c.name)
			}
			for c, ours := range got.texts { // whether such a call finds anything to do may be a matter of time
				if e := find(sometimes, c); e != nil && strings.HasPrefix(ours+" ", "0 ") {
					e.used = true
				}
			}
			for c, ours := range got.texts {
				if _, ok := want.texts[c]; !ok {
					t.Errorf("%s %s: %q here, and not recorded: run perf/gpu/answers.sh on the GPU machine", c.function, c.name, ours)
				}
			}
		})
	}
	for _, e := range exceptions {
		if !e.used && gpu == "sim" { // what a GPU machine answers depends on who else uses it
			t.Errorf("testdata/answers/allowed:%d: nothing differs: remove the line", e.line)
		}
	}
	for _, e := range unsimulated {
		if !e.used && gpu == "sim" {
			t.Errorf("testdata/answers/unsimulated:%d: the simulated GPU supports it: remove the line", e.line)
		}
	}
	for _, e := range sometimes {
		if !e.used && gpu == "sim" {
			t.Errorf("testdata/answers/sometimes:%d: no such call succeeds: remove the line", e.line)
		}
	}
}

type answerCase struct{ function, name string }

type answerSet struct {
	cases []answerCase
	quiet []answerCase // successes without a command
	texts map[answerCase]string
}

func parseAnswers(t *testing.T, text string) answerSet {
	t.Helper()
	out := answerSet{texts: map[answerCase]string{}}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 && (len(f) != 4 || f[3] != "quiet" && f[3] != "sent") {
			t.Fatalf("want three columns, or a fourth with quiet or sent: %q", line)
		}
		c := answerCase{f[0], f[1]}
		if len(f) == 4 && f[3] == "quiet" {
			out.quiet = append(out.quiet, c)
		}
		if _, ok := out.texts[c]; ok {
			t.Fatalf("twice: %q", line)
		}
		out.cases = append(out.cases, c)
		out.texts[c] = f[2]
	}
	return out
}

func isNumber(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// answered are the functions to which the driver has a right answer.
func (s answerSet) answered() map[string]bool {
	out := map[string]bool{}
	for c, text := range s.texts {
		if strings.HasPrefix(text+" ", "0 ") {
			out[c.function] = true
		}
	}
	return out
}

// isUnsupported says whether an answer is that the simulated GPU does not do it, or that something is missing which it
// does not make.
func isUnsupported(function, answer string) bool {
	return answer == "801" || answer == "3" && strings.HasPrefix(function, "nvml") || strings.HasPrefix(answer, "no ")
}

// mayDiffer are the rules:
//   - what is not supported says so, whatever the driver says to the arguments;
//   - where the driver crashes, hangs or destroys its memory, there is an error;
//   - garbage and destroyed objects in the place of handles are an error, whatever the driver finds at their address;
//   - in a forked child, where the driver works on as if nothing were wrong, there is CUDA_ERROR_NOT_INITIALIZED;
//   - what would change the machine is not permitted;
//   - NULL is an invalid argument of NVML, also where the driver would not look at it.
//
// What the simulated GPU does not support may say so where the driver has no right answer either; where it has one,
// testdata/answers/unsimulated says why.
func mayDiffer(f *api.Func, c answerCase, native, ours string) bool {
	if f.PTSZ {
		c.function = f.Base
	}
	code, _, _ := strings.Cut(native, " ")
	switch {
	case strings.HasPrefix(native, "no "):
		return isNumber(strings.Fields(ours)[0]) || strings.HasPrefix(ours, "no ")
	case f.Class == api.Unsupported || f.Class == api.Missing:
		return ours == "801" || ours == "3"
	case !isNumber(code):
		return isNumber(ours) && ours != "0"
	case strings.HasSuffix(c.name, "=junk"), strings.HasSuffix(c.name, "=dead"):
		return isNumber(ours) && ours != "0"
	case strings.HasPrefix(c.function, "nvml") && strings.HasSuffix(c.name, "=null") && ours == "2":
		return true
	case c.name == "child" && strings.HasPrefix(c.function, "cu"):
		return ours == "3"
	case f.Flag("denied"):
		return ours == "4"
	}
	return false
}

// TestAnswersAreWhole: every exported function has its calls and their recorded answers; where none of them is a right
// one, the API description or testdata/answers/wanting says why.
func TestAnswersAreWhole(t *testing.T) {
	spec, err := api.Load()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(root, "testdata/answers")
	reasons := readReasons(t, "wanting", 1)
	for name, library := range map[string]*api.Library{"cuda": spec.CUDA, "nvml": spec.NVML} {
		text, err := os.ReadFile(filepath.Join(folder, name+".tsv"))
		if err != nil {
			t.Fatal(err)
		}
		recorded := parseAnswers(t, string(text))
		rows, wrong := map[string]int{}, map[string]int{}
		for _, c := range recorded.cases {
			rows[c.function]++
			if strings.Contains(c.name, "=") {
				wrong[c.function]++
			}
		}
		calls, err := os.ReadFile(filepath.Join(folder, name+".calls"))
		if err != nil {
			t.Fatal(err)
		}
		called := map[string]bool{}
		for line := range strings.Lines(string(calls)) {
			words := strings.Fields(line)
			if words[0] == "#" {
				continue
			}
			called[words[0]] = true
			for _, kind := range []string{"before", "right", "child", "wrong"} {
				_, there := recorded.texts[answerCase{words[0], kind}]
				if kind == "wrong" {
					there = wrong[words[0]] > 0 || len(words) == 2 || strings.Contains(words[1], ",right,")
				}
				if !there && !strings.Contains(words[1], ","+kind+",") {
					t.Errorf("%s (%s) has no answer: run perf/gpu/answers.sh on the GPU machine", words[0], kind)
				}
			}
		}
		for function, f := range library.ByName {
			if !called[function] && !strings.HasPrefix(function, "cudbg") {
				t.Errorf("%s has no calls: run go run ./api/gen", function)
			}
			code, _, _ := strings.Cut(recorded.texts[answerCase{function, "right"}], " ")
			said := f.Class == api.Unsupported || f.Class == api.Missing || f.Class == api.Refused || f.Flag("denied")
			if code == "0" || said && rows[function] > 0 {
				continue
			}
			if find(reasons, answerCase{function, ""}) == nil {
				t.Errorf("%s: %d answers, none of them right (%q), and no reason in testdata/answers/wanting", function,
					rows[function], code)
			}
		}
		for _, e := range reasons {
			for function := range library.ByName {
				if match(e.function, function) {
					e.used = e.used || !strings.HasPrefix(recorded.texts[answerCase{function, "right"}]+" ", "0 ")
				}
			}
		}
	}
	for _, e := range reasons {
		if !e.used {
			t.Errorf("testdata/answers/wanting:%d: no function lacks a right answer for it: remove the line", e.line)
		}
	}
}

// exception is a line "FUNCTION CASE [sim|real] # reason" of testdata/answers/allowed, or "FUNCTION # reason" of
// wanting; * and ? stand for parts of names.
type exception struct {
	function, name string
	line           int
	used           bool
}

// readReasons reads the lines of a file that name so many things, and a side or none.
func readReasons(t *testing.T, name string, things int) []*exception {
	t.Helper()
	file, err := os.Open(filepath.Join(root, "testdata/answers", name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out []*exception
	s := bufio.NewScanner(file)
	for n := 1; s.Scan(); n++ {
		text, reason, _ := strings.Cut(s.Text(), "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		if len(words) < things || len(words) > 3 || things == 1 && len(words) > 1 || strings.TrimSpace(reason) == "" {
			t.Fatalf("%s:%d: want FUNCTION [CASE [sim|real]] # reason", name, n)
		}
		words = append(words, "", "")[:3]
		if words[2] == "" || words[2] == gpu {
			out = append(out, &exception{words[0], words[1], n, false})
		}
	}
	return out
}

func match(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

func find(exceptions []*exception, c answerCase) *exception {
	i := slices.IndexFunc(exceptions, func(e *exception) bool {
		return match(e.function, c.function) && match(e.name, c.name)
	})
	if i < 0 {
		return nil
	}
	return exceptions[i]
}
