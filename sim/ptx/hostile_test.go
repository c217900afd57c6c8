package ptx

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestHostileTexts: short texts that ask for much are refused, or done with, soon and with little memory.
func TestHostileTexts(t *testing.T) {
	repeat := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	var many strings.Builder
	many.WriteString("l: .branchtargets a")
	many.WriteString(strings.Repeat(", a", 50000))
	many.WriteString("; a: " + strings.Repeat("brx.idx %t, l;\n", 20000))
	for name, c := range map[string]struct{ text, refused string }{
		"gaps in initial values":   {repeat(10000, ".global .b8 x%d[2][60000000] = {{1}, {1}};\n"), "initial values"},
		"one gap":                  {".global .b8 x[2][1000000000] = {{1}, {1}};\n", "initial values"},
		"a size beyond everything": {".global .b64 x[1000000][1000000][1000000];\n", "too large"},
		"empty braces":             {".global .b8 x[] = {" + strings.Repeat("{},", 100000) + "{}};\n", "braces"},
		"branch targets":           {kernel(many.String()), "targets"},
		"kernels that may call all": {repeat(20000, ".func f%d() { ret; }\n") +
			repeat(5000, ".entry e%d() { .reg .b64 %%l; p: .callprototype _ (); call %%l, (), p; ret; }\n"), "functions"},
		"functions that may call all": {repeat(20000, ".func f%d() { .reg .b64 %%l; p: .callprototype _ (); "+
			"call %%l, (), p; ret; }\n") + ".entry e() { call f1; ret; }\n", ""},
		"deep braces":        {kernel(strings.Repeat("{", 100000)), "too deep"},
		"registers":          {kernel(repeat(1000, ".reg .b32 %%q%d_<1000000>;\n")), ""},
		"operands":           {kernel("add.u32 " + strings.Repeat("%r1, ", 100000) + "%r1;"), "operands"},
		"vectors in vectors": {kernel("mov.b64 %l1, " + strings.Repeat("{", 50000) + ";"), "nested"},
		"loops without end":  {kernel(repeat(30000, "a%d: setp.eq.u32 %%p1, %%r1, 0; @%%p1 bra a0;\n")), ""},
		"many lives": {kernel(repeat(4000, ".reg .b32 %%x%[1]d; mov.u32 %%x%[1]d, 1; b%[1]d: @%%p1 bra b%[1]d;\n") +
			repeat(4000, "add.u32 %%r0, %%r0, %%x%d; @%%p1 bra b0;\n")), ""},
		"a long number": {kernel("mov.u32 %r1, " + strings.Repeat("9", 1000000) + ";"), "number"},
		"a long name":   {kernel("mov.u32 %r1, " + strings.Repeat("x", 1000000) + ";"), "not declared"},
		"names of digits": {kernel(repeat(1000, ".reg .b32 %%z%d<3>;\n") +
			strings.Repeat("mov.u32 %r1, %z"+strings.Repeat("1", 1000)+";", 1000)), "declared"},
	} {
		hostile := func(t *testing.T, late bool) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begin := time.Now()
			mod, err := parse([]byte(header+c.text), late)
			if late && err == nil {
				for _, e := range mod.Entries {
					err = cmp.Or(err, e.Load())
				}
			}
			took := time.Since(begin)
			runtime.ReadMemStats(&after)
			if c.refused == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
			} else if !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("got %.200v", err)
			}
			// Generous, for busy machines and the race detector.
			if took > 2*time.Minute {
				t.Errorf("took %v", took)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 3<<30 {
				t.Errorf("used %d MiB", used>>20)
			}
			t.Logf("%d KiB of text: %v, %d MiB", len(c.text)>>10, took, (after.TotalAlloc-before.TotalAlloc)>>20)
		}
		t.Run(name, func(t *testing.T) { hostile(t, false) })
		t.Run(name+", read late", func(t *testing.T) { hostile(t, true) })
	}
}

// TestDeepRecursion ends for want of stack before it needs much memory.
func TestDeepRecursion(t *testing.T) {
	const text = `.func big(.param .b8 x[30000])
{
	{ .param .b8 y[30000]; call big, (y); }
	ret;
}
`
	_, err := tryThreads(t, text+kernel("{ .param .b8 y[30000]; call big, (y); }"), 1, 32, nil)
	var f *Fault
	if !errors.As(err, &f) || f.Kind != IllegalAddress || f.Message != "stack overflow" {
		t.Errorf("got %v", err)
	}
}
