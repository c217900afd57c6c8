package api

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "add what is new to the golden file")

const goldenNumbers = "testdata/numbers.golden"

// numbered is what has a number that programs of other releases send: "KIND NUMBER NAME".
func numbered(s *Spec) (out []string) {
	for _, o := range s.Operations {
		out = append(out, fmt.Sprintf("%s %d %s", o.Library, o.Number, o.Name))
	}
	for _, w := range slices.Concat(s.Wire, s.Removed) {
		if w.Op != 0 {
			out = append(out, fmt.Sprintf("wire %#x %s", w.Op, w.Name))
		}
	}
	for _, set := range s.Sets {
		for _, v := range set.Values {
			out = append(out, fmt.Sprintf("%s %d %s", set.Name, v.Value, v.Name))
		}
	}
	return out
}

// compareNumbers says what of the golden lines does not stand in the description any more, and which of the
// description's are new.
func compareNumbers(golden, now []string) (lost, added []string) {
	split := func(line string) (number, name string) {
		f := strings.Fields(line)
		return f[0] + " " + f[1], f[0] + " " + f[2]
	}
	numbers, names := map[string]string{}, map[string]string{}
	for _, line := range now {
		number, name := split(line)
		numbers[number], names[name] = line, line
	}
	for _, line := range golden {
		number, name := split(line)
		switch {
		case numbers[number] == line:
		case names[name] != "":
			lost = append(lost, line+" is now "+names[name])
		case numbers[number] != "":
			lost = append(lost, line+" gave its number to "+numbers[number])
		default:
			lost = append(lost, line+" is gone: its number has to stay reserved")
		}
	}
	for _, line := range now {
		if !slices.Contains(golden, line) {
			added = append(added, line)
		}
	}
	return lost, added
}

// TestNumbersStay: numbers of operations never change and never get another meaning. What is new is added by go test
// ./api -run TestNumbersStay -update.
func TestNumbersStay(t *testing.T) {
	text, err := os.ReadFile(goldenNumbers)
	if err != nil && !*update {
		t.Fatal(err)
	}
	golden := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(text) == 0 {
		golden = nil
	}
	lost, added := compareNumbers(golden, numbered(load(t)))
	for _, line := range lost {
		t.Error(line)
	}
	if *update && len(lost) == 0 {
		golden = append(golden, added...)
		if err := os.WriteFile(goldenNumbers, []byte(strings.Join(golden, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, line := range added {
		t.Errorf("%s is new: add it to %s with -update", line, goldenNumbers)
	}
}

func TestCompareNumbers(t *testing.T) {
	golden := []string{"cuda 1 a", "cuda 2 b", "wire 0xf000 launch"}
	for _, c := range []struct {
		now         []string
		lost, added string
	}{
		{golden, "", ""},
		{[]string{"cuda 1 a", "cuda 2 b", "wire 0xf000 launch", "nvml 1 a"}, "", "nvml 1 a"},
		{[]string{"cuda 1 b", "cuda 2 a", "wire 0xf000 launch"}, "cuda 1 a is now cuda 2 a,cuda 2 b is now cuda 1 b",
			"cuda 1 b,cuda 2 a"},
		{[]string{"cuda 1 a", "cuda 2 c", "wire 0xf000 launch"}, "cuda 2 b gave its number to cuda 2 c", "cuda 2 c"},
		{[]string{"cuda 1 a", "cuda 2 b"}, "wire 0xf000 launch is gone: its number has to stay reserved", ""},
	} {
		lost, added := compareNumbers(golden, c.now)
		if strings.Join(lost, ",") != c.lost || strings.Join(added, ",") != c.added {
			t.Errorf("%v: lost %q, added %q", c.now, lost, added)
		}
	}
}

// TestOperations: a new function gets the next number, whatever its place among the names; a removed one keeps its own.
func TestOperations(t *testing.T) {
	s := load(t)
	top := slices.MaxFunc(s.Operations, func(a, b Operation) int {
		if a.Library != b.Library {
			return strings.Compare(b.Library, a.Library) // cuda
		}
		return int(a.Number) - int(b.Number)
	})
	grown, err := loadFrom(edited(t, "facts/libcuda-exports.txt", "cuArrayCreate\n", "cuArrayCreate\ncuAAA\n",
		"cuda.semantics", "cuArrayCreate ", "cuAAA local\ncuArrayCreate "))
	if err != nil {
		t.Fatal(err)
	}
	for name, fn := range grown.CUDA.ByName {
		if before := s.CUDA.ByName[name]; before != nil && fn.Op != before.Op {
			t.Errorf("%s had %d and has %d", name, before.Op, fn.Op)
		}
	}
	if got := (Operation{"cuda", top.Number + 1, "cuAAA", false}); !slices.Contains(grown.Operations, got) {
		t.Errorf("no %v", got)
	}
	gone := "cuda\t2\tcuGone\tremoved"
	_, err = loadFrom(edited(t, operationsFile, "cuda\t2\tcuArray3DCreate_v2", gone))
	if err != nil {
		t.Error(err)
	}
	for _, bad := range []struct{ old, new, want string }{
		{"cuda\t2\tcuArray3DCreate_v2", "cuda\t1\tcuArray3DCreate_v2", "line above"},
		{"cuda\t2\tcuArray3DCreate_v2", "cuda\t2\tcuArray3DCreate", "line above"},
		{"cuda\t2\tcuArray3DCreate_v2", "cuda\t2\tcuGone", "removed"},
		{"cuda\t2\tcuArray3DCreate_v2", "cuda\t2\tcuArray3DCreate_v2\tremoved", "there is such a function"},
		{"cuda\t2\tcuArray3DCreate_v2", "cuda\t2\tcuArray3DCreate_v2\tretired", "want:"},
		{"cuda\t2\t", "cuda\t0\t", "is no number"},
		{"cuda\t2\t", "cuda\t61440\t", "is no number"},
		{"cuda\t2\t", "cudb\t2\t", "want:"},
	} {
		if _, err := loadFrom(edited(t, operationsFile, bad.old, bad.new)); !errors.Is(err, ErrInput) ||
			!strings.Contains(err.Error(), bad.want) {
			t.Errorf("%q: %v", bad.new, err)
		}
	}
}

func FuzzOperations(f *testing.F) {
	f.Add("# numbers\ncuda\t1\ta\nnvml\t1\ta\tremoved\n")
	f.Add("cuda\t1\ta\ncuda\t01\tb\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseOperations(text)
		if err != nil {
			if !errors.Is(err, ErrInput) {
				t.Error(err)
			}
			return
		}
		var lines []string
		for _, o := range all {
			lines = append(lines, o.String())
		}
		again, err := parseOperations(strings.Join(lines, "\n"))
		if err != nil || !slices.Equal(all, again) {
			t.Errorf("%q became %v, %v", lines, again, err)
		}
	})
}
