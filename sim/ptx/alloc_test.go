package ptx

import (
	"fmt"
	"strings"
	"testing"
)

func TestRegisterPressure(t *testing.T) {
	// 200 registers one after the other, of which few live at once, and 40 that all live.
	var one, all strings.Builder
	for i := range 200 {
		fmt.Fprintf(&one, "add.u32 %%q%d, %%t, %d; add.u32 %%r0, %%r0, %%q%d;\n", i, i, i)
	}
	for i := range 40 {
		fmt.Fprintf(&all, "add.u32 %%q%d, %%t, %d;\n", i, i)
	}
	for i := range 40 {
		fmt.Fprintf(&all, "add.u32 %%r0, %%r0, %%q%d;\n", i)
	}
	for name, c := range map[string]struct {
		code     string
		min, max int
		want     func(i uint32) uint32
	}{
		"in a row": {".reg .b32 %q<200>;" + one.String(), 4, 16, func(i uint32) uint32 { return 200*i + 199*100 }},
		"at once":  {".reg .b32 %q<200>;" + all.String(), 40, 60, func(i uint32) uint32 { return 40*i + 39*20 }},
	} {
		text := kernel(c.code)
		mod, err := Parse([]byte(header + text))
		must(t, err)
		if r := mod.Entry("k").Registers(); r < c.min || r > c.max {
			t.Errorf("%s: %d registers", name, r)
		}
		expect(t, threads(t, text, 1, 64), c.want)
	}
}

// TestSharedPlaces: registers that share a place must not disturb each other where lanes take different ways, where a
// definition is conditional, and over the back edge of a loop.
func TestSharedPlaces(t *testing.T) {
	got := threads(t, kernel(`
	.reg .b32 %a, %b, %c, %i;
	mov.u32 %a, 1; mov.u32 %i, 0;
	and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0;
	@%p1 mov.u32 %a, 7;
top: mov.u32 %b, %i;
	@%p1 bra even;
	add.u32 %c, %b, 10; add.u32 %r0, %r0, %c; bra next;
even: mul.lo.u32 %c, %b, 3; add.u32 %r0, %r0, %c;
next: add.u32 %i, %i, 1; setp.lt.u32 %p2, %i, 5; @%p2 bra top;
	add.u32 %r0, %r0, %a;`), 1, 64)
	expect(t, got, func(i uint32) uint32 {
		if i%2 == 0 {
			return 30 + 7
		}
		return 10 + 50 + 1
	})
}
