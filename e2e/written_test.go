package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestWritten: of the buffers that a call is given, it writes the bytes that NVIDIA's library writes, and no others.
// Programs are older than structures: what is written behind their end is somebody else's. The buffers are marked
// (e2e/programs/answers.c, -w); what an H200's driver wrote is testdata/answers/*.written, recorded by
// perf/gpu/answers.sh; what may differ stands with its reason in testdata/answers/allowed.written.
func TestWritten(t *testing.T) {
	s := serve(t)
	exceptions := readReasons(t, "allowed.written", 2)
	for _, library := range []string{"cuda", "nvml"} {
		t.Run(library, func(t *testing.T) {
			folder := filepath.Join(root, "testdata/answers")
			text, err := os.ReadFile(filepath.Join(folder, library+".written"))
			if err != nil {
				t.Fatal(err)
			}
			want := parseAnswers(t, string(text))
			p := start(t, s.env("SCUDA_LOG=error"), program("answers"), filepath.Join(folder, library+".calls"), "-w", "-j",
				fmt.Sprint(min(6, runtime.NumCPU())))
			if code := p.wait(patience); code != 0 {
				t.Fatalf("exit status %d\n%s", code, p.err)
			}
			got := parseAnswers(t, p.out.String())
			for _, c := range got.cases {
				native, ok := want.texts[c]
				why := "not recorded: run perf/gpu/answers.sh on the GPU machine"
				if ok {
					why = compareWritten(c, parseWritten(t, native), parseWritten(t, got.texts[c]))
				}
				if why == "" {
					continue
				}
				if e := find(exceptions, c); e != nil {
					e.used = true
					continue
				}
				t.Errorf("%s %s: %s: natively %q, here %q", c.function, c.name, why, native, got.texts[c])
			}
			for _, c := range want.cases {
				if _, ok := got.texts[c]; !ok {
					t.Errorf("%s %s is recorded, but was not called", c.function, c.name)
				}
			}
		})
	}
	for _, e := range exceptions {
		if !e.used && gpu == "sim" {
			t.Errorf("testdata/answers/allowed.written:%d: nothing differs: remove the line", e.line)
		}
	}
}

// written is what a call did: its answer, and for each buffer the bytes that it wrote.
type written struct {
	code    string // "": not called, or it did not come back
	buffers map[string]buffer
}

type buffer struct {
	from    int // bytes before it were not marked
	extents [][2]int
}

// parseWritten reads "0 info=0-16,20-36 count+4=".
func parseWritten(t *testing.T, text string) written {
	t.Helper()
	words := strings.Split(text, " ")
	w := written{buffers: map[string]buffer{}}
	if !isNumber(words[0]) {
		return w
	}
	w.code = words[0]
	for _, word := range words[1:] {
		name, list, ok := strings.Cut(word, "=")
		if !ok {
			return written{} // the answers of the calls with marks differed
		}
		b := buffer{}
		if n, from, ok := strings.Cut(name, "+"); ok {
			name, b.from = n, number(t, from)
		}
		for text := range strings.SplitSeq(list, ",") {
			if from, to, ok := strings.Cut(text, "-"); ok {
				b.extents = append(b.extents, [2]int{number(t, from), number(t, to)})
			}
		}
		w.buffers[name] = b
	}
	return w
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// compareWritten says what differs. A call that ends with another error than natively (TestAnswers judges that) may
// have written less; so may one with garbage in the place of a handle. One that succeeds here alone has outputs of its
// own.
func compareWritten(c answerCase, native, ours written) string {
	if native.code == "" || ours.code == "" || ours.code == "0" && native.code != "0" {
		return ""
	}
	less := native.code != ours.code || strings.HasSuffix(c.name, "=junk") || strings.HasSuffix(c.name, "=dead")
	for _, name := range slices.Sorted(maps.Keys(ours.buffers)) {
		n, o := native.buffers[name], ours.buffers[name]
		for at := range max(end(n), end(o)) {
			switch there, here := n.has(at), o.has(at); {
			case at < n.from || at < o.from:
			case here && !there:
				return fmt.Sprintf("byte %d of %s is overwritten", at, name)
			case there && !here && !less:
				return fmt.Sprintf("byte %d of %s is not written", at, name)
			}
		}
	}
	return ""
}

func end(b buffer) int {
	if len(b.extents) == 0 {
		return 0
	}
	return b.extents[len(b.extents)-1][1]
}

func (b buffer) has(at int) bool {
	return slices.ContainsFunc(b.extents, func(e [2]int) bool { return e[0] <= at && at < e[1] })
}

func TestCompareWritten(t *testing.T) {
	for _, c := range []struct{ name, native, ours, want string }{
		{"right", "0 info=0-13,16-32", "0 info=0-13,16-32", ""},
		{"right", "0 info=0-13,16-32", "0 info=0-68", "byte 13 of info is overwritten"},
		{"right", "0 info=0-8", "0 info=0-4", "byte 4 of info is not written"},
		{"right", "0 info=0-8", "3 info=", ""},
		{"right", "0 info=", "3 info=0-1", "byte 0 of info is overwritten"},
		{"right", "3 info=", "0 info=0-1", ""},
		{"x=junk", "1 info=0-8", "1 info=", ""},
		{"right", "0 info+8=", "0 info=0-8", ""},
		{"right", "0 info+8=", "0 info=0-9", "byte 8 of info is overwritten"},
		{"right", "SIGSEGV", "0 info=0-9", ""},
	} {
		if got := compareWritten(answerCase{"f", c.name}, parseWritten(t, c.native), parseWritten(t, c.ours)); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.native, c.ours, got, c.want)
		}
	}
}
