package main

import (
	"encoding/json"
	"fmt"
	"html"
	"math"
	"strings"

	"scuda.dev/scuda/perf"
)

// inPicture are the workloads of the README's chart.
var inPicture = []struct{ text, name string }{
	{"ResNet-50, training", "ResNet-50 training b64, 10 steps"},
	{"GPT-2 small, training in bf16", "GPT-2 training bf16, 10 steps"},
	{"ResNet-50, one image at a time", "ResNet-50 inference b1, 50 times"},
	{"GPT-2 small, generating text", "GPT-2 generating 64 tokens"},
	{"CUDA graph of 60 kernels", "CUDA graph (60 kernels) replayed 100 times"},
	{"1000 × item(), each a round trip", "1000 item() of a number"},
}

// picture draws what six workloads take over scuda as multiples of their native time, from 1/4 to 4, as SVG. It suits
// light and dark pages.
func picture(b []byte) (string, error) {
	var all perf.Speed
	if err := json.Unmarshal(b, &all); err != nil {
		return "", err
	}
	const width, left, right, top, row = 760., 240., 90., 74., 34.
	x := func(ratio float64) float64 {
		return left + (width-left-right)*math.Log2(4*min(max(ratio, .25), 4))/4
	}
	height := top + row*float64(len(inPicture)) + 34
	var t strings.Builder
	fmt.Fprintf(&t, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-16 -12 %g %g" role="img" `+
		`font-family="system-ui,sans-serif" font-size="14">
<title>Time over scuda as multiples of the native time</title>
<style>
.page{fill:#fff}.ink{fill:#1f2328}.soft{fill:#59636e}.rule{stroke:#d9dee3}.one{stroke:#59636e;stroke-width:2}
.stem{stroke:#1b6ca8;stroke-width:3}.dot{fill:#1b6ca8}
@media (prefers-color-scheme:dark){.page{fill:#14181c}
.ink{fill:#e6e9ec}.soft{fill:#9aa4ae}.rule{stroke:#363d45}.one{stroke:#9aa4ae}
.stem{stroke:#64b1ee}.dot{fill:#64b1ee}}
</style>
<rect class="page" x="-16" y="-12" width="100%%" height="100%%" rx="8"/>
<text class="ink" x="0" y="18" font-size="16" font-weight="600">Time over scuda, natively 1 ×</text>
<text class="soft" x="0" y="38" font-size="12">%s</text>
`, width+32, height+20, html.EscapeString(caption(&all)))
	for _, v := range []float64{.25, .5, 1, 2, 4} {
		class, text := "rule", fmt.Sprintf("%g ×", v)
		if v == 1 {
			class = "one"
		}
		fmt.Fprintf(&t, `<line class="%s" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/>`+
			`<text class="soft" x="%.1f" y="%g" font-size="12" text-anchor="middle">%s</text>`+"\n",
			class, x(v), x(v), top, height-34, x(v), top-8, text)
	}
	for i, w := range inPicture {
		native, remote := all.Times(w.name)
		if native == 0 || remote == 0 {
			return "", fmt.Errorf("no measure %q, natively and over scuda", w.name)
		}
		ratio, y := remote/native, top+row*(float64(i)+.5)
		fmt.Fprintf(&t, `<text class="ink" x="0" y="%g">%s</text><line class="stem" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/>`+
			`<circle class="dot" cx="%.1f" cy="%g" r="6"/><text class="ink" x="%g" y="%g" text-anchor="end" `+
			`font-weight="600">%.2f ×</text>`+"\n", y+5, html.EscapeString(w.text), x(1), x(ratio), y, y,
			x(ratio), y, width-4, y+5, ratio)
	}
	fmt.Fprintf(&t, `<text class="soft" x="%.1f" y="%g" font-size="12" text-anchor="end">◂ faster than natively</text>`+
		`<text class="soft" x="%.1f" y="%g" font-size="12">slower ▸</text>`+"\n</svg>\n",
		x(1)-10, height-12, x(1)+10, height-12)
	return t.String(), nil
}

// caption says what was measured where.
func caption(s *perf.Speed) string {
	machine, _, _ := strings.Cut(s.Machine, ";")
	return machine + "; TCP over loopback; scuda " + s.Scuda + ", " + s.Date
}
